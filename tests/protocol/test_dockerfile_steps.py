"""The Dockerfile's steps in a clean environment, where no container engine is at hand.

The COPY and RUN lines of the stage before the last are carried out below a folder of the test's own; then the server is started by the
ENTRYPOINT line, as the image's user, from a folder that cannot be written to, with only TMPDIR writable.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.package_index import INSTALL_PATIENCE_S, require_package_index
from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, wait_until

INSTALLED_AT = "/opt/stoker"
IMAGE_USER = 1000

CONFIG = """
backend: "identity"
max_batch_size: 4
input [{ name: "IN" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [2] }]
"""


def stages() -> list[list[tuple[str, str]]]:
    """Instruction and words, by stage; continued lines joined, comments dropped."""
    lines = (REPOSITORY_ROOT / "docker" / "Dockerfile").read_text().splitlines()
    joined = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found: list[list[tuple[str, str]]] = []
    for line in filter(str.strip, joined.splitlines()):
        instruction, _, words = line.strip().partition(" ")
        if instruction == "FROM":
            found.append([])
        elif found:
            found[-1].append((instruction, words.strip()))
    return found


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that other users may read, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-image-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def interpreter_for_the_image_user() -> Path:
    """A Python that other users may run: the tests' own may be in a home folder that is closed to them."""
    candidates = [Path(sys.executable).resolve(), *(Path(folder) / "python3" for folder in ("/usr/local/bin", "/usr/bin"))]
    for python in candidates:
        is_open = python.exists() and all(folder.stat().st_mode & 0o001 for folder in python.resolve().parents)
        if is_open or (python.exists() and os.geteuid() != 0):
            ask = [str(python), "-c", "import sys, venv; sys.exit(sys.version_info < (3, 11))"]
            if subprocess.run(ask, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0:
                return python
    pytest.skip(f"no Python of 3.11 or later that user {IMAGE_USER} may run")


def build(root: Path, python: Path) -> Path:
    """Carries out the stage before the last; returns where it installed to. STOKER_NATIVE turns the compilation off: it takes minutes."""
    context, installed, commands = root / "build", root / "installed", root / "commands"
    context.mkdir()
    commands.mkdir()
    # The base image's `python` and `pip`: a symbolic link would make the environment believe that Python lives here.
    for name, words in (("python", f"{python}"), ("pip", f"{sys.executable} -m pip")):
        (commands / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (commands / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    for instruction, words in stages()[-2]:
        if instruction == "COPY":
            *sources, into = words.split()
            for source in sources:
                copy(REPOSITORY_ROOT / source, context / into if into.endswith("/") else (context / into).parent)
        elif instruction == "RUN":
            line = re.sub(r"--mount=\S+\s+", "", words).replace(INSTALLED_AT, str(installed))
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                cwd=context,
                env=environment,
                capture_output=True,
                text=True,
                timeout=INSTALL_PATIENCE_S,
                check=False,
            )
            assert done.returncode == 0, f"RUN {line}\n{done.stdout}\n{done.stderr}"
        elif instruction == "ARG":
            name, _, default = words.partition("=")
            environment[name] = {"STOKER_NATIVE": "0"}.get(name, default.strip('"'))
        else:
            assert instruction == "WORKDIR", f"the test does not know how to carry out {instruction}"
    return installed


def copy(source: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, into / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "tests", "build"))
    else:
        shutil.copy(source, into)


def start(root: Path, installed: Path, ready: Path) -> "subprocess.Popen[bytes]":
    """Starts the ENTRYPOINT as the image would, on free ports."""
    final = dict(stages()[-1])
    words: list[str] = [*json.loads(final["ENTRYPOINT"]), *json.loads(final["CMD"])]
    command = [word.replace(INSTALLED_AT, str(installed)).replace("/models", str(root / "models")) for word in words]
    command = [word.replace("--address=0.0.0.0", "--address=127.0.0.1") for word in command]
    command += ["--grpc_port=0", "--http_port=0", f"--ready_file={ready}"]
    tmp = str(ready.parent)
    # The image's environment and nothing of ours, so that the installed packages alone are what runs.
    environment = {
        key: value.replace(INSTALLED_AT, str(installed)).replace("/tmp", tmp) for key, value in re.findall(r"(\w+)=(\S+)", final["ENV"])
    }
    environment["PATH"] = environment["PATH"].replace("$PATH", "/usr/bin:/bin")
    user = {"user": IMAGE_USER, "group": IMAGE_USER, "extra_groups": []} if os.geteuid() == 0 else {}
    with (root / "server.log").open("wb") as log:
        return subprocess.Popen(command, cwd=root / "empty", env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **user)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.timeout(2 * INSTALL_PATIENCE_S)
def test_dockerfile_installs_a_server_that_runs_without_root_and_drains(root: Path) -> None:
    python = interpreter_for_the_image_user()
    require_package_index(root / "probe")
    installed = build(root, python)
    assert not (installed / "bin" / "pip").exists(), "the image carries no installer"
    assert list(installed.glob("lib/python*/site-packages/openvino")), "the image has the OpenVINO backend"

    model = root / "models" / "echo"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.identity").touch()
    (model / "config.pbtxt").write_text(CONFIG)
    (root / "empty").mkdir(mode=0o555)
    tmp = root / "tmp"
    tmp.mkdir()
    tmp.chmod(0o1777)

    ready = tmp / "ready.json"
    process = start(root, installed, ready)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, what="the ready file")
        log = (root / "server.log").read_text()
        assert process.poll() is None, log
        if os.geteuid() == 0:
            assert Path(f"/proc/{process.pid}").stat().st_uid == IMAGE_USER
        address = f"http://127.0.0.1:{json.loads(ready.read_text())['http_port']}"
        with urllib.request.urlopen(f"{address}/v2/health/live", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]}]}).encode()
        with urllib.request.urlopen(f"{address}/v2/models/echo/infer", data=body, timeout=PATIENCE_S) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [1.5, -2.0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, (root / "server.log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert list((root / "empty").iterdir()) == []
    assert list(tmp.iterdir()) == [], "the server leaves nothing behind"
