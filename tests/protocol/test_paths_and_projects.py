"""Models without a repository, models of `stoker add` and the project of `stoker init`, served by a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import onnx_models
from tests.fakes.classifiers import classifier
from tests.fakes.converter import fake_interpreter
from tests.fakes.server_process import running_server

pytestmark = pytest.mark.protocol

PYTHON_MODEL = """
from stoker.models import Array, batched, float32


@batched(max=8)
def predict(x: Array["n", 2, float32]) -> Array["n", 2, float32]:
    return x + 1
"""


def stoker(*words: str, cwd: Path, url: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "STOKER_URL": url},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def outputs(server, model: str, values: list[list[float]]) -> dict[str, list[float]]:
    flat = [value for row in values for value in row]
    body = {"inputs": [{"name": "x", "shape": [len(values), 2], "datatype": "FP32", "data": flat}]}
    status, text = server.get(f"/v2/models/{model}/infer", json.dumps(body).encode())
    assert status == 200, text
    return {each["name"]: each["data"] for each in json.loads(text)["outputs"]}


def test_files_and_folders_are_served_by_their_paths(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "same.onnx").write_bytes(onnx_models.identity().SerializeToString())
    (flat / "flowers.onnx").write_bytes(classifier().SerializeToString())
    (tmp_path / "plus.py").write_text(PYTHON_MODEL)
    with running_server(str(flat), str(tmp_path / "plus.py"), at=tmp_path / "server") as server:
        assert outputs(server, "same", [[1, 2]]) == {"y": [1, 2]}
        assert outputs(server, "plus", [[1, 2], [3, 4]]) == {"output": [2, 3, 4, 5]}
        found = outputs(server, "flowers", [[9, 0]] * 20)
        assert found["label"] == ["cat"] * 20
        assert len(found["probabilities"]) == 60


def test_server_of_a_file_that_no_backend_serves_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "iris.pkl").touch()
    command = [sys.executable, "-m", "stoker.server.main", "iris.pkl", "--grpc-port=0", "--http-port=0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("serve: error: no backend serves 'iris.pkl': ")
    assert "stoker add iris.pkl --trust-pickle" in done.stderr


def test_added_model_responds_to_the_printed_commands(tmp_path: Path) -> None:
    (tmp_path / "iris.pkl").touch()
    python = fake_interpreter(tmp_path / "env", classifier())
    facts = json.loads(stoker("add", "iris.pkl", "--trust-pickle", f"--python={python}", "--json", cwd=tmp_path))
    with running_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "server") as server:
        infer = facts["next"][1]
        assert infer == "stoker infer iris -i 'x=[[0.0, 0.25]]'"
        assert "dog" in stoker("infer", "iris", "-i", "x=[[0.0, 0.25]]", cwd=tmp_path, url=f"http://{server.http}")
        _, _, body = facts["next"][2].partition(" -d ")
        assert outputs(server, "iris", [[9, 0]] * 300)["label"] == ["cat"] * 300  # more rows than max_batch_size
        status, text = server.get("/v2/models/iris/infer", body.strip("'").encode())
        assert status == 200
        assert json.loads(text)["outputs"][0]["data"] == ["dog"]


def test_project_is_served_and_its_client_gets_a_response(tmp_path: Path) -> None:
    stoker("init", "shop", cwd=tmp_path)
    with running_server(f"--model-repository={tmp_path / 'shop' / 'models'}", at=tmp_path / "server") as server:
        done = subprocess.run(
            [sys.executable, "client.py"],
            cwd=tmp_path / "shop",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "STOKER_URL": f"grpc://{server.grpc}"},
        )
        assert done.stdout == "class 3, probability 0.943\n", done.stderr
