"""The walk-through of the IPU's examples, run as its users run it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.protocol

ROOT = Path(__file__).parents[2]


def test_walkthrough_chooses_compiles_runs_and_serves(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "ipu" / "walkthrough.py"), "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"(fp32|fp16|fp8)\s*│\s*(\d+) │\s*([\d.]+) │\s*([\d,]+) │\s*([\d.]+)% │\s*([\d.]+)%", done.stdout)
    assert len(rows) == 15
    assert all(float(accuracy) > 97 for *_, accuracy in rows)
    assert "Chosen: " in done.stdout
    assert (tmp_path / "models" / "digits_c600" / "1" / "executable.popef").is_file()
    for protocol in ("gRPC", "REST"):
        found = re.search(rf"{protocol}: accuracy ([\d.]+)%", done.stdout)
        assert found is not None
        assert float(found[1]) > 97


def test_unsatisfiable_choice_ends_with_one_line(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "ipu" / "walkthrough.py"), "--latency_us", "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 1
    assert "nothing is within 0.001 us" in done.stderr


#: Runs a script as one that a shell starts in the foreground: what starts the tests may have it ignore SIGINT, which a child inherits.
IN_THE_FOREGROUND = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_interruption_prints_no_traceback(tmp_path):
    walkthrough = ROOT / "examples" / "ipu" / "walkthrough.py"
    command = [sys.executable, "-c", IN_THE_FOREGROUND, "-u", str(walkthrough), "--keep", str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "The choice" in line:
                break
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, "")
