"""Model namespaces: models of one name in several repositories, and the choice of the models that the steps of ensembles run."""

from pathlib import Path

import pytest

from stoker.backends.api.errors import InvalidRequest, UnknownModel
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.model_config import LoadOverrides
from stoker.server.core.model_key import model_key, name_of, repository_of
from stoker.server.lifecycle.desired_state import NO_VERSIONS
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.settings import ControlMode, LifecycleSettings
from stoker.server.observability.metrics import Metrics
from tests.fakes.fake_loader import FakeLoader, turn

pytestmark = pytest.mark.anyio
AMBIGUOUS = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity"


def add(root: Path, *names: str) -> None:
    for name in names:
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.onnx").write_bytes(b"model")


def add_ensemble(root: Path, name: str, step: str, namespace: str = "") -> None:
    (root / name / "1").mkdir(parents=True)
    written = f'model_namespace: "{namespace}"' if namespace else ""
    (root / name / "config.pbtxt").write_text(
        f"""
        platform: "ensemble"
        input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
        ensemble_scheduling {{ step [ {{
            model_name: "{step}" {written}
            input_map {{ key: "a" value: "IN" }} output_map {{ key: "b" value: "OUT" }}
        }} ] }}
        """
    )


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "first", tmp_path / "second"
    for root in made:
        root.mkdir()
    return made


def step_key(repository: ModelRepository, key: str) -> str:
    """The key of the model of the only step of the ensemble `key`, which a scan and a look at the one model find alike."""
    listing = repository.scan().models[key]
    found = repository.find(key)
    assert found is not None
    assert (listing.error, listing.mark) == (None, found.mark)
    assert listing.config is not None
    assert listing.config.ensemble is not None
    return listing.config.ensemble.steps[0].key


def test_key_names_the_model_and_its_repository():
    assert (name_of(model_key("m", 1)), repository_of(model_key("m", 1))) == ("m", 1)
    assert (name_of("m"), repository_of("m")) == ("m", None)


def test_scan_has_the_models_of_each_repository(roots: tuple[Path, Path]):
    add(roots[0], "m", "a")
    add(roots[1], "m")
    repository = ModelRepository(roots, has_namespaces=True)
    models = repository.scan().models
    assert [(key, listing.directory) for key, listing in models.items()] == [
        ("a@1", roots[0] / "a"),
        ("m@1", roots[0] / "m"),
        ("m@2", roots[1] / "m"),
    ]
    assert repository.keys("m") == ["m@1", "m@2"]
    assert repository.keys("b") == []
    assert repository.find("a@2") is None
    assert "the name is taken in model repositories" in str(ModelRepository(roots).scan().models["m"].error)


def test_step_runs_the_model_of_the_ensembles_own_repository(roots: tuple[Path, Path]):
    for root in roots:
        add(root, "m")
        add_ensemble(root, "e", "m")
    repository = ModelRepository(roots, has_namespaces=True)
    assert [step_key(repository, key) for key in ("e@1", "e@2")] == ["m@1", "m@2"]


def test_step_runs_the_only_model_of_its_name(roots: tuple[Path, Path]):
    add(roots[1], "m")
    add_ensemble(roots[0], "e", "m")
    assert step_key(ModelRepository(roots, has_namespaces=True), "e@1") == "m@2"


def test_step_runs_the_model_of_the_namespace_that_it_names(roots: tuple[Path, Path]):
    for root in roots:
        add(root, "m")
    add_ensemble(roots[0], "e", "m", f"{roots[1]}/")
    # A model of the ensemble's own name, in another namespace, may be its step.
    add(roots[1], "x")
    add_ensemble(roots[0], "x", "x", str(roots[1]))
    repository = ModelRepository(roots, has_namespaces=True)
    assert [step_key(repository, key) for key in ("e@1", "x@1")] == ["m@2", "x@2"]


def test_step_whose_name_several_other_repositories_have_is_an_error(tmp_path: Path, roots: tuple[Path, Path]):
    for root in roots:
        add(root, "m")
    add_ensemble(tmp_path / "third", "e", "m")
    models = ModelRepository([*roots, tmp_path / "third"], has_namespaces=True).scan().models
    assert models["e@3"].error == "ensemble e contains models that are not available or ambiguous: m"


def test_namespace_that_is_no_repository_is_an_error(roots: tuple[Path, Path]):
    add_ensemble(roots[0], "e", "m", "/elsewhere")
    error = ModelRepository(roots, has_namespaces=True).scan().models["e@1"].error
    assert error == "ensemble_scheduling.step[0].model_namespace: no model repository has this path, as given to --model-repository"


def test_namespace_of_a_step_is_an_error_of_a_server_without_namespaces(roots: tuple[Path, Path]):
    add_ensemble(roots[0], "e", "m", str(roots[1]))
    error = str(ModelRepository(roots).scan().models["e"].error)
    assert "ensemble_scheduling.step[0].model_namespace: without --model-namespacing=true a name identifies one model" in error


def test_another_choice_of_a_steps_model_is_a_change_of_the_ensemble(roots: tuple[Path, Path]):
    add(roots[1], "m")
    add_ensemble(roots[0], "e", "m")
    repository = ModelRepository(roots, has_namespaces=True)
    before = repository.scan().models["e@1"].mark
    assert repository.scan().models["e@1"].mark == before
    add(roots[0], "m")
    assert step_key(repository, "e@1") == "m@1"
    assert repository.scan().models["e@1"].mark != before


