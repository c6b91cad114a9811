"""tritonclient, unmodified: every method of its four clients, every data type, shapes and labels."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.api.tensor import DataType
from tests.fakes.onnx_models import identity
from tests.fakes.server_process import SAMPLE_MODELS, ServerProcess, copy_models, running_server

FOREIGN = Path(__file__).parent / "foreign"
ECHO = """
backend: "identity"
max_batch_size: 4
input [ {{ name: "IN" data_type: {kind} dims: [ {dims} ] {more_in} }} ]
output [ {{ name: "OUT" data_type: {kind} dims: [ {dims_out} ] {more_out} }} ]
"""


def write(repository: Path, name: str, config: str, **files: bytes) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.identity").touch()
    (repository / name / "config.pbtxt").write_text(config)
    for file, content in files.items():
        (repository / name / f"{file}.txt").write_bytes(content)


@pytest.fixture(scope="module")
def covering(tmp_path_factory: pytest.TempPathFactory, grpc_front: str, http_front: str) -> Iterator[ServerProcess]:
    """A server of one model for each data type, of shapes and labels, and of the sample `simple`; explicit control."""
    repository = copy_models(SAMPLE_MODELS, tmp_path_factory.mktemp("covering"), ["simple"])
    for datatype in DataType:
        config = ECHO.format(kind=datatype.config_name, dims=-1, dims_out=-1, more_in="", more_out="")
        write(repository, f"echo_{datatype.value.lower()}", config)
    reshape = "reshape {{ shape: [ {} ] }}"
    inner = reshape.format("6, 1")
    write(repository, "reshaped", ECHO.format(kind="TYPE_FP32", dims=6, dims_out="3, 2", more_in=inner, more_out=inner))
    labels = 'label_filename: "labels.txt"'
    write(repository, "labelled", ECHO.format(kind="TYPE_FP32", dims=3, dims_out=3, more_in="", more_out=labels), labels=b"cat\ndog\n")
    (repository / "scalar" / "1").mkdir(parents=True)
    (repository / "scalar" / "1" / "model.onnx").write_bytes(_scalar())
    with running_server(
        f"--model_base_path={repository}",
        "--model-control-mode=explicit",
        "--load-model=*",
        grpc_front,
        http_front,
        at=tmp_path_factory.mktemp("server"),
    ) as server:
        yield server


def _scalar() -> bytes:
    made = identity(shape=())
    for value, name in ((made.graph.input[0], "IN"), (made.graph.output[0], "OUT")):
        value.name = name
    made.graph.node[0].input[0], made.graph.node[0].output[0] = "IN", "OUT"
    return made.SerializeToString()


SCRIPTS = {
    "every_dtype": "http http-raw grpc grpc-typed http-aio grpc-aio shapes labels",
    "every_method": "http grpc http-aio grpc-aio auth",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_unmodified_client_finds_every_rpc(script: str, covering: ServerProcess, clients_python: Path):
    model = SAMPLE_MODELS / "simple" / "1" / "model.onnx"
    command = [str(clients_python), str(FOREIGN / f"{script}.py"), covering.http, covering.grpc, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{covering.log()[-2000:]}"
    assert done.stdout.split() == SCRIPTS[script].split()
