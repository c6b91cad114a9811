"""Ordinary clients that overload the server on ONE connection lose nothing: no GOAWAY, and no call beside those that fail.

Two seconds for each case here. For sixty, as a release is judged:

    STOKER_OVERLOAD_S=60 pytest -s --timeout=0 tests/protocol/test_one_connection.py
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess, running_server

pytestmark = pytest.mark.slow

DURATION_S = float(os.environ.get("STOKER_OVERLOAD_S", "2"))
#: Of each client's bad calls; what a client of one thread reaches beside a busy server may be less.
CALLS_PER_S = 2000
PYTHON_CLIENT = Path(__file__).parent / "foreign" / "overload.py"
NODE_CLIENT = Path(__file__).parent / "foreign_node" / "overload.js"
NODE_MODULES = REPOSITORY_ROOT / ".node-client" / "node_modules"
SERVICE = "inference.GRPCInferenceService"
GRPC_HEADERS = ("-H", "content-type: application/grpc", "-H", "te: trailers")
#: A tenth of a second for up to eight requests.
SLOW = """
backend: "identity"
max_batch_size: 8
input [ {{ name: "X" data_type: TYPE_INT64 dims: [ 4 ] }} ]
output [ {{ name: "Y" data_type: TYPE_INT64 dims: [ 4 ] }} ]
dynamic_batching {{ default_queue_policy {{ max_queue_size: {queue_size} }} }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "100" }} }}
"""
#: Which model the bad calls are for.
MODES = {"full": "short_queue", "unknown": "nobody_knows_it", "deadline": "long_queue", "cancel": "long_queue"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    for name, queue_size in (("short_queue", 40), ("long_queue", 4000), ("good", 1000)):
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text(SLOW.format(queue_size=queue_size))
    with running_server(f"--model_base_path={models}", at=tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    if not (NODE_MODULES / "@grpc" / "grpc-js").exists():
        pytest.skip("@grpc/grpc-js is not installed: run 'make node-client'")
    return found


def request_to(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[np.ones(4, np.int64).tobytes()])
    request.inputs.add(name="X", datatype="INT64", shape=[1, 4])
    return request.SerializeToString()


def goaways(server: ServerProcess) -> int:
    """Connections that were sent GOAWAY, for any reason."""
    return sum(map(int, re.findall(rb'^stoker_grpc_goaways_total\{reason="\w+"\} (\d+)', server.get("/metrics")[1], re.MULTILINE)))


def run(*command: str | Path) -> str:
    environment = {**os.environ, "NODE_PATH": str(NODE_MODULES), "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DURATION_S + 60, check=False, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def check_overload(server: ServerProcess, mode: str, *client: str | Path) -> None:
    before = goaways(server)
    requests = {name: base64.b64encode(request_to(model)).decode() for name, model in (("bad", MODES[mode]), ("good", "good"))}
    report = json.loads(run(*client, server.grpc, mode, str(DURATION_S), str(CALLS_PER_S), json.dumps(requests)))
    print(f"\n{mode}: {report['sent']} bad calls in {DURATION_S:g} s ({report['sent'] / DURATION_S:.0f}/s), {report['good']} good ones")
    assert report["lost"] == {}
    assert report["good"] == report["good_sent"] > 0
    assert report["unexpected"] == {}
    assert report["ended"] == report["sent"] > 0
    assert goaways(server) == before


@pytest.mark.parametrize("mode", MODES)
def test_grpcio_loses_no_call(server: ServerProcess, mode: str):
    check_overload(server, mode, sys.executable, PYTHON_CLIENT)


@pytest.mark.parametrize("mode", MODES)
def test_grpc_js_loses_no_call(server: ServerProcess, node: str, mode: str):
    check_overload(server, mode, node, NODE_CLIENT)


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
@pytest.mark.parametrize("mode", ["full", "unknown", "deadline"])
def test_h2load_loses_no_call(server: ServerProcess, mode: str, tmp_path: Path):
    """As fast as it can. It cancels nothing, and sends one message to all."""
    before = goaways(server)
    message = request_to(MODES[mode])
    (tmp_path / "request").write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    headers = (*GRPC_HEADERS, *(("-H", "grpc-timeout: 30m") if mode == "deadline" else ()))
    load = ("-c", "1", "-m", "100", "-D", str(int(DURATION_S) or 1), "-d", tmp_path / "request")
    shown = run("h2load", *load, *headers, f"http://{server.grpc}/{SERVICE}/ModelInfer")
    done, succeeded = re.findall(r"(\d+) done, (\d+) succeeded, 0 failed, 0 errored, 0 timeout", shown)[0]
    print(f"\n{mode}: {done} calls of h2load in {DURATION_S:g} s")
    assert int(done) == int(succeeded) > 0
    assert goaways(server) == before


@pytest.mark.skipif(shutil.which("nghttp") is None, reason="nghttp is not installed")
@pytest.mark.parametrize("mode", ["full", "unknown", "deadline"])
def test_nghttp_loses_no_call(server: ServerProcess, mode: str, tmp_path: Path):
    """A thousand calls at once; as often as there is time for."""
    before = goaways(server)
    message = request_to(MODES[mode])
    (tmp_path / "request").write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    headers = (*GRPC_HEADERS, *(("-H", "grpc-timeout: 30m") if mode == "deadline" else ()))
    for _ in range(max(1, int(DURATION_S / 2))):
        shown = run("nghttp", "-v", "-n", "-m", "1000", *headers, "-d", tmp_path / "request", f"http://{server.grpc}/{SERVICE}/ModelInfer")
        assert len(re.findall(r"recv \(stream_id=\d+\) grpc-status: \d+$", shown, re.MULTILINE)) == 1000
        assert "recv GOAWAY" not in shown
    assert goaways(server) == before
