"""gRPC judged by a client in another language: @grpc/grpc-js, on Node's own HTTP/2."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign_node"
MODULES = REPOSITORY_ROOT / ".node-client" / "node_modules"
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


@pytest.fixture(params=["h2", "grpcio"])
def slow_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """`simple`, a model that repeats what it is sent, and one that takes two seconds for it."""
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    for name, more in (("echo", ""), ("slow", SLOW)):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.identity").touch()
        (models / name / "config.pbtxt").write_text(ECHO + more)
    with running_server(f"--model_base_path={models}", f"--grpc_front={request.param}", at=tmp_path / "run") as server:
        yield server


def failures(server: ServerProcess, model: str) -> int:
    """Requests to the model that did not end well, for any reason."""
    lines = server.get("/metrics")[1].decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f'nv_inference_request_failure{{model="{model}"'))


def test_grpc_js_finds_everything_it_expects(slow_server: ServerProcess, node: str):
    command = [node, FOREIGN / "judge.js", slow_server.grpc, REPOSITORY_ROOT / "proto"]
    environment = {**os.environ, "NODE_PATH": str(MODULES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{slow_server.log()[-2000:]}"
    assert done.stdout.split() == CHECKS.split()
    # The server noticed that nobody waited: of the call whose time was over, and of the one taken back.
    wait_until(lambda: failures(slow_server, "slow") == 2, what="both calls to be taken back")
