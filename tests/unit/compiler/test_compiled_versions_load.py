"""The versions that each target writes into a repository, in each precision and element type at the border, load in the server."""

import asyncio
import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_compiler.compiling import compile_fields
from onnx import TensorProto, helper

from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.fake_clock import FakeClock
from stoker.compiler.cli import main as compile_command
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.lifecycle.loader import VersionLoader, VersionSource
from stoker.server.lifecycle.settings import LoaderSettings
from stoker.server.observability.metrics import Metrics
from tests.fakes.puppet_worker import HandTimers

FLOATS = {"fp16": TensorProto.FLOAT16, "fp32": TensorProto.FLOAT, "fp64": TensorProto.DOUBLE}
OTHERS = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "int32": TensorProto.INT32,
    "uint32": TensorProto.UINT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
PRECISIONS = {"gcu": ("fp32", "fp16"), "ipu": ("fp32", "fp16", "fp8", "fp8_weight"), "cpu": ("fp32", "bf16")}


def model_of(kind: int) -> onnx.ModelProto:
    """[n, 4] to [n, 3] by a product of floats, whatever the type at the border."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.linspace(-1, 1, 12).tolist())
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["wide", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["positive"]),
        helper.make_node("Cast", ["positive"], ["y"], to=kind),
    ]
    tensors = [helper.make_tensor_value_info(name, kind, ["n", size]) for name, size in (("x", 4), ("y", 3))]
    graph = helper.make_graph(nodes, "border", tensors[:1], tensors[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def load(repository: Path, name: str, scratch: Path) -> None:
    """Loads version 1 of a model as a server does, and closes it."""
    scratch.mkdir()
    clock = FakeClock()
    settings = LoaderSettings(cpu_threads=1, max_queue_size=8)
    loader = VersionLoader(BackendRegistry(), clock=clock, timers=HandTimers(), recorder=Metrics(clock), area=scratch, settings=settings)
    folder = repository / name
    parsed = parse_pbtxt((folder / "config.pbtxt").read_text(), source=f"{name}/config.pbtxt", model_name=name)
    source = VersionSource(name=name, version=1, model_dir=folder, version_dir=folder / "1", parsed=parsed)

    async def load_and_close() -> None:
        servable = await loader.load(source)
        await servable.close()

    asyncio.run(load_and_close())


@pytest.mark.parametrize(
    ("target", "precision"), [(target, precision) for target, precisions in PRECISIONS.items() for precision in precisions]
)
def test_written_version_loads(target: str, precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if precision == "bf16":
        pytest.importorskip("openvino")
    repository = tmp_path / "repository"
    for name, kind in {**FLOATS, **OTHERS}.items():
        path = tmp_path / f"{name}.onnx"
        onnx.save(model_of(kind), path)
        words = ["--target", target, "-i", str(path), "--output_dir", str(tmp_path), "--precision", precision]
        words += ["--model_repository", str(repository), "--model_name", name]
        words += ["--batch_sizes", "1,4"] if target == "gcu" else ["--batch_size", "4", "--batch_axis", "0"]
        words += ["--ipu_version", "ipu21"] if target == "ipu" else []
        assert compile_command(words) == 0, f"{name}: {capsys.readouterr().err}"
        load(repository, name, tmp_path / f"scratch_{name}")


@pytest.mark.parametrize(("serving_type", "name"), list(itertools.product(("engine", "popef", "onnx"), FLOATS)))
def test_version_made_by_a_request_loads(serving_type: str, name: str, tmp_path: Path) -> None:
    fields = {
        "serving_type": serving_type,
        "input_model": model_of(FLOATS[name]),
        "model_name": "m",
        "export_path": str(tmp_path / "repository"),
        "max_batch_size": 4,
    }
    compile_fields(fields)
    load(tmp_path / "repository", "m", tmp_path / "scratch")
