"""`serialize_matmul_add`: a fully connected layer as several narrower ones, one after another."""

from collections.abc import Mapping

import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.passes.edit import describe, only_use, static_shape
from stoker.compiler.passes.layout.serial_split import parse_factor, piece_marks, split_operand
from stoker.compiler.passes.matching.edges import other_input
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.naming import find_node
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

_OPTION = "serialize_matmul_add"


@register("serialize_matmul_add")
class SerializeMatmulAdd(Pass):
    """Splits named pairs of MatMul and Add along the last dimension of weights and bias, and joins the results. Exact.

    Args:
        factors: `MATMUL/ADD`, by node names, to the number of pieces.
    """

    def __init__(self, factors: Mapping[str, str | int] | None = None) -> None:
        self._factors = {pair: parse_factor(str(text), option=f"{_OPTION} {pair}={text}") for pair, text in (factors or {}).items()}

    def run(self, model: ir.Model) -> bool:
        pairs = {pair: _find_pair(model, pair) for pair in self._factors}
        editor = GraphEditor(model)
        for pair, count in self._factors.items():
            if count > 1:
                _serialize(editor, *pairs[pair], count)
        return any(count > 1 for count in self._factors.values())


def _find_pair(model: ir.Model, pair: str) -> tuple[ir.Node, ir.Node, ir.Value]:
    """The two nodes and the bias. Node names may hold slashes themselves, so every place to cut the text is tried."""
    cuts = [index for index, letter in enumerate(pair) if letter == "/"]
    if not cuts:
        raise OptionError(f"{_OPTION}: '{pair}' must be MATMUL/ADD, two node names with a slash between them")
    names = {node.name for node in model.graph.all_nodes()}
    cut = next((each for each in cuts if pair[:each] in names and pair[each + 1 :] in names), cuts[len(cuts) // 2])
    matmul = find_node(model, pair[:cut], option=_OPTION, op_types=["MatMul"])
    add = find_node(model, pair[cut + 1 :], option=_OPTION, op_types=["Add"])
    bias = other_input(add, matmul.outputs[0])
    if only_use(matmul.outputs[0]) is not add or bias is None:
        raise PassError(f"{_OPTION}: {describe(add)} must be the only reader of {describe(matmul)}")
    return matmul, add, bias


def _serialize(editor: GraphEditor, matmul: ir.Node, add: ir.Node, bias: ir.Value, count: int) -> None:
    left, weights = matmul.inputs[0], matmul.inputs[1]
    assert weights is not None
    shape, bias_shape = static_shape(add.outputs[0]), static_shape(bias)
    sizes = None if shape is None else [*shape[:-1], shape[-1] // count]
    parts = split_operand(editor, matmul, weights, -1, count, option=_OPTION)
    is_one_column = bias_shape is not None and (not bias_shape or bias_shape[-1] == 1)
    biases = [bias] * count if is_one_column else split_operand(editor, add, bias, -1, count, option=_OPTION)
    pieces = []
    for index, (part, offset) in enumerate(zip(parts, biases, strict=True)):
        product = editor.insert(
            add,
            "MatMul",
            [left, part],
            attributes={name: attribute.value for name, attribute in matmul.attributes.items()},
            name=f"{matmul.name}/{index}",
            dtype=add.outputs[0].dtype,
            shape=sizes,
            metadata=piece_marks(matmul, index, count),
        )
        marks = piece_marks(add, index, count)
        pieces.append(editor.insert(add, "Add", [product, offset], name=f"{add.name}/{index}", like=product, metadata=marks))
    whole = editor.insert(add, "Concat", pieces, attributes={"axis": -1}, name=f"{add.name}/Concat", like=add.outputs[0])
    editor.replace(add.outputs[0], whole)
    editor.remove_dead(add)
