"""Patterns that are known to leave the range of FLOAT16 (65504) on ordinary activations, and so are worth computing in FLOAT.

| pattern | why |
|---|---|
| `Pow` with a constant exponent of 2 or more, `Mul` of a tensor with itself, up to the reduction, epsilon and root after it | 256^2 > 65504: variances, RMS and L2 norms, x^3 of GELU |
| `ReduceL2`, `ReduceSumSquare`, `ReduceLogSumExp`, `LpNormalization`, `GlobalLpPool` | the same inside one operator |
| `Exp` and what sums, shifts, divides or takes the logarithm of it | e^12 > 65504: softmax, log-sum-exp and softplus written out |
| `ReduceSum`, `ReduceMean` over more than `LONG_SUM` elements, `CumSum` along as many | the sum passes the range though no element does |
| `Softmax`, `LogSoftmax` of a sum with a mask beyond the range | clipped masks add up to -inf, and a row of -inf has no softmax |
"""  # noqa: E501  a table's rows

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from stoker.compiler.precision.number_types import HALF_LIMIT

#: Elements of which a sum of values around 16, an ordinary activation before normalisation, leaves the range.
LONG_SUM = 4096

_SQUARING = frozenset({"ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "LpNormalization", "GlobalLpPool"})
_SUMS = frozenset({"ReduceSum", "ReduceMean", "CumSum"})
#: Through these a large value is passed on; the chain ends, with the operator kept as well, where the range is left no more.
_PASSING = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "Add", "Sub", "Mul", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Identity"})
_ENDING = frozenset({"Sqrt", "Log", "Reciprocal", "Div", "Tanh", "Sigmoid", "Erf", "Clip", "Softmax"})
#: Nodes that a large value is followed through; without a bound, additions would lead along a network's whole residual stream.
_LONGEST_CHAIN = 8


def overflow_prone(model: ir.Model) -> dict[ir.Node, str]:
    """The nodes of `model`, sub-graphs included, that belong to such a pattern, each with what starts it."""
    found: dict[ir.Node, str] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain not in ("", "ai.onnx"):
            continue
        if _is_power(node) or node.op_type == "Exp":
            for each in _chain(node):
                found.setdefault(each, f"{node.op_type} '{node.name}'")
        elif node.op_type in _SQUARING or (node.op_type in _SUMS and _summed(node) > LONG_SUM) or _is_masked_softmax(node):
            found.setdefault(node, f"{node.op_type} '{node.name}'")
    return found


def _chain(start: ir.Node) -> Iterator[ir.Node]:
    """`start` and the nodes after it that see its large values."""
    waiting, seen = [(start, 1)], {start}
    while waiting:
        node, length = waiting.pop(0)
        yield node
        for use in node.outputs[0].uses():
            reader = use.node
            if reader in seen or reader.domain not in ("", "ai.onnx"):
                continue
            seen.add(reader)
            if reader.op_type in _PASSING and length < _LONGEST_CHAIN:
                waiting.append((reader, length + 1))
            elif reader.op_type in _ENDING:
                yield reader


def _is_power(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type != "Pow" or node.inputs[1] is None:
        return False
    exponent = ir.convenience.get_const_tensor(node.inputs[1])
    return exponent is not None and bool(np.any(np.abs(exponent.numpy()) >= 2))


def _summed(node: ir.Node) -> int:
    """How many elements one element of the output sums up; 0 where a size is not known."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or not source.shape.is_static():
        return 0
    sizes = [int(size) for size in source.shape.numpy()]
    if node.op_type == "CumSum":
        return max(sizes, default=0)
    if result.shape is None or not result.shape.is_static():
        return 0
    return math.prod(sizes) // max(1, math.prod(result.shape.numpy()))


def _is_masked_softmax(node: ir.Node) -> bool:
    if node.op_type not in ("Softmax", "LogSoftmax") or node.inputs[0] is None:
        return False
    waiting, steps = [node.inputs[0].producer()], 0
    while waiting and steps < 16:  # a mask is made a few nodes before the softmax
        maker = waiting.pop()
        steps += 1
        if maker is None or maker.op_type not in ("Add", "Sub", "Mul", "Where", "Unsqueeze", "Expand", "Cast"):
            continue
        for value in maker.inputs:
            constant = None if value is None else ir.convenience.get_const_tensor(value)
            if constant is not None and constant.dtype.is_floating_point() and np.any(np.abs(constant.numpy()) > HALF_LIMIT):
                return True
            waiting.append(None if value is None else value.producer())
    return False
