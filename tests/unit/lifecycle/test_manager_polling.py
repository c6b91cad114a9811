"""The manager under polling: models that appear, change, fail and vanish in the repository."""

import asyncio
import logging

import pytest

from stoker.backends.api.errors import ModelLoadError, NotFound, Unavailable, UnknownModel
from stoker.server.core.model_config import AllVersions, LatestVersions, LoadOverrides, NoVersions, SpecificVersions
from stoker.server.core.state import VersionState
from stoker.server.lifecycle.loader import BackendRaised
from stoker.server.lifecycle.settings import ControlMode
from tests.fakes.fake_loader import FakeModel, turn
from tests.fakes.manager_bench import Bench, in_loop


@in_loop
async def test_start_loads_everything_and_the_highest_version_responds() -> None:
    bench = await Bench({"m": FakeModel({1: "a", 2: "b"}, AllVersions()), "n": FakeModel()}).started()
    assert bench.manager.resolve("m", None).version == 2
    assert bench.manager.resolve("m", 1).version == 1
    assert bench.manager.ready_versions("m") == (1, 2)
    assert bench.index() == [("m", 1, "READY", ""), ("m", 2, "READY", ""), ("n", 1, "READY", "")]
    assert bench.manager.is_ready()
    await bench.manager.stop(1)
    bench.assert_nothing_leaks()


@in_loop
async def test_start_does_not_wait_for_loads_but_wait_initial_does() -> None:
    bench = await Bench({"m": FakeModel()}, holds=True).started()
    waiting = asyncio.create_task(bench.manager.wait_initial())
    await turn()
    assert bench.index() == [("m", 1, "LOADING", "")]
    assert not bench.manager.is_ready()
    assert not waiting.done()
    bench.loader.find("m", 1).finish()
    await waiting
    assert bench.manager.is_ready()


@in_loop
async def test_requests_for_unserved_models_get_tritons_texts() -> None:
    bench = Bench({"m": FakeModel({1: "a", 2: "b"}, AllVersions()), "broken": FakeModel()})
    bench.loader.errors["broken", 1] = ModelLoadError("corrupt")
    bench.loader.errors["m", 2] = ModelLoadError("corrupt")
    await bench.started()
    with pytest.raises(UnknownModel, match=r"^Request for unknown model: 'x' is not found$"):
        bench.manager.resolve("x", None)
    with pytest.raises(NotFound, match=r"^Request for unknown model: 'm' version 7 is not found$") as caught:
        bench.manager.resolve("m", 7)
    assert not isinstance(caught.value, UnknownModel)
    with pytest.raises(Unavailable, match=r"^Request for unknown model: 'broken' has no available versions$"):
        bench.manager.resolve("broken", None)
    with pytest.raises(Unavailable, match=r"^Request for unknown model: 'm' version 2 is not at ready state$"):
        bench.manager.resolve("m", 2)
    assert bench.manager.ready_versions("x") == ()
    assert not bench.manager.is_model_ready("x", None)
    assert not bench.manager.is_model_ready("m", 2)
    assert bench.manager.is_model_ready("m", 1)
    assert bench.manager.is_model_ready("m", None)


@in_loop
async def test_bad_model_does_not_block_others_and_is_listed_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"bad": FakeModel(), "typo": FakeModel(error="typo/config.pbtxt:3: unknown field"), "good": FakeModel()})
    bench.loader.errors["bad", 1] = ModelLoadError("model.onnx is truncated")
    await bench.started()
    await bench.manager.wait_initial()
    assert bench.index() == [
        ("bad", 1, "FAILED", "model.onnx is truncated"),
        ("good", 1, "READY", ""),
        ("typo", None, "", "typo/config.pbtxt:3: unknown field"),
    ]
    assert bench.manager.index(True) == [e for e in bench.manager.index() if e.name == "good"]
    assert sorted(bench.recorder.failures, key=str) == [("bad", 1), ("typo", None)]
    assert bench.recorder.states["bad", 1] is VersionState.FAILED
    assert bench.manager.failed_models() == ["bad", "typo"]
    assert not bench.manager.is_ready()
    assert "model.onnx is truncated" in caplog.text
    assert "unknown field" in caplog.text


