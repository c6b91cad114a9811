"""A list of models: folders with other names than their models, and replacement of lists."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.backends.api.errors import Forbidden, InvalidRequest, ModelLoadError, Unavailable
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.config.report import ConfigError
from stoker.server.core.model_config import AllVersions, BatchingDefaults, LatestVersions, ListedModel, SpecificVersions
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.lifecycle.model_list import ListedModels, ModelListFile
from stoker.server.lifecycle.repository import RepositoryUnreadable
from stoker.server.lifecycle.settings import ControlMode, LifecycleSettings
from tests.fakes.fake_loader import FakeLoader, FakeRecorder, FakeRepository
from tests.fakes.manager_bench import in_loop


def folder(root: Path, name: str, *versions: int, config: str | None = None) -> Path:
    made = root / name
    for version in versions:
        (made / str(version)).mkdir(parents=True)
        (made / str(version) / "model.onnx").write_bytes(b"%d" % version)
    if config is not None:
        (made / "config.pbtxt").write_text(config)
    return made


def test_model_may_have_another_name_than_its_folder(tmp_path: Path):
    made = folder(tmp_path, "folder", 1, 2, config='name: "folder" platform: "onnxruntime_onnx" version_policy { all { } }')
    source = ListedModels(
        [ListedModel(name="m", base_path=made), ListedModel(name="n", base_path=made, version_policy=SpecificVersions((1,)))]
    )
    found = source.scan().models
    assert (list(found), found["m"].versions.keys()) == (["m", "n"], {1, 2})
    configs = [found[name].config for name in "mn"]
    assert [(each.name, each.message.name, each.version_policy) for each in configs if each] == [
        ("m", "m", AllVersions()),
        ("n", "n", SpecificVersions((1,))),
    ]
    assert source.find("m") == found["m"]
    assert source.find("folder") is None


def test_model_without_config_is_completed_from_file_and_list(tmp_path: Path):
    made = folder(tmp_path, "x", 3)
    defaults = BatchingDefaults(max_batch_size=7)
    model = ListedModel(name="m", base_path=made, version_policy=LatestVersions(2), platform="onnxruntime_onnx")
    found = ListedModels([model], batching_defaults=defaults).scan().models["m"].config
    assert found is not None
    assert (found.platform, found.message.platform, found.version_policy) == ("onnxruntime_onnx", "onnxruntime_onnx", LatestVersions(2))
    assert found.batching_defaults is defaults
    assert found.message.version_policy.latest.num_versions == 2


def test_missing_folder_is_an_entry_with_an_error_and_no_path(tmp_path: Path):
    good = folder(tmp_path, "good", 1)
    (tmp_path / "empty").mkdir()
    source = ListedModels([
        ListedModel(name="gone", base_path=tmp_path / "secret"), ListedModel(name="empty", base_path=tmp_path / "empty"),
        ListedModel(name="good", base_path=good),
    ])  # fmt: skip
    found = source.scan().models
    assert [found[name].config is None for name in ("gone", "empty", "good")] == [True, True, False]
    assert "secret" not in (found["gone"].error or "")
    assert source.roots == (tmp_path / "empty", good)
    source.check_roots()
    with pytest.raises(RepositoryUnreadable, match="the folder of model 'gone'"):
        ListedModels([ListedModel(name="gone", base_path=tmp_path / "secret")]).check_roots()


@pytest.mark.parametrize(
    ("names", "text"),
    [(["a", "a"], "Illegal to list model a multiple times"), (["a/b"], "is not a model name"), ([".."], "not a model name")],
)
def test_invalid_names_in_a_list_are_refused(names: list[str], text: str, tmp_path: Path):
    with pytest.raises(InvalidRequest, match=text):
        ListedModels([ListedModel(name=name, base_path=tmp_path) for name in names])


def test_clients_list_may_name_the_operators_folders_and_those_below_the_root(tmp_path: Path):
    own, allowed, outside = folder(tmp_path, "own", 1), folder(tmp_path / "root", "m", 1), folder(tmp_path, "outside", 1)
    (tmp_path / "root" / "link").symlink_to(outside)
    source = ListedModels([ListedModel(name="own", base_path=own)], reload_root=tmp_path / "root")
    source.admit([ListedModel(name="again", base_path=own), ListedModel(name="m", base_path=allowed)], is_trusted=False)
    before = source.models
    for wrong in (outside, tmp_path / "root" / "link", tmp_path / "root" / ".." / "outside", Path("/")):
        with pytest.raises(Forbidden, match="base_path of model x is not allowed") as caught:
            source.admit([ListedModel(name="x", base_path=wrong)], is_trusted=False)
        assert str(tmp_path) not in caught.value.message
    assert source.models == before


class ListBench:
    """A manager of listed models with a loader that ends every load at once."""

    def __init__(self, *models: ListedModel, mode: ControlMode = ControlMode.POLL, labels_for_unavailable: bool = False) -> None:
        self.source = ListedModels(models)
        self.loader = FakeLoader(holds=False)
        settings = LifecycleSettings(control_mode=mode, settle_s=1.0, labels_for_unavailable=labels_for_unavailable)
        self.manager = ModelManager(self.source, self.loader, FakeRecorder(), FakeClock(), settings, watch=False)

    async def started(self) -> "ListBench":
        await self.manager.start()
        await self.manager.wait_initial()
        return self

    def ready(self) -> list[tuple[str, int]]:
        return [(entry.name, entry.version or 0) for entry in self.manager.index(True)]


@pytest.mark.parametrize("mode", [ControlMode.POLL, ControlMode.EXPLICIT])
def test_new_list_replaces_the_old_one_at_once(mode: ControlMode, tmp_path: Path):
    a, b = folder(tmp_path, "a", 1, 2), folder(tmp_path, "b", 1)

    @in_loop
    async def scenario() -> None:
        kept = ListedModel(name="kept", base_path=a)
        bench = await ListBench(kept, ListedModel(name="old", base_path=b), mode=mode).started()
        if mode is ControlMode.EXPLICIT:
            await bench.manager.replace_models(bench.source.models, is_trusted=True)
        assert bench.ready() == [("kept", 2), ("old", 1)]
        loads = len(bench.loader.loaded)
        more = ListedModel(name="kept", base_path=a, version_policy=AllVersions())
        await bench.manager.replace_models([more, ListedModel(name="new", base_path=b)], is_trusted=True)
        assert bench.ready() == [("kept", 1), ("kept", 2), ("new", 1)]
        # What served before was not loaded again because its policy has changed.
        assert sorted((each.name, each.version) for each in bench.loader.loaded[loads:]) == [("kept", 1), ("new", 1)]
        await bench.manager.stop(1)

    scenario()


def test_another_folder_under_the_same_name_is_loaded_before_the_response(tmp_path: Path):
    a, b = folder(tmp_path, "a", 1), folder(tmp_path, "b", 1, 2)

    @in_loop
    async def scenario() -> None:
        bench = await ListBench(ListedModel(name="m", base_path=a)).started()
        await bench.manager.replace_models([ListedModel(name="m", base_path=b)], is_trusted=True)
        assert bench.ready() == [("m", 2)]
        assert bench.loader.loaded[-1].source.version_dir == b / "2"
        folder(tmp_path, "b", 3)
        await bench.manager.replace_models([ListedModel(name="m", base_path=b)], is_trusted=True)
        assert bench.ready() == [("m", 3)]
        await bench.manager.stop(1)

    scenario()


def test_labels_follow_the_list_and_are_checked_against_the_loaded_versions(tmp_path: Path):
    made = folder(tmp_path, "m", 1, 2)

    def listed(labels: dict[str, int], *versions: int) -> list[ListedModel]:
        return [ListedModel(name="m", base_path=made, version_policy=SpecificVersions(versions), version_labels=labels)]

    @in_loop
    async def scenario() -> None:
        bench = await ListBench(*listed({"stable": 1}, 1)).started()
        manager = bench.manager
        assert manager.labelled_version("m", "stable") == 1
        await manager.replace_models(listed({"stable": 1, "canary": 2}, 1, 2), is_trusted=True)
        assert manager.labelled_version("m", "canary") == 2
        wrong = "Request to assign label to version 3 of model m, which is not currently available for inference"
        with pytest.raises(ModelLoadError, match=wrong):
            await manager.replace_models(listed({"stable": 3}, 1, 2), is_trusted=True)
        assert manager.labelled_version("m", "stable") == 1
        assert manager.labelled_version("m", "canary") is None
        await manager.stop(1)

    scenario()


def test_clients_list_with_an_ineffective_label_changes_nothing(tmp_path: Path):
    made, other = folder(tmp_path, "m", 1, 2), folder(tmp_path, "n", 1)

    def listed(labels: dict[str, int], *versions: int) -> ListedModel:
        return ListedModel(name="m", base_path=made, version_policy=SpecificVersions(versions), version_labels=labels)

    @in_loop
    async def scenario() -> None:
        bench = await ListBench(listed({"stable": 1, "canary": 2}, 1, 2), ListedModel(name="n", base_path=other)).started()
        manager = bench.manager
        before, loads = bench.ready(), len(bench.loader.sources)
        for labels, versions in (({"canary": 9}, (1, 2)), ({"stable": 1}, (2,)), ({"stable": 2, "new": 1}, (2,))):
            with pytest.raises(ModelLoadError, match=r"assign label to version [19] of model m"):
                await manager.replace_models([listed(labels, *versions)], is_trusted=False)
            assert bench.ready() == before, "no model has gone, not even those that the list leaves out"
            assert [manager.labelled_version("m", label) for label in ("stable", "canary", "new")] == [1, 2, None]
        assert len(bench.loader.sources) == loads
        await manager.replace_models([listed({"stable": 2}, 2)], is_trusted=False)
        assert bench.ready() == [("m", 2)]
        assert [manager.labelled_version("m", label) for label in ("stable", "canary")] == [2, None]
        await manager.stop(1)

    scenario()


def test_model_of_a_clients_list_that_fails_to_load_keeps_its_labels(tmp_path: Path):
    made, other = folder(tmp_path, "m", 1), folder(tmp_path, "n", 1, 2)

    def listed(label: int) -> list[ListedModel]:
        return [
            ListedModel(name="m", base_path=made, version_labels={"stable" if label == 1 else "canary": label}),
            ListedModel(name="n", base_path=other, version_policy=SpecificVersions((1, 2)), version_labels={"stable": label}),
        ]

    @in_loop
    async def scenario() -> None:
        bench = await ListBench(*listed(1)).started()
        folder(tmp_path, "m", 2)
        bench.loader.errors["m", 2] = ModelLoadError("corrupt")
        with pytest.raises(ModelLoadError, match="model m: version 2: corrupt"):
            await bench.manager.replace_models(listed(2), is_trusted=False)
        assert [bench.manager.labelled_version("m", label) for label in ("stable", "canary")] == [1, None]
        assert bench.manager.labelled_version("n", "stable") == 2, "the rest of the list counts"
        assert bench.ready() == [("m", 1), ("n", 1), ("n", 2)]
        await bench.manager.stop(1)

    scenario()


def test_label_leaves_the_old_version_before_the_list_drops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = folder(tmp_path, "m", 1, 2)

    def listed(label: int, *versions: int) -> list[ListedModel]:
        return [ListedModel(name="m", base_path=made, version_policy=SpecificVersions(versions), version_labels={"stable": label})]

    @in_loop
    async def scenario() -> None:
        bench = await ListBench(*listed(1, 1, 2)).started()
        assert bench.manager.labelled_version("m", "stable") == 1
        meant: list[int | None] = []
        replace = bench.source.replace

        def noting(models: Sequence[ListedModel]) -> None:
            meant.append(bench.manager.labelled_version("m", "stable"))
            replace(models)

        monkeypatch.setattr(bench.source, "replace", noting)
        await bench.manager.replace_models(listed(2, 2), is_trusted=True)
        assert meant == [2]
        await bench.manager.stop(1)

    scenario()


def test_new_label_may_wait_for_its_version_if_the_operator_allows_it(tmp_path: Path):
    made = folder(tmp_path, "m", 1)

    @in_loop
    async def scenario() -> None:
        bench = await ListBench(ListedModel(name="m", base_path=made, version_labels={"a": 1}), labels_for_unavailable=True).started()
        assert bench.manager.labelled_version("m", "a") == 1
        await bench.manager.replace_models([ListedModel(name="m", base_path=made, version_labels={"a": 1, "b": 9})], is_trusted=True)
        assert bench.manager.labelled_version("m", "b") == 9
        with pytest.raises(ModelLoadError, match="assign label to version 9"):
            await bench.manager.replace_models([ListedModel(name="m", base_path=made, version_labels={"a": 9})], is_trusted=True)
        await bench.manager.stop(1)

    scenario()


def test_listed_model_that_fails_to_load_is_reported_and_the_others_serve(tmp_path: Path):
    a, b = folder(tmp_path, "a", 1), folder(tmp_path, "b", 1)

    @in_loop
    async def scenario() -> None:
        bench = await ListBench(ListedModel(name="a", base_path=a)).started()
        bench.loader.errors["b", 1] = ModelLoadError("corrupt")
        with pytest.raises(ModelLoadError, match="model b: version 1: corrupt"):
            await bench.manager.replace_models([ListedModel(name="b", base_path=b), ListedModel(name="c", base_path=a)], is_trusted=True)
        assert bench.ready() == [("c", 1)]
        await bench.manager.stop(1)

    scenario()


def test_lists_are_refused_without_a_list_or_permission_to_change(tmp_path: Path):
    made = folder(tmp_path, "a", 1)

    @in_loop
    async def scenario() -> None:
        fixed = await ListBench(ListedModel(name="a", base_path=made), mode=ControlMode.NONE).started()
        with pytest.raises(Unavailable, match="fixed"):
            await fixed.manager.replace_models([], is_trusted=True)
        await fixed.manager.stop(1)
        bench = await ListBench().started()
        await bench.manager.stop(1)
        with pytest.raises(Unavailable, match="shutting down"):
            await bench.manager.replace_models([], is_trusted=True)
        plain = ModelManager(FakeRepository({}), FakeLoader(holds=False), FakeRecorder(), FakeClock(), LifecycleSettings(), watch=False)
        with pytest.raises(Unavailable, match="serves a model repository"):
            await plain.replace_models([], is_trusted=True)
        assert plain.labelled_version("m", "x") is None

    scenario()


def test_file_is_reloaded_only_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "models.config"
    path.write_text('model_config_list { config { name: "a" base_path: "here" } }')
    file = ModelListFile(path)
    [first] = file.read()
    assert first.base_path == tmp_path / "here"
    steps = [
        lambda: None,
        lambda: path.write_text('model_config_list { config { name: "b" base_path: "/there" } }'),
        lambda: path.write_text("model_config_list { config { label: 1 } }"),
        lambda: None,
        path.unlink,
        lambda: path.write_text("model_config_list { }"),
    ]
    taken: list[list[str]] = []

    async def wait(period_s: float) -> None:
        assert period_s == 5
        if not steps:
            raise asyncio.CancelledError
        steps.pop(0)()

    async def replace(models: object) -> None:
        taken.append([model.name for model in models])  # type: ignore[attr-defined]

    with pytest.raises(asyncio.CancelledError), caplog.at_level("ERROR"):
        asyncio.run(file.follow(replace, 5, wait=wait))
    assert taken == [["b"], []]
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "models.config:1: model_config_list.config[0].label: unknown field; allowed: "
        "name, base_path, model_type, model_platform, model_version_policy, version_labels",
        "models.config cannot be read: No such file or directory",
    ]


def test_binary_or_oversized_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "models.config"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 0"):
        ModelListFile(path).read()
    monkeypatch.setattr("stoker.server.lifecycle.model_list.MAX_FILE_BYTES", 3)
    path.write_bytes(b"1234")
    with pytest.raises(ConfigError, match="larger than 3 bytes"):
        ModelListFile(path).read()
