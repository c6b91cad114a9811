"""Slow or endless loads: their effect on others, and their end. Time is virtual."""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.server.core.model_config import LoadOverrides
from stoker.server.lifecycle.loader import VersionSource
from stoker.server.lifecycle.settings import MAX_LATE_LOADS, ControlMode
from stoker.server.lifecycle.table import SLOW_S, LoadSlots
from tests.fakes.fake_loader import FakeLoader, FakeModel, FakeServable, PendingLoad, turn
from tests.fakes.manager_bench import Bench
from tests.fakes.virtual_loop import run_virtually

REASON = (
    "the load took longer than 60 s (--model-load-timeout-secs) and was given up; it cannot be interrupted, so it uses the processor and "
    "memory until it ends by itself"
)


class Uninterruptible(FakeLoader):
    """As a thread: a cancelled load continues, and returns its servable in the end."""

    all_pending: ClassVar[list[PendingLoad]] = []

    async def _hold(self, source: VersionSource) -> FakeServable:
        load = PendingLoad(source, asyncio.get_running_loop().create_future())
        self.pending.append(load)
        self.all_pending.append(load)
        self._arrived.set()
        try:
            while not load.outcome.done():
                try:
                    await asyncio.wait({load.outcome})
                except asyncio.CancelledError:
                    self.cancelled.append(source)
            return load.outcome.result()
        finally:
            self.pending.remove(load)


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs `scenario` in virtual time, then ends the loads that it has left."""

    async def run() -> None:
        try:
            await scenario
        finally:
            while Uninterruptible.all_pending:
                load = Uninterruptible.all_pending.pop()
                if not load.outcome.done():
                    load.fail()
                await turn()

    run_virtually(run())


async def bench_with(models: dict[str, FakeModel], *load_models: str, **settings) -> Bench:
    settings = {"load_timeout_s": 60.0, **settings}
    return await Bench(models, loader=Uninterruptible(holds=True), mode=ControlMode.EXPLICIT, load_models=load_models, **settings).started()


def test_load_beyond_its_timeout_fails_and_its_late_result_is_released() -> None:
    async def run() -> None:
        bench = await bench_with({"m": FakeModel()}, "m", load_retries=3)
        await bench.loader.arrived()
        await bench.manager.wait_initial()
        await asyncio.sleep(60)
        assert bench.index() == [("m", 1, "FAILED", REASON)]
        assert bench.recorder.failures == [("m", 1)]
        assert len(bench.loader.sources) == 1, "another attempt would only add to the one that still runs"
        servable = bench.loader.find("m", 1).finish()
        await turn()
        assert (servable.retired, servable.closed) == (1, 1)
        assert bench.index() == [("m", 1, "FAILED", REASON)]

    play(run())


def test_reload_beyond_its_timeout_changes_no_served_version() -> None:
    async def run() -> None:
        bench = await bench_with({"m": FakeModel()}, "m")
        await bench.loader.arrived()
        serving = bench.loader.find("m", 1).finish()
        await turn()
        with pytest.raises(ModelLoadError, match="took longer than 60 s"):
            await bench.manager.load("m", LoadOverrides())
        assert bench.manager.resolve("m", None) is serving
        late = bench.loader.find("m", 1).finish()
        await turn()
        assert (late.closed, serving.closed) == (1, 0)
        assert bench.manager.resolve("m", None) is serving

    play(run())


def test_late_failure_of_an_abandoned_load_is_ignored() -> None:
    async def run() -> None:
        bench = await bench_with({"m": FakeModel()}, "m")
        await asyncio.sleep(61)
        bench.loader.find("m", 1).fail()
        await turn()
        assert bench.index() == [("m", 1, "FAILED", REASON)]
        assert bench.recorder.failures == [("m", 1)]

    play(run())


def test_load_without_a_timeout_may_take_forever() -> None:
    async def run() -> None:
        bench = await bench_with({"m": FakeModel()}, "m", load_timeout_s=0.0)
        await asyncio.sleep(1e6)
        bench.loader.find("m", 1).finish()
        await turn()
        assert bench.manager.is_ready()

    play(run())


def test_slow_loads_release_their_slots_to_quick_ones() -> None:
    async def run() -> None:
        names = ["slow1", "slow2", "quick1", "quick2"]
        bench = await bench_with({name: FakeModel() for name in names}, *names, load_concurrency=2)
        await bench.loader.arrived(2)
        await asyncio.sleep(SLOW_S - 1)
        assert [load.source.name for load in bench.loader.pending] == ["slow1", "slow2"]
        await asyncio.sleep(1)
        await bench.loader.arrived(4)
        for name in ("quick1", "quick2"):
            bench.loader.find(name, 1).finish()
        await turn()
        assert bench.manager.is_model_ready("quick1", None)
        assert bench.manager.is_model_ready("quick2", None)
        assert not bench.manager.is_model_ready("slow1", None)

    play(run())


def test_abandoned_load_holds_no_slot() -> None:
    async def run() -> None:
        names = [f"m{number}" for number in range(5)]
        bench = await bench_with({name: FakeModel() for name in names}, *names, load_concurrency=1)
        await asyncio.sleep(200)
        assert len(bench.loader.sources) == 5, "each was tried, although none has ended"

    play(run())


@pytest.mark.parametrize("strict", [False, True])
def test_only_strict_readiness_waits_for_a_slow_load(strict: bool) -> None:
    async def run() -> None:
        bench = await bench_with({"slow": FakeModel(), "quick": FakeModel()}, "slow", "quick", strict_readiness=strict)
        await bench.loader.arrived(2)
        bench.loader.find("quick", 1).finish()
        await bench.manager.wait_initial()
        assert SLOW_S <= asyncio.get_running_loop().time() < SLOW_S + 1
        assert bench.manager.is_model_ready("quick", None)
        assert bench.manager.is_ready() is not strict
        bench.loader.find("slow", 1).finish()
        await turn()
        assert bench.manager.is_ready()

    play(run())


def test_exit_on_error_waits_for_slow_loads_too() -> None:
    async def run() -> None:
        bench = await bench_with({"slow": FakeModel()}, "slow", exit_on_error=True)
        await bench.manager.wait_initial()
        assert bench.manager.must_exit
        assert 60 <= asyncio.get_running_loop().time() < 61

    play(run())


def test_too_many_endless_loads_prevent_further_ones() -> None:
    async def run() -> None:
        names = [f"m{number:02}" for number in range(MAX_LATE_LOADS)]
        bench = await bench_with({name: FakeModel() for name in [*names, "one-more"]}, *names, load_concurrency=256)
        await asyncio.sleep(61)
        with pytest.raises(ModelLoadError, match="16 loads that were given up have still not ended"):
            await bench.manager.load("one-more", LoadOverrides())
        bench.loader.find("m00", 1).finish()
        await turn()
        loading = asyncio.create_task(bench.manager.load("one-more", LoadOverrides()))
        await bench.loader.arrived(MAX_LATE_LOADS)
        bench.loader.find("one-more", 1).finish()
        await loading

    play(run())


def test_slots_of_slow_loads_are_bounded_and_released() -> None:
    async def run() -> None:
        slots = LoadSlots(1)
        ends = [asyncio.Event() for _ in range(4)]
        running: set[int] = set()

        async def load(number: int) -> None:
            async with slots.one():
                running.add(number)
                await ends[number].wait()
                running.discard(number)

        tasks = [asyncio.create_task(load(number)) for number in range(4)]
        await asyncio.sleep(10 * SLOW_S)
        assert running == {0, 1}, "one place, and one for a slow load"
        ends[0].set()
        await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert running == {1, 2}, "the slow one has moved"
        for end in ends:
            end.set()
        await asyncio.gather(*tasks)

    run_virtually(run())
