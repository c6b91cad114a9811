"""Simplifications of a whole model: constant folding by onnxscript's optimizer, with a limit in bytes, and inlining of functions."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass
from onnxscript.optimizer import fold_constants_ir

from stoker.compiler.errors import CompileError
from stoker.compiler.passes.edit import constant_of, input_at, is_op, new_constant, remove, remove_if_unused, static_shape, traverse_nodes

#: No limit: larger than any tensor.
_ELEMENTS = 1 << 62
#: ConstantOfShape is cheaper to keep than its result, unless that is about as small as a shape.
_SMALL_ELEMENTS = 64


def fold_constants(model: ir.Model, *, max_tensor_size: int = -1, only: Callable[[ir.Node], bool] = lambda node: True) -> bool:
    """Computes nodes whose inputs are all constant, and simplifies some whose shapes are known; returns whether anything changed.

    Args:
        model: Changed in place.
        max_tensor_size: Bytes that a created tensor may have at most; -1 for any number. A tensor of unknown size is not created then.
        only: Which nodes may be computed.
    """

    def should_fold(node: ir.Node) -> bool | None:
        if not only(node) or not all(_fits(output, max_tensor_size) for output in node.outputs):
            return False
        if node.op_type == "ConstantOfShape":
            shape = static_shape(node.outputs[0])
            return shape is not None and _elements(shape) <= _SMALL_ELEMENTS
        return None  # onnxscript's own rules, which leave quantisation and random numbers alone

    changed = False
    while True:
        result = fold_constants_ir(
            model, onnx_shape_inference=True, input_size_limit=_ELEMENTS, output_size_limit=_ELEMENTS, should_fold=should_fold
        )
        changed = changed or bool(result.modified)
        # onnxscript folds no node with several outputs.
        split = [node for node in traverse_nodes(model) if is_op(node, "Split") and only(node) and _fold_split(node, max_tensor_size)]
        if not split:
            break
        changed = True
    for node in traverse_nodes(model):
        if is_op(node, "Constant"):  # made on the way to a larger constant
            remove_if_unused(node)
    return changed


def _fold_split(node: ir.Node, max_tensor_size: int) -> bool:
    """Replaces the outputs of a Split of a constant by constants; returns whether it did."""
    array = constant_of(input_at(node, 0))
    axis = node.attributes.get_int("axis", 0)
    attribute = node.attributes.get("split")
    if (
        array is None
        or (attribute is not None and attribute.is_ref())
        or not all(_fits(output, max_tensor_size) for output in node.outputs)
    ):
        return False
    shapes = [static_shape(output) for output in node.outputs]
    if any(shape is None for shape in shapes) or any(output.is_graph_output() for output in node.outputs):
        return False
    sizes = [shape[axis] for shape in shapes if shape is not None]
    if sum(sizes) != array.shape[axis]:
        return False
    pieces = np.split(array, np.cumsum(sizes[:-1]), axis)
    for at, (output, piece) in enumerate(zip(node.outputs, pieces, strict=True)):
        output.replace_all_uses_with(new_constant(node, piece, f"piece{at}"))
    remove(node)
    return True


def _fits(value: ir.Value, max_tensor_size: int) -> bool:
    if max_tensor_size < 0:
        return True
    shape = static_shape(value)
    return shape is not None and value.dtype is not None and _elements(shape) * value.dtype.itemsize <= max_tensor_size


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


#: Of the functions that operators are replaced by; it is gone once they are inlined.
EXPANDED_DOMAIN = "stoker.expanded"


def inline_functions(model: ir.Model) -> None:
    """Replaces every call of a function of `model`, in place; afterwards it has none.

    Raises:
        CompileError: a function cannot be put in the place of its calls; the text says why.
    """
    if not model.functions:
        return
    for function in model.functions.values():
        # ONNX's checker accepts a function of another opset only if that defines the operators it uses in the same way.
        if "" in function.opset_imports and "" in model.opset_imports:
            function.opset_imports[""] = model.opset_imports[""]
    for node in traverse_nodes(model):
        called = model.functions.get(node.op_identifier())
        if called is not None and len(node.outputs) < len(called.outputs):
            node.resize_outputs(len(called.outputs))
    try:
        InlinePass()(model)
    except (ValueError, KeyError, ir.passes.PassError, ir.passes.InvariantError) as error:
        names = ", ".join(sorted({name for _, name, _ in model.functions}))
        reason = " ".join(str(error.__cause__ or error).split())
        raise CompileError(f"the model's functions ({names}) cannot be put in the place of their calls: {reason}") from error
    model.opset_imports.pop(EXPANDED_DOMAIN, None)
