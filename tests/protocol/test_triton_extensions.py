"""The extensions that change settings or memory, judged by every flavour of tritonclient, unmodified, in its own process."""

import json
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.fakes.server_process import ServerProcess, run_python, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign"
HAS_REPEAT = bool(entry_points(group="stoker.backends", name="repeat"))
FLAVOURS = ("http", "grpc", "http.aio", "grpc.aio")
CHECKS = {
    "shared_memory": "register datatypes strings input-only refusals unregister cuda",
    "log_settings": "read change refusals",
    "trace_settings": "read model clear refusals",
    "exact_statistics": "read counts batches times",
}
DATATYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16", "STRING"]


def write_echo_models(repository: Path) -> None:
    """One model for each datatype that returns its input."""
    for datatype in DATATYPES:
        name = f"echo_{'bytes' if datatype == 'STRING' else datatype.lower()}"
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.identity").touch()
        (repository / name / "config.pbtxt").write_text(
            'backend: "identity"\nmax_batch_size: 8\n'
            + "".join(f'{kind} [{{ name: "{kind.upper()}" data_type: TYPE_{datatype} dims: [-1] }}]\n' for kind in ("input", "output"))
        )


def write_repeat_model(repository: Path) -> None:
    """Responds once for each element of IN."""
    (repository / "repeat_int32" / "1").mkdir(parents=True)
    (repository / "repeat_int32" / "1" / "model.repeat").touch()
    (repository / "repeat_int32" / "config.pbtxt").write_text(
        """backend: "repeat"
model_transaction_policy { decoupled: true }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [-1] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [-1] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [1] }
]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [1] }, { name: "IDX" data_type: TYPE_UINT32 dims: [1] } ]
"""
    )


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory, grpc_front: str, http_front: str) -> Iterator[ServerProcess]:
    """Echo models, with everything allowed that these clients try."""
    at = tmp_path_factory.mktemp("extensions")
    write_echo_models(at / "models")
    if HAS_REPEAT:
        write_repeat_model(at / "models")
    flags = ("--allow-client-shm", "--log-format=text", f"--trace-config=triton,file={at / 'trace.json'}", grpc_front, http_front)
    with running_server(f"--model_base_path={at / 'models'}", *flags, at=at / "run") as running:
        yield running


def judge(clients_python: Path, script: str, flavour: str, server: ServerProcess) -> list[str]:
    """Runs a foreign script; returns its passed checks."""
    address = server.http if flavour.startswith("http") else server.grpc
    command = [str(clients_python), str(FOREIGN / f"{script}.py"), flavour, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
    return done.stdout.split()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("script", CHECKS)
def test_unmodified_client_finds_every_extension(script, flavour, open_server: ServerProcess, clients_python: Path):
    assert judge(clients_python, script, flavour, open_server) == CHECKS[script].split()


def test_client_shared_memory_is_announced_if_it_is_enabled(open_server: ServerProcess):
    assert "--allow-client-shm" in open_server.log()


def test_traces_requested_by_clients_are_in_the_operators_file(open_server: ServerProcess, clients_python: Path):
    for flavour in FLAVOURS:
        judge(clients_python, "trace_settings", flavour, open_server)
    path = open_server.log_path.parents[1] / "trace.json"

    def is_complete() -> bool:
        text = path.read_text() if path.exists() else ""
        return text.count("HTTP_SEND_END") >= 2 and all(f'"{flavour}"' in text for flavour in FLAVOURS)

    wait_until(is_complete, what="the traces of all clients")
    parts = json.loads(path.read_text())
    traced = {part["id"]: part["request_id"] for part in parts if "model_name" in part}
    assert set(traced.values()) == set(FLAVOURS)
    for number, flavour in traced.items():
        names = [part["timestamps"][0]["name"] for part in parts if part["id"] == number and "timestamps" in part]
        front = ("HTTP_RECV_START", "HTTP_SEND_END") if flavour.startswith("http") else ("GRPC_WAITREAD_START", "GRPC_SEND_END")
        assert {"REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END", *front} <= set(
            names
        )
        tensors = {part["activity"]: part["tensor"]["data"] for part in parts if part["id"] == number and "tensor" in part}
        assert tensors == {"TENSOR_QUEUE_INPUT": "7,8,9", "TENSOR_BACKEND_OUTPUT": "7,8,9"}


@pytest.mark.skipif(not HAS_REPEAT, reason="the installed distribution is older than the repeat backend: install it again")
def test_responses_of_decoupled_models_are_counted_by_position(open_server: ServerProcess, clients_python: Path):
    assert run_python(clients_python, (FOREIGN / "decoupled_statistics.py").read_text(), open_server.grpc).split() == ["responses"]


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Echo models behind a key."""
    at = tmp_path_factory.mktemp("restricted")
    write_echo_models(at / "models")
    keys = [f"--{flag}=inference,model-repository:infer-key=s3cret" for flag in ("http-restricted-api", "grpc-restricted-protocol")]
    with running_server(f"--model_base_path={at / 'models'}", *keys, at=at / "run") as running:
        yield running


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_restricted_apis_work_with_their_key_only(flavour, closed_server: ServerProcess, clients_python: Path):
    assert judge(clients_python, "restricted", flavour, closed_server) == ["closed", "open"]
    assert "s3cret" not in closed_server.log()