@in_loop
async def test_unexpected_error_of_a_loader_is_a_failed_version() -> None:
    bench = Bench({"m": FakeModel()})
    bench.loader.errors["m", 1] = ZeroDivisionError("oops")
    await bench.started()
    assert bench.index() == [("m", 1, "FAILED", "internal error: ZeroDivisionError: oops")]


@in_loop
async def test_new_version_serves_beside_and_then_instead_of_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    bench = await Bench({"m": FakeModel()}).started()
    old = bench.loader.loaded[0]
    bench.loader.holds = True
    bench.models["m"].versions[2] = "b"
    await bench.rescan()
    assert bench.manager.resolve("m", None).version == 1
    assert bench.index() == [("m", 1, "READY", ""), ("m", 2, "LOADING", "")]
    async with old.borrow():
        bench.loader.find("m", 2).finish()
        await turn()
        assert bench.manager.resolve("m", None).version == 2
        assert (old.retired, old.closed) == (1, 0), "it is drained, not cut off"
        assert bench.index() == [("m", 1, "DRAINING", ""), ("m", 2, "READY", "")]
    await turn()
    assert old.closed == 1
    assert bench.index() == [("m", 1, "UNLOADED", "unloaded"), ("m", 2, "READY", "")]


@in_loop
async def test_new_version_loads_after_it_is_stable() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].versions[2] = "half"
    assert not await bench.manager.rescan()
    bench.clock.advance(bench.settings.settle_s)
    bench.models["m"].versions[2] = "whole"
    assert not await bench.manager.rescan()
    await turn()
    assert bench.manager.resolve("m", None).version == 1
    bench.clock.advance(bench.settings.settle_s)
    assert await bench.manager.rescan()
    await turn()
    assert bench.manager.resolve("m", None).version == 2


@in_loop
async def test_bad_new_version_leaves_the_old_one_serving_and_the_server_ready() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].versions[2] = "b"
    bench.loader.errors["m", 2] = ModelLoadError("wrong dtype")
    await bench.rescan()
    assert bench.index() == [("m", 1, "READY", ""), ("m", 2, "FAILED", "wrong dtype")]
    assert bench.manager.resolve("m", None).version == 1
    assert bench.manager.is_ready()
    assert bench.loader.loaded[0].retired == 0
    loads = len(bench.loader.sources)
    await bench.rescan()
    assert len(bench.loader.sources) == loads, "what failed is not tried again until it changes"
    bench.models["m"].versions[2] = "mended"
    del bench.loader.errors["m", 2]
    await bench.rescan()
    assert bench.index() == [("m", 1, "UNLOADED", "unloaded"), ("m", 2, "READY", "")]


@in_loop
async def test_edited_version_is_loaded_beside_and_swapped() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].versions[1] = "b"
    await bench.rescan()
    first, second = bench.loader.loaded
    assert bench.manager.resolve("m", 1) is second
    assert (first.retired, first.closed, second.retired) == (1, 1, 0)
    assert [state.value for _, _, state in bench.recorder.history] == ["NEW", "LOADING", "READY"]


@in_loop
async def test_failed_reload_reports_its_reason_beside_ready_until_it_is_corrected() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].versions[1] = "b"
    bench.loader.errors["m", 1] = ModelLoadError("corrupt")
    await bench.rescan()
    assert bench.index() == [("m", 1, "READY", "reload FAILED: corrupt")]
    assert bench.recorder.stale == {("m", 1)}
    assert bench.recorder.failures == [("m", 1)]
    assert bench.recorder.states["m", 1] is VersionState.READY
    assert bench.manager.is_ready()
    bench.models["m"].versions[1] = "a"
    await bench.rescan()
    assert bench.index() == [("m", 1, "READY", "")], "the change was taken back"
    assert bench.recorder.stale == set()
    assert len(bench.loader.loaded) == 1


