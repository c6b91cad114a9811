"""The commands and the program of docs/adlik.md, run as they are written, in order, on ports of the test's own."""

import os
import sys
from pathlib import Path

import pytest

from tests.fakes.documentation_page import run_page
from tests.fakes.server_process import REPOSITORY_ROOT


@pytest.fixture
def command_path(tmp_path: Path) -> str:
    """A PATH with the commands of `pip install ./compat`, which the tests' environment need not have."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "adlik_serving").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m adlik_serving "$@"\n')
    (folder / "adlik_serving").chmod(0o755)
    return os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))


def test_every_example_runs(tmp_path: Path, command_path: str):
    environment = {
        "PATH": command_path,
        "PYTHONPATH": os.pathsep.join(str(REPOSITORY_ROOT / each) for each in ("compat", "", "clients/python")),
    }
    printed = run_page("adlik.md", at=tmp_path, links=["model_repos"], languages=["sh", "sh", "python"], environment=environment)
    assert '"outputs":{"OUTPUT0"' in printed
    assert '"data_type":"DT_FLOAT"' in printed
    assert "(2, 10) [" in printed
