"""The manager with requests to refresh one model at once: models that appear, fail repeatedly, and vanish."""

import asyncio

import pytest

from stoker.backends.api.errors import InvalidRequest, ModelLoadError, Unavailable
from stoker.server.core.model_config import AllVersions, LoadOverrides, SpecificVersions
from stoker.server.lifecycle.settings import ControlMode
from tests.fakes.fake_loader import FakeModel, turn
from tests.fakes.manager_bench import Bench, in_loop


@in_loop
async def test_refreshed_model_serves_on_return_and_the_next_scan_changes_nothing() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["new"] = FakeModel({1: "a", 2: "b"}, AllVersions())
    await bench.manager.refresh("new")
    assert bench.manager.ready_versions("new") == (1, 2)
    assert await bench.manager.rescan(), "nothing is left to settle"
    assert [source.name for source in bench.loader.sources] == ["m", "new", "new"], "each version was loaded once"
    del bench.models["new"]
    await bench.manager.refresh("new")
    assert bench.manager.ready_versions("new") == ()
    await turn()
    assert bench.index() == [("m", 1, "READY", "")]
    await bench.manager.stop(1)
    bench.assert_nothing_leaks()


@in_loop
async def test_each_failed_refresh_reports_its_own_attempt() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.loader.errors["bad", 1] = ModelLoadError("corrupt")
    for attempt in range(1, 4):
        bench.models["bad"] = FakeModel()
        with pytest.raises(ModelLoadError, match=r"^model 'bad' failed to load: version 1: corrupt$"):
            await bench.manager.refresh("bad")
        del bench.models["bad"]
        await bench.manager.refresh("bad")
        assert bench.index() == [("m", 1, "READY", "")], "no trace of it is left"
        assert [source.name for source in bench.loader.sources].count("bad") == attempt
    assert bench.manager.is_ready()


@in_loop
async def test_unchanged_content_is_tried_again_and_served_versions_are_kept() -> None:
    bench = Bench({"m": FakeModel({1: "a", 2: "b"}, AllVersions())})
    bench.loader.errors["m", 2] = ModelLoadError("out of memory")
    await bench.started()
    with pytest.raises(ModelLoadError, match="version 2: out of memory"):
        await bench.manager.refresh("m")
    bench.loader.errors.clear()
    await bench.manager.refresh("m")
    assert bench.manager.ready_versions("m") == (1, 2)
    assert [source.version for source in bench.loader.sources] == [1, 2, 2, 2]


@in_loop
async def test_concurrent_refreshes_of_eight_callers_all_end() -> None:
    bench = await Bench({}, holds=True).started()
    bench.models["bad"] = FakeModel()
    callers = [asyncio.create_task(bench.manager.refresh("bad")) for _ in range(8)]
    failed = 0
    while not all(caller.done() for caller in callers):
        await turn()
        for load in list(bench.loader.pending):
            load.fail("corrupt")
            failed += 1
    assert {str(caller.exception()) for caller in callers} == {"model 'bad' failed to load: version 1: corrupt"}
    assert failed == 8, "each was answered by a load of its own"


@in_loop
async def test_refresh_of_an_invalid_model_reports_its_reason() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"] = FakeModel(error="config.pbtxt:1: no")
    with pytest.raises(ModelLoadError, match="no"):
        await bench.manager.refresh("m")
    assert bench.manager.ready_versions("m") == (1,)
    bench.models["m"] = FakeModel(policy=SpecificVersions((5,)))
    with pytest.raises(ModelLoadError, match="version 5: named by the version policy, but not in the repository"):
        await bench.manager.refresh("m")
    bench.models["m"] = FakeModel({})
    await bench.manager.refresh("m")
    assert bench.manager.ready_versions("m") == (), "the last version was taken away"
    with pytest.raises(InvalidRequest):
        await bench.manager.refresh("../m")


@pytest.mark.parametrize("mode", [ControlMode.EXPLICIT, ControlMode.NONE])
@in_loop
async def test_only_a_polled_repository_is_refreshed(mode: ControlMode) -> None:
    bench = await Bench({"m": FakeModel()}, mode=mode).started()
    with pytest.raises(Unavailable, match="not polled"):
        await bench.manager.refresh("m")
    await bench.manager.stop(1)


@in_loop
async def test_stopping_server_refuses_refreshes() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    await bench.manager.stop(1)
    with pytest.raises(Unavailable, match="shutting down"):
        await bench.manager.refresh("m")


@in_loop
async def test_concurrent_failing_refreshes_each_report_their_own_attempt() -> None:
    bench = await Bench({"bad": FakeModel()}, holds=True, mode=ControlMode.EXPLICIT).started()
    for _ in range(2):
        callers = [asyncio.create_task(bench.manager.load("bad", LoadOverrides())) for _ in range(8)]
        failed = 0
        while not all(caller.done() for caller in callers):
            await turn()
            for load in list(bench.loader.pending):
                load.fail("corrupt")
                failed += 1
        assert {str(caller.exception()) for caller in callers} == {"failed to load 'bad', version 1: corrupt"}
        assert failed == 8
    bench.loader.holds = False
    await bench.manager.load("bad", LoadOverrides())
    assert bench.manager.ready_versions("bad") == (1,)
    await bench.manager.stop(1)