@in_loop
async def test_broken_config_keeps_served_versions_and_is_logged_once() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].error, bench.models["m"].config = "m/config.pbtxt:1: typo", "d"
    await bench.rescan()
    await bench.rescan()
    assert bench.index() == [("m", 1, "READY", "reload FAILED: m/config.pbtxt:1: typo")]
    assert bench.recorder.stale == {("m", 1)}
    assert bench.recorder.failures == [("m", None)]
    assert bench.manager.is_ready()
    bench.models["m"].error, bench.models["m"].config = None, "c"
    await bench.rescan()
    assert bench.index() == [("m", 1, "READY", "")]
    assert len(bench.loader.loaded) == 1


@in_loop
async def test_newest_error_is_listed_with_served_versions_not_with_unloaded_ones() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].versions[2] = "a"
    await bench.rescan()
    bench.models["m"].versions[2] = "b"
    bench.loader.errors["m", 2] = ModelLoadError("corrupt")
    await bench.rescan()
    bench.models["m"].error, bench.models["m"].config = "m/config.pbtxt:1: typo", "d"
    await bench.rescan()
    assert bench.index() == [("m", 1, "UNLOADED", "unloaded"), ("m", 2, "READY", "reload FAILED: m/config.pbtxt:1: typo")]


@in_loop
async def test_edited_config_reloads_and_a_new_policy_applies() -> None:
    bench = await Bench({"m": FakeModel({1: "a", 2: "a", 3: "a"})}).started()
    assert bench.manager.ready_versions("m") == (3,)
    bench.models["m"].policy, bench.models["m"].config = LatestVersions(2), "d"
    await bench.rescan()
    assert bench.manager.ready_versions("m") == (2, 3)
    bench.models["m"].policy, bench.models["m"].config = NoVersions(), "e"
    await bench.rescan()
    assert bench.manager.ready_versions("m") == ()
    assert bench.manager.is_ready(), "a model that wants nothing keeps nobody waiting"


@in_loop
async def test_removed_models_and_versions_are_unloaded_and_dropped() -> None:
    bench = await Bench({"m": FakeModel({1: "a", 2: "a"}, AllVersions()), "n": FakeModel()}).started()
    del bench.models["m"].versions[1]
    await bench.rescan()
    assert bench.index() == [("m", 2, "READY", ""), ("n", 1, "READY", "")]
    assert ("m", 1) not in bench.recorder.states
    del bench.models["m"]
    await bench.rescan()
    assert bench.index() == [("n", 1, "READY", "")]
    with pytest.raises(UnknownModel):
        bench.manager.resolve("m", None)
    assert set(bench.recorder.states) == {("n", 1)}


@in_loop
async def test_model_restored_unchanged_is_loaded_again_while_requests_hold_the_old_one() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    async with bench.loader.loaded[0].borrow():
        model = bench.models.pop("m")
        await bench.rescan()
        assert bench.index() == [("m", 1, "DRAINING", "")]
        bench.models["m"] = model
        await bench.rescan()
        assert bench.index() == [("m", 1, "READY", "")]
        assert bench.manager.resolve("m", None) is bench.loader.loaded[1]
    await bench.manager.stop(1)
    bench.assert_nothing_leaks()


@in_loop
async def test_removed_version_serves_while_its_replacement_fails() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].versions = {2: "b"}
    bench.loader.errors["m", 2] = ModelLoadError("corrupt")
    await bench.rescan()
    assert bench.index() == [("m", 1, "READY", ""), ("m", 2, "FAILED", "corrupt")]
    del bench.models["m"]
    await bench.rescan()
    assert bench.index() == []
    assert bench.loader.loaded[0].closed == 1


