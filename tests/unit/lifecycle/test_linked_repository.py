"""Links in a repository, by --allow-links=within-root: the layouts that are made of links are served, and nothing outside is reached."""

import os
import shutil
from pathlib import Path

import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.registry import BackendRegistry
from stoker.server.core.model_config import ListedModel
from stoker.server.flags.command import read_command
from stoker.server.lifecycle import folder as folder_module
from stoker.server.lifecycle.check import check_repository
from stoker.server.lifecycle.labels import read_labels
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.model_list import ListedModels
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.snapshot import take_snapshot
from tests.fakes import onnx_models

MODEL = onnx_models.identity().SerializeToString()
SECRET = b"of somebody else"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def area(tmp_path: Path) -> Path:
    folder = tmp_path / "area"
    folder.mkdir()
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


def scan(root: Path) -> dict[str, ModelListing]:
    return dict(ModelRepository([root], follows_links=True).scan().models)


def copied(listing: ModelListing, area: Path, version: int = 1) -> dict[str, bytes]:
    """The files of a version as a backend sees them."""
    files = take_snapshot(listing.versions[version].directory, area, links_root=listing.links_root)
    found = {name: files.read(name) for name in files.sizes_bytes}
    assert not any(path.is_symlink() or (path.is_file() and path.stat().st_nlink != 1) for path in files.root.rglob("*"))
    return found


def write_config_map(mount: Path, stamp: str, content: dict[str, bytes]) -> None:
    """The files of a ConfigMap in Kubernetes: a folder with a time stamp, `..data` to it, and a link per first part of a path."""
    at = mount / f"..{stamp}"
    for name, data in content.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(data)
    (mount / "..data_tmp").symlink_to(at.name)
    (mount / "..data_tmp").replace(mount / "..data")
    for name in {name.split("/")[0] for name in content}:
        if not (mount / name).is_symlink():
            (mount / name).symlink_to(f"..data/{name}")


def test_config_map_is_a_repository_and_an_update_is_a_change(root: Path, area: Path) -> None:
    write_config_map(root, "2026_01", {"m/config.pbtxt": b"max_batch_size: 4", "m/1/model.onnx": MODEL})
    repository = ModelRepository([root], follows_links=True)
    first = repository.scan().models["m"]
    assert (first.error, first.versions[1].error) == (None, None)
    assert copied(first, area) == {"model.onnx": MODEL}
    assert repository.scan().models["m"].mark == first.mark
    write_config_map(root, "2026_02", {"m/config.pbtxt": b"max_batch_size: 8", "m/1/model.onnx": MODEL + b"\0"})
    shutil.rmtree(root / "..2026_01")
    second = repository.scan().models["m"]
    assert second.mark != first.mark
    assert second.config is not None
    assert second.config.message.max_batch_size == 8
    assert copied(second, area) == {"model.onnx": MODEL + b"\0"}


WITH_FILES = """backend: "identity" max_batch_size: 1
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]
model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "x.bin" } } } ]
"""


