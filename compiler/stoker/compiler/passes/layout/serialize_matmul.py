"""`serialize_matmul`: one matrix product as several smaller ones, one after another."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.layout.serial_split import parse_factor, piece_marks, split_operand
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.matching.naming import find_node
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


class SerializeMode(enum.Enum):
    """Which dimension of [.., input channels, reducing] x [.., reducing, output channels] is cut (names as in PopART)."""

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
        """From FACTOR[/MODE[/KEEP_PRECISION]].

        Raises:
            OptionError: it is not of this form; the text names the node and what is allowed.
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
