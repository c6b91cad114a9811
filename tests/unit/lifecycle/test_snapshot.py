"""Private copies: their content, and everything that must not be copied."""

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.backends.api.errors import InvalidRequest, ModelLoadError
from stoker.server.lifecycle import snapshot as snapshot_module
from stoker.server.lifecycle.settings import MAX_DEPTH
from stoker.server.lifecycle.snapshot import discard, take_snapshot

SECRET = b"root:secret"


@pytest.fixture
def area(tmp_path: Path) -> Path:
    folder = tmp_path / "area"
    folder.mkdir()
    return folder


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"model" * 1000)
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


def assert_refused(version: Path, area: Path, match: str) -> None:
    with pytest.raises(ModelLoadError, match=match) as caught:
        take_snapshot(version, area)
    assert list(area.iterdir()) == [], "a refused copy must leave nothing behind"
    assert str(version) not in caught.value.message
    assert str(area) not in caught.value.message


def test_snapshot_copies_every_file_with_its_content_and_size(version: Path, area: Path) -> None:
    (version / "data" / "deep").mkdir(parents=True)
    (version / "data" / "deep" / "weights.bin").write_bytes(bytes(range(256)) * 40_000)
    (version / "empty").write_bytes(b"")
    files = take_snapshot(version, area)
    assert dict(files.sizes_bytes) == {"model.onnx": 5000, "data/deep/weights.bin": 10_240_000, "empty": 0}
    assert files.read("model.onnx") == b"model" * 1000
    assert files.read("data/deep/weights.bin") == bytes(range(256)) * 40_000
    assert files.read("empty") == b""


