"""Models given by paths: files, folders of files, folders of one model. No repository is written."""

import asyncio
import os
from pathlib import Path

import pytest

from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.loader import VersionLoader, VersionSource
from stoker.server.lifecycle.path_models import ModelFileNames, PathModels, is_repository
from stoker.server.lifecycle.repository import ModelRepository, RepositoryUnreadable
from stoker.server.lifecycle.settings import LoaderSettings
from stoker.server.lifecycle.snapshot import take_snapshot
from stoker.server.observability.metrics import Metrics
from tests.fakes import onnx_models
from tests.fakes.puppet_worker import HandTimers

MODEL = onnx_models.identity().SerializeToString()
NAMES = ModelFileNames(
    ("model.onnx", "model.xml", "model.graphdef", "model.pb", "model.tflite", "model.pdmodel", "inference.json", "model.py"),
    frozenset({"saved_model.pb"}),
)


def models_of(*paths: Path, **options) -> dict[str, ModelListing]:
    return dict(PathModels(paths, NAMES, **options).scan().models)


def written(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(MODEL)
    return folder


def copied(listing: ModelListing, into: Path) -> dict[str, int]:
    """The names and sizes of the files that a load of version 1 reads."""
    into.mkdir(exist_ok=True)
    part = listing.versions[1]
    return dict(take_snapshot(part.directory, into, links_root=listing.links_root, selected=part.files).sizes_bytes)


def test_file_is_version_1_of_the_model_named_after_it(tmp_path: Path) -> None:
    written(tmp_path / "flat", "my net.onnx", "my net.onnx.data", "other.onnx", "secret.txt")
    [(name, listing)] = models_of(tmp_path / "flat" / "my net.onnx").items()
    assert (name, listing.error, list(listing.versions)) == ("my_net", None, [1])
    assert sorted(copied(listing, tmp_path / "area")) == ["model.onnx", "my net.onnx.data"]


def test_file_is_loaded_from_its_place(tmp_path: Path) -> None:
    written(tmp_path / "flat", "net.onnx", "broken.onnx")
    (tmp_path / "flat" / "broken.onnx").write_bytes(b"no model")
    listing = models_of(tmp_path / "flat" / "net.onnx")["net"]
    part, config = listing.versions[1], listing.config
    assert config is not None
    (tmp_path / "area").mkdir()

    async def load() -> int:
        loader = VersionLoader(
            BackendRegistry(),
            clock=FakeClock(),
            timers=HandTimers(),
            recorder=Metrics(FakeClock()),
            area=tmp_path / "area",
            settings=LoaderSettings(),
        )
        servable = await loader.load(
            VersionSource(
                name="net", version=1, model_dir=listing.directory, version_dir=part.directory, parsed=config, selected=part.files
            )
        )
        await servable.close()
        return servable.version

    assert asyncio.run(load()) == 1


def test_folder_of_files_is_a_model_for_each_and_files_of_other_formats_are_noted(tmp_path: Path) -> None:
    written(tmp_path / "flat", "a.onnx", "b.xml", "b.bin", "c.pkl", "notes.xml", "helper.py", "config.json", "d.tflite")
    snapshot = PathModels([tmp_path / "flat"], NAMES).scan()
    assert {name: listing.error for name, listing in snapshot.models.items()} == {"a": None, "b": None, "d": None}
    assert sorted(copied(snapshot.models["b"], tmp_path / "area")) == ["model.bin", "model.xml"]
    assert [note[: note.index(":")] for note in snapshot.notes] == ["file 'c.pkl' is passed over"]


def test_both_files_of_a_paddle_model_get_the_names_of_the_backend(tmp_path: Path) -> None:
    written(tmp_path / "flat", "net.pdmodel", "net.pdiparams")
    listing = models_of(tmp_path / "flat" / "net.pdmodel")["net"]
    assert sorted(copied(listing, tmp_path / "area")) == ["model.pdiparams", "model.pdmodel"]


@pytest.mark.parametrize(
    "files", [("model.onnx", "labels.txt"), ("model.py", "weights.npz"), ("saved_model.pb", "variables/variables.index")]
)
def test_folder_of_one_model_without_a_version_is_version_1_with_all_its_files(tmp_path: Path, files: tuple[str, ...]) -> None:
    listing = models_of(written(tmp_path / "net-2.1", *files))["net-2.1"]
    assert listing.error is None
    assert sorted(copied(listing, tmp_path / "area")) == sorted(files)


def test_folder_of_one_model_has_its_own_configuration(tmp_path: Path) -> None:
    written(tmp_path / "net", "model.onnx")
    (tmp_path / "net" / "config.pbtxt").write_text("max_batch_size: 7")
    config = models_of(tmp_path / "net")["net"].config
    assert config is not None
    assert config.message.max_batch_size == 7
    (tmp_path / "net" / "config.pbtxt").write_text("max_batch_sise: 7")
    assert "did you mean 'max_batch_size'" in str(models_of(tmp_path / "net")["net"].error)


def test_folder_with_version_folders_is_that_model(tmp_path: Path) -> None:
    written(tmp_path / "net", "1/model.onnx", "3/model.onnx")
    assert list(models_of(tmp_path / "net")["net"].versions) == [1, 3]
    assert list(models_of(tmp_path / "net", name="other")) == ["other"]


def test_python_file_is_a_model_only_where_it_is_named(tmp_path: Path) -> None:
    written(tmp_path / "code", "mine.py", "other.py")
    listing = models_of(tmp_path / "code" / "mine.py")["mine"]
    assert list(copied(listing, tmp_path / "area")) == ["model.py"]
    assert "has no model file" in str(models_of(tmp_path / "code")["code"].error)


def test_file_of_a_format_without_a_backend_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    written(tmp_path, "iris.pkl", "page.html")
    assert "has to be converted to ONNX" in str(models_of(tmp_path / "iris.pkl")["iris"].error)
    assert models_of(tmp_path / "page.html")["page"].error == "no backend serves 'page.html'"


def test_start_without_a_path_that_can_be_served_is_rejected_with_each_reason(tmp_path: Path) -> None:
    written(tmp_path, "iris.joblib", "net.pt", "net.onnx")
    pickle, torch = tmp_path / "iris.joblib", tmp_path / "net.pt"
    with pytest.raises(RepositoryUnreadable) as caught:
        PathModels([pickle, torch], NAMES).check_roots()
    assert str(caught.value) == (
        "no backend serves 'iris.joblib': a pickled model has to be converted to ONNX: stoker add iris.joblib --trust-pickle, if you trust "
        "the file: a pickle can run any code; no backend serves 'net.pt': a TorchScript or PyTorch file has to be converted to ONNX: "
        "stoker add net.pt"
    )
    # Another model is served, from a path or from a repository.
    PathModels([pickle, tmp_path / "net.onnx"], NAMES).check_roots()
    written(tmp_path / "models", "m/1/model.onnx")
    PathModels([pickle], NAMES, ModelRepository([tmp_path / "models"])).check_roots()


def test_start_with_a_faulty_configuration_waits_for_its_correction(tmp_path: Path) -> None:
    written(tmp_path / "net", "model.onnx")
    (tmp_path / "net" / "config.pbtxt").write_text("max_batch: 1")
    PathModels([tmp_path / "net"], NAMES).check_roots()


def test_two_paths_with_one_name_are_an_error_that_names_both(tmp_path: Path) -> None:
    written(tmp_path, "a/net.onnx", "b/net.onnx", "models/net/1/model.onnx", "models/fine/1/model.onnx")
    found = models_of(tmp_path / "a" / "net.onnx", tmp_path / "b" / "net.onnx")
    assert "several paths give a model of this name ('a' and 'b')" in str(found["net"].error)
    found = models_of(tmp_path / "a" / "net.onnx", repository=ModelRepository([tmp_path / "models"]))
    assert found["fine"].error is None
    assert "several paths" in str(found["net"].error)


def test_given_path_may_be_a_link_and_links_inside_a_folder_are_rejected(tmp_path: Path) -> None:
    written(tmp_path, "blobs/1234", "flat/own.onnx")
    (tmp_path / "net.onnx").symlink_to(tmp_path / "flat" / "own.onnx")
    (tmp_path / "flat" / "linked.onnx").symlink_to(tmp_path / "blobs" / "1234")
    assert [listing.error for listing in models_of(tmp_path / "net.onnx").values()] == [None]
    found = models_of(tmp_path / "flat")
    with pytest.raises(Exception, match="symbolic link"):
        copied(found["linked"], tmp_path / "area")


def test_changed_file_has_another_fingerprint(tmp_path: Path) -> None:
    path = written(tmp_path, "net.onnx") / "net.onnx"
    source = PathModels([path], NAMES)
    before = source.scan().models["net"]
    assert source.find("net") == before
    path.write_bytes(MODEL + b"\x00")
    os.utime(path, ns=(1, 1))
    assert source.scan().models["net"].mark != before.mark
    path.unlink()
    assert "cannot be read" in str(source.scan().models["net"].error)
    with pytest.raises(RepositoryUnreadable, match=r"net\.onnx' cannot be read: No such file"):
        source.check_roots()


def test_folder_of_models_is_a_repository_and_nothing_else_is(tmp_path: Path) -> None:
    written(tmp_path, "models/net/1/model.onnx", "models/stray.onnx", "flat/a.onnx", "one/model.py", "one/util.py")
    (tmp_path / "empty").mkdir()
    found = {name: is_repository(tmp_path / name) for name in ("models", "models/net", "flat", "one", "empty", "flat/a.onnx")}
    assert found == {"models": True, "models/net": False, "flat": False, "one": False, "empty": True, "flat/a.onnx": False}


def test_names_come_from_the_backends_without_test_backends() -> None:
    names = ModelFileNames.of(BackendRegistry())
    assert names.served_as("net.onnx", ()) == "model.onnx"
    assert names.served_as("net.popef", ()) == "executable.popef"
    assert names.served_as("net.identity", ()) is None
    assert names.served_as("net.xml", ()) is None
    assert names.served_as("net.xml", {"net.bin"}) == "model.xml"
    assert "saved_model.pb" in names.marks
