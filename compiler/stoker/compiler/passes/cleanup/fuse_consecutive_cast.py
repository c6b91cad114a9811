"""`fuse_consecutive_cast`: a cast on the way that loses nothing is no detour."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import bypass, is_op, producer_of, remove_if_unused
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("fuse_consecutive_cast")
class FuseConsecutiveCast(NodePass):
    """Casts directly from the first type to the last where the one between holds every value of the first.

    float -> float16 -> float stays: the rounding in the middle is part of the result. A first cast that others read stays for them.
    """

    def visit(self, node: ir.Node) -> bool:
        first = producer_of(node.inputs[0], "Cast") if is_op(node, "Cast") else None
        source = first.inputs[0] if first is not None else None
        if first is None or source is None or source.dtype is None:
            return False
        between, wanted = ir.DataType(first.attributes.get_int("to", 0)), node.attributes.get_int("to", 0)
        if not holds_every_value(between, source.dtype):
            return False
        if wanted == source.dtype:
            changed = bypass(node, source)
        else:
            node.replace_input_with(0, source)
            changed = True
        remove_if_unused(first)
        return changed


def holds_every_value(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether casting from `narrow` to `wide` changes no value."""
    if wide == narrow:
        return True
    if not (_is_number(wide) and _is_number(narrow)):
        return False
    if wide == ir.DataType.BOOL:
        return False
    if narrow == ir.DataType.BOOL:
        return True
    if narrow.is_integer():
        small: Any = _int_form(narrow.numpy())
        if wide.is_integer():
            large = _int_form(wide.numpy())
            return bool(large.min <= small.min and small.max <= large.max)
        form = _float_form(wide.numpy())
        return bool(max(abs(int(small.min)), int(small.max)) <= 2 ** (form.nmant + 1) <= 2 * float(form.max))
    if wide.is_integer():
        return False
    if narrow not in _PLAIN_FLOATS and wide not in _PLAIN_FLOATS:
        return False  # between 8-bit formats: no infinities here, no negative zero there
    less, more = _float_form(narrow.numpy()), _float_form(wide.numpy())
    return bool(
        wide in _PLAIN_FLOATS
        and less.nmant <= more.nmant
        and float(less.max) <= float(more.max)
        and float(less.smallest_subnormal) >= float(more.smallest_subnormal)
    )


# ml_dtypes' own, because they know numpy's types and the small ones; they come without types of their own.
_int_form: Callable[[Any], Any] = ml_dtypes.iinfo
_float_form: Callable[[Any], Any] = ml_dtypes.finfo

_PLAIN_FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE})


def _is_number(kind: ir.DataType) -> bool:
    return kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and np.dtype(kind.numpy()).kind != "c"
