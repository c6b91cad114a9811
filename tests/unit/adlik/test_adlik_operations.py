"""ModelOperateService on a repository in a temporary folder: the changes on disk, and their reversal."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.lifecycle.reconcile import desired_versions
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.pb.adlik import operate_pb2 as pb
from stoker.server.protocols.adlik.operations import NOT_ALLOWED, ModelOperations
from stoker.server.protocols.adlik.repository_edit import RepositoryEditor
from stoker.server.protocols.settings import AdlikSettings
from tests.fakes.fake_engine import FakeEngine

CONFIG = 'backend: "identity" # kept\nmax_batch_size: 2\ninput { name: "x" data_type: TYPE_FP32 dims: 2 }\n'


#: How long a client waits for an operation where the test does not say, seconds.
LIMIT_S = 15.0


class PollingEngine(FakeEngine):
    """Serves the desired versions of the repository on disk, except those in `broken`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.repository = ModelRepository([root])
        self.broken: set[int] = set()
        self.refreshes: list[str] = []

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        entries: list[IndexEntry] = []
        for name, listing in self.repository.scan().models.items():
            if listing.config is None:
                entries.append(IndexEntry(name, None, None, listing.error or ""))
                continue
            for version in desired_versions(listing.config.version_policy, listing.versions):
                is_broken = version in self.broken or version not in listing.versions
                state = VersionState.FAILED if is_broken else VersionState.READY
                entries.append(IndexEntry(name, version, state, "it is broken" if is_broken else ""))
        return entries

    async def refresh(self, name: str) -> None:
        self.refreshes.append(name)
        failed = [entry for entry in self.index() if entry.name == name and entry.state is not VersionState.READY]
        if failed:
            raise ModelLoadError(f"model '{name}' failed to load: {failed[0].reason}")

    def is_model_ready(self, name: str, version: int | None) -> bool:
        return any(entry.name == name and entry.state is VersionState.READY for entry in self.index())


class ControlledEngine(PollingEngine):
    """As `PollingEngine`, but under explicit control: loads are counted, and those of broken versions fail."""

    async def load(self, name: str, overrides: object) -> None:
        self.loads.append((name, overrides))  # type: ignore[arg-type]
        failed = [entry for entry in self.index() if entry.name == name and entry.reason]
        if failed:
            raise ModelLoadError(f"failed to load '{name}', {failed[0].reason}")


@pytest.fixture(params=[ControlMode.POLL, ControlMode.EXPLICIT])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> "Bench":
    return Bench(tmp_path, request.param)


class Bench:
    """A repository with model `m` in versions 1 and 2, a folder of new content, and the operations on them."""

    def __init__(self, folder: Path, mode: ControlMode, **settings: object) -> None:
        self.root, self.incoming = folder / "repository", folder / "incoming"
        self.mode = mode
        write_model(self.root / "m", 1, 2)
        write_model(self.incoming / "new", 1)
        write_version(self.incoming / "three")
        self.engine = (PollingEngine if mode is ControlMode.POLL else ControlledEngine)(self.root)
        self.settings = AdlikSettings(**{"allow_operate": True, "operate_root": self.incoming, **settings})  # type: ignore[arg-type]

    def operations(self, engine: FakeEngine | None = None, limit_s: float = LIMIT_S) -> ModelOperations:
        return ModelOperations(engine or self.engine, self.settings, (self.root,), self.mode, limit_s=limit_s)

    def do(self, verb: str, **fields: Any) -> pb.ModelOperateResponse:
        async def operate() -> pb.ModelOperateResponse:
            async with asyncio.timeout(20):
                return await self.operations().run(verb, pb.ModelOperateRequest(**fields))

        response = asyncio.run(operate())
        assert sorted(path.name for path in self.root.iterdir() if path.name.startswith(".")) == []
        return response

    def succeeds(self, verb: str, **fields: Any) -> None:
        response = self.do(verb, **fields)
        assert (response.status, response.error_message) == ("SUCCESS", "")

    def fails(self, verb: str, *texts: str, **fields: Any) -> None:
        response = self.do(verb, **fields)
        assert response.status == "ERROR"
        for text in texts:
            assert text in response.error_message
        assert str(self.root) not in response.error_message

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in sorted(self.root.rglob("*")) if path.is_file()}


def write_version(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"content")


def write_model(folder: Path, *versions: int, config: str = CONFIG) -> None:
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    for version in versions:
        write_version(folder / str(version))


