"""The placement of instances on clusters and cards, and the refusals when there are not enough."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.tensor import DataType
from stoker.backends.devices.pool import Lease
from stoker.backends.gcu.serving.placement import ClusterAllocator, Placement
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.gcu_backend import CardBench, output_of
from tests.fakes.gcu_served import doubling

SERVED = same_in_and_out(DataType.FP32, max_batch_size=4)
ONES = np.ones((1, 2), np.float32)
GIB = 1 << 30


def take(allocator: ClusterAllocator, model: str = "m", *, card: int | None = 0, siblings: int = 1, wanted: int | None = None) -> Placement:
    return allocator.take(Lease(model, 1), card=card, siblings=siblings, wanted=wanted)


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [
        (1, [(0, 1, 2, 3, 4, 5)]),
        (2, [(0, 1, 2), (3, 4, 5)]),
        (3, [(0, 1), (2, 3), (4, 5)]),
        (4, [(0,), (1,), (2,), (3,)]),
        (6, [(0,), (1,), (2,), (3,), (4,), (5,)]),
    ],
)
def test_instances_of_a_version_divide_the_clusters_of_their_card(siblings: int, expected: list[tuple[int, ...]]) -> None:
    allocator = ClusterAllocator(1, 6)
    assert [take(allocator, siblings=siblings).clusters for _ in range(siblings)] == expected


def test_more_instances_than_clusters_are_refused() -> None:
    allocator = ClusterAllocator(1, 6)
    for _ in range(6):
        take(allocator, siblings=7)
    with pytest.raises(ModelLoadError, match="version 1 of 'm' needs 1 cluster of card 0, which has 6, 0 of them without another instance"):
        take(allocator, siblings=7)


def test_models_share_clusters_and_get_the_least_used_first() -> None:
    allocator = ClusterAllocator(1, 6)
    assert take(allocator, "a", wanted=2).clusters == (0, 1)
    assert take(allocator, "b", wanted=3).clusters == (2, 3, 4)
    assert take(allocator, "c", wanted=2).clusters == (0, 5)
    assert [allocator.crowd(0, cluster) for cluster in range(6)] == [2, 1, 1, 1, 1, 1]


def test_unspecified_card_is_the_one_with_most_free_memory() -> None:
    allocator = ClusterAllocator(2, 6)
    take(allocator, "a", card=0)
    placements = [take(allocator, "b", card=None, siblings=3) for _ in range(3)]
    assert [(place.card, len(place.clusters)) for place in placements] == [(1, 3), (0, 3), (1, 3)]


def test_lost_card_gets_no_new_instance() -> None:
    allocator = ClusterAllocator(2, 6)
    lost = frozenset({0})
    assert allocator.take(Lease("m", 1), card=None, siblings=1, wanted=None, unusable=lost).card == 1
    with pytest.raises(ModelLoadError, match="card 0 is lost"):
        allocator.take(Lease("m", 1), card=0, siblings=1, wanted=None, unusable=lost)
    with pytest.raises(ModelLoadError, match="all 2 cards are lost"):
        allocator.take(Lease("m", 1), card=None, siblings=1, wanted=None, unusable=frozenset({0, 1}))


@given(
    cards=st.integers(1, 3),
    clusters=st.integers(1, 6),
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.booleans()), max_size=20),
)
def test_two_instances_of_a_version_never_share_a_cluster(cards: int, clusters: int, steps: list[tuple[str, int, bool]]) -> None:
    allocator = ClusterAllocator(cards, clusters)
    held: list[Placement] = []
    for model, wanted, leaves in steps:
        if leaves and held:
            allocator.release(held.pop(0))
        own = [(place.card, cluster) for place in held for cluster in place.clusters if place.lease.model == model]
        max_buffer = max(clusters - sum(card == number for card, _ in own) for number in range(cards))
        if max_buffer < wanted:
            with pytest.raises(ModelLoadError, match=f"an instance of version 1 of '{model}' needs"):
                take(allocator, model, card=None, wanted=wanted)
        else:
            held.append(take(allocator, model, card=None, wanted=wanted))
            assert len(held[-1].clusters) == wanted
        assert set(allocator.placements) == set(held)
        pairs = [(place.card, cluster, place.lease) for place in held for cluster in place.clusters]
        assert len(pairs) == len(set(pairs))
        assert all(0 <= card < cards and 0 <= cluster < clusters for card, cluster, _ in pairs)


def test_instances_run_in_parallel_on_separate_clusters(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(cards="2")
    first, second = (bench.load(doubling(), SERVED, card=1, siblings=2) for _ in range(2))
    for _ in range(3):
        output_of(first, ONES)
    output_of(second, ONES)
    busy = [bench.figure("stoker_gcu_cluster_busy_seconds_total", card="1", cluster=str(number)) for number in range(6)]
    assert busy == pytest.approx([1e-3] * 3 + [1e-3 / 3] * 3, rel=1e-4)
    assert bench.figure("stoker_gcu_cluster_busy_seconds_total", card="0") == 0
    assert bench.figure("stoker_gcu_runs_total", card="1", compiled_batch="1") == 4
    [notice] = bench.backend.notices()
    assert notice.startswith("'model' on 2 simulated i20 cards with 6 clusters each (runtime: simulated, Stoker ")


def test_models_that_share_clusters_are_reported(bench: CardBench) -> None:
    bench.load(doubling(), SERVED, name="one")
    bench.load(doubling(), SERVED, name="two", clusters="2")
    [_, note] = bench.backend.notices()
    assert note.startswith("'one', 'two' share clusters 0, 1 of simulated card 0, where their runs take turns")


def test_model_that_exceeds_the_memory_is_rejected_and_affects_no_other(bench: CardBench) -> None:
    small = bench.load(doubling(), SERVED, name="small")
    large = doubling(workspace_bytes=9 * GIB)
    first = bench.load(large, SERVED, name="large")
    used, streams = bench.figure("stoker_gcu_hbm_used_bytes"), bench.figure("stoker_gcu_streams")
    with pytest.raises(
        ModelLoadError, match=r"cannot be loaded to simulated card 0, clusters 0, .*TIF_ALLOCATE_FAILED.*cards=N adds cards"
    ):
        bench.load(large, SERVED, name="larger")
    assert (bench.figure("stoker_gcu_hbm_used_bytes"), bench.figure("stoker_gcu_streams")) == (used, streams)
    assert bench.figure("stoker_gcu_cluster_instances", cluster="0") == 2
    assert [output_of(each, ONES).tolist() for each in (small, first)] == [[[2, 2]], [[2, 2]]]
    bench.unload(first)
    assert output_of(bench.load(large, SERVED, name="larger"), ONES).tolist() == [[2, 2]]


def test_buffers_that_exceed_the_memory_leak_nothing(bench: CardBench) -> None:
    served = same_in_and_out(DataType.FP32, max_batch_size=GIB // 8)  # two slots of two buffers of 1 GiB
    for number in range(3):
        bench.load(doubling(), served, name=f"m{number}")
    used = bench.figure("stoker_gcu_hbm_used_bytes")
    with pytest.raises(ModelLoadError, match="TIF_ALLOCATE_FAILED"):
        bench.load(doubling(), served, name="m3")
    assert bench.figure("stoker_gcu_hbm_used_bytes") == used


def test_file_is_read_once_for_all_instances_of_a_version(bench: CardBench) -> None:
    request = bench.request(doubling(), SERVED, siblings=2)
    first, second = bench.backend.load(request), bench.backend.load(request)
    assert first.loaded._executable is second.loaded._executable  # type: ignore[attr-defined]
    first.close()
    assert output_of(second, ONES).tolist() == [[2, 2]]
    second.close()
    assert bench.backend.runtime.pool is not None
    assert bench.backend.runtime.pool.open_files == frozenset()
