"""`final_check`: is this a model that a device can be given?"""

import collections

import onnx_ir as ir

from stoker.compiler.errors import CompileError, NotStaticError, PassError
from stoker.compiler.passes.edit import describe, static_shape
from stoker.compiler.passes.fixed_dimensions import fed_inputs
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_nodes
from stoker.compiler.passes.verify import verify


@register("final_check")
class FinalCheck(Pass):
    """Refuses a model that ONNX finds invalid, whose inputs or outputs are not of static shape, or whose nodes share names.

    All reasons are given at once.
    """

    def __init__(self, *, is_static: bool = True) -> None:
        """Takes what is asked of shapes.

        Args:
            is_static: Whether inputs and outputs must be of static shape.
        """
        self.is_static = is_static

    def run(self, model: ir.Model) -> bool:
        problems = []
        try:
            verify(model, "after all passes")
        except PassError as error:
            problems.append(str(error))
        borders = (("input", fed_inputs(model).values()), ("output", model.graph.outputs))
        for kind, values in borders if self.is_static else ():
            problems += [
                f"{kind} '{value.name}' is of shape {'unknown' if value.shape is None else value.shape}, not static"
                for value in values
                if static_shape(value) is None
            ]
        if self.is_static:
            doubtful = _sources_of_doubt(model)
            problems += [f"{describe(node)} gives a shape that is not known from the shapes of its inputs" for node in doubtful]
        names = collections.Counter(node.name for node in traverse_nodes(model) if node.name)
        problems += [f"{count} nodes are named '{name}'" for name, count in names.items() if count > 1]
        if problems:
            text = "; ".join(problems)
            if self.is_static and any(static_shape(value) is None for value in model.graph.outputs):
                raise NotStaticError(f"pass 'final_check': {text}", model)
            raise CompileError(text)
        return False


def _sources_of_doubt(model: ir.Model) -> list[ir.Node]:
    """Nodes of the main graph that lead to outputs of unknown shape though their own inputs' shapes are all known."""
    waiting = [value.producer() for value in model.graph.outputs if static_shape(value) is None]
    found: dict[ir.Node, None] = {}
    seen: set[ir.Node] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        unknown = [value for value in node.inputs if value is not None and static_shape(value) is None]
        waiting += [value.producer() for value in unknown]
        if not unknown:
            found[node] = None
    return list(found)
