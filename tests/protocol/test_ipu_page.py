"""The commands and programs of docs/ipu.md, run as they are written, in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.protocol

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_runs(tmp_path):
    for name in ("model_repos", "examples", "backends", "compiler", "server", "cli"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    blocks = BLOCK.findall((ROOT / "docs" / "ipu.md").read_text())
    assert len(blocks) >= 6
    for language, text in blocks:
        command = ["bash", "-euc", text] if language == "sh" else [sys.executable, "-W", "error", "-c", text]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    for made in (
        "executable.popef",
        "facts.json",
        "report/summary_report.html",
        "fused/executable.popef",
        "models/mine/1/executable.popef",
    ):
        assert (tmp_path / "out" / made).is_file()
