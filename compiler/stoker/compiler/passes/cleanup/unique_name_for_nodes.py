"""`unique_name_for_nodes`: every node can be named."""

import onnx_ir as ir

from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_nodes


@register("unique_name_for_nodes")
class UniqueNameForNodes(Pass):
    """Gives every node a name of its own in the whole model: unnamed ones after their operator, later ones of a name a number."""

    def run(self, model: ir.Model) -> bool:
        nodes = list(traverse_nodes(model))
        taken = {node.name for node in nodes if node.name}
        seen: set[str] = set()
        numbers: dict[str, int] = {}
        changed = False
        for node in nodes:
            if not node.name or node.name in seen:
                wanted = node.name or node.op_type
                node.name = _numbered(wanted, taken, numbers)
                taken.add(node.name)
                changed = True
            seen.add(node.name)
        return changed


def _numbered(wanted: str, taken: set[str], numbers: dict[str, int]) -> str:
    while True:
        numbers[wanted] = numbers.get(wanted, 0) + 1
        name = f"{wanted}_{numbers[wanted]}"
        if name not in taken:
            return name
