"""When freed memory is given back, and that it is."""

import asyncio
import ctypes
import itertools
import threading
from pathlib import Path

import pytest

from stoker.server.tuning.constants import TRIM_WORK_S
from stoker.server.tuning.heap_trim import IdleHeapTrim, trim_function, trim_when_idle

STATM = Path("/proc/self/statm")
PAGE_BYTES = 4096


def test_heap_is_trimmed_once_for_every_idle_time_after_work():
    watch = IdleHeapTrim()
    assert not watch.is_due(10.0, 5.0, is_quiet=True), "works"
    assert watch.is_due(10.1, 5.0, is_quiet=True)
    assert not watch.is_due(10.2, 5.0, is_quiet=True), "nothing was done since"
    assert not watch.is_due(13.0, 5.0, is_quiet=True), "works"
    assert watch.is_due(13.1, 5.0, is_quiet=True)


def test_trim_waits_for_work_in_flight_however_small():
    watch = IdleHeapTrim()
    watch.is_due(10.0, 5.0, is_quiet=True)
    assert not watch.is_due(10.0, 5.0, is_quiet=False)
    assert watch.is_due(10.0, 5.0, is_quiet=True)


def test_pending_trim_runs_however_little_was_done():
    watch = IdleHeapTrim()
    assert not watch.is_due(0.1, 5.0, is_quiet=True)
    assert not watch.is_due(0.2, 5.0, is_quiet=False, is_forced=True)
    assert watch.is_due(0.2, 5.0, is_quiet=True, is_forced=True)


def test_small_amounts_of_work_add_up():
    watch = IdleHeapTrim()
    due = [watch.is_due(0.1 * turn, 5.0, is_quiet=True) for turn in range(1, 12)]
    assert due.count(True) == 2
    assert not IdleHeapTrim().is_due(TRIM_WORK_S / 2, 60.0, is_quiet=True)


def test_loop_continues_during_the_trim():
    trimmed_by: list[threading.Thread] = []

    async def run() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def trim() -> None:
            trimmed_by.append(threading.current_thread())
            loop.call_soon_threadsafe(done.set)

        task = asyncio.create_task(trim_when_idle(trim, lambda: True, period_s=0.001, cpu_s=lambda: 1.0))
        await asyncio.wait_for(done.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert len(trimmed_by) == 1
    assert trimmed_by[0] is not threading.main_thread()


def test_system_without_a_free_thread_is_tried_again_at_the_next_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = 1
    start = threading.Thread.start

    def refuse_first(thread: threading.Thread) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    async def run() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        used_s = itertools.count(1)
        monkeypatch.setattr(threading.Thread, "start", refuse_first)
        # Time enough has passed between two looks for a processor second to be rest.
        watched = trim_when_idle(
            lambda: loop.call_soon_threadsafe(done.set), lambda: True, period_s=0.001, cpu_s=lambda: float(next(used_s))
        )
        monkeypatch.setattr("stoker.server.tuning.heap_trim.TRIM_IDLE_SHARE", 1e9)
        task = asyncio.create_task(watched)
        await asyncio.wait_for(done.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert refusals == 0


@pytest.mark.skipif(trim_function() is None or not STATM.exists(), reason="no glibc")
def test_pages_below_used_memory_are_returned_to_the_system():
    trim = trim_function()
    assert trim is not None
    trim()
    blocks = [bytearray(b"x") * 100_000 for _ in range(400)]
    kept = blocks.pop()
    blocks.clear()
    before_bytes = _resident_bytes()
    trim()
    assert before_bytes - _resident_bytes() > 30_000_000
    assert len(kept) == 100_000


def _resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * PAGE_BYTES


@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_another_allocator_is_not_trimmed(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    def load(_name: object) -> None:
        raise error("no such thing here")

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert trim_function() is None
