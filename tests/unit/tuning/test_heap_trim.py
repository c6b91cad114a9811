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


def test_it_is_given_back_once_for_every_rest_after_work():
    watch = IdleHeapTrim()
    assert not watch.is_due(10.0, 5.0, is_quiet=True), "works"
    assert watch.is_due(10.1, 5.0, is_quiet=True)
    assert not watch.is_due(10.2, 5.0, is_quiet=True), "nothing was done since"
    assert not watch.is_due(13.0, 5.0, is_quiet=True), "works"
    assert watch.is_due(13.1, 5.0, is_quiet=True)


def test_what_is_in_work_is_waited_for_however_little_it_takes():
    watch = IdleHeapTrim()
    watch.is_due(10.0, 5.0, is_quiet=True)
    assert not watch.is_due(10.0, 5.0, is_quiet=False)
    assert watch.is_due(10.0, 5.0, is_quiet=True)


def test_what_is_owed_is_given_back_however_little_was_done():
    watch = IdleHeapTrim()
    assert not watch.is_due(0.1, 5.0, is_quiet=True)
    assert not watch.is_due(0.2, 5.0, is_quiet=False, is_forced=True)
    assert watch.is_due(0.2, 5.0, is_quiet=True, is_forced=True)


def test_little_work_at_a_time_adds_up():
    watch = IdleHeapTrim()
    due = [watch.is_due(0.1 * turn, 5.0, is_quiet=True) for turn in range(1, 12)]
    assert due.count(True) == 2
    assert not IdleHeapTrim().is_due(TRIM_WORK_S / 2, 60.0, is_quiet=True)


def test_the_loop_goes_on_while_memory_is_given_back():
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


def test_a_system_without_room_for_a_thread_is_asked_again_at_the_next_rest(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_pages_below_what_is_in_use_go_back_to_the_system():
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
def test_another_allocator_is_left_alone(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    def load(_name: object) -> None:
        raise error("no such thing here")

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert trim_function() is None
