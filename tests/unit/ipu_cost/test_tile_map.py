"""Where tensors lie on tiles, and which moment of a schedule is the fullest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.ipu.compile.constants import VECTOR_BYTES
from stoker.backends.ipu.compile.liveness import Storage, Temporary, TileMap, TileSpan, peak

TILES = 12


@given(st.lists(st.integers(0, 5000), max_size=20), st.integers(1, 40))
def test_regions_are_spread_evenly_and_none_is_lost(sizes: list[int], tiles: int) -> None:
    places, held = TileMap(tiles), np.zeros(tiles, np.int64)
    spans = [places.place(size) for size in sizes]
    for size, span in zip(sizes, spans, strict=True):
        assert 0 <= span.total_bytes(tiles) - size < VECTOR_BYTES
        span.put(held)
    assert held.sum() == sum(span.total_bytes(tiles) for span in spans)
    assert [sum(span.on_tile(tile, tiles) for span in spans) for tile in range(tiles)] == held.tolist()
    assert held.max() - held.min() <= VECTOR_BYTES, "what is left over goes on where the last leftover ended"
    for span in spans:
        span.put(held, -1)
    assert not held.any()


def test_small_tensors_are_not_all_placed_on_the_first_tiles() -> None:
    places = TileMap(4)
    assert [places.place(VECTOR_BYTES).start for _ in range(6)] == [0, 1, 2, 3, 0, 1]


def storage(name: str, byte_count: int, first: int, last: int) -> Storage:
    return Storage(name, TileSpan(byte_count, 0, 0), first, last)


def test_fullest_moment_counts_live_data_and_running_code() -> None:
    found = peak(
        [storage("early", 100, 0, 1), storage("late", 60, 1, 3)],
        [Temporary("a", 0, TILES), Temporary("b", 10, TILES), Temporary("c", 90, 3), Temporary("d", 0, 0)],
        np.full(TILES, 1000, np.int64),
    )
    assert (found.live_bytes, found.temporary_bytes) == (160, 10)
    assert found.holders == (("early", 100), ("late", 60), ("temporary data of b", 10))
    assert found.most.tolist() == [1170] * TILES


def test_few_tiles_with_much_temporary_data_are_the_fullest() -> None:
    resident = np.zeros(TILES, np.int64)
    found = peak([storage("x", 10, 0, 1)], [Temporary("a", 5, TILES), Temporary("b", 40, 2)], resident)
    assert (found.tile, found.live_bytes, found.temporary_bytes) == (0, 10, 40)
    assert found.most.tolist() == [50, 50] + [15] * (TILES - 2), "each tile at its own fullest moment"
    assert not resident.any(), "what was given is not changed"


def test_plan_without_a_schedule_counts_only_the_resident_data() -> None:
    found = peak([], [], np.array([3, 7], np.int64))
    assert (found.tile, found.live_bytes, found.temporary_bytes, found.holders) == (1, 0, 0, ())


REGIONS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4), st.integers(0, 4)), max_size=8)


@given(REGIONS, st.lists(st.integers(0, 50), min_size=5, max_size=5))
def test_peak_equals_that_of_the_schedule_simulated_step_by_step(regions: list[tuple[int, int, int]], temporary: list[int]) -> None:
    storages = [storage(str(at), size, min(a, b), max(a, b)) for at, (size, a, b) in enumerate(regions)]
    found = peak(storages, [Temporary("n", size, TILES) for size in temporary], np.zeros(TILES, np.int64))
    walked = [sum(each.span.even_bytes for each in storages if each.first <= at <= each.last) + size for at, size in enumerate(temporary)]
    assert found.live_bytes + found.temporary_bytes == max(walked) == found.most.max()
