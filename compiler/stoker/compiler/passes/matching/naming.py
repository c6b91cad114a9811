"""Finding the nodes that a user named, and saying which names were near where there is no such node."""

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from stoker.backends.api.nearest import nearest
from stoker.compiler.errors import PassError
from stoker.compiler.passes.traverse import traverse_nodes


def find_node(model: ir.Model, name: str, *, option: str, op_types: Sequence[str] = ()) -> ir.Node:
    """The node called `name`.

    Args:
        model: Searched with all its sub-graphs.
        name: Of the node.
        option: What the user set, for the error text.
        op_types: Operators it must be one of; any if empty.

    Raises:
        PassError: there is no such node (the text gives the nearest names), there are several, or it is another operator.
    """
    found = [node for node in traverse_nodes(model) if node.name == name]
    if not found:
        names = sorted({node.name for node in traverse_nodes(model) if node.name and (not op_types or node.op_type in op_types)})
        near = nearest(name, names, most=3, closeness=0.4)
        kind = "/".join(op_types) + " node" if op_types else "node"
        hint = (
            f"; nearest: {', '.join(near)}"
            if near
            else f"; the model has no {kind}s with names"
            if not names
            else f"; it has {', '.join(names[:5])}"
        )
        raise PassError(f"{option}: the model has no {kind} named '{name}'{hint}")
    if len(found) > 1:
        raise PassError(f"{option}: {len(found)} nodes are named '{name}'; run unique_name_for_nodes first")
    if op_types and found[0].op_type not in op_types:
        raise PassError(f"{option}: node '{name}' is a {found[0].op_type}, not a {' or '.join(op_types)}")
    return found[0]


def require_unique_names(model: ir.Model, *, option: str) -> None:
    """Raises:
    PassError: a node of the main graph has no name, or one that another has.
    """
    counts = Counter(node.name or "" for node in model.graph)
    if "" in counts:
        unnamed = next(node for node in model.graph if not node.name)
        raise PassError(
            f"{option}: a {unnamed.op_type} node making '{unnamed.outputs[0].name}' has no name; run unique_name_for_nodes first"
        )
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise PassError(f"{option}: node names must be unique; used more than once: {', '.join(twice[:5])}")
