"""`scripts/newcomer`: from wheels and an empty environment to the first response of an own model; and the size of this installation.

The packages come from the index of pip. `test_check_wheel.py` has the case without an index: it links the packages of this environment.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.package_index import INSTALL_PATIENCE_S, require_package_index
from tests.fakes.project_scripts import project_script
from tests.fakes.server_process import REPOSITORY_ROOT

SCRIPT = REPOSITORY_ROOT / "scripts" / "newcomer"
STEPS = [
    "build the wheels of stoker and stoker-client  (not counted)",
    "download what they need  (not counted)",
    "make an empty environment",
    "install stoker",
    "copy a model file into an empty folder",
    "serve it, until it is ready",
    "first response",
    "in all",
]
#: Bounds of an installation that serves, with pip and compiled bytecode.
MAX_BYTES, MAX_PACKAGES = 270 * 2**20, 45
#: A file occupies whole blocks of this size on common file systems.
BLOCK_BYTES = 4096


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of the script, and the lines that it printed."""
    require_package_index(tmp_path_factory.mktemp("probe"))
    folder = tmp_path_factory.mktemp("newcomer") / "folder"
    command = [sys.executable, str(SCRIPT), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * INSTALL_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout.splitlines()


pytestmark = pytest.mark.timeout(2 * INSTALL_PATIENCE_S)


@pytest.mark.slow
def test_model_of_a_user_is_served_from_an_empty_folder_in_few_steps(walked: tuple[Path, list[str]]):
    folder, lines = walked
    assert [re.sub(r"^ *\d+\.\d s  ", "", line) for line in lines] == STEPS
    assert {path.name for path in (folder / "work").iterdir()} == {"mine.onnx", "server.log"}, "the server leaves nothing behind"


@pytest.mark.slow
def test_installation_that_serves_is_small(walked: tuple[Path, list[str]]):
    files = [path for path in (walked[0] / "env").rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(-(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES for path in files) < MAX_BYTES
    packages = {path.name.split("-")[0] for path in (walked[0] / "env").glob("lib/python*/site-packages/*.dist-info")}
    assert {"stoker", "stoker_client"} <= packages
    assert len(packages) < MAX_PACKAGES
    assert not packages & {"onnx", "openvino", "mypy", "pytest"}


def test_folder_that_is_not_empty_is_rejected(tmp_path: Path):
    (tmp_path / "file").touch()
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"--folder={tmp_path}: expected an empty folder" in done.stderr


def test_failed_command_is_named_with_its_output():
    script = project_script("newcomer")
    with pytest.raises(script.StepFailed, match=r"exit code 3\nthe reason"):
        script.run(sys.executable, "-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)")


def test_server_that_does_not_start_is_reported_with_its_log(tmp_path: Path):
    script = project_script("newcomer")
    serve = tmp_path / "serve"
    serve.write_text("#!/bin/sh\necho no such model\nexit 2\n")
    serve.chmod(0o755)
    with pytest.raises(script.StepFailed, match=r"the server is not ready:\nno such model"):
        script.start(serve, tmp_path)


def test_total_has_the_seconds_of_the_steps_that_count(capsys: pytest.CaptureFixture[str]):
    clock = iter([10.0, 14.0, 20.0, 21.5])
    steps = project_script("newcomer").Steps(lambda: next(clock))
    with steps.step("a", counts=False):
        pass
    with steps.step("b"):
        pass
    assert steps.total_s == 1.5
    assert capsys.readouterr().out == "   4.0 s  a  (not counted)\n   1.5 s  b\n"
