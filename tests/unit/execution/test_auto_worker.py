"""`execution: auto`: quick models on the event loop, all others in their threads, and no model delays another."""

import asyncio
import threading

import numpy as np
import pytest

from stoker.backends.api.batch import BatchItem, BatchResult
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_backend import FakeInstance, Gate
from stoker.server.execution.worker import AutoWorker, Work, may_run_on_loop
from stoker.server.tuning.constants import INLINE_EVICT_NS, INLINE_FIRST_RUNS

STATIC = ModelSignature((TensorSpec("x", DataType.FP32, (2,)),), (TensorSpec("y", DataType.FP32, (2,)),), 8)
VARIABLE = ModelSignature((TensorSpec("x", DataType.FP32, (-1,)),), (TensorSpec("y", DataType.FP32, (-1,)),), 8)
ENOUGH = INLINE_FIRST_RUNS + 1


class Bench:
    """A worker with a CPU clock controlled by the test: `next_ns` is the time of the coming batches."""

    def __init__(self, signature: ModelSignature = STATIC, gate: Gate | None = None) -> None:
        self.instance = FakeInstance(signature, gate=gate)
        self.next_ns = 1_000
        self._cpu_ns = 0
        self.worker = AutoWorker("w", self.instance, signature, SystemClock(), asyncio.get_running_loop(), cpu_ns=self._look)

    def _look(self) -> int:
        self._cpu_ns += self.next_ns
        return self._cpu_ns

    def start(self, rows: int = 1, size: int = 2) -> "asyncio.Future[BatchResult]":
        done: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        self.worker.submit(Work([BatchItem({"x": np.ones((rows, size), np.float32)}, rows, ("y",))], done.set_result))
        return done

    async def is_on_loop(self, rows: int = 1, size: int = 2) -> bool:
        """Runs a batch; returns its thread."""
        self.instance.threads.clear()
        await asyncio.wait_for(self.start(rows, size), 10)
        return self.instance.threads == {threading.get_ident()}

    async def runs(self, count: int, rows: int = 1, size: int = 2) -> list[bool]:
        return [await self.is_on_loop(rows, size) for _ in range(count)]


def test_first_batches_run_in_the_thread_and_quick_ones_move_to_the_loop():
    async def scenario() -> None:
        bench = Bench()
        assert await bench.runs(ENOUGH) == [False] * ENOUGH
        assert await bench.runs(3) == [True] * 3
        await bench.worker.close()
        assert bench.instance.closed

    asyncio.run(scenario())


def test_model_that_becomes_slow_returns_to_the_thread_after_that_batch():
    async def scenario() -> None:
        bench = Bench()
        await bench.runs(ENOUGH)
        bench.next_ns = INLINE_EVICT_NS
        assert await bench.runs(3) == [True, False, False]
        bench.next_ns = 1_000
        assert await bench.runs(ENOUGH) == [False] * ENOUGH, "coming back takes longer"
        await bench.worker.close()

    asyncio.run(scenario())


def test_larger_batches_start_in_the_thread_too():
    async def scenario() -> None:
        bench = Bench()
        await bench.runs(ENOUGH)
        assert [await bench.is_on_loop(rows) for rows in (1, 8, 2)] == [True, False, False]
        await bench.worker.close()

    asyncio.run(scenario())


def test_batches_of_rows_of_different_sizes_are_classified_by_their_bytes():
    async def scenario() -> None:
        bench = Bench(VARIABLE)
        await bench.runs(ENOUGH, size=2)
        assert await bench.is_on_loop(size=2)
        assert not await bench.is_on_loop(size=10_000)
        await bench.worker.close()

    asyncio.run(scenario())


def test_batch_in_the_thread_prevents_inline_execution():
    async def scenario() -> None:
        gate = Gate()
        bench = Bench(gate=gate)
        await bench.runs(ENOUGH)
        gate.close()
        slow = bench.start(rows=8)
        assert bench.worker.free_slots == 0
        gate.open()
        await asyncio.wait_for(slow, 10)
        assert await bench.is_on_loop()
        await bench.worker.close()

    asyncio.run(scenario())


def test_exception_of_a_backend_on_the_loop_becomes_a_response():
    async def scenario() -> None:
        bench = Bench()
        await bench.runs(ENOUGH)
        bench.instance.failures = [ValueError("bad")]
        [outcome] = (await bench.start()).outcomes
        assert isinstance(outcome, BackendFailed)
        assert await bench.is_on_loop()
        await bench.worker.close()

    asyncio.run(scenario())


def test_hanging_model_blocks_no_other():
    async def scenario() -> None:
        gate = Gate()
        gate.close()
        hanging, quick = Bench(gate=gate), Bench()
        stuck = hanging.start()
        await asyncio.to_thread(gate.wait_arrival)
        assert await quick.runs(ENOUGH + 2) == [False] * ENOUGH + [True] * 2
        assert not stuck.done()
        gate.open()
        await asyncio.wait_for(stuck, 10)
        for bench in (hanging, quick):
            await bench.worker.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("only_computes", "depth", "expected"), [(True, 1, True), (False, 1, False), (True, 2, False)])
def test_only_instances_that_only_compute_may_run_inline(only_computes, depth, expected):
    instance = FakeInstance(STATIC)
    instance.only_computes = only_computes
    instance.pipeline_depth = depth
    assert may_run_on_loop(instance) == expected


def test_slow_model_stays_in_its_thread_by_the_real_clock():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def work(inputs: object, names: object) -> dict[str, np.ndarray]:
            sum(range(200_000))  # some milliseconds
            return {"y": np.ones((1, 2), np.float32)}

        instance = FakeInstance(STATIC, compute=work)
        worker = AutoWorker("w", instance, STATIC, SystemClock(), loop)
        for _ in range(ENOUGH + 5):
            done: asyncio.Future[BatchResult] = loop.create_future()
            worker.submit(Work([BatchItem({"x": np.ones((1, 2), np.float32)}, 1, ("y",))], done.set_result))
            await asyncio.wait_for(done, 10)
        assert threading.get_ident() not in instance.threads
        await worker.close()

    asyncio.run(scenario())
