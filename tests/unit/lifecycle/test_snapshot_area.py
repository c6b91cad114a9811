"""Folders of private copies: those of living processes stay, on any host; those of killed ones are removed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.server.lifecycle.snapshot import snapshot_area
from tests.fakes.child_processes import Children

#: Holds an area until it is killed, under a process id that does not exist here, as a process in another container has it.
HOLDER = """
import os, sys, time
from pathlib import Path
os.getpid = lambda: 4_000_000
from stoker.server.lifecycle.snapshot import snapshot_area
with snapshot_area(Path(sys.argv[1])) as area:
    print(area, flush=True)
    sys.stdin.read()
"""


def held(children: Children, root: Path) -> "tuple[subprocess.Popen[bytes], Path]":
    process = children.start([sys.executable, "-c", HOLDER, root], has_input=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().decode().strip())


@pytest.mark.slow
def test_area_of_a_living_process_is_kept_and_that_of_a_killed_one_removed(children: Children, tmp_path: Path):
    process, area = held(children, tmp_path)
    assert area.is_dir()
    with snapshot_area(tmp_path) as own:
        assert own.is_dir()
        assert area.is_dir()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert area.is_dir()
    with snapshot_area(tmp_path):
        assert not area.exists()


def test_area_is_removed_at_the_end_and_foreign_folders_are_kept(tmp_path: Path):
    for name in ("other", "stoker-x-y", "stoker-12"):
        (tmp_path / name).mkdir()
    (tmp_path / "stoker-1-link").symlink_to(tmp_path / "other")
    with snapshot_area(tmp_path) as area:
        assert area.stat().st_mode & 0o777 == 0o700
        (area / "copy").write_text("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "stoker-1-link", "stoker-12", "stoker-x-y"]


def test_two_areas_of_one_process_coexist(tmp_path: Path):
    with snapshot_area(tmp_path) as one, snapshot_area(tmp_path) as other:
        assert one.is_dir()
        assert other.is_dir()
        assert one != other


def test_areas_without_locks_are_created_and_none_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stoker-1-abandoned").mkdir()

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with snapshot_area(tmp_path) as area:
        assert area.is_dir()
        assert (tmp_path / "stoker-1-abandoned").is_dir()
