"""Ensembles follow the models of their steps: waiting, failing, unloading, reloading, and loading of what they need."""

import asyncio
from dataclasses import replace

import pytest

from stoker.backends.api.errors import ModelLoadError, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.ensemble import Ensemble, EnsembleStep
from stoker.server.core.model_config import AllVersions, LoadOverrides
from stoker.server.lifecycle.dependencies import MAX_NESTING, TOO_DEEP, ordered
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.loader import VersionSource
from stoker.server.lifecycle.servable import Servable
from stoker.server.lifecycle.settings import ControlMode
from tests.fakes.fake_loader import FakeLoader, FakeModel, FakeRepository, FakeServable, turn
from tests.fakes.manager_bench import Bench, in_loop

PLAIN = LoadOverrides()


def of(*models: str, versions: dict[str, int] | None = None) -> FakeModel:
    """An ensemble of `models`."""
    model = FakeModel()
    model.ensemble = Ensemble(tuple(  # type: ignore[attr-defined]
        EnsembleStep(model=name, version=(versions or {}).get(name), inputs={"a": "IN"}, outputs={"b": f"t{index}"})
        for index, name in enumerate(models)
    ))  # fmt: skip
    return model


def plain(rows: int = 4) -> ModelSignature:
    return ModelSignature((TensorSpec("a", DataType.FP32, (rows,)),), (TensorSpec("b", DataType.FP32, (rows,)),), 8)


class Repository(FakeRepository):
    def _listing(self, name: str, model: FakeModel) -> ModelListing:
        listing = super()._listing(name, model)
        ensemble = getattr(model, "ensemble", None)
        return (
            listing if ensemble is None or listing.config is None else replace(listing, config=replace(listing.config, ensemble=ensemble))
        )


class Loader(FakeLoader):
    """Gives servables the signatures in `signatures`."""

    def __init__(self, **settings: bool) -> None:
        super().__init__(**settings)
        self.signatures: dict[str, ModelSignature] = {}

    async def load(self, source: VersionSource) -> Servable:
        servable = await super().load(source)
        servable.signature = self.signatures.get(source.name, plain())
        return servable


class EnsembleBench(Bench):
    def __init__(self, models: dict[str, FakeModel], *, holds: bool = False, mode: ControlMode = ControlMode.POLL, **settings) -> None:
        loader = Loader(holds=holds)
        super().__init__(models, loader=loader, mode=mode, **settings)
        self.signatures = loader.signatures
        self.repository = Repository(models)
        self.models = self.repository.models
        self.manager._repository = self.repository

    def state(self, name: str = "e") -> tuple[str, str]:
        """State and reason of the only version of a model."""
        return next((state, reason) for model, _, state, reason in self.index() if model == name)


async def polled(models: dict[str, FakeModel], **settings) -> EnsembleBench:
    bench = EnsembleBench(models, **settings)
    await bench.started()
    return bench


async def explicit(models: dict[str, FakeModel], *load_models: str, **settings) -> EnsembleBench:
    bench = EnsembleBench(models, mode=ControlMode.EXPLICIT, load_models=load_models, **settings)
    await bench.started()
    return bench


@in_loop
async def test_ensemble_waits_for_models_that_load() -> None:
    bench = await polled({"e": of("a", "b"), "a": FakeModel(), "b": FakeModel()}, holds=True)
    assert bench.state() == ("NEW", "")
    assert {load.source.name for load in bench.loader.pending} == {"a", "b"}, "the ensemble holds no slot while it waits"
    waiting = asyncio.create_task(bench.manager.wait_initial())
    bench.loader.find("b", 1).finish()
    await turn()
    assert bench.state() == ("NEW", "")
    bench.loader.find("a", 1).finish()
    await turn()
    assert bench.state()[0] == "LOADING"
    assert not waiting.done(), "the initial loads include the ensemble"
    bench.loader.find("e", 1).finish()
    await waiting
    assert bench.state() == ("READY", "")
    assert bench.manager.is_ready()


@in_loop
async def test_loader_gets_the_versions_that_the_steps_run() -> None:
    bench = await polled(
        {"e": of("a", "b", versions={"b": 1}), "a": FakeModel({1: "x", 3: "x"}), "b": FakeModel({1: "x", 2: "x"}, AllVersions())}
    )
    source = next(source for source in bench.loader.sources if source.name == "e")
    assert [model.version for model in source.steps] == [3, 1]
    assert [model.signature for model in source.steps] == [plain(), plain()]


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ({"a": FakeModel()}, "step 'b' needs model 'b', which is not in the repository"),
        ({"a": FakeModel(), "bb": FakeModel()}, "step 'b' needs model 'b', which is not in the repository; did you mean bb?"),
        (
            {"a": FakeModel(), "b": FakeModel(error="b/config.pbtxt:1: wrong")},
            "step 'b' needs model 'b', which cannot be loaded: b/config.pbtxt:1: wrong",
        ),
    ],
)
def test_ensemble_is_unavailable_with_a_reason_that_names_the_step(models: dict[str, FakeModel], reason: str) -> None:
    @in_loop
    async def scenario() -> None:
        bench = await polled({"e": of("a", "b"), **models})
        assert bench.state() == ("FAILED", reason)
        assert not bench.manager.is_ready()
        assert "e" in bench.manager.failed_models()
        with pytest.raises(Unavailable, match="has no available versions: step 'b' needs model 'b'"):
            bench.manager.resolve("e", None)

    scenario()


