"""A `Completion` has at most one result, whichever side completes or cancels it, and however often."""

import asyncio
import logging

import pytest

from stoker.backends.api.errors import BackendFailed, Cancelled
from stoker.server.core.completion import Completion, TaskCompletion


class Recorded(Completion[str]):
    withdrawn = 0

    def _withdraw(self) -> None:
        self.withdrawn += 1


def test_result_reaches_the_callback_once():
    results: list[object] = []
    completion = Recorded(results.append)
    completion.complete("one")
    completion.complete("two")
    completion.cancel()
    assert (results, completion.withdrawn, completion.is_over) == (["one"], 0, True)


def test_early_result_reaches_a_later_callback():
    results: list[object] = []
    completion = Recorded()
    completion.complete("one")
    completion.then(results.append)
    assert results == ["one"]


def test_cancelled_request_is_withdrawn_once_and_has_no_result():
    results: list[object] = []
    completion = Recorded(results.append)
    completion.cancel()
    completion.cancel()
    completion.complete("late")
    assert (results, completion.withdrawn, completion.is_over) == ([], 1, True)


def test_awaited_outcome_raises_the_error_it_completes_with():
    async def scenario() -> None:
        completion = Recorded()
        asyncio.get_running_loop().call_soon(completion.complete, BackendFailed("broken"))
        with pytest.raises(BackendFailed, match="broken"):
            await completion.outcome()

    asyncio.run(scenario())


def test_cancelling_the_task_that_awaits_the_outcome_cancels_the_request():
    async def scenario() -> None:
        completion = Recorded()
        task = asyncio.ensure_future(completion.outcome())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert completion.withdrawn == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("is_inline", [True, False])
def test_waiting_coroutine_is_cancelled_at_its_await(is_inline: bool):
    async def scenario() -> None:
        steps: list[str] = []
        results: list[object] = []

        async def work() -> str:
            steps.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                steps.append("ended")
            return "never"

        completion = TaskCompletion(work, is_inline=is_inline)
        completion.then(results.append)
        await asyncio.sleep(0)
        completion.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert (steps, results) == (["begun", "ended"], [])

    asyncio.run(scenario())


def test_coroutine_begun_inline_is_ended_if_cancelled_before_its_task_runs():
    async def scenario() -> None:
        steps: list[str] = []

        async def work() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                steps.append("ended")
            return "never"

        TaskCompletion(work, is_inline=True).cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert steps == ["ended"]

    asyncio.run(scenario())


def test_coroutine_cancelled_from_inside_completes_with_cancelled():
    async def scenario() -> None:
        async def work() -> str:
            raise asyncio.CancelledError

        with pytest.raises(Cancelled, match="cancelled by the server"):
            await TaskCompletion(work).outcome()

    asyncio.run(scenario())


def test_coroutine_that_waits_for_nothing_completes_without_a_task():
    async def work() -> str:
        return "now"

    results: list[object] = []
    TaskCompletion(work, is_inline=True).then(results.append)
    assert results == ["now"]


@pytest.mark.parametrize("is_inline", [True, False])
@pytest.mark.parametrize("is_error", [True, False])
def test_exception_of_a_result_callback_is_logged_once(is_inline: bool, is_error: bool, caplog: pytest.LogCaptureFixture):
    async def work() -> str:
        await asyncio.sleep(0)
        if is_error:
            raise BackendFailed("broken")
        return "done"

    def callback(result: object) -> None:
        raise ValueError("a defect")

    async def scenario() -> None:
        completion = TaskCompletion(work, is_inline=is_inline)
        completion.then(callback)
        ended = asyncio.Event()
        completion.when_ended(ended.set)
        await asyncio.wait_for(ended.wait(), 10)

    with caplog.at_level(logging.ERROR, "stoker.engine"):
        asyncio.run(scenario())
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
