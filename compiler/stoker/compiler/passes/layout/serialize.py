"""Products are split into parts that run one after another."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import SERIAL_OF, SERIAL_PIECE
from stoker.compiler.passes.edit import constant_of, describe, only_use, static_shape
from stoker.compiler.passes.matching.edges import is_private, other_input
from stoker.compiler.passes.matching.editing import GraphEditor, find_node
from stoker.compiler.passes.registry import Pass, register


def parse_factor(text: str, *, option: str) -> int:
    """A number of pieces.

    Raises:
        OptionError: it is no whole number of at least 1.
    """
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"{option}: the factor must be a whole number of at least 1, not '{text}'")
    return int(text)


def piece_marks(node: ir.Node, index: int, count: int) -> dict[str, str]:
    """Metadata of piece `index`: that of the whole node (its precision, its device), and what it is a piece of."""
    return dict(node.metadata_props) | {SERIAL_OF: node.name or "", SERIAL_PIECE: f"{index}/{count}"}


def split_operand(editor: GraphEditor, node: ir.Node, value: ir.Value, axis: int, count: int, *, option: str) -> list[ir.Value]:
    """`count` equal parts of an operand of `node` along `axis` (from the end, negative).

    A constant that only this node reads is cut now, so that no second copy of it is kept; anything else by a Split.

    Raises:
        PassError: the size of the dimension is not known, or `count` does not divide it.
    """
    shape = static_shape(value)
    if shape is None:
        raise PassError(f"{option}: the shape of '{value.name}', an operand of {describe(node)}, is not known; fix the input shapes")
    if len(shape) < -axis:
        raise PassError(f"{option}: '{value.name}', an operand of {describe(node)}, has no dimension to cut: its shape is {list(shape)}")
    size = shape[axis]
    if size % count:
        raise PassError(
            f"{option}: {count} pieces do not divide dimension {len(shape) + axis} of '{value.name}' (size {size}), {describe(node)}"
        )
    name = f"{node.name}/{value.name}"
    array = constant_of(value) if is_private(value) else None
    if array is not None:
        return [editor.constant(node, part, f"{name}/{index}") for index, part in enumerate(np.split(array, count, axis=axis))]
    part_shape = list(shape)
    part_shape[axis] = size // count
    return list(editor.insert_split(node, value, [size // count] * count, axis, name=f"{name}/Split", shapes=[part_shape] * count))


class SerializeMode(enum.Enum):
    """The dimension of [.., input channels, reducing] x [.., reducing, output channels] that is cut (names as in PopART)."""

    INPUT_CHANNELS = "input_channels"
    OUTPUT_CHANNELS = "output_channels"
    REDUCING_DIM = "reducing_dim"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SerializeSetting:
    """How one node is cut: into `factor` pieces along `mode`; `keep_precision` sums partial products in FP32."""

    factor: int
    mode: SerializeMode = SerializeMode.OUTPUT_CHANNELS
    keep_precision: bool = False

    @classmethod
    def parse(cls, text: str, *, node: str) -> "SerializeSetting":
        """Parses FACTOR[/MODE[/KEEP_PRECISION]].

        Raises:
            OptionError: `text` has another form; the error names the node and the allowed values.
        """
        option = f"serialize_matmul {node}={text}"
        factor, *rest = str(text).split("/")
        if len(rest) > 2:
            raise OptionError(f"{option}: expected FACTOR[/MODE[/KEEP_PRECISION]]")
        modes = {mode.value: mode for mode in SerializeMode}
        if rest and rest[0] not in modes:
            raise OptionError(f"{option}: mode '{rest[0]}' is not one of {', '.join(modes)}")
        if len(rest) == 2 and rest[1].lower() not in ("true", "false"):
            raise OptionError(f"{option}: KEEP_PRECISION must be True or False, not '{rest[1]}'")
        mode = modes[rest[0]] if rest else SerializeMode.OUTPUT_CHANNELS
        return cls(parse_factor(factor, option=option), mode, len(rest) == 2 and rest[1].lower() == "true")


@register("serialize_matmul")
class SerializeMatmul(Pass):
    """Splits named MatMul nodes into pieces that run one after another, so that less temporary memory is live at once.

    `output_channels` cuts the columns of the right operand and joins the results, `input_channels` the rows of the left one; both are
    exact. `reducing_dim` cuts the dimension summed over and adds the partial products: tolerance is rounding, in FP32 with
    KEEP_PRECISION. `none` leaves the node alone. Each piece carries the marks of the node (precision, device) and its place in the
    sequence.

    Args:
        factors: Node name to FACTOR[/MODE[/KEEP_PRECISION]].
    """

    def __init__(self, factors: Mapping[str, str | int] | None = None) -> None:
        self._settings = {node: SerializeSetting.parse(str(text), node=node) for node, text in (factors or {}).items()}

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        nodes = {name: find_node(model, name, option="serialize_matmul", op_types=["MatMul"]) for name in self._settings}
        changed = False
        for name, setting in self._settings.items():
            if setting.factor > 1 and setting.mode is not SerializeMode.NONE:
                _serialize(editor, nodes[name], setting)
                changed = True
        return changed


def _serialize(editor: GraphEditor, node: ir.Node, setting: SerializeSetting) -> None:
    option, count = "serialize_matmul", setting.factor
    left, right = node.inputs[0], node.inputs[1]
    assert left is not None
    assert right is not None
    lefts, rights = [left] * count, [right] * count
    if setting.mode is not SerializeMode.OUTPUT_CHANNELS:
        lefts = split_operand(editor, node, left, -2 if setting.mode is SerializeMode.INPUT_CHANNELS else -1, count, option=option)
    if setting.mode is not SerializeMode.INPUT_CHANNELS:
        rights = split_operand(editor, node, right, -1 if setting.mode is SerializeMode.OUTPUT_CHANNELS else -2, count, option=option)
    pieces = [_piece(editor, node, (a, b), index, setting) for index, (a, b) in enumerate(zip(lefts, rights, strict=True))]
    if setting.mode is SerializeMode.REDUCING_DIM:
        whole = _sum(editor, node, pieces, setting)
    else:
        axis = -1 if setting.mode is SerializeMode.OUTPUT_CHANNELS else -2
        whole = editor.insert(node, "Concat", pieces, attributes={"axis": axis}, name=f"{node.name}/Concat", like=node.outputs[0])
    editor.replace(node.outputs[0], whole)
    editor.remove_dead(node)


def _piece(editor: GraphEditor, node: ir.Node, operands: tuple[ir.Value, ir.Value], index: int, setting: SerializeSetting) -> ir.Value:
    shape = static_shape(node.outputs[0])
    sizes = None if shape is None else list(shape)
    if sizes is not None and setting.mode is SerializeMode.OUTPUT_CHANNELS:
        sizes[-1] //= setting.factor
    if sizes is not None and setting.mode is SerializeMode.INPUT_CHANNELS:
        sizes[-2] //= setting.factor
    return editor.insert(
        node,
        "MatMul",
        operands,
        attributes={name: attribute.value for name, attribute in node.attributes.items()},
        name=f"{node.name}/{index}",
        dtype=node.outputs[0].dtype,
        shape=sizes,
        metadata=piece_marks(node, index, setting.factor),
    )


def _sum(editor: GraphEditor, node: ir.Node, pieces: list[ir.Value], setting: SerializeSetting) -> ir.Value:
    """The pieces added one after another; in FP32 where that was asked for and the node computes in less."""
    dtype = node.outputs[0].dtype
    is_widened = setting.keep_precision and dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    wide = ir.DataType.FLOAT if is_widened else dtype
    if is_widened:
        to_float = {"to": ir.DataType.FLOAT.value}
        pieces = [editor.insert(node, "Cast", [each], attributes=to_float, like=each, dtype=ir.DataType.FLOAT) for each in pieces]
    total = pieces[0]
    for index, each in enumerate(pieces[1:], start=1):
        total = editor.insert(node, "Add", [total, each], name=f"{node.name}/sum_{index}", like=node.outputs[0], dtype=wide)
    if is_widened and dtype is not None:
        return editor.insert(node, "Cast", [total], attributes={"to": dtype.value}, like=node.outputs[0], dtype=dtype)
    return total


_PAIR_OPTION = "serialize_matmul_add"


@register("serialize_matmul_add")
class SerializeMatmulAdd(Pass):
    """Splits named pairs of MatMul and Add along the last dimension of weights and bias, and joins the results. Exact.

    Args:
        factors: `MATMUL/ADD`, by node names, to the number of pieces.
    """

    def __init__(self, factors: Mapping[str, str | int] | None = None) -> None:
        self._factors = {pair: parse_factor(str(text), option=f"{_PAIR_OPTION} {pair}={text}") for pair, text in (factors or {}).items()}

    def run(self, model: ir.Model) -> bool:
        pairs = {pair: _find_pair(model, pair) for pair in self._factors}
        editor = GraphEditor(model)
        for pair, count in self._factors.items():
            if count > 1:
                _serialize_pair(editor, *pairs[pair], count)
        return any(count > 1 for count in self._factors.values())


def _find_pair(model: ir.Model, pair: str) -> tuple[ir.Node, ir.Node, ir.Value]:
    """The two nodes and the bias. Node names may hold slashes themselves, so every place to cut the text is tried."""
    cuts = [index for index, letter in enumerate(pair) if letter == "/"]
    if not cuts:
        raise OptionError(f"{_PAIR_OPTION}: '{pair}' must be MATMUL/ADD, two node names with a slash between them")
    names = {node.name for node in model.graph.all_nodes()}
    cut = next((each for each in cuts if pair[:each] in names and pair[each + 1 :] in names), cuts[len(cuts) // 2])
    matmul = find_node(model, pair[:cut], option=_PAIR_OPTION, op_types=["MatMul"])
    add = find_node(model, pair[cut + 1 :], option=_PAIR_OPTION, op_types=["Add"])
    bias = other_input(add, matmul.outputs[0])
    if only_use(matmul.outputs[0]) is not add or bias is None:
        raise PassError(f"{_PAIR_OPTION}: {describe(add)} must be the only reader of {describe(matmul)}")
    return matmul, add, bias


def _serialize_pair(editor: GraphEditor, matmul: ir.Node, add: ir.Node, bias: ir.Value, count: int) -> None:
    left, weights = matmul.inputs[0], matmul.inputs[1]
    assert weights is not None
    shape, bias_shape = static_shape(add.outputs[0]), static_shape(bias)
    sizes = None if shape is None else [*shape[:-1], shape[-1] // count]
    parts = split_operand(editor, matmul, weights, -1, count, option=_PAIR_OPTION)
    is_one_column = bias_shape is not None and (not bias_shape or bias_shape[-1] == 1)
    biases = [bias] * count if is_one_column else split_operand(editor, add, bias, -1, count, option=_PAIR_OPTION)
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