@in_loop
async def test_failed_model_of_a_step_fails_the_ensemble_until_it_loads() -> None:
    bench = EnsembleBench({"e": of("a"), "a": FakeModel()})
    bench.loader.errors["a", 1] = ModelLoadError("model.onnx: truncated")
    await bench.started()
    assert bench.state() == ("FAILED", "step 'a' needs model 'a', which does not serve: model.onnx: truncated")
    bench.loader.errors.clear()
    bench.models["a"] = FakeModel({1: "new"})
    await bench.rescan()
    assert bench.state() == ("READY", "")


@in_loop
async def test_version_that_is_not_served_is_the_reason() -> None:
    bench = await polled({"e": of("a", versions={"a": 7}), "a": FakeModel()})
    assert bench.state()[1] == (
        "step 'a' needs model 'a' version 7, which is not served by the model's version policy, or is not in the repository"
    )


@in_loop
async def test_ensemble_becomes_ready_when_the_missing_model_appears_and_leaves_when_it_vanishes() -> None:
    bench = await polled({"e": of("a")})
    assert bench.state()[0] == "FAILED"
    bench.models["a"] = FakeModel()
    await bench.rescan()
    assert bench.state() == ("READY", "")
    old = bench.manager.resolve("e", None)
    del bench.models["a"]
    await bench.rescan()
    assert bench.state() == ("FAILED", "step 'a' needs model 'a', which is not in the repository")
    assert isinstance(old, FakeServable)
    assert (old.retired, old.closed) == (1, 1)
    bench.models["a"] = FakeModel()
    await bench.rescan()
    assert bench.state() == ("READY", "")


@in_loop
async def test_reload_of_a_model_with_the_same_signature_changes_nothing_for_the_ensemble() -> None:
    bench = await polled({"e": of("a"), "a": FakeModel()})
    serving = bench.manager.resolve("e", None)
    bench.models["a"] = FakeModel({1: "new"})
    await bench.rescan()
    assert bench.manager.resolve("e", None) is serving
    assert [source.name for source in bench.loader.sources] == ["a", "e", "a"]


@in_loop
async def test_reload_of_a_model_with_another_signature_checks_the_ensemble_again() -> None:
    bench = await polled({"e": of("a"), "a": FakeModel()})
    old = bench.manager.resolve("e", None)
    bench.signatures["a"] = plain(5)
    bench.models["a"] = FakeModel({1: "new"})
    await bench.rescan()
    assert bench.manager.resolve("e", None) is not old
    assert bench.loader.sources[-1].steps[0].signature == plain(5)


@in_loop
async def test_ensemble_that_no_longer_fits_its_models_leaves_service() -> None:
    bench = await polled({"e": of("a"), "a": FakeModel()})
    bench.signatures["a"] = plain(5)
    bench.loader.errors["e", 1] = ModelLoadError("e/config.pbtxt:3: does not fit")
    bench.models["a"] = FakeModel({1: "new"})
    await bench.rescan()
    assert bench.state() == ("FAILED", "e/config.pbtxt:3: does not fit")
    bench.loader.errors.clear()
    bench.signatures.clear()
    bench.models["a"] = FakeModel({1: "newer"})
    await bench.rescan()
    assert bench.state() == ("READY", "")


@in_loop
async def test_broken_change_of_the_ensemble_itself_leaves_it_serving() -> None:
    bench = await polled({"e": of("a"), "a": FakeModel()})
    bench.loader.errors["e", 1] = ModelLoadError("e/config.pbtxt:3: wrong")
    changed = of("a")
    changed.config = "changed"
    bench.models["e"] = changed
    await bench.rescan()
    assert bench.state() == ("READY", "reload FAILED: e/config.pbtxt:3: wrong")


@in_loop
async def test_newer_version_of_a_model_is_what_the_ensemble_is_checked_against() -> None:
    bench = await polled({"e": of("a"), "a": FakeModel({1: "x"})})
    bench.signatures["a"] = plain(6)
    bench.models["a"] = FakeModel({1: "x", 2: "x"})
    await bench.rescan()
    assert bench.loader.sources[-1].name == "e"
    assert (bench.loader.sources[-1].steps[0].version, bench.loader.sources[-1].steps[0].signature) == (2, plain(6))


@in_loop
async def test_ensembles_in_ensembles_follow_too() -> None:
    bench = await polled({"outer": of("e"), "e": of("a"), "a": FakeModel()})
    assert bench.state("outer") == ("READY", "")
    del bench.models["a"]
    await bench.rescan()
    assert bench.state("outer") == (
        "FAILED",
        "step 'e' needs model 'e', which does not serve: step 'a' needs model 'a', which is not in the repository",
    )
    bench.models["a"] = FakeModel()
    await bench.rescan()
    assert bench.state("outer") == ("READY", "")