def test_model_is_added_with_all_its_files(bench: Bench):
    bench.succeeds("addModel", model_name="fresh", path="new")
    assert {"fresh/config.pbtxt", "fresh/1/model.bin"} <= bench.files().keys()
    assert bench.engine.is_model_ready("fresh", 1)
    assert [name for name, _ in bench.engine.loads] == (["fresh"] if bench.mode is ControlMode.EXPLICIT else [])


def test_absolute_path_below_the_root_is_accepted(bench: Bench):
    bench.succeeds("addModel", model_name="fresh", path=str(bench.incoming / "new"))


def test_model_that_fails_to_load_is_removed_again(bench: Bench):
    before = bench.files()
    bench.engine.broken = {7}
    write_version(bench.incoming / "bad" / "7")
    (bench.incoming / "bad" / "config.pbtxt").write_text(CONFIG)
    bench.fails("addModel", "it is broken", model_name="bad", path="bad")
    assert bench.files() == before
    assert bench.engine.unloads == ([("bad", False)] if bench.mode is ControlMode.EXPLICIT else [])


def test_version_is_added_above_the_highest_or_with_the_given_number(bench: Bench):
    bench.succeeds("addModelVersion", model_name="m", path="three")
    bench.succeeds("addModelVersion", model_name="m", path="three", model_version=9)
    assert {"m/3/model.bin", "m/9/model.bin"} <= bench.files().keys()
    bench.fails("addModelVersion", "version 9 already", model_name="m", path="three", model_version=9)
    bench.fails("addModelVersion", "-1 cannot be one: they begin at 1", model_name="m", path="three", model_version=-1)
    highest = 2**63 - 1
    bench.succeeds("addModelVersion", model_name="m", path="three", model_version=highest)
    bench.fails("addModelVersion", f"version {highest}, the highest possible", "model_version", model_name="m", path="three")


def test_version_that_fails_to_load_is_removed_again(bench: Bench):
    before = bench.files()
    bench.engine.broken = {3}
    bench.fails("addModelVersion", "it is broken", model_name="m", path="three")
    assert bench.files() == before
    assert bench.engine.is_model_ready("m", None)


def test_version_and_model_are_deleted(bench: Bench):
    bench.succeeds("deleteModelVersion", model_name="m", model_version=2)
    assert set(bench.files()) == {"m/config.pbtxt", "m/1/model.bin"}
    bench.succeeds("deleteModel", model_name="m")
    assert bench.files() == {}
    bench.fails("deleteModel", "'m' is not in the repository", model_name="m")


def test_deleting_the_last_version_keeps_an_empty_model(bench: Bench):
    bench.engine.models.clear()
    for version in (1, 2):
        bench.succeeds("deleteModelVersion", model_name="m", model_version=version)
    assert set(bench.files()) == {"m/config.pbtxt"}


def test_activating_needs_one_version_and_preserves_the_rest_of_the_file(bench: Bench):
    bench.succeeds("activateModel", model_name="m", model_version=1)
    text = (bench.root / "m" / "config.pbtxt").read_text()
    assert text == CONFIG + "version_policy { specific { versions: [ 1 ] } }\n"
    bench.succeeds("activateModel", model_name="m", model_version=2)
    assert (bench.root / "m" / "config.pbtxt").read_text() == text.replace("[ 1 ]", "[ 2 ]")


def test_version_that_cannot_be_activated_leaves_the_file_unchanged(bench: Bench):
    before = bench.files()
    bench.engine.broken = {1}
    bench.fails("activateModel", "it is broken", model_name="m", model_version=1)
    bench.fails("activateModel", "no version 5", "there are: 1, 2", model_name="m", model_version=5)
    assert bench.files() == before


def test_version_named_by_the_policy_is_not_deleted(bench: Bench):
    bench.succeeds("activateModel", model_name="m", model_version=1)
    before = bench.files()
    bench.fails("deleteModelVersion", "version_policy", "activate another", model_name="m", model_version=1)
    assert bench.files() == before


def test_queries_report_states_and_no_path_of_the_host(bench: Bench):
    response = bench.do("queryModel")
    assert response.status == "SUCCESS"
    found = response.models["m"]
    assert found.model_path == "m"
    # The policy wants the latest only.
    assert [(v.version_no, v.state, v.path) for v in found.versions] == [(1, "OFFLINE", "m/1"), (2, "READY", "m/2")]
    bench.fails("queryModel", "'ghost'", model_name="ghost")


