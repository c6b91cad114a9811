"""The commands and the program of docs/adlik.md, run as they are written, in order, on ports of the test's own."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture
def command_path(tmp_path: Path) -> str:
    """A PATH with the commands of `pip install ./compat`, which the tests' environment need not have."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "adlik_serving").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m adlik_serving "$@"\n')
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for command in folder.iterdir():
        command.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_every_example_runs(tmp_path: Path, command_path: str):
    grpc_port, http_port = free_ports()
    blocks = BLOCK.findall((REPOSITORY_ROOT / "docs" / "adlik.md").read_text())
    assert [language for language, _ in blocks] == ["sh", "sh", "python"]
    # The server that the page starts in the background ends with the shell.
    script = ["set -eu", "trap 'kill $! && wait $!' EXIT"]
    for language, text in blocks:
        script.append(text if language == "sh" else f"python - <<'PROGRAM'\n{text}PROGRAM")
    (tmp_path / "model_repos").symlink_to(REPOSITORY_ROOT / "model_repos")
    environment = {
        **os.environ,
        "PATH": command_path,
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY_ROOT / "compat", REPOSITORY_ROOT, REPOSITORY_ROOT / "clients/python"))),
    }
    program = "\n".join(script).replace("8500", str(grpc_port)).replace("8501", str(http_port))
    output = tmp_path / "output"
    with output.open("wb") as out:
        done = subprocess.run(
            ["bash", "-c", program], cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=90, check=False
        )
    printed = output.read_text()
    assert done.returncode == 0, printed
    assert '"outputs":{"OUTPUT0"' in printed
    assert '"data_type":"DT_FLOAT"' in printed
    assert "(2, 10) [" in printed
