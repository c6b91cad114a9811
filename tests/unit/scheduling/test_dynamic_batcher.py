"""The batcher's rules, one by one, and rules for every queue."""

from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.server.core.model_config import DynamicBatching, QueuePolicy
from stoker.server.scheduling.queue import DynamicBatcher, QueueEntry, RequestQueue, Wait

US = 1_000


def filled(*rows: int, shapes: str | None = None, at: int = 0) -> RequestQueue[QueueEntry]:
    queue: RequestQueue[QueueEntry] = RequestQueue(levels=1, default_policy=QueuePolicy(), policies={}, max_size=10_000)
    for index, count in enumerate(rows):
        key = shapes[index] if shapes else "a"
        queue.push(QueueEntry(rows=count, shape_key=key, level=1, enqueued_ns=at))
    return queue


def taken(batch: object) -> list[int]:
    assert isinstance(batch, list)
    return [entry.rows for entry in batch]


def shapes_of(batch: object) -> list[Hashable]:
    assert isinstance(batch, list)
    return [entry.shape_key for entry in batch]


def batcher(max_batch_size: int = 8, preferred: tuple[int, ...] = (), delay_us: int = 0) -> DynamicBatcher:
    return DynamicBatcher(max_batch_size, DynamicBatching(preferred_batch_sizes=preferred, max_queue_delay_us=delay_us))


def test_empty_queue_returns_nothing():
    assert batcher().next_batch(filled(), 0) is None


def test_requests_without_a_batching_block_run_alone():
    queue = filled(1, 1, 2)
    alone = DynamicBatcher(8, None)
    assert [taken(alone.next_batch(queue, 0)) for _ in range(3)] == [[1], [1], [2]]


def test_model_without_batch_dimension_never_batches():
    assert taken(DynamicBatcher(0, DynamicBatching()).next_batch(filled(1, 1), 0)) == [1]


def test_batch_without_a_delay_contains_all_queued_requests():
    assert taken(batcher().next_batch(filled(1, 1, 1), 0)) == [1, 1, 1]


def test_batch_counts_rows_and_never_exceeds_the_maximum_or_splits_a_request():
    queue = filled(3, 3, 3)
    assert taken(batcher().next_batch(queue, 0)) == [3, 3]
    assert taken(batcher().next_batch(queue, 0)) == [3]


def test_request_larger_than_the_remaining_rows_is_skipped_and_runs_next():
    queue = filled(5, 6, 2)
    assert taken(batcher().next_batch(queue, 0)) == [5, 2]
    assert taken(batcher().next_batch(queue, 0)) == [6]


def test_other_shapes_are_not_mixed_in_and_the_head_runs_first():
    queue = filled(1, 1, 1, 1, shapes="abab")
    assert shapes_of(batcher().next_batch(queue, 0)) == ["a", "a"]
    assert shapes_of(batcher().next_batch(queue, 0)) == ["b", "b"]


def test_batch_with_a_delay_waits_for_the_delay_of_its_oldest_request():
    queue = filled(1, 1, at=1_000 * US)
    waiting = batcher(delay_us=500)
    assert waiting.next_batch(queue, 1_100 * US) == Wait(1_500 * US)
    assert len(queue) == 2
    assert taken(waiting.next_batch(queue, 1_500 * US)) == [1, 1]


def test_full_batch_does_not_wait_for_the_delay():
    assert taken(batcher(delay_us=500).next_batch(filled(4, 4, 1), 0)) == [4, 4]


def test_batch_that_cannot_take_the_next_request_does_not_wait():
    assert taken(batcher(delay_us=500).next_batch(filled(5, 4), 0)) == [5]


@pytest.mark.parametrize(("rows", "first"), [((1, 1, 1, 1), [1, 1, 1, 1]), ((1, 1, 1, 1, 1, 1), [1, 1, 1, 1]), ((4,), [4])])
def test_preferred_size_is_sent_at_once(rows, first):
    assert taken(batcher(preferred=(4,), delay_us=500).next_batch(filled(*rows), 0)) == first


def test_largest_preferred_size_reached_wins():
    assert taken(batcher(preferred=(2, 4)).next_batch(filled(1, 1, 1, 1, 1), 0)) == [1, 1, 1, 1]


def test_delay_decides_below_every_preferred_size():
    queue = filled(1, 1, at=0)
    waiting = batcher(preferred=(4,), delay_us=10)
    assert waiting.next_batch(queue, 0) == Wait(10 * US)
    assert taken(waiting.next_batch(queue, 10 * US)) == [1, 1]


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 8), st.sampled_from("abc")), min_size=1, max_size=40),
    preferred=st.sets(st.integers(1, 8), max_size=3),
    delay_us=st.sampled_from([0, 100]),
)
def test_every_request_leaves_once_unsplit_with_requests_of_its_shape(rows, preferred, delay_us):
    queue = filled(*[count for count, _ in rows], shapes="".join(key for _, key in rows))
    waiting = list(queue)
    forming = batcher(preferred=tuple(sorted(preferred)), delay_us=delay_us)
    gone: list[QueueEntry] = []
    while len(queue):
        head = next(iter(queue))
        batch = forming.next_batch(queue, 0)
        if isinstance(batch, Wait):
            batch = forming.next_batch(queue, batch.until_ns)
        assert isinstance(batch, list)
        assert batch[0] is head
        assert sum(each.rows for each in batch) <= 8
        assert {each.shape_key for each in batch} == {head.shape_key}
        gone += batch
    assert sorted(map(id, gone)) == sorted(map(id, waiting))