@in_loop
async def test_ensembles_that_need_each_other_fail_with_the_cycle() -> None:
    bench = await polled({"e": of("f"), "f": of("g"), "g": of("e")})
    assert bench.state("e") == ("FAILED", "ensembles need each other: e -> f -> g -> e")
    assert bench.state("f") == ("FAILED", "ensembles need each other: f -> g -> e -> f")
    bench.models["g"] = FakeModel({1: "plain"})
    await bench.rescan()
    assert bench.state("e") == ("READY", "")


@in_loop
async def test_explicit_load_of_an_ensemble_loads_its_models() -> None:
    bench = await explicit({"e": of("a", "b"), "a": FakeModel(), "b": FakeModel(), "other": FakeModel()})
    await bench.manager.load("e", PLAIN)
    assert bench.state() == ("READY", "")
    assert bench.manager.ready_versions("a") == bench.manager.ready_versions("b") == (1,)
    assert bench.manager.ready_versions("other") == ()


@in_loop
async def test_explicit_load_keeps_models_that_serve() -> None:
    bench = await explicit({"e": of("a"), "a": FakeModel()}, "a")
    serving = bench.manager.resolve("a", None)
    await bench.manager.load("e", PLAIN)
    assert bench.manager.resolve("a", None) is serving


@in_loop
async def test_explicit_load_with_a_missing_model_fails_with_the_step() -> None:
    bench = await explicit({"e": of("a", "ghost"), "a": FakeModel()})
    with pytest.raises(
        ModelLoadError, match=r"^failed to load 'e', version 1: step 'ghost' needs model 'ghost', which is not in the repository$"
    ):
        await bench.manager.load("e", PLAIN)


@in_loop
async def test_explicit_load_tries_a_failed_model_again() -> None:
    bench = await explicit({"e": of("a"), "a": FakeModel()})
    bench.loader.errors["a", 1] = ModelLoadError("no memory")
    with pytest.raises(ModelLoadError, match="step 'a' needs model 'a', which does not serve: no memory"):
        await bench.manager.load("e", PLAIN)
    bench.loader.errors.clear()
    await bench.manager.load("e", PLAIN)
    assert bench.state() == ("READY", "")


@in_loop
async def test_ensemble_named_at_start_brings_its_models() -> None:
    bench = await explicit({"e": of("a"), "a": FakeModel(), "b": FakeModel()}, "e")
    assert bench.state() == ("READY", "")
    assert bench.manager.ready_versions("b") == ()


@in_loop
async def test_unload_of_a_model_makes_the_ensemble_unavailable_until_it_is_loaded_again() -> None:
    bench = await explicit({"e": of("a"), "a": FakeModel()}, "*")
    await bench.manager.unload("a")
    assert bench.state() == ("FAILED", "step 'a' needs model 'a', which is not loaded")
    assert not bench.manager.is_ready()
    await bench.manager.load("a", PLAIN)
    assert bench.state() == ("READY", "")
    assert bench.manager.is_ready()


@in_loop
async def test_unload_of_an_ensemble_keeps_its_models() -> None:
    bench = await explicit({"e": of("a"), "a": FakeModel()})
    await bench.manager.load("e", PLAIN)
    await bench.manager.unload("e")
    assert bench.manager.ready_versions("e") == ()
    assert bench.manager.ready_versions("a") == (1,)


@in_loop
async def test_unload_with_dependents_unloads_what_was_loaded_for_the_ensemble_only() -> None:
    bench = await explicit(
        {"e": of("a", "b", "c", "inner"), "f": of("b"), "inner": of("d"), **{name: FakeModel() for name in "abcd"}}, "c", "f"
    )
    await bench.manager.load("e", PLAIN)
    await bench.manager.unload("e", unload_dependents=True)
    serving = {name for name in ("a", "b", "c", "d", "e", "f", "inner") if bench.manager.ready_versions(name)}
    assert serving == {"b", "c", "f"}, "b is needed by f, and c was loaded by its name"


@in_loop
async def test_stop_ends_everything_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    bench = await polled({"e": of("a"), "a": FakeModel()})
    await bench.manager.stop(1.0)
    bench.assert_nothing_leaks()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_models_are_ordered_behind_what_they_need() -> None:
    repository = Repository({"e": of("x", "f"), "f": of("y"), "x": FakeModel(), "y": FakeModel(), "g": of("h"), "h": of("g")})
    models = repository.scan().models
    names = ordered(models, models)
    assert sorted(names) == sorted(models)
    assert names.index("x") < names.index("e") > names.index("f") > names.index("y")
    assert ordered(["f"], models) == ["y", "f"]


@in_loop
async def test_ensembles_are_nested_to_a_bound() -> None:
    # The last one needs `a`, each other one the next.
    models = {f"e{index:03}": of(f"e{index + 1:03}" if index < 179 else "a") for index in range(180)}
    bench = await polled({**models, "a": FakeModel()})
    await turn(200)
    serving = [name for name, _, state, _ in bench.index() if state == "READY"]
    assert serving == ["a", *sorted(models)[-MAX_NESTING:]]
    assert bench.state("e000") == ("FAILED", TOO_DEEP)
