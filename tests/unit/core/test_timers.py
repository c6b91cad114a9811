"""`LoopTimers.run_due`: calls at the end of a batch run in a flat stack, yield to the loop, and do not affect each other."""

import asyncio
import sys

import pytest

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.timers import LoopTimers


def timers_of(clock: FakeClock) -> LoopTimers:
    return LoopTimers(asyncio.get_running_loop(), clock)


def test_calls_made_while_results_are_delivered_wait_for_the_end() -> None:
    async def scenario() -> None:
        timers, made = timers_of(FakeClock()), list[int]()
        timers.is_delivering = True
        timers.call_soon(lambda: made.append(1))
        timers.is_delivering = False
        assert made == []
        timers.run_due()
        assert made == [1]

    asyncio.run(scenario())


def test_chain_of_calls_keeps_the_stack_flat() -> None:
    async def scenario() -> None:
        timers, made = timers_of(FakeClock()), list[int]()

        def deliver() -> None:
            made.append(1)
            if len(made) < 10 * sys.getrecursionlimit():
                timers.is_delivering = True
                timers.call_soon(deliver)
                timers.is_delivering = False
                timers.run_due()

        deliver()
        assert len(made) == 10 * sys.getrecursionlimit()

    asyncio.run(scenario())


def test_calls_that_take_long_yield_to_the_loop() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        timers, made = timers_of(clock), list[str]()

        def slow() -> None:
            made.append("slow")
            clock.advance(0.002)

        timers.is_delivering = True
        timers.call_soon(slow)
        timers.call_soon(lambda: made.append("next"))
        timers.is_delivering = False
        asyncio.get_running_loop().call_soon(lambda: made.append("other"))
        timers.run_due()
        assert made == ["slow"]
        await asyncio.sleep(0)
        assert made == ["slow", "other", "next"]

    asyncio.run(scenario())


def test_call_that_raises_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        timers, made = timers_of(FakeClock()), list[int]()

        def broken() -> None:
            raise RuntimeError("a defect")

        timers.is_delivering = True
        timers.call_soon(broken)
        timers.call_soon(lambda: made.append(1))
        timers.is_delivering = False
        timers.run_due()
        assert made == [1]

    asyncio.run(scenario())
    assert "failed unexpectedly" in caplog.text
