"""For tests of the model compiler: an installation of two targets that compile nothing, and a small model of images."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper

from stoker.backends.api.tensor import DataType
from tests.fakes.fake_target import FakeTarget
from tests.fakes.graphs import model_of, tensor


@dataclass
class Devices:
    """The targets of this installation; they record their arguments."""

    gcu: FakeTarget = field(default_factory=FakeTarget)
    ipu: FakeTarget = field(default_factory=FakeTarget)

    def __post_init__(self) -> None:
        self.gcu.name, self.gcu.artefact_filename, self.gcu.takes_batch_sizes = "gcu", "model.exec", True
        self.gcu.skip_passes = ("int64_to_int32",)
        self.gcu.build_options = frozenset({"build_flag", "resource_mode"})
        self.gcu.config = {"backend": "topsinference", "max_batch_size": 2}
        self.ipu.name, self.ipu.artefact_filename = "ipu", "executable.popef"
        halves = (DataType.FP16, DataType.FP32)
        self.ipu.datatypes = {"image": halves, "y": halves}
        self.ipu.config = {"backend": "poplar", "max_batch_size": 8, "parameters": {"timeout_ns": "1"}}

    @property
    def batches(self) -> list[int]:
        """Batch sizes that the GCU's compiler was given a model for."""
        (source,) = self.gcu.sources
        return [model.graph.input[0].type.tensor_type.shape.dim[0].dim_value for model in source.batches]


def image_model(batch: int | str = "batch", height: int | str = 4) -> onnx.ModelProto:
    """y = relu(mean of the pixels of each channel @ w) of images [3, height, 4]."""
    nodes = [
        helper.make_node("ReduceMean", ["image", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    weights: dict[str, ArrayLike] = {"w": np.arange(6, dtype=np.float32).reshape(3, 2) - 2, "axes": np.array([2, 3], np.int64)}
    return model_of(nodes, [tensor("image", [batch, 3, height, 4])], [tensor("y", [batch, 2])], weights, opset=18)
