"""The plan of merged batches: pure, with time as a number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.ipu.runtime.dynamic_batcher import Batch, BatchPlan, BatchTimeouts

TEN = BatchTimeouts(partial_ns=10, data_parallel_ns=10)


def pieces(batch: Batch[str]) -> list[tuple[str, int, int, int]]:
    return [(piece.request, piece.start, piece.stop, piece.offset) for piece in batch.pieces]


def test_one_four_and_seven_rows_fill_three_batches_of_four() -> None:
    plan: BatchPlan[str] = BatchPlan(4, TEN)

    assert plan.add("one", 1, 0) == []
    assert [pieces(batch) for batch in plan.add("four", 4, 1)] == [[("four", 0, 4, 0)]]
    assert [pieces(batch) for batch in plan.add("seven", 7, 2)] == [[("seven", 0, 4, 0)], [("one", 0, 1, 0), ("seven", 4, 7, 1)]]
    assert plan.due_ns() is None


def test_remaining_rows_are_due_a_timeout_after_their_batch_was_opened() -> None:
    plan: BatchPlan[str] = BatchPlan(4, TEN)
    plan.add("a", 1, 100)
    plan.add("b", 2, 105)

    assert plan.due_ns() == 110
    assert plan.take().rows == 3
    assert plan.due_ns() is None


def test_request_is_split_over_the_open_batch_and_the_next() -> None:
    plan: BatchPlan[str] = BatchPlan(4, TEN)
    plan.add("a", 3, 0)

    (full,) = plan.add("b", 2, 7)
    assert pieces(full) == [("a", 0, 3, 0), ("b", 0, 1, 3)]
    assert plan.due_ns() == 17
    assert pieces(plan.take()) == [("b", 1, 2, 0)]


def test_open_batch_without_a_timeout_is_never_due() -> None:
    plan: BatchPlan[str] = BatchPlan(4, BatchTimeouts(partial_ns=None, data_parallel_ns=None))
    plan.add("a", 3, 0)

    assert plan.due_ns() is None


def test_complete_batches_of_some_replicas_wait_for_the_others_with_a_separate_timeout() -> None:
    plan: BatchPlan[str] = BatchPlan(4, BatchTimeouts(partial_ns=10, data_parallel_ns=1000), replicas=2)

    plan.add("half a replica", 1, 0)
    assert plan.due_ns() == 10
    plan.add("the other half", 1, 1)
    assert plan.due_ns() == 1000
    plan.add("half of the second", 1, 2)
    assert plan.due_ns() == 10


@pytest.mark.parametrize(("capacity", "replicas"), [(0, 1), (4, 3), (4, 0)])
def test_batches_that_cannot_be_shared_are_refused(capacity: int, replicas: int) -> None:
    with pytest.raises(ValueError, match=rf"{capacity} rows cannot be shared by {replicas} replicas"):
        BatchPlan(capacity, TEN, replicas=replicas)


@given(st.integers(1, 6), st.lists(st.integers(1, 20), max_size=20))
def test_every_row_is_placed_once_in_order_and_the_number_of_pieces_is_predicted(capacity: int, sizes: list[int]) -> None:
    plan: BatchPlan[int] = BatchPlan(capacity, TEN)
    foretold, batches = [], []
    for request, size in enumerate(sizes):
        foretold.append(plan.count_pieces(size))
        batches += plan.add(request, size, request)
    assert all(batch.rows == capacity for batch in batches)
    batches.append(plan.take())

    assert batches[-1].rows < capacity
    found: dict[int, list[int]] = {request: [] for request in range(len(sizes))}
    counts = [0] * len(sizes)
    for batch in batches:
        offset = 0
        for piece in batch.pieces:
            assert piece.offset == offset
            offset += piece.rows
            found[piece.request] += range(piece.start, piece.stop)
            counts[piece.request] += 1
        assert offset == batch.rows
    assert counts == foretold
    assert {request: sorted(each) for request, each in found.items()} == {request: [*range(size)] for request, size in enumerate(sizes)}
