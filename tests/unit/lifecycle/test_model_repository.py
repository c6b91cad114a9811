"""Scans of real folders."""

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.core.model_config import AllVersions, LatestVersions
from stoker.server.lifecycle import model_folder, repository
from stoker.server.lifecycle.folder import LINKS_HINT
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.repository import ModelRepository, RepositoryUnreadable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def add_model(root: Path, name: str, *versions: object, config: str | None = None) -> Path:
    folder = root / name
    folder.mkdir()
    for version in versions:
        (folder / str(version)).mkdir()
        (folder / str(version) / "model.onnx").write_bytes(b"model")
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    return folder


def found(repository: ModelRepository, name: str) -> ModelListing:
    listing = repository.find(name)
    assert listing is not None
    return listing


def config_of(listing: ModelListing) -> ParsedConfig:
    assert listing.config is not None
    return listing.config


def error_of(listing: ModelListing) -> str:
    assert listing.error is not None
    return listing.error


def test_scan_finds_models_with_their_configs_and_versions(root: Path) -> None:
    add_model(root, "b", 1, 3, config="version_policy { all {} }")
    add_model(root, "a", 10)
    models = ModelRepository([root]).scan().models
    assert list(models) == ["a", "b"]
    assert set(models["b"].versions) == {1, 3}
    assert models["b"].versions[3].directory == root / "b" / "3"
    assert isinstance(config_of(models["b"]).version_policy, AllVersions)
    assert models["b"].has_config_file
    assert isinstance(config_of(models["a"]).version_policy, LatestVersions)
    assert not models["a"].has_config_file
    assert models["a"].error is None


def test_two_scans_of_the_same_content_are_equal(root: Path) -> None:
    add_model(root, "m", 1, config="max_batch_size: 4")
    repository = ModelRepository([root])
    first, second = repository.scan(), repository.scan()
    assert first.models["m"].mark == second.models["m"].mark
    assert first.models["m"].mark == found(repository, "m").mark


@pytest.mark.parametrize("name", ["0", "01", "+1", "-1", "1.0", "1a", "1 ", "١", "9" * 20, str(2**63), "warmup"])
def test_only_plain_positive_numbers_are_versions(root: Path, name: str) -> None:
    add_model(root, "m", 1, name)
    assert set(ModelRepository([root]).scan().models["m"].versions) == {1}


def test_folders_that_resemble_versions_are_reported(root: Path) -> None:
    add_model(root, "m", 1, "02", "0")
    notes = ModelRepository([root]).scan().notes
    assert len(notes) == 2
    assert "model 'm': folder '0' is passed over: a version is a number from 1 without sign or leading zeros" in notes


@pytest.mark.parametrize("name", ["latest", "v1", "1a"])
def test_folder_of_another_name_beside_versions_is_reported(root: Path, name: str) -> None:
    folder = add_model(root, "m", 1, name)
    (folder / "current").symlink_to("1")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "labels.txt").write_text("a")
    (folder / ".git").mkdir()
    (folder / "warmup").mkdir()
    notes = ModelRepository([root]).scan().notes
    rule = "is passed over: a version is a number from 1 without sign or leading zeros"
    assert notes == tuple(f"model 'm': folder '{passed}' {rule}" for passed in sorted([name, "current"]))


def test_file_named_like_a_version_is_no_version(root: Path) -> None:
    folder = add_model(root, "m", 1)
    (folder / "2").write_bytes(b"")
    assert set(ModelRepository([root]).scan().models["m"].versions) == {1}


def test_files_hidden_folders_and_leftovers_are_not_models(root: Path) -> None:
    (root / "README.md").write_text("hello")
    for name in (".git", "..data", "lost+found", ".hidden"):
        add_model(root, name, 1)
    (root / "pictures").mkdir()
    snapshot = ModelRepository([root]).scan()
    assert snapshot.models == {}
    assert snapshot.notes == ("folder 'pictures' is passed over: it has neither a config.pbtxt nor a version folder such as '1'",)
    assert ModelRepository([root]).find("..data") is None


