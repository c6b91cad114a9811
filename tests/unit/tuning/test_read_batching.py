"""Requests run at the end of their read while one connection alone sends, and in a later turn of the loop while several do."""

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from stoker.backends.api.clock import SystemClock
from stoker.server.core.timers import LoopTimers
from stoker.server.tuning.constants import SINGLE_CONNECTION_READS
from stoker.server.tuning.read_batching import Reads


class Reader:
    """A connection."""


def read(reads: Reads, reader: object, callback: Callable[[], None] = lambda: None) -> bool:
    """One read, which puts off `callback`; whether that was kept for its end."""
    reads.begin(reader)
    try:
        return reads.defer(callback)
    finally:
        reads.end()


def alone(reader: object) -> Reads:
    """As many reads of `reader` as it takes to count as single."""
    reads = Reads()
    for _ in range(SINGLE_CONNECTION_READS + 1):
        assert not read(reads, reader)
    return reads


def test_requests_in_the_read_of_a_single_connection_run_at_its_end_in_order():
    done: list[int] = []
    reader = Reader()
    reads = alone(reader)
    reads.begin(reader)
    assert reads.defer(lambda: done.append(1))
    assert reads.defer(lambda: done.append(2))
    assert done == []
    reads.end()
    assert done == [1, 2]
    reads.end()
    assert done == [1, 2]


def test_read_of_another_connection_ends_the_single_state():
    first, second = Reader(), Reader()
    reads = alone(first)
    assert read(reads, first)
    assert not read(reads, second)
    assert not any(read(reads, each) for _ in range(50) for each in (first, second))
    assert [read(reads, second) for _ in range(SINGLE_CONNECTION_READS + 1)] == [False] * SINGLE_CONNECTION_READS + [True]


def test_nothing_is_deferred_while_more_received_bytes_are_unread():
    first, second = Reader(), Reader()
    reads = alone(first)
    reads.begin(first, is_whole=False)
    assert not reads.defer(lambda: pytest.fail("kept"))
    reads.end()
    assert read(reads, first)
    # Such a read of another connection counts as any.
    reads.begin(second, is_whole=False)
    reads.end()
    assert not read(reads, first)


def test_nothing_is_deferred_outside_a_read():
    assert not alone(Reader()).defer(lambda: pytest.fail("kept"))


def test_calls_deferred_at_the_end_wait_for_the_loop():
    reader = Reader()
    reads = alone(reader)
    kept: list[bool] = []
    read(reads, reader, lambda: kept.append(reads.defer(lambda: pytest.fail("kept"))))
    assert kept == [False]


def test_exception_at_the_end_of_a_read_does_not_stop_other_calls(caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        raise ValueError("broken")

    done: list[int] = []
    reader = Reader()
    reads = alone(reader)
    reads.begin(reader)
    assert reads.defer(fail)
    assert reads.defer(lambda: done.append(1))
    reads.end()
    assert done == [1]
    assert "broken" in caplog.text


def test_no_connection_is_held_in_memory():
    reader = Reader()
    alone_reads = alone(reader)
    gone = weakref.ref(reader)
    del reader
    gc.collect()
    assert gone() is None
    assert not alone_reads.defer(lambda: None)


def test_timers_run_at_the_end_of_a_single_read_and_otherwise_in_the_next_turn():
    async def scenario() -> None:
        first, second, done = Reader(), Reader(), list[str]()
        reads = alone(first)
        timers = LoopTimers(asyncio.get_running_loop(), SystemClock(), reads.defer)
        reads.begin(first)
        timers.call_soon(lambda: done.append("lone"))
        reads.end()
        assert done == ["lone"]
        reads.begin(second)
        timers.call_soon(lambda: done.append("of several"))
        reads.end()
        assert done == ["lone"]
        await asyncio.sleep(0)
        assert done == ["lone", "of several"]
        timers.call_soon(lambda: done.append("outside"))
        await asyncio.sleep(0)
        assert done == ["lone", "of several", "outside"]

    asyncio.run(scenario())
