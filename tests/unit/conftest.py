"""Fixtures of every unit test."""

from collections.abc import Iterator

import pytest

from tests.fakes.certificate_bundle import empty_bundle
from tests.fakes.child_processes import Children, child_processes


@pytest.fixture(scope="module", autouse=True)
def no_authority_of_the_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from empty_bundle(tmp_path_factory.getbasetemp())


@pytest.fixture
def children() -> Iterator[Children]:
    """Starts child processes, which end with the test."""
    with child_processes() as started:
        yield started
