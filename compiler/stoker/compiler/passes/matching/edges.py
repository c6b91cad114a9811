"""Following the edges of a graph: who reads a value, what feeds it, and which constants it holds."""

import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, is_op, only_use
from stoker.compiler.passes.traverse import subgraphs_of

#: How far a constant may lie from the number it stands for: half precision keeps 11 bits, so that sqrt(2) in FP16 is 3e-4 off.
SCALAR_TOLERANCE = 1e-3


def is_constant(value: ir.Value | None) -> bool:
    """Whether `value` holds the same array in every run; the array is not read."""
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    return value.is_initializer() if producer is None else is_op(producer, "Constant")


def scalar_of(value: ir.Value | None) -> float | None:
    """The one number that constant `value` holds, given as a scalar or as one element in one dimension; None for anything else."""
    if not is_constant(value):
        return None
    array = constant_of(value)
    if array is None or array.size != 1 or array.ndim > 1 or array.dtype.kind not in "fiuV":
        return None
    return float(array.reshape(())[()])


def is_close(found: float, expected: float) -> bool:
    """Whether two numbers are the same as far as half precision can say it."""
    return math.isclose(found, expected, rel_tol=SCALAR_TOLERANCE, abs_tol=0.0)


def is_scalar(value: ir.Value | None, expected: float) -> bool:
    """Whether `value` is the constant `expected`, as well as half precision can say it."""
    found = scalar_of(value)
    return found is not None and is_close(found, expected)


def is_private(value: ir.Value) -> bool:
    """Whether exactly one node input reads `value` and it is no output: what is made from it there can replace it."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def reader_of(value: ir.Value, *op_types: str) -> ir.Node | None:
    """The one node that reads `value`, once, if nothing else does and it is one of these operators of the main domain."""
    node = only_use(value)
    return node if is_op(node, *op_types) else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The input of a two-input node that is not `value`; None where both are or neither is."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if (first is value) == (second is value):
        return None
    return second if first is value else first


def split_constant(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """(variable, constant) inputs of a two-input node whose order does not matter; None unless it has one of each."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is None or second is None or is_constant(first) == is_constant(second):
        return None
    return (second, first) if is_constant(first) else (first, second)


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """A float attribute, or the operator's default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def ancestors(values: Iterable[ir.Value | None], *, within: ir.Graph | None = None) -> Iterator[ir.Node]:
    """Every node that `values` are made from, each once; with `within` only nodes of that graph."""
    seen: set[ir.Node] = set()
    waiting = [value.producer() for value in values if value is not None]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or (within is not None and node.graph is not within):
            continue
        seen.add(node)
        yield node
        waiting += [value.producer() for value in values_read_by(node)]


def values_read_by(node: ir.Node) -> list[ir.Value]:
    """What `node` reads: its inputs, and the values that graphs in its attributes take from outside themselves."""
    found = [value for value in node.inputs if value is not None]
    for graph in subgraphs_of(node):
        graphs = [graph, *graph.subgraphs()]
        own = {output for each in graph.all_nodes() for output in each.outputs}
        own.update(value for each in graphs for value in [*each.inputs, *each.initializers.values()])
        read = [value for each in graph.all_nodes() for value in each.inputs] + [value for each in graphs for value in each.outputs]
        found += [value for value in read if value is not None and value not in own]
    return found


def is_ancestor(node: ir.Node, of: Iterable[ir.Value | None]) -> bool:
    """Whether any of the values `of` is made with the help of `node`."""
    return any(each is node for each in ancestors(of))
