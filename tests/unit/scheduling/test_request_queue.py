"""The request queue: order, bounds, timeouts; and a model it is held against."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.api.errors import Overloaded
from stoker.server.core.model_config import QueuePolicy, TimeoutAction
from stoker.server.scheduling.queue import QueueEntry, RequestQueue

MS = 1_000_000


def queue_of(levels: int = 1, max_size: int = 100, policies: dict[int, QueuePolicy] | None = None, **policy: object) -> RequestQueue:
    default = QueuePolicy(**policy)  # type: ignore[arg-type]
    return RequestQueue(levels=levels, default_policy=default, policies=policies or {}, max_size=max_size)


def entry(level: int = 1, rows: int = 1, at: int = 0, timeout: int | None = None, deadline: int | None = None) -> QueueEntry:
    return QueueEntry(rows=rows, shape_key=(), level=level, enqueued_ns=at, timeout_ns=timeout, deadline_ns=deadline)


def test_lower_levels_are_first_with_arrival_order_within_one():
    queue = queue_of(levels=2)
    late, first, second = entry(2), entry(1), entry(1)
    for each in (late, first, second):
        queue.push(each)
    assert list(queue) == [first, second, late]


def test_full_level_refuses_and_other_levels_accept():
    queue = queue_of(levels=2, policies={1: QueuePolicy(max_queue_size=1)})
    queue.push(entry(1))
    with pytest.raises(Overloaded, match="Exceeds maximum queue size: 1 request"):
        queue.push(entry(1))
    queue.push(entry(2))
    assert len(queue) == 2


def test_server_wide_bound_refuses_on_every_level():
    queue = queue_of(levels=2, max_size=2)
    queue.push(entry(1))
    queue.push(entry(2))
    with pytest.raises(Overloaded, match="the server's bound"):
        queue.push(entry(2))


def test_removed_entry_frees_its_slot_at_once():
    queue = queue_of(max_size=1)
    waiting = entry(rows=3)
    queue.push(waiting)
    assert queue.rows == 3
    assert queue.remove(waiting)
    assert not queue.remove(waiting)
    assert (len(queue), queue.rows) == (0, 0)
    queue.push(entry())


def test_queue_that_is_one_batch_is_taken_at_once():
    queue = queue_of()
    entries = [entry(rows=2), entry(rows=3, timeout=5 * MS)]
    for each in entries:
        queue.push(each)
    assert queue.take_all(4) is None
    assert queue.take_all(5) == entries
    assert (len(queue), queue.rows, list(queue)) == (0, 0, [])
    assert (queue.expire(9 * MS), queue.next_expiry_ns(), queue.take_all(5)) == ([], None, None)


def test_queue_of_different_levels_shapes_or_delays_is_not_taken_at_once():
    levels, shapes, delays = queue_of(levels=2), queue_of(), queue_of(timeout_action=TimeoutAction.DELAY)
    levels.push(entry(2))
    for key in ((1,), (2,)):
        shapes.push(QueueEntry(rows=1, shape_key=key, level=1, enqueued_ns=0))
    delays.push(entry(timeout=MS))
    assert delays.expire(2 * MS) == []
    assert [queue.take_all(8) for queue in (levels, shapes, delays)] == [None, None, None]
    assert [len(queue) for queue in (levels, shapes, delays)] == [1, 2, 1]


def test_first_entry_is_taken_in_queue_order_with_its_rows_and_times():
    queue = queue_of()
    entries = [entry(rows=2), entry(rows=3, timeout=5 * MS)]
    for each in entries:
        queue.push(each)
    assert queue.take_first() is entries[0]
    assert (len(queue), queue.rows, list(queue)) == (1, 3, [entries[1]])
    assert queue.take_first() is entries[1]
    assert (queue.rows, queue.expire(9 * MS), queue.next_expiry_ns(), queue.take_first()) == (0, [], None, None)


def test_first_entry_of_levels_or_delayed_entries_is_that_of_the_iteration():
    levels, delays = queue_of(levels=2), queue_of(timeout_action=TimeoutAction.DELAY)
    low, high = entry(2), entry(1)
    levels.push(low)
    levels.push(high)
    overdue, other = entry(timeout=MS), entry()
    delays.push(overdue)
    delays.push(other)
    assert delays.expire(2 * MS) == []
    assert [levels.take_first(), levels.take_first(), levels.take_first()] == [high, low, None]
    assert [delays.take_first(), delays.take_first(), delays.take_first()] == [other, overdue, None]


def test_first_entry_is_left_if_it_differs_from_the_one_to_follow():
    queue, levels = queue_of(), queue_of(levels=2)
    entries = [QueueEntry(rows=rows, shape_key=key, level=1, enqueued_ns=0) for rows, key in ((1, (2,)), (1, (3,)), (2, (3,)))]
    for each in entries:
        queue.push(each)
        levels.push(each)
    assert [queue.take_first(entries[1]), queue.take_first(entries[0]), queue.take_first(entries[0])] == [None, entries[0], None]
    assert [queue.take_first(entries[1]), queue.take_first(entries[1])] == [entries[1], None]
    assert levels.take_first(entries[0]) is None
    assert (len(queue), len(levels)) == (1, 3)


def test_expired_entry_is_rejected():
    queue = queue_of()
    short, long = entry(timeout=5 * MS), entry(timeout=9 * MS)
    queue.push(short)
    queue.push(long)
    assert queue.next_expiry_ns() == 5 * MS
    assert queue.expire(5 * MS - 1) == []
    assert queue.expire(5 * MS) == [short]
    assert list(queue) == [long]


def test_expired_entry_under_delay_moves_behind_its_level_but_before_the_next():
    queue = queue_of(levels=2, timeout_action=TimeoutAction.DELAY)
    overdue, other, lower = entry(1, timeout=5 * MS), entry(1), entry(2)
    for each in (overdue, other, lower):
        queue.push(each)
    assert queue.expire(6 * MS) == []
    assert list(queue) == [other, overdue, lower]
    assert queue.remove(overdue)


def test_deadline_ends_a_delayed_entry_too():
    queue = queue_of(timeout_action=TimeoutAction.DELAY)
    doomed = entry(timeout=2 * MS, deadline=4 * MS)
    queue.push(doomed)
    assert queue.expire(3 * MS) == []
    assert queue.next_expiry_ns() == 4 * MS
    assert queue.expire(4 * MS) == [doomed]


def test_removed_entry_is_not_kept_until_its_expiry():
    queue = queue_of()
    passing = entry(timeout=10**15, deadline=10**15)
    before = sys.getrefcount(passing)
    queue.push(passing)
    queue.remove(passing)
    assert sys.getrefcount(passing) == before
    queue.push(passing)
    assert queue.take_all(9) == [passing]
    assert sys.getrefcount(passing) == before


def test_expiry_heap_does_not_grow_with_removed_entries():
    queue = queue_of(max_size=10)
    for _ in range(2_000):
        passing = entry(timeout=10**15)
        queue.push(passing)
        queue.remove(passing)
    assert len(queue.timed) <= 128


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(1, 3), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 30))),
            st.tuples(st.just("remove"), st.integers(0, 10)),
            st.tuples(st.just("pass"), st.integers(1, 10)),
        ),
        max_size=60,
    )
)
def test_every_entry_is_waiting_removed_or_expired_exactly_once(steps):
    queue = queue_of(levels=3, max_size=8)
    now = 0
    waiting: list[QueueEntry] = []
    gone: list[QueueEntry] = []
    for step in steps:
        if step[0] == "push":
            fresh = entry(step[1], rows=step[2], at=now, timeout=None if step[3] is None else now + step[3])
            if len(waiting) < 8:
                queue.push(fresh)
                waiting.append(fresh)
            else:
                with pytest.raises(Overloaded):
                    queue.push(fresh)
        elif step[0] == "remove" and waiting:
            leaving = waiting.pop(step[1] % len(waiting))
            assert queue.remove(leaving)
            gone.append(leaving)
        elif step[0] == "pass":
            now += step[1]
            expired = queue.expire(now)
            assert {id(e) for e in expired} == {id(e) for e in waiting if e.timeout_ns is not None and e.timeout_ns <= now}
            waiting = [e for e in waiting if e not in expired]
            gone += expired
        assert list(queue) == sorted(waiting, key=lambda e: (e.level, e.sequence))
        assert queue.rows == sum(e.rows for e in waiting)
    assert all(not queue.remove(e) for e in gone)
