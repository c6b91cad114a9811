"""Names for what lowering adds."""

import onnx_ir as ir


class FreeNames:
    """Gives names that no value and no node of the model has."""

    def __init__(self, model: ir.Model) -> None:
        graphs = (model.graph, *model.graph.subgraphs())
        self._taken = {value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            self._taken |= {node.name, *(output.name for output in node.outputs)}

    def new(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken:
            name, count = f"{wanted}.{count}", count + 1
        self._taken.add(name)
        return name