@pytest.mark.parametrize("name", ["a b", "x" * 129, "\u202ex", "$(id)", "a;id", "...", "modèle"])
def test_names_outside_the_allow_list_are_reported_and_skipped(root: Path, name: str) -> None:
    add_model(root, name, 1)
    snapshot = ModelRepository([root]).scan()
    assert snapshot.models == {}
    if not name.startswith("."):
        assert "is passed over: a model name is" in snapshot.notes[0]
        assert snapshot.notes[0].isprintable()
    assert ModelRepository([root]).find(name) is None


def test_config_typo_fails_only_its_model_with_its_line(root: Path) -> None:
    add_model(root, "bad", 1, config="max_batch_size: 4\ninptu {}\n")
    add_model(root, "good", 1)
    models = ModelRepository([root]).scan().models
    assert models["good"].error is None
    assert models["bad"].config is None
    assert error_of(models["bad"]).startswith("bad/config.pbtxt:2:")
    assert "inptu" in error_of(models["bad"])
    assert set(models["bad"].versions) == {1}


def test_corrected_config_is_detected_and_an_unchanged_one_is_parsed_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = add_model(root, "m", 1, config="max_batch_size: 4")
    parses: list[str] = []

    def counted(text: str, **more: Any) -> ParsedConfig:
        parses.append(text)
        return parse_pbtxt(text, **more)

    monkeypatch.setattr(model_folder, "parse_pbtxt", counted)
    here = ModelRepository([root])
    first = here.scan().models["m"]
    assert here.scan().models["m"].config is first.config
    assert len(parses) == 1
    (folder / "config.pbtxt").write_text("max_batch_size: 8")
    second = here.scan().models["m"]
    assert config_of(second).message.max_batch_size == 8
    assert second.fingerprint != first.fingerprint


def test_touching_the_config_changes_nothing(root: Path) -> None:
    folder = add_model(root, "m", 1, config="max_batch_size: 4")
    here = ModelRepository([root])
    before = here.scan().models["m"].mark
    os.utime(folder / "config.pbtxt", ns=(1, 1))
    assert here.scan().models["m"].mark == before


@pytest.mark.parametrize(
    "change",
    [
        lambda version: (version / "model.onnx").write_bytes(b"longer model"),
        lambda version: os.utime(version / "model.onnx", ns=(1, 1)),
        lambda version: (version / "extra").write_bytes(b""),
        lambda version: (version / "model.onnx").unlink(),
        lambda version: (version / "model.onnx").rename(version / "model2.onnx"),
        lambda version: (version / "folder").mkdir(),
        lambda version: (version / "link").symlink_to("model.onnx"),
    ],
)
def test_every_change_of_a_version_changes_only_its_fingerprint(root: Path, change) -> None:
    folder = add_model(root, "m", 1, 2)
    here = ModelRepository([root])
    before = here.scan().models["m"]
    change(folder / "1")
    after = here.scan().models["m"]
    assert after.versions[1].fingerprint != before.versions[1].fingerprint
    assert after.versions[2] == before.versions[2]
    assert after.fingerprint == before.fingerprint


def test_file_replaced_by_one_of_the_same_size_and_time_is_a_change(root: Path) -> None:
    folder = add_model(root, "m", 1)
    here = ModelRepository([root])
    before = here.scan().models["m"].versions[1].fingerprint
    old = (folder / "1" / "model.onnx").stat()
    (folder / "1" / "new").write_bytes(b"ledom")
    os.utime(folder / "1" / "new", ns=(old.st_atime_ns, old.st_mtime_ns))
    (folder / "1" / "new").rename(folder / "1" / "model.onnx")
    assert here.scan().models["m"].versions[1].fingerprint != before


