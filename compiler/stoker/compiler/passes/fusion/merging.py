"""Shared code of the merging passes: finding the named branches, and joining products that read the same input."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.passes.edit import constant_of, describe, static_shape
from stoker.compiler.passes.matching.edges import is_ancestor, values_read_by
from stoker.compiler.passes.matching.editing import GraphEditor, graph_of
from stoker.compiler.passes.matching.naming import find_node
from stoker.compiler.passes.matching.stacking import BranchStacker


@dataclass(frozen=True, slots=True)
class Branch:
    """Nodes from `begin`, which reads the branch's input first, to `end`, which makes its output."""

    begin: ir.Node
    end: ir.Node


def parse_names(names: str | Sequence[str], *, option: str, each: int) -> list[str]:
    """Node names from a comma list or a sequence, `each` for every branch.

    Raises:
        OptionError: they are not at least two times `each`.
    """
    found = [name.strip() for name in (names.split(",") if isinstance(names, str) else names) if name.strip()]
    if len(found) < 2 * each or len(found) % each:
        kind = "node names" if each == 1 else "pairs of node names"
        raise OptionError(f"{option}: at least two {kind} are needed, not {', '.join(found) or 'none'}")
    if len(set(found)) < len(found) and each == 1:
        raise OptionError(f"{option}: a node is named twice in {', '.join(found)}")
    return found


def find_branches(
    model: ir.Model, names: Sequence[str], *, option: str, op_types: Sequence[str] = (), ends: Sequence[str] = ()
) -> list[Branch]:
    """Branches by (begin, end) names one after another.

    Raises:
        PassError: a node is missing, is another operator, or stands in another graph; or a branch needs the result of another.
    """
    pairs = zip(names[::2], names[1::2], strict=True)
    branches = [
        Branch(find_node(model, begin, option=option, op_types=op_types), find_node(model, end, option=option, op_types=ends))
        for begin, end in pairs
    ]
    if len({branch.begin.graph for branch in branches} | {branch.end.graph for branch in branches}) != 1:
        raise PassError(f"{option}: {', '.join(names)} do not all stand in one graph")
    for branch in branches:
        if branch.begin is not branch.end and not is_ancestor(branch.begin, branch.end.inputs):
            raise PassError(f"{option}: {describe(branch.end)} does not depend on {describe(branch.begin)}")
        for other in branches:
            if other is not branch and is_ancestor(other.end, values_read_by(branch.begin)):
                raise PassError(f"{option}: {describe(branch.begin)} needs the result of {describe(other.end)}; they cannot run as one")
    return branches


def merge_by_stacking(editor: GraphEditor, branches: Sequence[Branch], *, option: str) -> None:
    """Computes all branches as one with a new leading dimension; the graph is sorted again afterwards."""
    graph = graph_of(branches[0].begin)
    positions = {node: position for position, node in enumerate(graph)}
    last = max((branch.end for branch in branches), key=positions.__getitem__)
    entries = tuple(_input_of(branch.begin, option) for branch in branches)
    BranchStacker(editor, last, option=option, entries=[entries]).finish([branch.end.outputs[0] for branch in branches])
    editor.remove_dead(*(branch.end for branch in branches))
    graph.sort()


def merge_columns(editor: GraphEditor, matmuls: Sequence[ir.Node], biases: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> None:
    """One MatMul (and Add) with the weights of all side by side, and a Split, in front of the first of the nodes.

    REQUIRES: `can_merge_columns`; `biases` are empty or constants that `is_column_bias` accepts.
    """
    graph = graph_of(matmuls[0])
    positions = {node: position for position, node in enumerate(graph)}
    first = min(matmuls, key=positions.__getitem__)
    label = f"{matmuls[0].name or 'MatMul'}/merged"
    weights = [array for node in matmuls if (array := constant_of(node.inputs[1])) is not None]
    widths = [array.shape[1] for array in weights]
    x, output = matmuls[0].inputs[0], outputs[0]
    shape = static_shape(output)
    whole_shape = None if shape is None else [*shape[:-1], sum(widths)]
    joined = editor.constant(first, np.concatenate(weights, axis=1), f"{label}/weights")
    marks = dict(matmuls[0].metadata_props)
    whole = editor.insert(first, "MatMul", [x, joined], name=label, dtype=output.dtype, shape=whole_shape, metadata=marks)
    if biases:
        rows = [np.broadcast_to(_row(bias), width) for bias, width in zip(biases, widths, strict=True)]
        offset = editor.constant(first, np.concatenate(rows), f"{label}/bias")
        whole = editor.insert(first, "Add", [whole, offset], name=f"{label}/Add", like=whole, metadata=marks)
    shapes = [None if shape is None else [*shape[:-1], width] for width in widths]
    for old, new in zip(outputs, editor.insert_split(first, whole, widths, -1, name=f"{label}/Split", shapes=shapes), strict=True):
        editor.replace(old, new)
    editor.remove_dead(*(node for output in outputs if (node := output.producer()) is not None), *matmuls)


def can_merge_columns(matmuls: Sequence[ir.Node]) -> bool:
    """Whether the products read one input and have constant matrices of one type and height."""
    weights = [constant_of(node.inputs[1]) for node in matmuls]
    if len({node.inputs[0] for node in matmuls}) != 1 or any(array is None or array.ndim != 2 for array in weights):
        return False
    return len({(array.shape[0], array.dtype) for array in weights if array is not None}) == 1


def is_column_bias(bias: ir.Value | None, width: int) -> bool:
    """Whether `bias` is a constant with one number for each column (or one for all)."""
    array = constant_of(bias)
    return array is not None and array.size in (1, width) and (array.size == 1 or array.shape[-1] == width)


def _row(bias: ir.Value) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    array = constant_of(bias)
    assert array is not None
    return array.reshape(-1)


def _input_of(begin: ir.Node, option: str) -> ir.Value:
    """The one input of a branch's first node that is not constant."""
    found = [value for value in begin.inputs if value is not None and constant_of(value) is None]
    if len(found) != 1:
        raise PassError(f"{option}: {describe(begin)} must have exactly one input that is not constant; it has {len(found)}")
    return found[0]
