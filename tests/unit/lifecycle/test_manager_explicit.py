"""The manager under explicit control: load, reload, overrides, unload, and concurrent calls."""

import asyncio
import threading

import pytest

from stoker.backends.api.errors import InvalidRequest, ModelLoadError, Unavailable, UnknownModel
from stoker.server.core.model_config import AllVersions, LoadOverrides, NoVersions, SpecificVersions
from stoker.server.lifecycle import manager
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.settings import ControlMode
from tests.fakes.fake_loader import FakeModel, error_of, turn
from tests.fakes.manager_bench import Bench, in_loop

PLAIN = LoadOverrides()


async def explicit(models: dict[str, FakeModel], *load_models: str, **settings) -> Bench:
    return await Bench(models, mode=ControlMode.EXPLICIT, load_models=load_models, **settings).started()


@in_loop
async def test_only_named_models_are_loaded_at_start() -> None:
    bench = await explicit({"m": FakeModel(), "n": FakeModel()}, "n")
    assert bench.index() == [("m", None, "", ""), ("n", 1, "READY", "")]
    assert bench.manager.is_ready()
    with pytest.raises(UnknownModel):
        bench.manager.resolve("m", None)


@in_loop
async def test_star_loads_every_model_at_start() -> None:
    bench = await explicit({"m": FakeModel(), "n": FakeModel()}, "*")
    assert bench.index() == [("m", 1, "READY", ""), ("n", 1, "READY", "")]


@in_loop
async def test_missing_model_named_at_start_prevents_readiness() -> None:
    bench = await explicit({}, "ghost")
    assert bench.index() == [("ghost", None, "", "failed to poll from model repository")]
    assert not bench.manager.is_ready()
    assert bench.manager.failed_models() == ["ghost"]
    bench.models["ghost"] = FakeModel()
    await bench.manager.load("ghost", PLAIN)
    assert bench.manager.is_ready()


@in_loop
async def test_load_returns_when_the_model_serves() -> None:
    bench = await explicit({"m": FakeModel({1: "a", 2: "a"}, AllVersions())}, holds=True)
    loading = asyncio.create_task(bench.manager.load("m", PLAIN))
    await bench.loader.arrived(2)
    bench.loader.find("m", 2).finish()
    await turn()
    assert not loading.done()
    bench.loader.find("m", 1).finish()
    await loading
    assert bench.manager.ready_versions("m") == (1, 2)


@in_loop
async def test_loaded_model_is_reloaded_unconditionally_and_no_new_request_reaches_the_old() -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    old = bench.loader.loaded[0]
    async with old.borrow():
        await bench.manager.load("m", PLAIN)
        assert bench.manager.resolve("m", None) is bench.loader.loaded[1]
        assert bench.manager.resolve("m", 1) is bench.loader.loaded[1]
    await turn()
    assert (old.retired, old.closed) == (1, 1)


@in_loop
async def test_failed_reload_reports_its_reason_and_keeps_the_old_version() -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    bench.loader.errors["m", 1] = ModelLoadError("model.onnx: truncated")
    with pytest.raises(ModelLoadError, match=r"^failed to load 'm', version 1: model\.onnx: truncated$"):
        await bench.manager.load("m", PLAIN)
    assert bench.manager.resolve("m", None) is bench.loader.loaded[0]
    assert bench.index() == [("m", 1, "READY", "reload FAILED: model.onnx: truncated")]
    assert bench.manager.is_ready()
    bench.loader.errors.clear()
    await bench.manager.load("m", PLAIN)
    assert bench.index() == [("m", 1, "READY", "")]


@in_loop
async def test_failed_first_load_is_in_the_index_and_does_not_affect_readiness() -> None:
    bench = await explicit({"m": FakeModel()})
    bench.loader.errors["m", 1] = ModelLoadError("truncated")
    with pytest.raises(ModelLoadError):
        await bench.manager.load("m", PLAIN)
    assert bench.index() == [("m", 1, "FAILED", "truncated")]
    assert bench.manager.is_ready(), "a bad call must not take the server out of service"


@in_loop
async def test_unknown_model_fails_with_tritons_text_and_leaves_no_entry() -> None:
    bench = await explicit({})
    with pytest.raises(ModelLoadError, match=r"^failed to load 'ghost', failed to poll from model repository$"):
        await bench.manager.load("ghost", PLAIN)
    assert bench.index() == []


@in_loop
async def test_loaded_model_without_its_folder_continues_after_a_failed_load() -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    del bench.models["m"]
    with pytest.raises(ModelLoadError, match="failed to poll"):
        await bench.manager.load("m", PLAIN)
    assert bench.manager.is_model_ready("m", 1)