@in_loop
async def test_model_whose_last_version_is_removed_is_unloaded_and_reports_it() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.models["m"].versions.clear()
    await bench.rescan()
    assert bench.index() == [("m", None, "", "at least one version must be available under the version policy of model 'm'")]
    assert not bench.manager.is_ready()


@in_loop
async def test_missing_named_version_prevents_readiness_and_is_listed() -> None:
    bench = await Bench({"m": FakeModel({1: "a"}, SpecificVersions((5,)))}).started()
    reason = "named by the version policy, but not in the repository"
    assert bench.index() == [("m", 5, "FAILED", reason)]
    assert not bench.manager.is_ready()
    bench.models["m"].versions[5] = "b"
    await bench.rescan()
    assert bench.index() == [("m", 5, "READY", "")]
    assert bench.manager.is_ready()


@in_loop
async def test_unreadable_version_folder_fails_without_the_loader() -> None:
    bench = await Bench({"m": FakeModel(version_errors={1: "the version folder is a symbolic link"})}).started()
    assert bench.index() == [("m", 1, "FAILED", "the version folder is a symbolic link")]
    assert bench.loader.sources == []


@in_loop
async def test_load_of_a_version_that_is_no_longer_desired_is_cancelled() -> None:
    bench = await Bench({"m": FakeModel()}, holds=True).started()
    del bench.models["m"]
    await bench.rescan()
    assert [source.version for source in bench.loader.cancelled] == [1]
    assert bench.index() == []
    assert bench.recorder.states == {}


@in_loop
async def test_content_that_changes_during_the_load_is_loaded_again_and_the_first_result_dropped() -> None:
    bench = await Bench({"m": FakeModel()}, holds=True).started()
    first = bench.loader.find("m", 1)
    first.finish()
    bench.models["m"].versions[1] = "b"
    await bench.rescan()
    bench.loader.find("m", 1).finish()
    await turn()
    assert bench.manager.resolve("m", 1) is bench.loader.loaded[-1]
    await bench.manager.stop(1)
    bench.assert_nothing_leaks()


@in_loop
async def test_loads_run_in_parallel_up_to_the_bound() -> None:
    bench = await Bench({f"m{i}": FakeModel() for i in range(5)}, holds=True, load_concurrency=2).started()
    assert len(bench.loader.pending) == 2
    assert [state for _, _, state, _ in bench.index()] == ["LOADING", "LOADING", "NEW", "NEW", "NEW"]
    bench.loader.pending[0].finish()
    await turn()
    assert len(bench.loader.pending) == 2
    for _ in range(4):
        bench.loader.pending[0].finish()
        await turn()
    assert bench.manager.is_ready()


@in_loop
async def test_failed_load_is_retried_the_configured_number_of_times() -> None:
    bench = await Bench({"m": FakeModel()}, holds=True, load_retries=2).started()
    for _ in range(2):
        bench.loader.find("m", 1).fail("flaky")
        await turn()
    bench.clock.advance(3)
    bench.loader.find("m", 1).finish()
    await turn()
    assert bench.manager.is_ready()
    assert bench.recorder.failures == []
    assert bench.recorder.loads == [("m", 1, 3.0)]


@in_loop
async def test_last_reason_is_reported_after_the_last_retry() -> None:
    bench = await Bench({"m": FakeModel()}, holds=True, load_retries=1).started()
    for reason in ("first", "second"):
        bench.loader.find("m", 1).fail(reason)
        await turn()
    assert bench.index() == [("m", 1, "FAILED", "second")]


@pytest.mark.parametrize("mode", [ControlMode.POLL, ControlMode.NONE])
@in_loop
async def test_load_and_unload_are_refused_outside_explicit_control(mode: ControlMode) -> None:
    bench = await Bench({"m": FakeModel()}, mode=mode).started()
    for call in (bench.manager.load("m", LoadOverrides()), bench.manager.unload("m")):
        with pytest.raises(Unavailable, match=r"^explicit model load / unload is not allowed if polling is enabled$"):
            await call
    assert bench.manager.is_ready()


