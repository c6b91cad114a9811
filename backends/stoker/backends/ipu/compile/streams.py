"""The streams of a compiled model: what its anchors are called and look like.

Names: a model by itself keeps its tensors' names; a fused one has `graphN/streamK` for inputs, by their order in the source model, and
`graphN/<output>`. Handles have PopART's forms: `h2d_<id>` and `anchor_d2h_<id>`.
"""

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from stoker.backends.ipu.popef.schema import Anchor, DataType, TensorInfo, TensorType
from stoker.compiler.errors import CompileError
from stoker.compiler.lowering.typed_graph import static_shape

#: PopART's numbers of the programs that an inference executable has.
WEIGHTS_FROM_HOST, PROGRAM, WEIGHTS_TO_HOST = 0, 5, 7
PROGRAM_NAMES: Mapping[int, str] = {WEIGHTS_FROM_HOST: "WeightsFromHost", PROGRAM: "Program", WEIGHTS_TO_HOST: "WeightsToHost"}

INDEX_ANCHOR = "index"

_FLOAT8 = {np.dtype(ml_dtypes.float8_e4m3fnuz): DataType.F8143, np.dtype(ml_dtypes.float8_e5m2fnuz): DataType.F8152}


def tensor_info(value: ir.Value, replication_factor: int = 1) -> TensorInfo:
    """Type and shape of `value`, with a leading dimension for the replicas where there are several.

    Raises:
        CompileError: PopEF has no such type.
    """
    assert value.dtype is not None
    dtype = value.dtype.numpy()
    try:
        data_type = _FLOAT8[dtype] if dtype in _FLOAT8 else DataType.of(dtype)
    except KeyError:
        raise CompileError(f"tensor '{value.name}' is {value.dtype.name}, which PopEF has no type for") from None
    shape = static_shape(value)
    return TensorInfo((replication_factor, *shape) if replication_factor > 1 else shape, data_type)


def input_anchor(name: str, value: ir.Value, replication_factor: int) -> Anchor:
    """The stream that feeds `value` in each call of the main program."""
    return Anchor(
        name=name,
        handle=f"h2d_{name}",
        tensor_info=tensor_info(value, replication_factor),
        type=TensorType.INPUT,
        is_per_replica=replication_factor > 1,
        programs=(PROGRAM,),
    )


def output_anchor(name: str, value: ir.Value, replication_factor: int) -> Anchor:
    """The stream that shows `value` after each call of the main program."""
    return Anchor(
        name=name,
        handle=f"anchor_d2h_{name}",
        tensor_info=tensor_info(value, replication_factor),
        type=TensorType.OUTPUT,
        is_per_replica=replication_factor > 1,
        programs=(PROGRAM,),
    )


def weight_anchor(name: str, value: ir.Value) -> Anchor:
    """The stream that loads a weight, once, the same for all replicas."""
    return Anchor(name=name, handle=f"h2d_{name}", tensor_info=tensor_info(value), type=TensorType.INPUT, programs=(WEIGHTS_FROM_HOST,))


def index_anchor() -> Anchor:
    """What selects a model of a fused program: uint8 of shape [1], as PopRT's tutorial has it."""
    return Anchor(
        name=INDEX_ANCHOR,
        handle=f"h2d_{INDEX_ANCHOR}",
        tensor_info=TensorInfo((1,), DataType.U8),
        type=TensorType.INPUT,
        programs=(PROGRAM,),
    )


def batch_size(inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], axis: int) -> int:
    """Rows of one micro-batch: the size that dimension `axis` has in every output and in one input at least; 0 where there is none.

    An input without it, such as a scalar or a table, is the same for all rows.
    """
    sizes = _sizes(outputs, axis)
    return sizes.pop() if len(sizes) == 1 and sizes <= _sizes(inputs, axis) else 0


def is_batched(inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], axis: int) -> bool:
    """Whether every stream has the rows, so that whoever serves the model may let requests share a call."""
    return batch_size(inputs, outputs, axis) > 0 and len(_sizes([*inputs, *outputs], axis)) == 1


def _sizes(shapes: Sequence[Sequence[int]], axis: int) -> set[int]:
    return {shape[axis] if axis < len(shape) else 0 for shape in shapes}
