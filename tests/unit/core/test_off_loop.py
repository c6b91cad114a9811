"""Blocking work off the event loop: what a cancelled caller waits for."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.server.core.tasks import run_off_loop


def test_cancelled_caller_waits_for_work_that_has_begun() -> None:
    async def scenario() -> None:
        begun, proceed = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            assert proceed.wait(30)

        caller = asyncio.ensure_future(run_off_loop(work))
        await asyncio.to_thread(begun.wait, 30)
        caller.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not caller.done(), "the work still uses its memory"
        proceed.set()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(scenario())


def test_cancelled_caller_does_not_wait_for_work_that_has_not_begun() -> None:
    async def scenario() -> None:
        begun, proceed, ran = threading.Event(), threading.Event(), threading.Event()
        pool = ThreadPoolExecutor(max_workers=1)
        asyncio.get_running_loop().set_default_executor(pool)

        def occupy() -> None:
            begun.set()
            assert proceed.wait(30)

        pool.submit(occupy)
        assert begun.wait(30)
        caller = asyncio.ensure_future(run_off_loop(ran.set))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        proceed.set()
        await asyncio.to_thread(lambda: None)
        assert not ran.is_set()

    asyncio.run(scenario())


def test_result_and_error_reach_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert asyncio.run(run_off_loop(lambda number: number + 1, 1)) == 2
    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_off_loop(fail))