@in_loop
async def test_load_of_a_served_version_without_its_folder_reports_it() -> None:
    bench = await explicit({"m": FakeModel({1: "a"})}, "m")
    bench.models["m"] = FakeModel({2: "a"}, SpecificVersions((1,)))
    with pytest.raises(
        ModelLoadError, match="version 1: named by the version policy, but not in the repository; what is loaded of it goes on"
    ):
        await bench.manager.load("m", PLAIN)
    assert bench.manager.ready_versions("m") == (1,)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (FakeModel(error="m/config.pbtxt:2: unknown field 'inptu'", config="x"), "m/config.pbtxt:2: unknown field 'inptu'"),
        (FakeModel({}, config="x"), "at least one version must be available under the version policy of model 'm'"),
        (
            FakeModel({1: "a"}, SpecificVersions((1, 4)), config="x"),
            "version 4: named by the version policy, but not in the repository",
        ),
    ],
)
@in_loop
async def test_partial_failure_of_a_load_changes_no_served_version(model: FakeModel, reason: str) -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    bench.models["m"] = model
    with pytest.raises(ModelLoadError) as caught:
        await bench.manager.load("m", PLAIN)
    assert caught.value.message == f"failed to load 'm', {reason}"
    assert bench.manager.is_model_ready("m", 1)


@in_loop
async def test_policy_of_none_loads_nothing_and_is_no_error() -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    bench.models["m"].policy = NoVersions()
    await bench.manager.load("m", PLAIN)
    assert bench.manager.ready_versions("m") == ()


@in_loop
async def test_unload_drains_and_shows_unloaded() -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    servable = bench.loader.loaded[0]
    await bench.manager.unload("m")
    assert servable.closed == 1
    assert bench.index() == [("m", 1, "UNLOADED", "unloaded")]
    with pytest.raises(Unavailable, match="has no available versions"):
        bench.manager.resolve("m", None)
    assert bench.manager.is_ready(), "what was unloaded on purpose is not missed"
    await bench.manager.unload("m")
    await bench.manager.unload("never_heard_of")


@in_loop
async def test_unload_returns_before_running_requests_finish() -> None:
    bench = await explicit({"m": FakeModel()}, "m", unload_grace_s=0)
    servable = bench.loader.loaded[0]
    async with servable.borrow():
        await bench.manager.unload("m")
        assert bench.index() == [("m", 1, "DRAINING", "")]
        assert servable.closed == 0
        await bench.manager.load("m", PLAIN)
        assert bench.manager.is_model_ready("m", 1), "it can be loaded again meanwhile"
    await turn()
    assert servable.closed == 1
    assert bench.index() == [("m", 1, "READY", "")]


@in_loop
async def test_config_override_replaces_the_config_for_this_load() -> None:
    bench = await explicit({"m": FakeModel({1: "a", 2: "a"}, error="typo")})
    await bench.manager.load("m", LoadOverrides('{"version_policy": {"all": {}}}'))
    assert bench.manager.ready_versions("m") == (1, 2)
    assert isinstance(bench.loader.sources[0].parsed.version_policy, AllVersions)
    bench.models["m"].error = None
    await bench.manager.load("m", PLAIN)
    assert bench.manager.ready_versions("m") == (2,)


@in_loop
async def test_wrong_config_override_fails_and_changes_nothing() -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    with pytest.raises(ModelLoadError, match=r"failed to load 'm', .*max_batch_sise"):
        await bench.manager.load("m", LoadOverrides('{"max_batch_sise": 3}'))
    assert bench.index() == [("m", 1, "READY", "")]
    assert len(bench.loader.sources) == 1


@in_loop
async def test_files_of_a_load_request_are_the_complete_model() -> None:
    bench = await explicit({"m": FakeModel({1: "a", 2: "a"})}, "m")
    await bench.manager.load("m", LoadOverrides("{}", {"file:7/model.onnx": b"x", "7/data/w.bin": b"y"}))
    assert bench.manager.ready_versions("m") == (7,)
    assert dict(bench.loader.sources[-1].files) == {"model.onnx": b"x", "data/w.bin": b"y"}
    await bench.manager.load("m", PLAIN)
    assert bench.manager.ready_versions("m") == (2,)
    assert dict(bench.loader.sources[-1].files) == {}


@in_loop
async def test_model_made_of_files_only_needs_no_folder_and_is_removed_when_unloaded() -> None:
    bench = await explicit({})
    await bench.manager.load("sent", LoadOverrides("{}", {"1/model.onnx": b"x"}))
    assert bench.index() == [("sent", 1, "READY", "")]
    await bench.manager.unload("sent")
    assert bench.index() == []
    assert bench.recorder.states == {}


