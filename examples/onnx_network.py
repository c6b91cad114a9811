"""Networks put together node by node, with weights from a seed, and the model folder they are served from. Needs `onnx`.

Weights of variance 1 / (fan-in * m) turn inputs of mean square m into sums of variance 1. Networks that keep count of m so keep their
activations in scale from input to output, as trained ones do.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from argument_types import positive
from onnx import TensorProto, helper, numpy_helper

#: Written out, because onnx stamps its own newest versions, which ONNX Runtime may not read yet.
OPSET = 17
IR_VERSION = 8


class Network:
    """Collects nodes and weights.

    Attributes:
        rng: Where random weights come from.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node that is named as its only output; returns that name."""
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def weight(self, name: str, array: np.ndarray) -> str:
        """Adds a weight, in the array's own type; returns its name. The same name twice is the same weight."""
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def normal(self, shape: Sequence[int], deviation: float) -> np.ndarray:
        """Random FP32 weights."""
        return self.rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(deviation)

    @property
    def parameters(self) -> int:
        """Number of FP32 weights."""
        return sum(int(np.prod(weight.dims)) for weight in self._weights.values() if weight.data_type == TensorProto.FLOAT)

    def model(self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The whole as a model."""
        graph = helper.make_graph(self._nodes, self._name, inputs, outputs, list(self._weights.values()))
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="stoker-examples"
        )


def value(name: str, kind: int, dims: Sequence[int]) -> onnx.ValueInfoProto:
    """An input or output whose first dimension is a batch of any size."""
    return helper.make_tensor_value_info(name, kind, ["batch", *dims])


_CONFIG_TYPES: dict[int, str] = {TensorProto.FLOAT: "TYPE_FP32", TensorProto.INT64: "TYPE_INT64", TensorProto.INT32: "TYPE_INT32"}


def add_folder_options(parser: argparse.ArgumentParser, model_name: str, max_batch_size: int) -> None:
    """Adds the options that say where the model goes and how it is served."""
    parser.add_argument("--repository", type=Path, required=True, help="model repository to write into; made if it does not exist")
    parser.add_argument("--model-name", default=model_name, help="name of the model and its folder (default: %(default)s)")
    parser.add_argument("--version", type=positive, default=1, help="version folder (default: %(default)s)")
    parser.add_argument("--max-batch-size", type=positive, default=max_batch_size, help="for config.pbtxt (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")


def write_folder(model: onnx.ModelProto, options: argparse.Namespace, *, input_format: str | None = None) -> Path:
    """Writes the model and its `config.pbtxt` for ONNX on the CPU, and says so; returns the model's file.

    Args:
        model: What `Network.model` made.
        options: Of `add_folder_options`.
        input_format: Layout of the first input, such as `FORMAT_NCHW`.
    """
    folder: Path = options.repository / options.model_name
    path = folder / str(options.version) / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    lines = [f'name: "{options.model_name}"', 'platform: "onnxruntime_onnx"', f"max_batch_size: {options.max_batch_size}"]
    for kind, tensors in (("input", model.graph.input), ("output", model.graph.output)):
        for at, tensor in enumerate(tensors):
            dims = ", ".join(str(dim.dim_value) for dim in tensor.type.tensor_type.shape.dim[1:])
            layout = f" format: {input_format}" if kind == "input" and at == 0 and input_format is not None else ""
            data_type = _CONFIG_TYPES[tensor.type.tensor_type.elem_type]
            lines.append(f'{kind} {{ name: "{tensor.name}" data_type: {data_type}{layout} dims: [ {dims} ] }}')
    lines.append("dynamic_batching { }")
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {path}, {path.stat().st_size / 1e6:.0f} MB")
    return path
