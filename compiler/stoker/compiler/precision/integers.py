"""What INT64 constants become in INT32: clipped where that changes nothing, or nothing that matters; refused where it does."""

import logging
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.errors import CompileError

log = logging.getLogger(__name__)

_LEAST: Final = int(np.iinfo(np.int32).min)
_LARGEST: Final = int(np.iinfo(np.int32).max)

#: Inputs where a number beyond INT32 only means "to the end": no dimension is as long.
_BOUNDS = {("Slice", 1), ("Slice", 2)}
#: Operators that compare or select; a clipped bound still lies beyond every INT32 value, but for the two ends of the range themselves.
_COMPARISONS = frozenset({"Clip", "Min", "Max", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Where"})


def to_int32(value: ir.Value, readers: list[tuple[ir.Node, int]]) -> NDArray[np.int32]:
    """The constant `value` for `readers` in INT32.

    Raises:
        CompileError: it is out of range, and for some reader that would change the result.
    """
    assert value.const_value is not None
    array: NDArray[Any] = value.const_value.numpy()
    beyond = (array < _LEAST) | (array > _LARGEST)
    if not np.any(beyond):
        return array.astype(np.int32)
    for node, index in readers:
        if (node.op_type, index) in _BOUNDS:
            continue
        first = int(array[beyond].reshape(-1)[0])
        where = f"constant '{value.name}', read by node '{node.name}' ({node.op_type}), holds {first}"
        if node.op_type not in _COMPARISONS:
            raise CompileError(f"{where}, which does not fit INT32; the device has no INT64")
        log.warning("%s; it is clipped to INT32", where)
    clipped: NDArray[np.int32] = np.clip(array, _LEAST, _LARGEST).astype(np.int32)
    return clipped