def test_config_map_may_contain_files_beside_the_versions(root: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    content = {"config.pbtxt": WITH_FILES.encode(), "labels.txt": b"one\ntwo", "warmup/x.bin": bytes(8)}
    write_config_map(root / "m", "2026_01", content)
    first = scan(root)["m"]
    assert check_repository([root], BackendRegistry(), follows_links=True).is_good
    write_config_map(root / "m", "2026_02", {**content, "labels.txt": b"three\nfour"})
    second = scan(root)["m"]
    assert second.mark != first.mark
    write_config_map(root / "m", "2026_03", {**content, "warmup/x.bin": bytes(4)})
    assert scan(root)["m"].mark != second.mark
    (problem,) = check_repository([root], BackendRegistry(), follows_links=True).models[0].problems
    assert "holds 4 bytes" in problem


def git_worktree(at: Path, stamp: str, data: bytes) -> Path:
    worktree = at / ".worktrees" / stamp
    (worktree / "models" / "m" / "1").mkdir(parents=True)
    (worktree / "models" / "m" / "1" / "model.onnx").write_bytes(data)
    return worktree


def point(link: Path, target: str) -> None:
    """As git-sync: the new link replaces the old one in one step."""
    link.with_name("tmp-link").symlink_to(target)
    link.with_name("tmp-link").replace(link)


def test_git_sync_may_replace_the_link_to_the_root(tmp_path: Path, area: Path) -> None:
    git_worktree(tmp_path, "aaa", MODEL)
    point(tmp_path / "current", ".worktrees/aaa")
    repository = ModelRepository([tmp_path / "current" / "models"], follows_links=True)
    first = repository.scan().models["m"]
    assert copied(first, area) == {"model.onnx": MODEL}
    git_worktree(tmp_path, "bbb", MODEL + b"\0")
    point(tmp_path / "current", ".worktrees/bbb")
    second = repository.scan().models["m"]
    assert second.mark != first.mark
    assert copied(second, area) == {"model.onnx": MODEL + b"\0"}


def test_git_sync_may_replace_the_link_that_is_a_model(root: Path, area: Path) -> None:
    for stamp, data in (("aaa", MODEL), ("bbb", MODEL + b"\0")):
        worktree = root / ".worktrees" / stamp
        (worktree / "1").mkdir(parents=True)
        (worktree / "1" / "model.onnx").write_bytes(data)
    point(root / "digits", ".worktrees/aaa")
    first = scan(root)
    assert set(first) == {"digits"}
    assert copied(first["digits"], area) == {"model.onnx": MODEL}
    point(root / "digits", ".worktrees/bbb")
    second = scan(root)["digits"]
    assert second.mark != first["digits"].mark
    assert copied(second, area) == {"model.onnx": MODEL + b"\0"}


def test_snapshot_of_a_hub_cache_is_a_version(root: Path, area: Path) -> None:
    hub = root / ".hub" / "models--org--net"
    snapshot = hub / "snapshots" / "abc" / "onnx"
    snapshot.mkdir(parents=True)
    (hub / "blobs").mkdir()
    for name, blob, data in (("model.onnx", "b1", MODEL), ("model.onnx_data", "b2", b"weights")):
        (hub / "blobs" / blob).write_bytes(data)
        (snapshot / name).symlink_to(f"../../../blobs/{blob}")
    (root / "net").mkdir()
    (root / "net" / "1").symlink_to(f"../.hub/{hub.name}/snapshots/abc/onnx")
    (listing,) = scan(root).values()
    assert listing.versions[1].error is None
    assert copied(listing, area) == {"model.onnx": MODEL, "model.onnx_data": b"weights"}


def test_links_between_and_beside_models_are_followed(root: Path, area: Path) -> None:
    (root / "a" / "1" / "data").mkdir(parents=True)
    (root / "a" / "1" / "data" / "w.bin").write_bytes(b"w")
    (root / "a" / "1" / "model.onnx").write_bytes(MODEL)
    (root / "a" / "latest.pbtxt").write_text("max_batch_size: 3")
    (root / "b" / "1").mkdir(parents=True)
    (root / "b" / "1" / "model.onnx").symlink_to(root / "a" / "1" / "model.onnx")
    (root / "b" / "1" / "data").symlink_to("../../a/1/data")
    (root / "b" / "2").symlink_to("../a/./1/../1")
    (root / "b" / "config.pbtxt").symlink_to("../a/latest.pbtxt")
    listing = scan(root)["b"]
    assert listing.config is not None
    assert listing.config.message.max_batch_size == 3
    assert copied(listing, area) == copied(listing, area, 2) == {"model.onnx": MODEL, "data/w.bin": b"w"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../secret", "../../../../../../../../etc/passwd", "../../../models2/x"])
def test_link_outside_the_root_is_refused(root: Path, area: Path, secret: Path, target: str) -> None:
    (root / "m" / "1" / "deep").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").write_bytes(MODEL)
    (root / "m" / "1" / "deep" / "w.bin").symlink_to(f"../{target}" if target.startswith("..") else target)
    error = scan(root)["m"].versions[1].error
    assert error == "the version folder cannot be read: 'deep/w.bin' is a link that leads out of the repository"
    with pytest.raises(ModelLoadError, match="leads out of the repository"):
        take_snapshot(root / "m" / "1", area, links_root=root)
    assert list(area.iterdir()) == []


def test_root_with_the_prefix_of_another_is_not_inside_it(root: Path, area: Path) -> None:
    other = root.with_name("models-private")
    other.mkdir()
    (other / "w.bin").write_bytes(SECRET)
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").symlink_to(other / "w.bin")
    with pytest.raises(ModelLoadError, match="leads out of the repository"):
        take_snapshot(root / "m" / "1", area, links_root=root)


def test_chain_of_links_outside_the_root_is_refused(root: Path, area: Path, tmp_path: Path, secret: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    (root / "out").symlink_to("..")
    (root / "m" / "1" / "model.onnx").symlink_to("../../out/secret")
    with pytest.raises(ModelLoadError, match="leads out of the repository"):
        take_snapshot(root / "m" / "1", area, links_root=root)


@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("m", "the model folder cannot be read: 'm' is a link that leads out of the repository"),
        ("m/1", "the version folder cannot be read: '1' is a link that leads out of the repository"),
        ("m/config.pbtxt", "'config.pbtxt' is a link that leads out of the repository"),
    ],
)
def test_folders_and_configurations_outside_are_refused(root: Path, tmp_path: Path, at: str, error: str) -> None:
    outside = tmp_path / "outside"
    (outside / "1").mkdir(parents=True)
    (outside / "1" / "model.onnx").write_bytes(MODEL)
    (outside / "config.pbtxt").write_text("max_batch_size: 1")
    link = root / at
    if at != "m":
        (root / "m").mkdir()
    if at == "m/config.pbtxt":
        (root / "m" / "1").mkdir()
    link.symlink_to({"m": outside, "m/1": outside / "1", "m/config.pbtxt": outside / "config.pbtxt"}[at])
    listing = scan(root)["m"]
    assert error in (listing.error, *(part.error for part in listing.versions.values()))
    assert str(tmp_path) not in str(listing)[: str(listing).find("directory")]


def test_broken_circular_and_special_links_are_refused(root: Path, area: Path) -> None:
    version = root / "m" / "1"
    version.mkdir(parents=True)
    for name, target, text in (
        ("model.onnx", "missing", "'model.onnx' is a link that leads to nothing"),
        ("model.onnx", "model.onnx", "'model.onnx' leads through more than 40 links"),
        ("model.onnx", "../pipe", "'model.onnx' is a special file"),
        ("again", ".", "lies more than 8 folders deep"),
    ):
        if target == "../pipe":
            os.mkfifo(root / "m" / "pipe")
        (version / name).symlink_to(target)
        with pytest.raises(ModelLoadError, match=text):
            take_snapshot(version, area, links_root=root)
        (version / name).unlink()


def test_hard_link_is_copied_if_all_its_names_are_in_the_repository(root: Path, area: Path, secret: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    (root / ".store").mkdir()
    (root / ".store" / "blob").write_bytes(MODEL)
    os.link(root / ".store" / "blob", root / "m" / "1" / "model.onnx")
    assert copied(scan(root)["m"], area) == {"model.onnx": MODEL}
    os.link(secret, root / "m" / "1" / "w.bin")
    with pytest.raises(ModelLoadError, match=r"'w\.bin' is a hard link \(its file has 2 names, 1 of them in the repository\)"):
        copied(scan(root)["m"], area)


def test_search_for_hard_links_is_bounded(root: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "a").write_bytes(b"")
    os.link(root / "m" / "1" / "a", root / "m" / "1" / "b")
    monkeypatch.setattr(folder_module, "MAX_ROOT_ENTRIES", 3)
    with pytest.raises(ModelLoadError, match="too many to look for hard links in"):
        copied(scan(root)["m"], area)


@pytest.mark.parametrize("swapped", ["file", "folder", "link"])
def test_file_replaced_by_an_outside_link_during_the_copy_is_detected(root: Path, area: Path, secret: Path, swapped: str) -> None:
    """The first file is copied; then the second, its folder, or the link to it is swapped for a link to a secret."""
    version = root / "m" / "1"
    (root / "store").mkdir()
    version.mkdir(parents=True)
    (version / "a").write_bytes(b"a")
    (root / "store" / "w").write_bytes(b"w")
    (version / "w").symlink_to("../../store/w")
    outside = secret.parent / "outside"
    outside.mkdir()
    (outside / "w").write_bytes(SECRET)

    def interfere(path: str) -> None:
        if path != "a":
            return
        if swapped == "file":
            (root / "store" / "w").unlink()
            (root / "store" / "w").symlink_to(secret)
        elif swapped == "folder":
            shutil.rmtree(root / "store")
            (root / "store").symlink_to(outside)
        else:
            (version / "w").unlink()
            (version / "w").symlink_to(secret)

    with pytest.raises(ModelLoadError):
        take_snapshot(version, area, links_root=root, after_each=interfere)
    assert list(area.iterdir()) == []


def test_labels_outside_the_root_are_refused(root: Path, secret: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").write_bytes(MODEL)
    (root / "m" / "labels.txt").symlink_to(secret)
    (root / "m" / "config.pbtxt").write_text('output { name: "y" label_filename: "labels.txt" }')
    (model,) = check_repository([root], BackendRegistry(), follows_links=True).models
    assert "'labels.txt' is a link that leads out of the repository" in str(model.problems)
    assert read_labels.__defaults__ == (None,), "links are refused unless somebody allows them"


def test_listed_model_is_its_own_root(root: Path, area: Path) -> None:
    base = root / "m"
    (base / ".store").mkdir(parents=True)
    (base / ".store" / "model.onnx").write_bytes(MODEL)
    (base / "1").symlink_to(".store")
    (root / "other").mkdir()
    (base / "2").symlink_to("../other")
    listing = ListedModels([ListedModel(name="x", base_path=base)], follows_links=True).find("x")
    assert listing is not None
    assert copied(listing, area) == {"model.onnx": MODEL}
    assert listing.versions[2].error == "the version folder cannot be read: '2' is a link that leads out of the repository"


def test_links_are_refused_by_default_with_the_name_of_the_flag(root: Path, area: Path) -> None:
    write_config_map(root, "2026_01", {"m/1/model.onnx": MODEL})
    (root / "n" / "1").mkdir(parents=True)
    (root / "n" / "1" / "model.onnx").symlink_to("../../m/1/model.onnx")
    models = ModelRepository([root]).scan().models
    assert str(models["m"].error).endswith("--allow-links=within-root allows links that stay within the repository")
    assert models["n"].links_root is None
    with pytest.raises(ModelLoadError, match=r"'model\.onnx' is a symbolic link.*--allow-links=within-root"):
        copied(models["n"], area)


def test_flag_is_off_by_default_and_reported_when_on() -> None:
    plain = read_command(["--model-repository=/models"], {})
    allowed = read_command(["--model-repository=/models", "--allow-links=within-root"], {})
    assert not plain.follows_links  # type: ignore[union-attr]
    assert allowed.follows_links  # type: ignore[union-attr]
    assert not any("allow-links" in notice for notice in plain.notices)  # type: ignore[union-attr]
    assert any("allow-links" in notice for notice in allowed.notices)  # type: ignore[union-attr]