def test_labels_and_warmup_data_belong_to_the_model_and_editor_files_do_not(root: Path) -> None:
    folder = add_model(root, "m", 1)
    (folder / "labels.txt").write_text("a")
    (folder / "warmup").mkdir()
    here = ModelRepository([root])
    marks = [here.scan().models["m"].fingerprint]
    for path, content in [("labels.txt", "ab"), ("warmup/x.raw", "1"), (".labels.txt.swp", "1"), ("labels.txt~", "a"), ("src", None)]:
        (folder / path).mkdir() if content is None else (folder / path).write_text(content)
        marks.append(here.scan().models["m"].fingerprint)
    assert len(set(marks[:3])) == 3
    assert set(marks[2:]) == {marks[2]}


def test_linked_folders_are_errors(root: Path, tmp_path: Path) -> None:
    outside = add_model(tmp_path, "outside", 1)
    (root / "linked").symlink_to(outside)
    folder = add_model(root, "m", 1)
    (folder / "2").symlink_to(outside / "1")
    (root / "file_link").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nowhere")
    models = ModelRepository([root]).scan().models
    assert set(models) == {"linked", "m"}
    assert models["linked"].error == f"the model folder is a symbolic link; it must be a real folder{LINKS_HINT}"
    assert models["m"].error is None
    assert models["m"].versions[2].error == f"the version folder is a symbolic link; it must be a real folder{LINKS_HINT}"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path, outside: path.symlink_to(outside), "it is a symbolic link"),
        (lambda path, outside: os.mkfifo(path), "config.pbtxt is not a plain file"),
        (lambda path, outside: path.mkdir(), "config.pbtxt"),
        (lambda path, outside: path.write_bytes(b"#" * (1 << 20) + b"#"), "larger than 1048576 bytes"),
        (lambda path, outside: path.write_bytes(b"name: \xff"), "not UTF-8 at byte 6"),
    ],
)
def test_config_that_is_not_a_small_text_file_is_an_error_of_its_model(root: Path, tmp_path: Path, make, reason: str) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = add_model(root, "m", 1)
    make(folder / "config.pbtxt", tmp_path / "secret")
    listing = ModelRepository([root]).scan().models["m"]
    assert reason in error_of(listing)
    assert "secret" not in error_of(listing)
    assert listing.config is None
    assert set(listing.versions) == {1}


def test_fifo_in_a_version_never_blocks_a_scan(root: Path) -> None:
    folder = add_model(root, "m", 1)
    os.mkfifo(folder / "1" / "pipe")
    scanning = threading.Thread(target=ModelRepository([root]).scan, daemon=True)
    scanning.start()
    scanning.join(5)
    assert not scanning.is_alive()


