"""`auto_insert_remap`: asks for another tensor layout before or after operators of a type."""

import logging
from collections.abc import Sequence

import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.marks import REMAP
from stoker.compiler.passes.matching.constants import is_constant
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_nodes

log = logging.getLogger(__name__)


@register("auto_insert_remap")
class AutoInsertRemap(Pass):
    """Inserts layout remaps before or after operators of given types: marked Identity nodes that the planner prices as an exchange.

    Values do not change. A remap moves every element once between tiles; on a real device what follows may then run faster, on a simulated
    one a remap only costs its exchange.

    Args:
        remap_mode: `before_<type>` or `after_<type>`, such as `after_matmul` or `before_softmax`; types in any case. A string may list
            several with commas. `before` remaps every input that is not constant, `after` every output.
    """

    def __init__(self, remap_mode: str | Sequence[str] = ("after_matmul",)) -> None:
        modes = remap_mode.split(",") if isinstance(remap_mode, str) else remap_mode
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}
        for mode in (each.strip() for each in modes):
            side, _, op_type = mode.partition("_")
            if side not in ("before", "after") or not op_type:
                raise OptionError(f"remap_mode '{mode}': expected before_<operator type> or after_<operator type>, such as after_matmul")
            (self._before if side == "before" else self._after)[op_type.lower()] = mode

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        count = 0
        for node in list(traverse_nodes(model)):
            kind = node.op_type.lower()
            if kind in self._before:
                count += _remap_inputs(editor, node, self._before[kind])
            if kind in self._after:
                count += _remap_outputs(editor, node, self._after[kind])
        log.info("%d remap(s) inserted (%s)", count, ", ".join([*self._before.values(), *self._after.values()]))
        return count > 0


def _remap_inputs(editor: GraphEditor, node: ir.Node, mode: str) -> int:
    remapped: dict[ir.Value, ir.Value] = {}
    for index, value in enumerate(node.inputs):
        if value is None or is_constant(value):
            continue
        if value not in remapped:
            name = f"{node.name or node.op_type}/remap_{index}"
            remapped[value] = editor.insert(node, "Identity", [value], name=name, like=value, metadata={REMAP: mode})
        node.replace_input_with(index, remapped[value])
    return len(remapped)


def _remap_outputs(editor: GraphEditor, node: ir.Node, mode: str) -> int:
    count = 0
    for output in node.outputs:
        if not output.name or not (output.uses() or output.is_graph_output()):
            continue
        editor.insert_after(node, output, "Identity", name=f"{node.name or node.op_type}/remap", metadata={REMAP: mode})
        count += 1
    return count
