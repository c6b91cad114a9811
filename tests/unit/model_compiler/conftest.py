"""The model compiler with targets that compile nothing, and a small model to compile."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import compiler.targets
from compiler.model_compiler import compile_model
from tests.fakes.fake_target import FakeEntryPoint, FakeTarget
from tests.fakes.graphs import model_of, tensor

# The shims are a distribution of their own, which the tests' environment need not have.
sys.path.insert(0, str(Path(__file__).parents[3] / "compat"))


@dataclass
class Devices:
    """The targets of this installation; what they were given stays in them."""

    gcu: FakeTarget = field(default_factory=FakeTarget)
    ipu: FakeTarget = field(default_factory=FakeTarget)

    def __post_init__(self) -> None:
        self.gcu.name, self.gcu.artefact_filename, self.gcu.takes_batch_sizes = "gcu", "model.exec", True
        self.gcu.skip_passes = ("int64_to_int32",)
        self.gcu.config = {"backend": "topsinference", "max_batch_size": 2}
        self.ipu.name, self.ipu.artefact_filename = "ipu", "executable.popef"
        self.ipu.config = {"backend": "poplar", "max_batch_size": 8, "parameters": {"timeout_ns": "1"}}

    @property
    def batches(self) -> list[int]:
        """Batch sizes that the GCU's compiler was given a model for."""
        (source,) = self.gcu.sources
        return [model.graph.input[0].type.tensor_type.shape.dim[0].dim_value for model in source.batches]


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    made = Devices()
    points = [FakeEntryPoint("gcu", lambda: lambda: made.gcu), FakeEntryPoint("ipu", lambda: lambda: made.ipu)]
    monkeypatch.setattr(compiler.targets, "entry_points", lambda *, group: points)
    return made


def image_model(batch: int | str = "batch", height: int | str = 4) -> onnx.ModelProto:
    """y = relu(mean of the pixels of each channel @ w) of images [3, height, 4]."""
    nodes = [
        helper.make_node("ReduceMean", ["image", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    weights = {"w": np.arange(6, dtype=np.float32).reshape(3, 2) - 2, "axes": np.array([2, 3], np.int64)}
    return model_of(nodes, [tensor("image", [batch, 3, height, 4])], [tensor("y", [batch, 2])], weights, opset=18)


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(image_model(), path)
    return path


@pytest.fixture
def request_of(model_path: Path, tmp_path: Path) -> Any:
    """Makes the fields of a request; None takes one out."""

    def make(**fields: Any) -> dict[str, Any]:
        usual = {
            "serving_type": "engine",
            "model_name": "net",
            "max_batch_size": 8,
            "input_model": str(model_path),
            "export_path": str(tmp_path / "models"),
        }
        return {name: value for name, value in {**usual, **fields}.items() if value is not None}

    return make


@pytest.fixture
def failure(request_of: Any) -> Any:
    """Compiles a request that must fail, and gives the text."""

    def fail(**fields: Any) -> str:
        result = compile_model(request_of(**fields))
        assert result["status"] == "failure", result
        assert set(result) == {"status", "error_msg"}
        return result["error_msg"]

    return fail
