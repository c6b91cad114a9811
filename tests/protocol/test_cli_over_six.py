"""`stoker infer` and `stoker bench` over every protocol, against one server."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stoker_client import NotFound
from stoker_client.tfs import TfsClient
from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess

PROTOCOLS = ("kserve-grpc", "kserve-http", "tfs-grpc", "tfs-rest", "adlik-grpc", "adlik-rest")


def stoker(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "stoker.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPOSITORY_ROOT, check=False)


def address(server: ServerProcess, protocol: str) -> str:
    return server.grpc if protocol.endswith("grpc") else server.http


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_infer_prints_the_same_values_over_every_protocol(server: ServerProcess, protocol: str):
    numbers = list(range(16))
    given = [f"--input=INPUT{at}={json.dumps([numbers])}" for at in (0, 1)]
    done = stoker("infer", "simple", *given, f"--protocol={protocol}", f"--url={address(server, protocol)}", "--json")
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert outputs["OUTPUT0"] == {"datatype": "INT32", "shape": [1, 16], "data": [[2 * number for number in numbers]]}
    assert outputs["OUTPUT1"]["data"] == [[0] * 16]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unknown_model_is_one_line_over_every_protocol(server: ServerProcess, protocol: str):
    done = stoker("infer", "ghost", "--input=x=[1]", f"--protocol={protocol}", f"--url={address(server, protocol)}")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("stoker: error: ")
    assert "ghost" in line


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_tfs_client_prints_the_models_inputs_and_predicts(server: ServerProcess, scheme: str):
    url = f"{scheme}://{server.grpc if scheme == 'grpc' else server.http}"
    with TfsClient(url) as client:
        facts = client.metadata("digits")
        assert facts["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 8, 8]}]
        image = np.zeros((2, 8, 8), np.float32)
        result = client.predict("digits", {"image": image}, version=1)
        assert [(name, array.dtype, array.shape[0]) for name, array in result.items()] == [("scores", np.float32, 2)]
        with pytest.raises(NotFound):
            client.predict("digits", {"image": image}, version=7)


QUICK = ("--window=0.1", "--warmup=0.05", "--max-trials=3")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bench_measures_over_every_protocol(server: ServerProcess, protocol: str, tmp_path: Path):
    table = tmp_path / "figures.csv"
    url = f"--url={address(server, protocol)}"
    done = stoker("bench", "digits", f"--protocol={protocol}", url, "--concurrency=1:2", "-b", "3", *QUICK, "--json", f"--csv={table}")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["model"], report["protocol"]) == ("digits", protocol)
    assert [level["concurrency"] for level in report["levels"]] == [1, 2]
    for level in report["levels"]:
        assert level["errors"] == 0
        assert level["requests"] > 0
        assert level["rows_per_s"] == pytest.approx(3 * level["requests_per_s"])
        assert 0 < level["latency_us"]["p50"] <= level["latency_us"]["p99"]
        assert (level["server"] is not None) == protocol.startswith("kserve")
    header, *rows = table.read_text().splitlines()
    assert ("Server Queue" in header) == protocol.startswith("kserve")
    assert len(rows) == 2
    assert len(rows[0].split(",")) == len(header.split(","))


def test_bench_holds_a_rate_and_prints_a_table(server: ServerProcess):
    done = stoker("bench", "simple", f"--url=http://{server.http}", "--tensor-format=json", "--request-rate=20:40:20", *QUICK)
    assert done.returncode == 0, done.stderr
    subject, header, *rows = done.stdout.splitlines()
    assert subject == f"simple over kserve-http at http://{server.http}, 1 row a request"
    assert header.split()[:4] == ["REQUEST", "RATE", "REQ/S", "ROWS/S"]
    assert [row.split()[0] for row in rows[:2]] == ["20/s", "40/s"]


@pytest.mark.parametrize(
    ("words", "code", "fragment"),
    [
        (("ghost",), 1, "ghost"),
        (("digits", "--shape=image:9,9"), 2, "does not fit the model's [-1, 8, 8]"),
        (("digits", "--input=image=[1]"), 1, "image"),
        (("digits", "--concurrency=1", "--request-rate=1"), 2, "expected one of them"),
        (("digits", "--poisson"), 2, "--request-rate"),
        (("digits", "--tensor-format=json"), 2, "kserve-http"),
        (("digits", "--version=9"), 1, "9"),
    ],
)
def test_bench_refuses_impossible_measurements_in_one_line(server: ServerProcess, words: tuple[str, ...], code: int, fragment: str):
    done = stoker("bench", *words, f"--url={server.grpc}")
    assert done.returncode == code, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("stoker: error: ")
    assert fragment in line


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_bench_without_a_server_reports_a_failed_connection(scheme: str):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = stoker("bench", "digits", f"--url={scheme}://127.0.0.1:{unused.getsockname()[1]}")
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert "cannot connect" in line