@pytest.mark.parametrize(
    "path",
    ["model.onnx", "x/model.onnx", "0/m", "01/m", "1/", "1/../../m", "../1/m", "/1/m", "1//m", "1/a\\b", "-1/m", "1/\0", "labels.txt"],
)
@in_loop
async def test_override_paths_outside_a_version_are_refused(path: str) -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    with pytest.raises(InvalidRequest):
        await bench.manager.load("m", LoadOverrides("{}", {path: b"x"}))
    assert bench.index() == [("m", 1, "READY", "")]


@in_loop
async def test_files_without_a_config_are_refused() -> None:
    bench = await explicit({"m": FakeModel()})
    with pytest.raises(InvalidRequest, match="failed to load 'm', file overrides need a 'config' override"):
        await bench.manager.load("m", LoadOverrides(None, {"1/model.onnx": b""}))


@pytest.mark.parametrize(
    "name",
    ["", "..", ".", "../x", "a/../../x", "a%2f..", "..\\x", "a\0", "x" * 129, "\u202ex", "．．", "$(id)", ";id", "a\nb", "/etc", "a b"],
)
@in_loop
async def test_names_outside_the_allow_list_are_refused(name: str) -> None:
    bench = await explicit({})
    for call in (bench.manager.load(name, PLAIN), bench.manager.unload(name)):
        with pytest.raises(InvalidRequest, match="is not a model name") as caught:
            await call
        assert caught.value.message.isprintable()


@in_loop
async def test_calls_for_one_model_run_in_arrival_order() -> None:
    bench = await explicit({"m": FakeModel()})
    calls = [bench.manager.load("m", PLAIN), bench.manager.unload("m"), bench.manager.load("m", PLAIN), bench.manager.unload("m")]
    assert await asyncio.gather(*calls) == [None] * 4
    assert bench.index() == [("m", 1, "UNLOADED", "unloaded")]
    await asyncio.gather(bench.manager.unload("m"), bench.manager.load("m", PLAIN))
    assert bench.index() == [("m", 1, "READY", "")]
    await bench.manager.stop(1)
    bench.assert_nothing_leaks()


@in_loop
async def test_slow_load_of_one_model_delays_no_other() -> None:
    bench = await explicit({"slow": FakeModel(), "m": FakeModel()}, holds=True)
    slow = asyncio.create_task(bench.manager.load("slow", PLAIN))
    quick = asyncio.create_task(bench.manager.load("m", PLAIN))
    await bench.loader.arrived(2)
    bench.loader.find("m", 1).finish()
    await quick
    assert not slow.done()
    bench.loader.find("slow", 1).finish()
    await slow


@in_loop
async def test_cancelled_caller_does_not_cancel_the_load() -> None:
    bench = await explicit({"m": FakeModel()}, holds=True)
    call = asyncio.create_task(bench.manager.load("m", PLAIN))
    await bench.loader.arrived()
    call.cancel()
    await turn()
    assert call.cancelled()
    bench.loader.find("m", 1).finish()
    await turn()
    assert bench.manager.is_model_ready("m", 1)


@in_loop
async def test_load_during_a_shutdown_returns_an_error() -> None:
    bench = await explicit({"m": FakeModel()}, holds=True)
    call = asyncio.create_task(bench.manager.load("m", PLAIN))
    await bench.loader.arrived()
    _, outcome = await asyncio.gather(bench.manager.stop(1), call, return_exceptions=True)
    assert error_of(outcome) == "the server is shutting down"
    with pytest.raises(Unavailable, match="shutting down"):
        await bench.manager.load("m", PLAIN)


@in_loop
async def test_rescan_for_the_index_finds_new_folders_and_loads_nothing() -> None:
    bench = await explicit({"m": FakeModel()}, "m")
    await bench.manager.unload("m")
    bench.models["n"] = FakeModel()
    del bench.models["m"]
    assert await bench.manager.rescan()
    await turn()
    assert bench.index() == [("n", None, "", "")]
    assert len(bench.loader.sources) == 1


@in_loop
async def test_configuration_of_a_load_is_read_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await explicit({"m": FakeModel()})
    has_begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def held(name: str, found: ModelListing | None, overrides: LoadOverrides, roots: object) -> ModelListing | None:
        loop.call_soon_threadsafe(has_begun.set)
        if not may_end.wait(30):
            raise AssertionError("the event loop waits for the configuration to be read")
        return found

    monkeypatch.setattr(manager, "apply_overrides", held)
    loading = asyncio.create_task(bench.manager.load("m", LoadOverrides(config_json="{}")))
    await has_begun.wait()
    assert bench.index() == [("m", None, "", "")]
    may_end.set()
    await loading
    assert bench.manager.is_model_ready("m", 1)
