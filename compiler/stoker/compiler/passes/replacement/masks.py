"""Passes that replace Where and the masks of attentions."""

import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op, rank_of, static_shape, traverse_nodes
from stoker.compiler.passes.matching.attention import Attention, find_attentions
from stoker.compiler.passes.matching.edges import is_constant, other_input, reader_of, scalar_of
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.rewriting import Rewriting, rewrite_pass
from stoker.compiler.passes.registry import model_pass

#: What is at most this becomes exp(...) = 0 in a softmax, in FP32 as well.
_MASKED: Final = -1000.0
#: What is added to a masked score: finite in FP16 with any score below 5e4, and as transformers mask.
_LOWEST: Final = -10000.0


@rewrite_pass("Where")
def replace_where_mask(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Where, which puts a very low number in place of masked scores in front of a Softmax, by Add of a mask made of 0 and that
    number (at least -10000). The mask is as small as the condition is, and is made once for all that share it after clean-up.

    Exact where each row keeps a score that is not masked, and scores differ by less than 5000. A row that is masked as a whole has the
    softmax of its scores, where it had equal probabilities (or NaN, if the number was infinite): off unless asked for.
    """
    condition, chosen, other = node.inputs
    if condition is None or chosen is None or other is None or reader_of(node.outputs[0], "Softmax") is None:
        return False
    if node.outputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return False
    low, high = scalar_of(chosen), scalar_of(other)
    if (low is None) == (high is None):
        return False
    number, scores = (low, other) if low is not None else (high, chosen)
    if number is None or not number <= _MASKED or scores.dtype is None:
        return False
    writing, amount = Rewriting(editor, node), max(number, _LOWEST)
    is_masked = condition if low is not None else writing.each("Not", condition)
    ones = writing.cast(is_masked, scores.dtype)
    mask = writing.each("Mul", ones, writing.number(amount, scores, "masked"))
    return writing.finish(writing.op("Add", scores, mask, shape=node.outputs[0].shape))


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@rewrite_pass("Where", against=("replace_where_with_wherev2",))
def replace_where_with_mul_add(editor: GraphEditor, node: ir.Node) -> bool:
    """Replaces Where of floats by m * a + (1 - m) * b with m of 0 and 1; a constant 0 takes no product. Exact for finite numbers.

    What is not chosen must be finite, since 0 * infinity is NaN: constants are looked at, computed values cannot be. Off unless asked for.
    """
    condition, chosen, other = node.inputs
    dtype, shape = node.outputs[0].dtype, node.outputs[0].shape
    if condition is None or chosen is None or other is None or dtype not in _FLOATS or not (_is_finite(chosen) and _is_finite(other)):
        return False
    writing = Rewriting(editor, node)
    terms: list[ir.Value] = []
    for value, is_chosen in ((chosen, True), (other, False)):
        if terms and _is_zero_scalar(value):  # adding zero to the first term has no effect
            continue
        if is_chosen and _is_zero_scalar(value) and not _is_zero_scalar(other):
            continue
        taken = condition if is_chosen else writing.each("Not", condition)
        factor = writing.cast(taken, dtype)
        terms.append(writing.each("Mul", factor, value))
    return writing.finish(writing.op("Add", *terms, shape=shape) if len(terms) == 2 else terms[0])


def _is_finite(value: ir.Value) -> bool:
    array = constant_of(value)
    return array is None or bool(np.all(np.isfinite(array)))


def _is_zero_scalar(value: ir.Value) -> bool:
    """Whether it is a constant scalar zero, which does not affect the shape of the result."""
    return rank_of(value) == 0 and scalar_of(value) == 0


log = logging.getLogger(__name__)


@model_pass(against=("replace_where_with_mul_add",))
def replace_where_with_wherev2(model: ir.Model) -> bool:
    """No effect on a simulated device: PopRT replaces Where by its own operator WhereV2, which is not public; the simulated device
    has one Where.
    """
    count = sum(is_op(node, "Where") for node in traverse_nodes(model))
    log.info("replace_where_with_wherev2 has no effect on a simulated device: %d Where node(s) stay as they are", count)
    return False


#: On the way from the positions' numbers to the mask: what only arranges them, and what works on each of them.
_ARRANGING = ("Unsqueeze", "Reshape", "Expand", "Identity", "Squeeze")
_COMPUTING = ("Cast", "Sub", "Add", "Mul", "Div", "Neg", "Not", "Equal", "Greater", "Less", "Where")
_NUMBERED = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.FLOAT16)


@model_pass()
def insert_attention_mask(model: ir.Model) -> bool:
    """Lets the mask that attentions add to their scores keep sequences apart that share a row: the mask input then holds 1, 2, 3... for the
    positions of the first, second, third... sequence, and 0 where there is none.

    It is found where attentions add something computed from one tensor of shape [batch, positions] element by element, as BERT's exporters
    write it; instead of [batch, 1, 1, positions] it becomes [batch, 1, positions, positions]. Masks of 0 and 1 give exactly what they gave:
    positions without a sequence see all others, as before.
    """
    editor = GraphEditor(model)
    made: dict[ir.Value, ir.Value | None] = {}
    changed = False
    for attention in list(find_attentions(model)):
        for add, mask in _added(attention):
            if mask not in made:
                made[mask] = _keep_apart(editor, attention, mask)
            new = made[mask]
            if new is not None:
                add.replace_input_with(list(add.inputs).index(mask), new)
                editor.remove_dead(mask.producer())
                changed = True
    return changed


def _added(attention: Attention) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Returns (node, mask) for each Add between the product and the softmax whose other operand is not constant."""
    value = attention.scores.outputs[0]
    for node in attention.between:
        mask = other_input(node, value) if is_op(node, "Add") else None
        if mask is not None and not is_constant(mask):
            yield node, mask
        value = node.outputs[0]


def _keep_apart(editor: GraphEditor, attention: Attention, mask: ir.Value) -> ir.Value | None:
    """The mask that separates sequences, or None if the computation of `mask` has an unknown form."""
    shape, scores, maker = static_shape(mask), static_shape(attention.scores.outputs[0]), mask.producer()
    source = _source(mask)
    if source is None or maker is None or shape is None or scores is None or len(shape) != 4 or len(scores) != 4:
        return None
    if source.dtype not in _NUMBERED or scores[2] != scores[3] or shape[1] != 1 or static_shape(source) != (shape[0], scores[3]):
        return None
    writing, truth = Rewriting(editor, maker), ir.DataType.BOOL
    rows = writing.op("Unsqueeze", source, writing.array(np.array([1, 3]), "row_axes"), shape=(shape[0], 1, scores[3], 1))
    columns = writing.op("Unsqueeze", source, writing.array(np.array([1, 2]), "column_axes"), shape=(shape[0], 1, 1, scores[3]))
    zero = writing.number(0, source, "no_sequence")
    is_same = writing.each("Equal", rows, columns, dtype=truth)
    is_outside = writing.each("Equal", rows, zero, dtype=truth)
    is_within = writing.each("Not", writing.each("Equal", columns, zero, dtype=truth))
    sees = writing.each("And", writing.each("Or", is_same, is_outside), is_within)
    start = writing.cast(sees, source.dtype)
    return _again(writing, mask, {source: start})


def _source(mask: ir.Value) -> ir.Value | None:
    """The one tensor of two dimensions that `mask` is computed from, or None."""
    sources: set[ir.Value] = set()
    waiting, seen = [mask], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in seen or scalar_of(value) is not None:
            continue
        seen.add(value)
        if node is not None and is_op(node, *_ARRANGING):
            waiting += [each for each in node.inputs[:1] if each is not None]
        elif node is not None and is_op(node, *_COMPUTING):
            waiting += [each for each in node.inputs if each is not None]
        else:
            sources.add(value)
    return sources.pop() if len(sources) == 1 and all(rank_of(each) == 2 for each in sources) else None


def _again(writing: Rewriting, value: ir.Value, done: dict[ir.Value, ir.Value]) -> ir.Value:
    """`value` computed again from what `done` holds for its source, with nothing rearranged."""
    if value in done or is_constant(value):
        return done.get(value, value)
    node = value.producer()
    assert node is not None, "the way to the source has been walked"
    inputs = [_again(writing, each, done) for each in node.inputs[: 1 if is_op(node, *_ARRANGING) else None] if each is not None]
    if is_op(node, *_ARRANGING):
        done[value] = inputs[0]
    else:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        done[value] = writing.each(node.op_type, *inputs, dtype=value.dtype, **attributes)
    return done[value]
