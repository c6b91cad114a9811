"""Which outputs of two runs can be compared, and whether they agree.

Outputs agree where they differ by rounding only, such as that of kernels that sum in another order. Outputs that depend on random numbers
differ from run to run, and cannot be compared.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

#: Relative to the largest finite value.
TOLERANCE: Final = 1e-3
#: A value so many times as large as small ones of the same array stands for an infinity, as -1e9 or the least float do in masks.
_MASK_RATIO: Final = 1e6
_SMALL_QUANTILE: Final = 0.1


def agree(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Whether both have one shape, NaN and the same infinities in the same places, and elsewhere values that differ by rounding only.

    Integers, truth values and strings must be equal. The tolerance is relative to the largest value, or to the value itself where that
    is a mask's: neither an infinity nor a huge value allows differences elsewhere.
    """
    if found.shape != wanted.shape:
        return False
    if wanted.dtype.kind not in "fV":
        return bool(np.array_equal(found, wanted))
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(np.isfinite(one), finite) or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    size = np.abs(other[finite])
    return bool(np.all(np.abs(one[finite] - other[finite]) <= TOLERANCE * np.maximum(size, _scale(size))))


def _scale(size: NDArray[np.float64]) -> float:
    """The largest of `size` without masks."""
    some = size[size > 0]
    if not some.size:
        return 0.0
    return float(np.max(some[some <= _MASK_RATIO * np.quantile(some, _SMALL_QUANTILE)], initial=0.0))


_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


def random_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """The outputs that depend on an operator of random numbers."""
    functions = {(each.domain, each.name) for each in model.functions if any(_is_random(node, ()) for node in each.node)}
    random: set[str] = set()
    for node in model.graph.node:
        if _is_random(node, functions) or any(name in random for name in _read(node)):
            random.update(name for name in node.output if name)
    return frozenset(value.name for value in model.graph.output if value.name in random)


def _is_random(node: onnx.NodeProto, functions: Iterable[tuple[str, str]]) -> bool:
    """Whether it, a node within it, or the function that it calls gives random numbers."""
    if (node.op_type in _RANDOM and node.domain in ("", "ai.onnx")) or (node.domain, node.op_type) in functions:
        return True
    return any(_is_random(inner, functions) for graph in _graphs(node) for inner in graph.node)


def _read(node: onnx.NodeProto) -> Iterable[str]:
    """What it and the nodes within it read."""
    yield from node.input
    for graph in _graphs(node):
        for inner in graph.node:
            yield from _read(inner)


def _graphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