def test_name_in_two_roots_is_an_error_that_names_both(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "more"
    other.mkdir()
    add_model(root, "m", 1)
    add_model(other, "m", 2)
    add_model(other, "n", 1)
    here = ModelRepository([root, other])
    models = here.scan().models
    assert models["n"].error is None
    where = "model repositories 1 ('models') and 2 ('more')"
    assert models["m"].error == f"the name is taken in {where}; it must be in one only, or start with --model-namespacing=true"
    assert found(here, "m").error == models["m"].error
    assert found(here, "m").mark == models["m"].mark
    assert str(tmp_path) not in models["m"].error


def test_missing_root_or_a_file_is_refused_at_start(root: Path) -> None:
    with pytest.raises(RepositoryUnreadable, match="cannot be read: No such file"):
        ModelRepository([root / "missing"]).scan()
    (root / "file").write_text("")
    with pytest.raises(RepositoryUnreadable, match="cannot be read: Not a directory"):
        ModelRepository([root / "file"]).scan()


def test_root_that_is_a_model_is_refused_with_advice(root: Path) -> None:
    folder = add_model(root, "m", 1, config="")
    with pytest.raises(
        RepositoryUnreadable, match=r"holds a config\.pbtxt, so it is a model; give the folder that holds the model folders"
    ):
        ModelRepository([folder]).scan()


def test_root_that_becomes_unreadable_keeps_its_last_scan_and_is_logged_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    add_model(root, "m", 1)
    here = ModelRepository([root])
    before = here.scan().models
    root.rename(root.with_name("away"))
    assert here.scan().models == before
    assert here.scan().models == before
    assert caplog.text.count("cannot be read any more") == 1
    assert found(here, "m").error == "model repository 1 cannot be read: No such file or directory"
    root.with_name("away").rename(root)
    assert here.scan().models["m"].mark == before["m"].mark
    assert "is readable again" in caplog.text


def test_linked_root_is_followed(root: Path, tmp_path: Path) -> None:
    add_model(root, "m", 1)
    (tmp_path / "current").symlink_to(root)
    assert set(ModelRepository([tmp_path / "current"]).scan().models) == {"m"}


def test_bounds_of_a_scan_are_enforced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MAX_MODELS", 2)
    monkeypatch.setattr(model_folder, "MAX_VERSIONS", 2)
    monkeypatch.setattr(model_folder, "MAX_COMPANIONS", 1)
    monkeypatch.setattr("stoker.server.lifecycle.folder.MAX_FILES_PER_VERSION", 1)
    first = add_model(root, "a", 1, 2, 3)
    second = add_model(root, "b", 1)
    add_model(root, "c", 1)
    (first / "3" / "extra").write_text("")
    for name in ("x", "y"):
        (second / name).write_text("")
    snapshot = ModelRepository([root]).scan()
    assert list(snapshot.models) == ["a", "b"]
    assert set(snapshot.models["a"].versions) == {2, 3}
    assert snapshot.models["a"].versions[3].error == "the version folder cannot be read: more than 1 files and folders"
    assert snapshot.models["b"].error == "more than 1 files lie next to the version folders"
    assert "only the first 2 of 3 models are taken" in snapshot.notes
    assert "model 'a': only the highest 2 of 3 versions are taken" in snapshot.notes


def test_folder_with_too_many_entries_is_an_error_of_its_model(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "MAX_FOLDER_ENTRIES", 3)
    folder = add_model(root, "m", 1)
    for name in "abc":
        (folder / name).write_text("")
    assert ModelRepository([root]).scan().models["m"].error == "the model folder cannot be read: more than 3 entries in one folder"


def test_model_that_does_not_exist_is_not_found(root: Path) -> None:
    assert ModelRepository([root]).find("m") is None


def test_numbered_folder_without_a_model_file_is_reported_as_no_model(tmp_path: Path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "notes.md").touch()
    (note,) = ModelRepository([tmp_path]).scan().notes
    assert note.endswith("; if it is a version, serve the folder around it with --model_name")


def test_configuration_is_chosen_by_name_if_a_model_has_it(root: Path) -> None:
    folder = add_model(root, "m", 1, config="max_batch_size: 4")
    add_model(root, "plain", 1, config="max_batch_size: 5")
    (folder / "configs").mkdir()
    (folder / "configs" / "large.pbtxt").write_text("max_batch_size: 64")
    (folder / "configs" / "wrong.pbtxt").write_text("max_batch_size: 64\nnonsense: 1")
    (folder / "configs" / "link.pbtxt").symlink_to("large.pbtxt")
    chosen = ModelRepository([root], config_name="large").scan()
    assert {name: config_of(listing).message.max_batch_size for name, listing in chosen.models.items()} == {"m": 64, "plain": 5}
    assert chosen.notes == ()
    assert config_of(found(ModelRepository([root]), "m")).message.max_batch_size == 4
    assert error_of(found(ModelRepository([root], config_name="wrong"), "m")).startswith("m/configs/wrong.pbtxt:2: nonsense")
    assert "configs/link.pbtxt cannot be read: it is a symbolic link" in error_of(found(ModelRepository([root], config_name="link"), "m"))


def test_change_of_the_chosen_configuration_is_a_change_of_the_model(root: Path) -> None:
    folder = add_model(root, "m", 1)
    (folder / "configs").mkdir()
    (folder / "configs" / "x.pbtxt").write_text("max_batch_size: 4")
    repository = ModelRepository([root], config_name="x")
    before = found(repository, "m")
    assert before.has_config_file
    (folder / "configs" / "x.pbtxt").write_text("max_batch_size: 8")
    assert found(repository, "m").mark != before.mark