@pytest.mark.parametrize("verb", ["addModel", "addModelVersion", "deleteModel", "deleteModelVersion", "activateModel", "queryModel"])
def test_operations_are_refused_unless_allowed(verb: str, tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT, allow_operate=False)
    before = bench.files()
    bench.fails(verb, NOT_ALLOWED, model_name="m", path="three", model_version=1)
    assert bench.files() == before


def test_control_mode_none_refuses_operations(tmp_path: Path):
    Bench(tmp_path, ControlMode.NONE).fails("deleteModel", "--model_control_mode", model_name="m")


def test_paths_are_refused_without_a_root(tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT, operate_root=None)
    bench.fails("addModel", "--model_operate_root", model_name="fresh", path="new")
    bench.succeeds("deleteModel", model_name="m")


@pytest.mark.parametrize("name", ["", "..", "a/b", "../m", ".hidden", "a\0b", "x" * 129])
def test_invalid_model_names_are_refused(name: str, tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    for verb in ("addModel", "addModelVersion", "deleteModel", "deleteModelVersion", "activateModel"):
        bench.fails(verb, "cannot be a model's name", model_name=name, path="new", model_version=1)


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../repository/m", "new/../../repository/m", "/", "/etc", "a\0b", "x" * 5000, "link", "link/1", "inner/link"],
)
def test_paths_outside_the_root_are_refused(path: str, tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    (bench.incoming / "link").symlink_to(bench.root / "m")
    (bench.incoming / "inner").mkdir()
    (bench.incoming / "inner" / "link").symlink_to("/etc")
    before = bench.files()
    bench.fails("addModel", "path", model_name="fresh", path=path)
    bench.fails("addModelVersion", "path", model_name="m", path=path)
    assert bench.files() == before


@pytest.mark.parametrize("path", ["missing", "new/config.pbtxt", "three"])
def test_paths_that_are_not_a_model_are_refused(path: str, tmp_path: Path):
    Bench(tmp_path, ControlMode.EXPLICIT).fails("addModel", path, model_name="fresh", path=path)


def test_existing_name_is_refused(tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    (bench.root / "file").write_text("")
    for name in ("m", "file"):
        bench.fails("addModel", "already", model_name=name, path="new")


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "linked folder"])
def test_special_files_are_refused(kind: str, tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    target = bench.incoming / "new" / "1" / "odd"
    make: dict[str, Callable[[], None]] = {
        "symlink": lambda: target.symlink_to(secret),
        "hard link": lambda: os.link(secret, target),
        "fifo": lambda: os.mkfifo(target),
        "linked folder": lambda: target.symlink_to("/etc"),
    }
    make[kind]()
    before = bench.files()
    bench.fails("addModel", "1/odd", model_name="fresh", path="new")
    assert bench.files() == before


@pytest.mark.parametrize("swap", ["file for link", "folder for link", "content"])
def test_file_replaced_during_the_copy_is_detected(swap: str, tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    source = bench.incoming / "new"
    secret = tmp_path / "secret"
    (secret / "1").mkdir(parents=True)
    (secret / "1" / "model.bin").write_text("secret")

    def interfere(_path: str) -> None:
        if swap == "file for link":
            (source / "1" / "model.bin").unlink(missing_ok=True)
            (source / "1" / "model.bin").symlink_to(secret / "1" / "model.bin")
        elif swap == "folder for link" and not (source / "1").is_symlink():
            (source / "1").rename(source / "old")
            (source / "1").symlink_to(secret / "1")
        elif swap == "content":
            (source / "1" / "late").write_text("late")

    editor = RepositoryEditor([bench.root], bench.incoming, after_each=interfere)
    before = bench.files()
    with pytest.raises(ModelLoadError, match=r"changed while it was read|symbolic link"):
        editor.add_model("fresh", "new")
    assert bench.files() == before
    assert not [path for path in bench.root.iterdir() if path.name != "m"]


def test_root_reached_by_a_link_is_accepted(tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    link = tmp_path / "by-link"
    link.symlink_to(bench.incoming)
    RepositoryEditor([bench.root], link).add_model("fresh", str(link / "new"))
    assert "fresh/1/model.bin" in bench.files()


def test_operations_on_different_models_do_not_wait_for_each_other(tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    write_model(bench.root / "other", 1, 2)
    held = asyncio.Event()

    class Slow(ControlledEngine):
        async def load(self, name: str, overrides: object) -> None:
            if name == "m":
                await held.wait()
            await super().load(name, overrides)

    async def scenario() -> None:
        operations = bench.operations(Slow(bench.root))
        slow = asyncio.create_task(operations.run("addModelVersion", pb.ModelOperateRequest(model_name="m", path="three")))
        done = await operations.run("activateModel", pb.ModelOperateRequest(model_name="other", model_version=1))
        assert done.status == "SUCCESS"
        assert not slow.done()
        held.set()
        assert (await slow).status == "SUCCESS"

    asyncio.run(scenario())


def test_operations_on_a_model_run_to_their_end_one_after_another(tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.EXPLICIT)
    held, entered = asyncio.Event(), asyncio.Event()

    class Slow(ControlledEngine):
        async def load(self, name: str, overrides: object) -> None:
            entered.set()
            await held.wait()
            await super().load(name, overrides)

    engine = Slow(bench.root)

    async def scenario() -> None:
        operations = bench.operations(engine)
        adding = asyncio.create_task(operations.run("addModelVersion", pb.ModelOperateRequest(model_name="m", path="three")))
        await entered.wait()
        second = asyncio.create_task(operations.run("deleteModelVersion", pb.ModelOperateRequest(model_name="m", model_version=1)))
        adding.cancel()
        await asyncio.sleep(0)
        assert (bench.root / "m" / "1").exists()
        held.set()
        assert (await second).status == "SUCCESS"
        assert [name for name, _ in engine.loads] == ["m", "m"]

    asyncio.run(scenario())
    assert set(bench.files()) == {"m/config.pbtxt", "m/2/model.bin", "m/3/model.bin"}


def test_activation_without_a_serving_version_leaves_the_file_unchanged(tmp_path: Path):
    bench = Bench(tmp_path, ControlMode.POLL)
    bench.engine.index = lambda **_: []  # type: ignore[method-assign]
    bench.fails("activateModel", "does not serve version 1", model_name="m", model_version=1)
    assert bench.files()["m/config.pbtxt"].decode() == CONFIG


def test_client_wait_is_bounded_and_the_operation_continues(bench: Bench):
    held = asyncio.Event()
    take_effect = bench.engine.load if bench.mode is ControlMode.EXPLICIT else bench.engine.refresh

    async def slow(*given: object) -> None:
        await held.wait()
        await take_effect(*given)  # type: ignore[arg-type]

    bench.engine.load = bench.engine.refresh = slow  # type: ignore[assignment, method-assign]

    async def scenario() -> None:
        operations = bench.operations(limit_s=1e-3)
        calls: tuple[tuple[str, dict[str, Any]], ...] = (("addModelVersion", {"path": "three"}), ("activateModel", {"model_version": 1}))
        for verb, fields in calls:
            response = await operations.run(verb, pb.ModelOperateRequest(model_name="m", **fields))
            assert response.status == "ERROR"
            assert "has not ended within 0.001 s" in response.error_message, "also for the one that waits for the first"
        held.set()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    asyncio.run(scenario())
    assert "m/3/model.bin" in bench.files()
    assert "versions: [ 1 ]" in bench.files()["m/config.pbtxt"].decode()


def test_query_of_a_hanging_repository_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    opened = threading.Event()
    bench.engine.index = lambda **_: []  # type: ignore[method-assign]

    async def scenario() -> None:
        operations = bench.operations(limit_s=1e-3)
        monkeypatch.setattr(ModelRepository, "scan", lambda _: opened.wait(20))
        response = await operations.run("queryModel", pb.ModelOperateRequest())
        opened.set()
        assert "has not ended within 0.001 s" in response.error_message
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("clients", [1, 8])
def test_failed_operation_leaves_nothing_and_can_be_repeated(clients: int, bench: Bench):
    bench.engine.broken = {1}
    before = bench.files()

    async def scenario() -> None:
        operations = bench.operations()
        for _ in range(3):
            asked = [operations.run("addModel", pb.ModelOperateRequest(model_name="fresh", path="new")) for _ in range(clients)]
            for response in await asyncio.gather(*asked):
                assert response.status == "ERROR"
                assert "it is broken" in response.error_message
            assert bench.files() == before

    asyncio.run(scenario())
