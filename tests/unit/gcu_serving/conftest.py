"""Backends with simulated cards of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.backends.gcu.backend import TopsInferenceBackend
from tests.fakes.gcu_backend import CardBench


@pytest.fixture
def bench_with(tmp_path: Path) -> Iterator[Callable[..., CardBench]]:
    """Makes a backend with the operator's settings given."""
    made: list[CardBench] = []

    def make(**settings: str) -> CardBench:
        backend = TopsInferenceBackend()
        backend.configure({"host_threads": "1", **settings})
        made.append(CardBench(tmp_path / str(len(made)), backend))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def bench(bench_with: Callable[..., CardBench]) -> CardBench:
    return bench_with()
