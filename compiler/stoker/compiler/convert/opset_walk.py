"""Rewrites a model for an older or a newer opset, node by node, without touching weights.

Each node moves one operator version at a time. A node whose operator did not change stays. Otherwise an adapter rewrites it
(`opset_adapters` downwards, `opset_upgrades` upwards). Without an adapter, the node stays if the other version supports everything that the
node uses with the same meaning (`opset_versions.fit`). All other nodes are rejected, so that no node changes its meaning. An operator that
does not exist at the target opset is replaced by the ONNX function that defines it, if there is one.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
from onnx.defs import OpSchema

from stoker.compiler.convert.opset_adapters import ADAPTERS
from stoker.compiler.convert.opset_upgrades import UPGRADES
from stoker.compiler.convert.opset_versions import CannotAdapt, adapted, fit, next_version, replace_by_function, schema_of
from stoker.compiler.passes.edit import Chain, describe, is_op, rank_of, traverse_nodes
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.simplify import fold_constants, inline_functions

#: Size limit for folding: results of shape arithmetic are smaller, weights are larger.
_FOLDED_BYTES = 1024
#: Operators whose meaning changed with this version, so an older operator of the same name cannot replace them.
_REDEFINED = frozenset({("GroupNormalization", 21)})

#: Moves a node by one version of its operator; returns the resulting nodes, each with its current opset.
Step = Callable[[ir.Node, int, int], list[tuple[ir.Node, int]]]


class NoCounterpart(Exception):
    """Some nodes cannot be expressed at the target opset. The text names each operator, the reason, and the first node.

    Attributes:
        problems: Nodes by operator and reason.
    """

    def __init__(self, problems: Mapping[tuple[str, str], Sequence[ir.Node]], before: str = "", between: str = "; ") -> None:
        reasons = [f"{describe(nodes[0])}{_and_others(len(nodes) - 1)}: {reason}" for (_, reason), nodes in problems.items()]
        super().__init__(before + between.join(reasons))
        self.problems = problems


def _and_others(count: int) -> str:
    return f" and {count} more" if count else ""


def lower_opset(model: ir.Model, target: int) -> None:
    """Converts `model` down to opset `target`, in place.

    Raises:
        NoCounterpart: some nodes have none there; the model is then not to be used further.
    """
    current = model.opset_imports[""]
    infer_shapes(model)  # adapters depend on ranks and element types
    if _expand_functions(model, current, target):
        _make_limits_scalars(model)
        fold_constants(model, max_tensor_size=_FOLDED_BYTES)  # bodies compute axes and shapes that were attributes in older opsets
    if problems := _walk(model, target, _lower):
        raise NoCounterpart(problems, f"there is no counterpart at opset {target} of ", "; of ")
    model.opset_imports[""] = target
    for function in model.functions.values():
        function.opset_imports[""] = target


def conversion_problems(model: ir.Model, target: int) -> list[str]:
    """Converts `model` down to opset `target` node by node, without replacing operators by ONNX's functions.

    Args:
        model: Typed. Its nodes are changed; it is not to be used further.
        target: The opset.

    Returns:
        For each node in the order of `traverse_nodes`, the reason why it cannot be expressed at `target`; empty if it can.
    """
    current = model.opset_imports[""]
    return [_problem(node, current, target, _lower) for node in list(traverse_nodes(model))]


def raise_opset(model: ir.Model, target: int) -> None:
    """Converts `model` up to opset `target`, in place.

    Raises:
        NoCounterpart: some nodes cannot be expressed there; the model is then not to be used further.
    """
    infer_shapes(model)  # adapters use ranks and element types
    if problems := _walk(model, target, _raise):
        raise NoCounterpart(problems)
    model.opset_imports[""] = target


def _walk(model: ir.Model, target: int, step: Step) -> dict[tuple[str, str], list[ir.Node]]:
    """Moves all nodes to opset `target` in single steps; returns the nodes that cannot move, by operator and reason."""
    current = model.opset_imports[""]
    problems: dict[tuple[str, str], list[ir.Node]] = {}
    for node in list(traverse_nodes(model)):  # adapters may make graphs whose nodes are at the new opset already
        if problem := _problem(node, current, target, step):
            problems.setdefault((node.op_type, problem), []).append(node)
    return problems


def _problem(node: ir.Node, current: int, target: int, step: Step) -> str:
    """Moves one node to opset `target` in single steps; returns the reason why it cannot move, or nothing."""
    waiting = [(node, current)]
    try:
        while waiting:
            each, level = waiting.pop()
            if each.domain == "":
                waiting += step(each, level, target)
    except CannotAdapt as error:
        return str(error)
    return ""


def _lower(node: ir.Node, level: int, target: int) -> list[tuple[ir.Node, int]]:
    schema = _known(node, level)
    since = schema.since_version
    if since <= target:
        return []
    adapter = ADAPTERS.get((node.op_type, since))
    if adapter is not None:
        return [(made, since - 1) for made in adapted(adapter, node)]
    older = schema_of(node.op_type, since - 1)
    if older is None:
        raise CannotAdapt(f"{node.op_type} is new in opset {since}")
    fit(node, schema, older)
    return [(node, since - 1)]


def _raise(node: ir.Node, level: int, target: int) -> list[tuple[ir.Node, int]]:
    older = _known(node, level)
    version = next_version(node.op_type, level)
    if version is None or version > target:
        return []
    adapter = UPGRADES.get((node.op_type, version))
    if adapter is not None:
        return [(made, version) for made in adapted(adapter, node)]
    fit(node, older, _known(node, version))
    return [(node, version)]


def _known(node: ir.Node, level: int) -> OpSchema:
    schema = schema_of(node.op_type, level)
    if schema is None:
        raise CannotAdapt(f"opset {level} has no {node.op_type}")
    return schema


def _expand_functions(model: ir.Model, current: int, target: int) -> bool:
    """Replaces operators that are newer than `target` and have no adapter by their ONNX functions; returns whether there were any.

    Raises:
        CompileError: ONNX's functions cannot be put in the place of their operators.
    """
    expanded = False
    while True:
        found = False
        for node in list(traverse_nodes(model)):
            schema = schema_of(node.op_type, current) if node.domain == "" else None
            if schema is None or not _is_to_expand(node, schema, target):
                continue
            try:
                found = replace_by_function(model, node, schema, current) or found
            except CannotAdapt:
                continue  # the next walk rejects this node together with all others
        if not found:
            return expanded
        expanded = True
        inline_functions(model)
        infer_shapes(model)  # some function bodies depend on types


def _make_limits_scalars(model: ir.Model) -> None:
    """Reshapes the limits of each Range of an expanded function to scalars: ONNX's body of AffineGrid has vectors of one element."""
    for node in [each for each in traverse_nodes(model) if is_op(each, "Range")]:
        for at, value in enumerate(node.inputs):
            if value is not None and rank_of(value) == 1:
                build = Chain(node)
                node.replace_input_with(at, build.add("Squeeze", [value], f"limit{at}"))


def _is_to_expand(node: ir.Node, schema: OpSchema, target: int) -> bool:
    version = schema.since_version
    if version <= target or (node.op_type, version) in ADAPTERS:
        return False
    return schema_of(node.op_type, target) is None or (node.op_type, version) in _REDEFINED
