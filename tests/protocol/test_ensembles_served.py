"""Ensembles in the forms of Triton's examples, by tritonclient over HTTP, gRPC and streams."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker_client import HttpClient
from tests.fakes.ensemble_models import write_all, write_simple
from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign"
IMAGE = json.dumps({"instances": [["2", "8", "4", "6"]]}).encode()


@pytest.fixture(scope="module", params=["h2", "grpcio"])
def ensembles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("ensembles")
    write_all(repository)
    flags = (f"--model_base_path={repository}", f"--grpc-front={request.param}")
    with running_server(*flags, at=tmp_path_factory.mktemp("server")) as server:
        yield server


def run(python: Path, script: str, server: ServerProcess) -> list[str]:
    command = [str(python), str(FOREIGN / script), server.http, server.grpc]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
    return done.stdout.split()


def test_tritonclient_uses_ensembles(ensembles: ServerProcess, clients_python: Path):
    assert run(clients_python, "ensembles.py", ensembles) == ["http", "grpc", "stream"]


def test_tensorflow_protocol_and_pages_serve_ensembles(ensembles: ServerProcess):
    status, body = ensembles.get("/v1/models/classify:predict", IMAGE)
    assert (status, json.loads(body)) == (200, {"predictions": [{"CLASSIFICATION": [1.0, 4.0, 2.0], "PIXELS": [1.0, 4.0, 2.0, 3.0]}]})
    assert ensembles.json("/v1/models/classify")["model_version_status"][0]["state"] == "AVAILABLE"
    status, page = ensembles.get("/models/classify")
    assert status == 200
    assert b"ensemble" in page


def test_generate_streams_from_a_decoupled_ensemble(ensembles: ServerProcess):
    status, body = ensembles.get("/v2/models/counting/generate_stream", json.dumps({"IN": [1, 2]}).encode())
    assert status == 200
    assert [json.loads(line.removeprefix("data: "))["OUT"] for line in body.decode().splitlines() if line] == [101, 102]


def test_metrics_count_the_ensemble_and_its_steps(ensembles: ServerProcess):
    def count(name: str) -> int:
        lines = ensembles.get("/metrics")[1].decode().splitlines()
        line = next(line for line in lines if line.startswith(f'nv_inference_request_success{{model="{name}",version="1"}}'))
        return int(line.split()[-1])

    before = [count("classify"), count("parse")]
    assert ensembles.get("/v1/models/classify:predict", IMAGE)[0] == 200
    assert [count("classify"), count("parse")] == [before[0] + 1, before[1] + 1]


def test_tritonclient_loads_and_unloads_ensembles(tmp_path: Path, clients_python: Path):
    write_simple(tmp_path / "models")
    with running_server(f"--model-repository={tmp_path / 'models'}", "--model-control-mode=explicit", at=tmp_path / "server") as server:
        assert run(clients_python, "ensemble_control.py", server) == ["http", "grpc"]


def test_trace_has_the_steps_as_children(tmp_path: Path):
    write_simple(tmp_path / "models")
    trace = tmp_path / "trace.json"
    flags = (
        f"--trace-config=triton,file={trace}",
        "--trace-config=rate=1",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=level=TENSORS",
    )
    inputs = [{"name": f"INPUT{index}", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16} for index in range(2)]
    with running_server(f"--model-repository={tmp_path / 'models'}", *flags, at=tmp_path / "server") as server:
        server.json("/v2/models/simple_ensemble/infer", {"id": "t", "inputs": inputs})
        assert server.stop() == 0
    objects = json.loads(trace.read_text())
    named = {each["model_name"]: each for each in objects if "model_name" in each}
    assert set(named) == {"simple_ensemble", "nop", "add_sub"}
    ensemble = named["simple_ensemble"]["id"]
    assert "parent_id" not in named["simple_ensemble"]
    for step in ("nop", "add_sub"):
        assert named[step]["parent_id"] == ensemble
        assert named[step]["request_id"] == "t"
        stamps = [each["timestamps"][0]["name"] for each in objects if each["id"] == named[step]["id"] and "timestamps" in each]
        assert {"REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"} <= set(stamps)
        tensors = [(each["activity"], each["tensor"]["name"]) for each in objects if each["id"] == named[step]["id"] and "tensor" in each]
        assert ("TENSOR_QUEUE_INPUT", "INPUT0") in tensors
        assert ("TENSOR_BACKEND_OUTPUT", "OUTPUT1") in tensors


def test_response_cache_of_an_ensemble_follows_its_steps(tmp_path: Path):
    write_simple(tmp_path / "models")
    config = tmp_path / "models" / "simple_ensemble" / "config.pbtxt"
    config.write_text(config.read_text() + "response_cache { enable: true }\n")
    inputs = [{"name": f"INPUT{index}", "shape": [1, 16], "datatype": "INT32", "data": [index] * 16} for index in range(2)]
    flags = ("--model-control-mode=explicit", "--load-model=simple_ensemble", "--cache-config=local,size=1000000")
    with running_server(f"--model-repository={tmp_path / 'models'}", *flags, at=tmp_path / "server") as server:

        def hits() -> int:
            server.json("/v2/models/simple_ensemble/infer", {"inputs": inputs})
            [stats] = server.json("/v2/models/simple_ensemble/stats")["model_stats"]
            return int(stats["inference_stats"]["cache_hit"]["count"])

        assert [hits(), hits()] == [0, 1]
        server.json("/v2/repository/models/add_sub/load", {})
        assert hits() == 1, "the response of the old version is not used"
        assert hits() == 2


def test_check_and_serve_explain_ensembles(tmp_path: Path):
    write_simple(tmp_path / "models")
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", "check", str(tmp_path / "models"), "--json"],
        capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY_ROOT,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["ok"], report
    ensemble = next(model for model in report["models"] if model["name"] == "simple_ensemble")
    assert ensemble["versions"][0]["backend"] == "ensemble"


def test_reload_of_a_step_under_load_loses_no_request(tmp_path: Path):
    repository = tmp_path / "models"
    write_simple(repository)
    flags = ("--model-control-mode=explicit", "--load-model=simple_ensemble")
    with running_server(f"--model-repository={repository}", *flags, at=tmp_path / "server") as server:
        is_over = threading.Event()
        sums: list[int] = []
        failures: list[Exception] = []
        inputs = {f"INPUT{index}": np.full((2, 16), index + 1, np.int32) for index in range(2)}

        def send_requests() -> None:
            with HttpClient(server.http) as client:
                while not is_over.is_set():
                    try:
                        sums.append(int(client.infer("simple_ensemble", inputs)["OUTPUT0"][0, 0]))
                    except Exception as error:  # any failure at all fails the test
                        failures.append(error)

        clients = [threading.Thread(target=send_requests) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            for name in ("add_sub", "nop", "add_sub", "simple_ensemble"):
                server.json(f"/v2/repository/models/{name}/load", {})
                reached = len(sums) + 30
                wait_until(lambda reached=reached: len(sums) >= reached or bool(failures), what="responses after a reload")
        finally:
            is_over.set()
            for client in clients:
                client.join()
        assert failures == []
        assert set(sums) == {3}