def manager_of(roots: tuple[Path, Path], mode: ControlMode, *load_models: str) -> ModelManager:
    clock = FakeClock()
    metrics = Metrics(clock)
    metrics.watch(namespaces=tuple(map(str, roots)))
    settings = LifecycleSettings(control_mode=mode, load_models=load_models)
    repository = ModelRepository(roots, has_namespaces=True)
    return ModelManager(repository, FakeLoader(), metrics, clock, settings, watch=False)


async def started(manager: ModelManager) -> ModelManager:
    await manager.start()
    await manager.wait_initial()
    await turn()
    return manager


async def test_name_identifies_the_only_model_that_has_it(roots: tuple[Path, Path]):
    add(roots[0], "m", "a")
    add(roots[1], "m")
    manager = await started(manager_of(roots, ControlMode.POLL))
    assert [(entry.name, entry.version) for entry in manager.index(True)] == [("a", 1), ("m", 1), ("m", 1)]
    assert manager.served() == [("a@1", 1), ("m@1", 1), ("m@2", 1)]
    assert [entry.key for entry in manager.index()] == ["a@1", "m@1", "m@2"]
    assert manager.resolve("a", None).version == 1
    assert manager.ready_versions("a") == (1,)
    assert manager.is_model_ready("a", 1)
    with pytest.raises(InvalidRequest, match=AMBIGUOUS) as raised:
        manager.resolve("m", None)
    assert "model repositories 1 ('first') and 2 ('second') have a model of this name" in raised.value.message
    assert str(roots[0]) not in raised.value.message
    assert not manager.is_model_ready("m", None)
    assert manager.resolve_key("m@2", 1) is not manager.resolve_key("m@1", 1)
    for name in ("m@1", "b"):
        with pytest.raises(UnknownModel):
            manager.resolve(name, None)
    assert manager.is_ready()
    await manager.stop(1.0)


async def test_name_identifies_the_model_that_is_left(roots: tuple[Path, Path]):
    add(roots[0], "m")
    add(roots[1], "m")
    manager = manager_of(roots, ControlMode.POLL)
    manager._settle_filter._settle_ns = 0
    await started(manager)
    (roots[0] / "m").rename(roots[0] / "b")
    await manager.rescan()
    await turn()
    await turn()
    assert manager.resolve("m", None) is manager.resolve_key("m@2", 1)
    await manager.stop(1.0)


async def test_explicit_control_of_an_ambiguous_name_is_rejected(roots: tuple[Path, Path]):
    add(roots[0], "m", "a")
    add(roots[1], "m")
    manager = await started(manager_of(roots, ControlMode.EXPLICIT, "*"))
    for work in (lambda: manager.load("m", LoadOverrides()), lambda: manager.unload("m")):
        with pytest.raises(InvalidRequest, match=AMBIGUOUS):
            await work()
    await manager.unload("a")
    assert not manager.is_model_ready("a", None)
    await manager.load("a", LoadOverrides())
    assert manager.is_model_ready("a", None)
    for name in ("a@1", "m@1"):
        with pytest.raises(InvalidRequest, match="is not a model name"):
            await manager.load(name, LoadOverrides())
    await manager.stop(1.0)


async def test_errors_name_a_model_without_its_key(roots: tuple[Path, Path]):
    add(roots[0], "m")
    (roots[0] / "m" / "config.pbtxt").write_text("version_policy { latest { num_versions: 1 } }")
    (roots[0] / "m" / "1" / "model.onnx").unlink()
    (roots[0] / "m" / "1").rmdir()
    manager = await started(manager_of(roots, ControlMode.POLL))
    assert [entry.reason for entry in manager.index()] == [NO_VERSIONS.format("m")]
    await manager.stop(1.0)


async def test_models_that_were_never_loaded_have_keys_in_the_index(roots: tuple[Path, Path]):
    add(roots[0], "m")
    add(roots[1], "m")
    manager = await started(manager_of(roots, ControlMode.EXPLICIT))
    assert [(entry.name, entry.key) for entry in manager.index()] == [("m", "m@1"), ("m", "m@2")]
    await manager.stop(1.0)


async def test_ambiguous_name_to_load_at_start_fails_with_the_reason(roots: tuple[Path, Path]):
    add(roots[0], "m", "a")
    add(roots[1], "m")
    manager = await started(manager_of(roots, ControlMode.EXPLICIT, "m", "a"))
    (entry,) = (entry for entry in manager.index() if entry.reason)
    assert (entry.name, entry.reason[: len(AMBIGUOUS)]) == ("m", AMBIGUOUS)
    assert manager.is_model_ready("a", None)
    assert not manager.is_ready()
    await manager.stop(1.0)


def test_series_have_the_namespace_of_their_model():
    metrics = Metrics(FakeClock())
    metrics.watch(namespaces=("/first", "/second"))
    for key in ("m@1", "m@2"):
        metrics.version(key, 1, {})
        metrics.loaded(key, 1, seconds=2)
        metrics.load_failed(key, 1)
        assert metrics.statistics(key, 1).name == "m"
    text = metrics.render().decode()
    for namespace in ("/first", "/second"):
        assert f'stoker_model_load_duration_seconds{{model="m",namespace="{namespace}",version="1"}} 2' in text
        assert f'stoker_model_load_failures_total{{model="m",namespace="{namespace}"}} 1' in text
    lines = [line.rsplit(" ", 1)[0] for line in (text + metrics.render_serving().decode()).splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
