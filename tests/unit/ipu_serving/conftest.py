"""Backends with simulated IPUs of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.backends.ipu.backend import PoplarBackend
from tests.fakes.ipu_backend import Bench


@pytest.fixture
def bench_with(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a backend with these operator settings; four IPUs by default."""
    made: list[Bench] = []

    def make(**settings: str) -> Bench:
        backend = PoplarBackend()
        backend.configure({"sim_num_IPUs": "4", **settings})
        made.append(Bench(tmp_path / str(len(made)), backend))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def bench(bench_with: Callable[..., Bench]) -> Bench:
    return bench_with()
