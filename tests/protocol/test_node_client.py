"""gRPC judged by a client in another language: @grpc/grpc-js, on Node's own HTTP/2."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign_node"
MODULES = REPOSITORY_ROOT / ".node-client" / "node_modules"
ENVIRONMENT = {**os.environ, "NODE_PATH": str(MODULES)}
CHECKS = "unary typedContents many metadata bidi errors large compression deadline cancel healthChecks"
ECHO = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
SLOW = 'parameters { key: "execute_delay_ms" value { string_value: "2000" } }'


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    if not (MODULES / "@grpc" / "grpc-js").exists():
        pytest.skip("@grpc/grpc-js is not installed: run 'make node-client'")
    return found


@pytest.fixture
def slow_server(grpc_front: str, tmp_path: Path) -> Iterator[ServerProcess]:
    """`simple`, a model that repeats its input, and a slow one of two seconds."""
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    for name, more in (("echo", ""), ("slow", SLOW)):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.identity").touch()
        (models / name / "config.pbtxt").write_text(ECHO + more)
    with running_server(f"--model_base_path={models}", grpc_front, at=tmp_path / "run") as server:
        yield server


def failures(server: ServerProcess, model: str) -> int:
    """Failed requests of the model, for any reason."""
    lines = server.get("/metrics")[1].decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f'nv_inference_request_failure{{model="{model}"'))


def in_flight(server: ServerProcess) -> int:
    """Requests that the server has received without a response yet."""
    found = re.search(r"^stoker_requests_in_flight (\d+)", server.get("/metrics")[1].decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def command(node: str, script: str, address: str) -> list[str | Path]:
    return [node, FOREIGN / script, address, REPOSITORY_ROOT / "proto"]


def test_grpc_js_passes_all_its_checks(slow_server: ServerProcess, grpc_front: str, node: str):
    # grpcio counts streams that its client has seen the end of, and refuses beyond the limit of 1000.
    at_once = "900" if grpc_front.endswith("grpcio") else "2500"
    asked = [*command(node, "judge.js", slow_server.grpc), at_once]
    done = subprocess.run(asked, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{slow_server.log()[-2000:]}"
    assert done.stdout.split() == CHECKS.split()
    # The server noticed that the client no longer waits: for the expired call, and for the cancelled one.
    wait_until(lambda: failures(slow_server, "slow") == 2, what="both calls to be taken back")


def test_grpc_js_gets_its_responses_from_a_draining_server(slow_server: ServerProcess, grpc_front: str, node: str):
    asked = command(node, "drain.js", slow_server.grpc)
    with subprocess.Popen(asked, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
        wait_until(lambda: in_flight(slow_server) == 3, what="three requests to be in work")
        assert slow_server.stop() == 0
        output, _ = client.communicate(timeout=60)
    *before, after = output.split()
    assert (client.returncode, before) == (0, ["answered"] * 3), output
    # grpcio may still take a call while it stops, and drops it then.
    assert after in (("UNAVAILABLE", "CANCELLED") if grpc_front.endswith("grpcio") else ("UNAVAILABLE",))