@in_loop
async def test_repository_without_control_is_read_once() -> None:
    bench = await Bench({"m": FakeModel()}, mode=ControlMode.NONE).started()
    bench.models["n"] = FakeModel()
    assert await bench.manager.rescan()
    await turn()
    assert not bench.manager.is_model_ready("n", None)


@in_loop
async def test_lenient_readiness_waits_only_for_the_end_of_the_initial_loads() -> None:
    bench = Bench({"m": FakeModel()}, strict_readiness=False)
    bench.loader.errors["m", 1] = ModelLoadError("corrupt")
    await bench.started()
    assert not bench.manager.is_ready()
    await bench.manager.wait_initial()
    assert bench.manager.is_ready()


@pytest.mark.parametrize(("exit_on_error", "error", "expected"), [(True, True, True), (True, False, False), (False, True, False)])
@in_loop
async def test_failed_start_ends_the_process_only_if_configured(exit_on_error: bool, error: bool, expected: bool) -> None:
    bench = Bench({"m": FakeModel()}, exit_on_error=exit_on_error)
    if error:
        bench.loader.errors["m", 1] = ModelLoadError("corrupt")
    await bench.started()
    await bench.manager.wait_initial()
    assert bench.manager.must_exit is expected


@in_loop
async def test_stop_waits_for_borrowers() -> None:
    bench = await Bench({"m": FakeModel()}).started()
    servable = bench.loader.loaded[0]
    async with servable.borrow():
        stopping = asyncio.create_task(bench.manager.stop(100))
        await turn()
        assert not stopping.done()
        assert not bench.manager.is_ready()
        assert servable.closed == 0
    await stopping
    bench.assert_nothing_leaks()


@in_loop
async def test_stop_closes_borrowed_versions_after_its_timeout(caplog: pytest.LogCaptureFixture) -> None:
    bench = await Bench({"m": FakeModel()}).started()
    async with bench.loader.loaded[0].borrow():
        await bench.manager.stop(0)
        bench.assert_nothing_leaks()
    assert "closing while requests still hold them: 'm' version 1" in caplog.text


@in_loop
async def test_stop_cancels_loads() -> None:
    before = asyncio.all_tasks()
    bench = await Bench({f"m{i}": FakeModel() for i in range(3)}, holds=True, load_concurrency=2).started()
    await bench.manager.stop(1)
    assert len(bench.loader.cancelled) == 2
    assert bench.loader.pending == []
    assert [task for task in asyncio.all_tasks() if task not in before] == []


@in_loop
async def test_version_that_fails_to_close_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = await Bench({"m": FakeModel()}).started()
    bench.loader.loaded[0].close_error = RuntimeError("device hangs")
    del bench.models["m"]
    await bench.rescan()
    assert bench.index() == []
    assert "closing model 'm' version 1 raised" in caplog.text


@in_loop
async def test_version_held_for_long_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = await Bench({"m": FakeModel()}, drain_timeout_s=0).started()
    async with bench.loader.loaded[0].borrow():
        del bench.models["m"]
        await bench.rescan()
        assert "model 'm' version 1 is still held by requests" in caplog.text
        assert bench.loader.loaded[0].closed == 0
    await turn()
    assert bench.loader.loaded[0].closed == 1


@pytest.mark.parametrize("is_expected", [True, False])
@in_loop
async def test_only_unexpected_errors_are_logged_with_their_traceback(is_expected: bool, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"m": FakeModel()})
    kind = ModelLoadError if is_expected else BackendRaised
    error = kind("does not load")
    error.__cause__ = ZeroDivisionError("a defect of a backend")
    bench.loader.errors["m", 1] = error
    await bench.started()
    assert "does not load" in caplog.text
    assert ("a defect of a backend" in caplog.text) is not is_expected
