"""The walk-through of the GCU's examples, run as its users run it, and the reference of its results."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.protocol, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "enflame"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(240)
def test_walkthrough_converts_compiles_serves_and_infers(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [EXAMPLE / "walkthrough.sh", tmp_path], capture_output=True, text=True, timeout=200, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^== (\d)\. ", done.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5", "6"]
    assert "\nmodel_repos\n    resnet50\n        1\n            model.exec\n        config.pbtxt\n    resnet50_1.zip\n" in done.stdout
    assert len(re.findall(r"^Image: '.*', result: \[\{'idx': \d+, 'score': ", done.stdout, re.MULTILINE)) == 2
    assert "ACC: 2 of 2 is 100.0% \n" in done.stdout
    assert "the served model's results are those of its source" in done.stdout
    with zipfile.ZipFile(tmp_path / "model_repos" / "resnet50_1.zip") as archive:
        assert archive.namelist() == ["1/model.exec", "config.pbtxt"]
    (ready,) = re.findall(r'^\{"grpc_port".*\}$', done.stdout, re.MULTILINE)
    assert not is_running(json.loads(ready)["pid"])

    # The same answers, with one score changed, and with one picture left out, are distinguished from the source's.
    answers = (tmp_path / "results.txt").read_text()
    first, rest = answers.split("\n", 1)
    for tampered, complaint in (
        (re.sub(r"'score': \d", "'score': 9", first, count=1) + "\n" + rest, "rank 1 is class"),
        (rest, "the client printed no result"),
    ):
        (tmp_path / "tampered.txt").write_text(tampered)
        command = [
            sys.executable,
            EXAMPLE / "source_results.py",
            "--model",
            tmp_path / "model/resnet50.onnx",
            "--folder",
            tmp_path / "data",
        ]
        compared = subprocess.run([*command, "--compare", tmp_path / "tampered.txt"], capture_output=True, text=True, timeout=60)
        assert compared.returncode == 1
        assert complaint in compared.stderr


def test_unsatisfiable_request_ends_the_example_with_its_reason(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "resnet50.onnx").write_bytes(b"no model")
    command = [sys.executable, EXAMPLE / "compile_model.py", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "'status': 'failure'" in done.stdout
    assert "is no ONNX" in done.stdout
    assert done.stderr == ""
