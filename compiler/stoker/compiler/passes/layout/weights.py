"""Weights are padded for the device, or stored once for each period."""

import logging
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.edit import constant_of, static_shape, traverse_graphs
from stoker.compiler.passes.matching.attention import find_attentions
from stoker.compiler.passes.matching.edges import values_read_by
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.registry import Pass, register


@register("attention_padding")
class AttentionPadding(Pass):
    """Pads the summed dimension of both products of every attention with zeros, to a multiple of what a tile multiplies at once.

    Query and key are padded along the head, probabilities (after the softmax) and value along the sequence, so that only zeros are added
    to each sum: exact but for the order of summation, and no result changes its shape.

    Args:
        multiple: Of the padded sizes. 16 are the input channels that the matrix unit of a tile takes at once in half precision (Poplar's
            convolution planner works in groups of 16).
    """

    def __init__(self, multiple: int = 16) -> None:
        if multiple < 1:
            raise OptionError(f"attention_padding: multiple must be at least 1, not {multiple}")
        self._multiple = multiple

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        changed = False
        for attention in list(find_attentions(model)):
            changed |= _pad_product(editor, attention.scores, self._multiple)
            changed |= _pad_product(editor, attention.context, self._multiple)
        return changed


def _pad_product(editor: GraphEditor, matmul: ir.Node, multiple: int) -> bool:
    shapes = [static_shape(value) for value in matmul.inputs]
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return False
    missing = -(shapes[0] or (0,))[-1] % multiple
    if not missing:
        return False
    for index, axis in ((0, -1), (1, -2)):
        value, shape = matmul.inputs[index], list(shapes[index] or ())
        assert value is not None
        pads = np.zeros(2 * len(shape), np.int64)
        pads[len(shape) + len(shape) + axis] = missing
        shape[axis] += missing
        name = f"{matmul.name or 'MatMul'}/pad_{index}"
        amounts = editor.constant(matmul, pads, f"{name}/amounts")
        matmul.replace_input_with(index, editor.insert(matmul, "Pad", [value, amounts], name=name, dtype=value.dtype, shape=shape))
    return True


log = logging.getLogger(__name__)


@register("fold_periodic_initializer")
class FoldPeriodicInitializer(Pass):
    """Stores one period of an initialiser that repeats along its dimensions, and expands it in front of the first reader.

    Exact, bit by bit. The device then keeps the period in its always-live memory, and the whole only from the first reader to the last. A
    dimension along which nothing changes becomes an Expand, one with a longer period a Tile.

    Args:
        min_bytes: Smaller initialisers stay: the code that expands them takes as much memory.
    """

    def __init__(self, min_bytes: int = 1024) -> None:
        if min_bytes < 1:
            raise OptionError(f"fold_periodic_initializer: min_bytes must be at least 1, not {min_bytes}")
        self._min_bytes = min_bytes

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        saved = 0
        for graph in list(traverse_graphs(model)):
            for value in list(graph.initializers.values()):
                if not value.is_graph_output() and value.uses():
                    saved += _fold(editor, graph, value, self._min_bytes)
        if saved:
            log.info("periodic initialisers: %d bytes fewer", saved)
        return saved > 0


def _fold(editor: GraphEditor, graph: ir.Graph, value: ir.Value, min_bytes: int) -> int:
    """Folds `value` if it repeats; returns the bytes saved."""
    tensor = value.const_value
    if tensor is None or tensor.nbytes < min_bytes:
        return 0
    array = constant_of(value)
    if array is None or array.size < 2:
        return 0
    period = array
    for axis in range(array.ndim):
        period = period.take(range(period_along(period, axis)), axis)
    if period.shape == array.shape:
        return 0
    op_type, sizes = "Tile", [whole // part for whole, part in zip(array.shape, period.shape, strict=True)]
    if all(part in (1, whole) for whole, part in zip(array.shape, period.shape, strict=True)):
        op_type, sizes = "Expand", list(array.shape)
    first = next((node for node in graph if value in values_read_by(node)), None)
    if first is None:
        return 0
    stored = editor.constant(first, period, f"{value.name}/period")
    counts = editor.constant(first, np.asarray(sizes, np.int64), f"{value.name}/sizes")
    whole = editor.insert(first, op_type, [stored, counts], name=f"{value.name}/{op_type}", dtype=value.dtype, shape=array.shape)
    value.replace_all_uses_with(whole)
    editor.drop_unused_initializers([value])
    return int(array.nbytes - period.nbytes)


def period_along(array: NDArray[Any], axis: int) -> int:
    """The smallest divisor p of the size of `axis` such that `array` repeats bit by bit after every p indices; the size if none."""
    rows = np.ascontiguousarray(np.moveaxis(array, axis, 0)).reshape(array.shape[axis], -1)
    bits = rows.view(np.uint8)  # so that NaN equals NaN, and 0 is not -0
    size = len(bits)
    for period in range(1, size // 2 + 1):
        if size % period == 0 and np.array_equal(bits[0], bits[period]) and np.array_equal(bits[:-period], bits[period:]):
            return period
    return size
