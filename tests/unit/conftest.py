"""Fixtures of every unit test."""

from collections.abc import Iterator

import pytest

from tests.fakes.certificate_bundle import empty_bundle


@pytest.fixture(scope="module", autouse=True)
def no_authority_of_the_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from empty_bundle(tmp_path_factory.getbasetemp())
