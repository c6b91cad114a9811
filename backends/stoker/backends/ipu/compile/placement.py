"""Where `manual_sharding` put a node: marks that passes leave, read by the planner."""

import onnx_ir as ir

from stoker.compiler.errors import CompileError
from stoker.compiler.lowering.tensor_facts import node_label

IPU_KEY = "__ipu_number"
STAGE_KEY = "__pipeline_stage"


def placement(node: ir.Node) -> tuple[int, int]:
    """The IPU and pipeline stage that `manual_sharding` gave the node; 0 and 0 where it gave none.

    Raises:
        CompileError: a value is no whole number.
    """
    found = []
    for key in (IPU_KEY, STAGE_KEY):
        attribute = node.attributes.get(key)
        text = node.metadata_props.get(key) if attribute is None else attribute.value
        try:
            found.append(int(text) if text is not None else 0)
        except (TypeError, ValueError):
            raise CompileError(f"node '{node_label(node)}': {key} is {text!r}, expected a whole number") from None
    return found[0], found[1]
