"""`Case`: one small model that a device compiles and runs; and how its graph is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType

Array = npt.NDArray[Any]

#: Largest allowed difference from ONNX Runtime by precision, relative to the largest expected magnitude, or to 1 if that is smaller. FP16
#: has 11 bits; sums over tens of products lose a few more.
TOLERANCES: Final[Mapping[str, float]] = {"fp32": 1e-3, "fp16": 2e-2}

_OPSET: Final = 17  # PopRT 1.5 and TopsInference read it
_IR_VERSION: Final = 8
_DATATYPES: Final[Mapping[int, DataType]] = {
    TensorProto.FLOAT: DataType.FP32,
    TensorProto.FLOAT16: DataType.FP16,
    TensorProto.INT32: DataType.INT32,
    TensorProto.INT64: DataType.INT64,
    TensorProto.BOOL: DataType.BOOL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model with one batch size and precision.

    Attributes:
        name: Unique in its catalogue.
        kind: What it tries: `operator`, `dtype`, `shape`, `batch`; or the time of a `launch`, `matmul`, `convolution`, `element-wise`,
            `movement`, `reduction`, `copy` or `network`.
        precision: `fp32` or `fp16`.
        batch: Rows of every input and output.
        build: Makes the model, with static shapes.
        is_quick: Whether `--quick` includes it.
    """

    name: str
    kind: str
    batch: int
    build: Callable[[], onnx.ModelProto]
    precision: str = "fp32"
    is_quick: bool = False

    def inputs(self, model: onnx.ModelProto) -> Mapping[str, Array]:
        """Returns the same pseudo-random inputs at every call: floats near 1, and indices below 2."""
        generator = np.random.default_rng(0)
        values = {}
        for value in fed(model):
            dtype, shape = numpy_of(value), shape_of(value)
            is_float = dtype.kind == "f"
            values[value.name] = (generator.uniform(-1.5, 1.5, shape) if is_float else generator.integers(0, 2, shape)).astype(dtype)
        return values


def signature_of(model: onnx.ModelProto, batch: int) -> ModelSignature:
    """Returns the signature of a model whose tensors begin with `batch` rows."""

    def specs(values: Sequence[onnx.ValueInfoProto]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(each.name, _DATATYPES[each.type.tensor_type.elem_type], shape_of(each)[1:]) for each in values)

    return ModelSignature(specs(fed(model)), specs(list(model.graph.output)), batch)


def fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns the inputs without an initialiser."""
    given = {each.name for each in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


def shape_of(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Returns the static shape of `value`."""
    return tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)


def numpy_of(value: onnx.ValueInfoProto) -> "np.dtype[Any]":
    """Returns the element type of `value`."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


@dataclass(frozen=True, slots=True)
class Step:
    """One node: an operator, its inputs by name, its output, and attributes."""

    op_type: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, Any]


def step(op_type: str, inputs: str, output: str, **attributes: Any) -> Step:
    """A node whose `inputs` are names separated by blanks."""
    return Step(op_type, inputs.split(), output, attributes)


def model_of(
    steps: Sequence[Step],
    inputs: Mapping[str, Sequence[int]],
    output: Sequence[int],
    *,
    constants: Mapping[str, Array] | None = None,
    dtypes: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Makes a model with the output `y`.

    Args:
        steps: The nodes in order.
        inputs: Shapes by name.
        output: Shape of `y`.
        constants: Initialisers by name.
        dtypes: ONNX element types of inputs and of `y` that are not FLOAT.
    """
    kinds = dtypes or {}

    def info(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), list(shape))

    nodes = [
        helper.make_node(each.op_type, list(each.inputs), [each.output], name=f"{each.op_type}_{at}", **each.attributes)
        for at, each in enumerate(steps)
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "check", [info(name, shape) for name, shape in inputs.items()], [info("y", output)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = _IR_VERSION
    return model


def weights(*shape: int, scale: float = 1.0) -> Array:
    """Returns FP32 weights whose products neither grow nor vanish: normally distributed, divided by the root of the first size."""
    spread = scale / np.sqrt(max(1, int(np.prod(shape[:1] if len(shape) < 4 else shape[1:]))))
    made: Array = (np.random.default_rng(len(shape)).standard_normal(shape) * spread).astype(np.float32)
    return made