def test_copy_is_readable_by_this_user_only(version: Path, area: Path) -> None:
    files = take_snapshot(version, area)
    assert stat.S_IMODE(files.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(files.path("model.onnx").stat().st_mode) == 0o600


def test_copy_outlives_its_source(version: Path, area: Path) -> None:
    files = take_snapshot(version, area)
    (version / "model.onnx").write_bytes(b"other")
    assert files.read("model.onnx") == b"model" * 1000


def test_discard_removes_the_copy(version: Path, area: Path) -> None:
    discard(take_snapshot(version, area))
    assert list(area.iterdir()) == []


def test_second_discard_is_only_logged(version: Path, area: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = take_snapshot(version, area)
    discard(files)
    discard(files)
    assert "could not be removed" in caplog.text


def test_plain_copy_is_used_if_the_kernel_copies_no_ranges(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "other device")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert take_snapshot(version, area).read("model.onnx") == b"model" * 1000


def test_file_system_that_copies_empty_ranges_is_read_plainly(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    assert take_snapshot(version, area).read("model.onnx") == b"model" * 1000


def test_linked_repository_root_is_accepted(version: Path, area: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(version.parent.parent)
    assert take_snapshot(tmp_path / "current" / "m" / "1", area).read("model.onnx")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../secret", "model.onnx"])
def test_symbolic_links_are_refused_whatever_their_target(version: Path, area: Path, secret: Path, target: str) -> None:
    (version / "weights.bin").symlink_to(target)
    assert_refused(version, area, "'weights.bin' is a symbolic link")


def test_linked_folder_inside_is_refused(version: Path, area: Path, tmp_path: Path, secret: Path) -> None:
    (version / "data").symlink_to(tmp_path)
    assert_refused(version, area, "'data' is a symbolic link")


def test_linked_version_folder_is_refused(version: Path, area: Path) -> None:
    (version.parent / "2").symlink_to(version)
    assert_refused(version.parent / "2", area, "symbolic link")


def test_linked_model_folder_is_refused(version: Path, area: Path) -> None:
    (version.parent.parent / "n").symlink_to(version.parent)
    assert_refused(version.parent.parent / "n" / "1", area, "symbolic link")


def test_hard_links_are_refused(version: Path, area: Path, secret: Path) -> None:
    os.link(secret, version / "weights.bin")
    assert_refused(version, area, r"'weights.bin' is a hard link \(its file has 2 names\)")


def test_fifos_are_refused_and_never_block(version: Path, area: Path) -> None:
    os.mkfifo(version / "pipe")
    assert_refused(version, area, "'pipe' is a special file")


def test_sockets_are_refused(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(version)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
    assert_refused(version, area, "'sock' is a special file")


def test_devices_are_refused(version: Path, area: Path) -> None:
    try:
        os.mknod(version / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device needs privileges")
    assert_refused(version, area, "'device' is a special file")


def test_missing_version_folder_is_named_without_its_path(version: Path, area: Path) -> None:
    assert_refused(version.parent / "7", area, "version folder cannot be read: No such file or directory")


def test_names_that_are_not_utf8_are_refused(version: Path, area: Path) -> None:
    Path(os.fsdecode(os.fsencode(version) + b"/\xff.bin")).write_bytes(b"")
    assert_refused(version, area, "not UTF-8")


def test_folders_nested_too_deep_are_refused(version: Path, area: Path) -> None:
    version.joinpath(*["d"] * (MAX_DEPTH + 1)).mkdir(parents=True)
    assert_refused(version, area, f"more than {MAX_DEPTH} folders deep")


def test_too_many_files_are_refused(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.server.lifecycle.folder.MAX_FILES_PER_VERSION", 3)
    for index in range(3):
        (version / f"{index}").write_bytes(b"")
    assert_refused(version, area, "more than 3 files and folders")


def test_file_over_the_limit_is_refused_before_it_is_read(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "MAX_FILE_BYTES", 4999)
    assert_refused(version, area, "'model.onnx' has 5000 bytes; the limit is 4999")


def test_version_over_the_limit_is_refused(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (version / "b").write_bytes(b"x" * 10)
    monkeypatch.setattr(snapshot_module, "MAX_VERSION_BYTES", 5009)
    assert_refused(version, area, "5010 bytes together; the limit is 5009")


def refuse_when(version: Path, area: Path, interfere: Callable[[str], object], match: str) -> None:
    with pytest.raises(ModelLoadError, match=match):
        take_snapshot(version, area, after_each=interfere)
    assert list(area.iterdir()) == []


def test_file_that_grows_while_it_is_read_is_refused(version: Path, area: Path) -> None:
    def grow(path: str) -> None:
        with (version / path).open("ab") as file:
            file.write(b"more")

    refuse_when(version, area, grow, "'model.onnx' changed while it was read")


def test_file_replaced_by_a_link_before_its_copy_is_refused(version: Path, area: Path, secret: Path) -> None:
    (version / "weights.bin").write_bytes(b"w")

    def swap(path: str) -> None:
        if path == "model.onnx":
            (version / "weights.bin").unlink()
            (version / "weights.bin").symlink_to(secret)

    refuse_when(version, area, swap, "'weights.bin' changed while it was read")


def test_file_replaced_by_a_fifo_before_its_copy_is_refused(version: Path, area: Path) -> None:
    (version / "weights.bin").write_bytes(b"w")

    def swap(path: str) -> None:
        if path == "model.onnx":
            (version / "weights.bin").unlink()
            os.mkfifo(version / "weights.bin")

    refuse_when(version, area, swap, "'weights.bin' changed while it was read")


def test_folder_replaced_by_a_link_before_its_copy_is_refused(version: Path, area: Path, tmp_path: Path) -> None:
    (version / "zdata").mkdir()
    (version / "zdata" / "secret").write_bytes(b"harmless")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)

    def swap(path: str) -> None:
        if path == "model.onnx":
            (version / "zdata").rename(tmp_path / "gone")
            (version / "zdata").symlink_to(tmp_path / "outside")

    refuse_when(version, area, swap, "'zdata/secret' changed while it was read")


def test_file_replaced_after_its_copy_is_detected_at_the_end(version: Path, area: Path) -> None:
    (version / "weights.bin").write_bytes(b"w")

    def replace(path: str) -> None:
        if path == "weights.bin":
            (version / "new").write_bytes(b"model" * 1000)
            (version / "new").rename(version / "model.onnx")

    refuse_when(version, area, replace, "the version folder changed while it was read")


def test_file_that_appears_during_the_copy_is_detected(version: Path, area: Path) -> None:
    refuse_when(version, area, lambda _: (version / "late").write_bytes(b""), "the version folder changed while it was read")


def test_full_disk_is_named_and_leaves_nothing(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    assert_refused(version, area, r"no space for the private copy of 'model.onnx': No space left on device \(ENOSPC\)")


class FailNth:
    """Stands before a system call and fails its nth use."""

    def __init__(self, real: Callable[..., object], nth: int) -> None:
        self._real = real
        self._nth = nth
        self.calls = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        if self.calls != self._nth:
            return self._real(*args, **kwargs)
        if getattr(self._real, "__name__", "") == "close":
            self._real(*args)
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("call", ["open", "fstat", "copy_file_range", "scandir", "close"])
def test_failure_of_any_system_call_leaves_nothing(version: Path, area: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (version / "data").mkdir()
    (version / "data" / "weights.bin").write_bytes(b"w" * 100)
    real = getattr(os, call)
    messages: list[str] = []
    for nth in range(1, 100):
        fault = FailNth(real, nth)
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fault)
            try:
                files = take_snapshot(version, area)
            except ModelLoadError as error:
                messages.append(error.message)
                files = None
        if files is not None:
            assert fault.calls < nth, f"failure {nth} of os.{call} went unnoticed"
            discard(files)
        assert list(area.iterdir()) == []
        if files is not None:
            break
    assert messages
    assert not any(str(area) in message for message in messages)


def test_overrides_alone_are_copied(version: Path, area: Path) -> None:
    files = take_snapshot(version.parent / "9", area, overrides={"model.onnx": b"new", "data/w.bin": b""})
    assert dict(files.sizes_bytes) == {"model.onnx": 3, "data/w.bin": 0}
    assert files.read("model.onnx") == b"new"


@pytest.mark.parametrize(
    "path", ["", "/etc/x", "../x", "a/../../x", "a//b", "./x", "a/.", "a\\..\\b", "a\0b", "a\nb", "x" * 256, "/".join("d" * 20), "a/"]
)
def test_override_paths_that_are_not_plain_are_refused(version: Path, area: Path, path: str) -> None:
    with pytest.raises(InvalidRequest, match="is not allowed"):
        take_snapshot(version, area, overrides={path: b"x"})
    assert list(area.iterdir()) == []


def test_override_below_another_file_is_an_error(version: Path, area: Path) -> None:
    with pytest.raises(ModelLoadError, match="'a/b' cannot be copied"):
        take_snapshot(version, area, overrides={"a": b"", "a/b": b""})
    assert list(area.iterdir()) == []


def test_missing_area_is_a_load_error(version: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no folder can be made for the private copy") as caught:
        take_snapshot(version, tmp_path / "missing")
    assert str(tmp_path) not in caught.value.message
