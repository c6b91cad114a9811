"""Workers: a thread hop and back, order with several slots, and a backend that raises anything at all."""

import asyncio
import os
import platform
import threading
from collections.abc import Callable

import numpy as np
import pytest

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import BatchItem, BatchResult
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import InferRequest
from stoker.server.core.timers import LoopTimers
from stoker.server.execution.worker import InlineWorker, ThreadWorker, Work
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.outcomes import all_outputs, outputs_of
from tests.fakes.puppet_worker import RecorderLog

SIGNATURE = ModelSignature((TensorSpec("IN", DataType.INT32, (2,)),), (TensorSpec("OUT", DataType.INT32, (2,)),), 4)


class Doubler(Instance):
    def __init__(self, depth: int = 1) -> None:
        self.pipeline_depth = depth
        self.threads: set[int] = set()
        self.hold: dict[int, threading.Event] = {}
        self.second_ran = threading.Event()
        self.raises: BaseException | None = None
        self.is_closed = False

    def execute(self, inputs: Arrays, output_names: tuple[str, ...]) -> Arrays:  # type: ignore[override]
        self.threads.add(threading.get_ident())
        if self.raises is not None:
            raise self.raises
        gate = self.hold.get(int(inputs["IN"][0, 0]))
        assert gate is None or gate.wait(10)
        if int(inputs["IN"][0, 0]) == 2:
            self.second_ran.set()
        return {"OUT": inputs["IN"] * 2}

    def close(self) -> None:
        self.is_closed = True


def item(value: int) -> BatchItem:
    return BatchItem({"IN": np.full((1, 2), value, np.int32)}, 1, ("OUT",))


async def _result(worker: ThreadWorker | InlineWorker, *items: BatchItem) -> BatchResult:
    done: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
    worker.submit(Work(items, done.set_result))
    return await asyncio.wait_for(done, 10)


@pytest.mark.parametrize("kind", ["thread", "inline"])
def test_batch_returns_its_results(kind):
    async def scenario() -> None:
        instance = Doubler()
        loop = asyncio.get_running_loop()
        worker = (
            ThreadWorker("w", instance, SIGNATURE, SystemClock(), loop)
            if kind == "thread"
            else InlineWorker(instance, SIGNATURE, SystemClock())
        )
        result = await _result(worker, item(1), item(2))
        assert [outputs["OUT"].tolist() for outputs in all_outputs(result.outcomes)] == [[[2, 2]], [[4, 4]]]
        assert (threading.get_ident() in instance.threads) == (kind == "inline")
        assert worker.free_slots == 1
        await worker.close()
        assert instance.is_closed

    asyncio.run(scenario())


def test_two_slots_overlap_batches_and_return_them_in_order():
    async def scenario() -> None:
        instance = Doubler(depth=2)
        instance.hold[1] = threading.Event()
        worker = ThreadWorker("w", instance, SIGNATURE, SystemClock(), asyncio.get_running_loop())
        order: list[int] = []
        assert worker.free_slots == 2
        both: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(number: int) -> None:
            order.append(number)
            if len(order) == 2:
                both.set_result(None)

        worker.submit(Work([item(1)], lambda _: done(1)))
        worker.submit(Work([item(2)], lambda _: done(2)))
        assert worker.free_slots == 0
        assert await asyncio.to_thread(instance.second_ran.wait, 10)
        instance.hold[1].set()
        await asyncio.wait_for(both, 10)
        assert order == [1, 2]
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("raised", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("kind", ["thread", "inline"])
def test_exception_of_a_backend_becomes_a_response_and_the_worker_continues(kind, raised, caplog):
    async def scenario() -> None:
        instance = Doubler()
        loop = asyncio.get_running_loop()
        worker = (
            ThreadWorker("w", instance, SIGNATURE, SystemClock(), loop)
            if kind == "thread"
            else InlineWorker(instance, SIGNATURE, SystemClock())
        )
        instance.raises = raised
        failed = await _result(worker, item(1), item(2))
        assert len(failed.outcomes) == 2
        assert all(isinstance(outcome, BackendFailed) and type(raised).__name__ in outcome.message for outcome in failed.outcomes)
        instance.raises = None
        again = await _result(worker, item(3))
        assert outputs_of(again.outcomes[0])["OUT"].tolist() == [[6, 6]]
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.skipif(platform.system() != "Linux", reason="threads have nice values of their own on Linux only")
def test_worker_raises_its_niceness_by_the_configured_amount():
    class Niceness(Doubler):
        def execute(self, inputs: Arrays, output_names: tuple[str, ...]) -> Arrays:  # type: ignore[override]
            values.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().execute(inputs, output_names)

    async def scenario(nice: int) -> None:
        worker = ThreadWorker("w", Niceness(), SIGNATURE, SystemClock(), asyncio.get_running_loop(), nice=nice)
        await _result(worker, item(1))
        await worker.close()

    values: list[int] = []
    for nice in (0, 3, 19):
        asyncio.run(scenario(nice))
    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert values == [here, min(19, here + 3), min(19, here + 19)]


class CountingLoop:
    """The part of an event loop that workers use; counts the wake-ups by threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wakes = 0

    def create_future(self) -> "asyncio.Future[None]":
        return self._loop.create_future()

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: object) -> None:
        self.wakes += 1
        self._loop.call_soon_threadsafe(callback, *args)


@pytest.mark.parametrize("instances", [1, 2])
def test_batch_of_any_size_crosses_to_a_thread_once_and_wakes_the_loop_once(instances: int):
    async def scenario() -> None:
        loop = CountingLoop(asyncio.get_running_loop())
        workers = [ThreadWorker(f"w{number}", Doubler(), SIGNATURE, SystemClock(), loop) for number in range(instances)]  # type: ignore[arg-type]
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=instances),),
            dynamic_batching=DynamicBatching(),
        )
        log, timers = RecorderLog(), LoopTimers(asyncio.get_running_loop(), SystemClock())
        scheduler = Scheduler(config, 1, workers, clock=SystemClock(), timers=timers, recorder=log, max_queue_size=100)
        requests = [InferRequest("m", item(value).inputs, ("OUT",), SIGNATURE) for value in range(4)]
        for _ in range(5):
            await asyncio.wait_for(asyncio.gather(*[scheduler.infer(request) for request in requests]), 10)
        assert log.executions == [4] * 5
        assert loop.wakes == 5
        await scheduler.close()

    asyncio.run(scenario())
