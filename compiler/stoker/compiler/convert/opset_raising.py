"""Rewrites a model for a newer opset, node by node and without touching weights.

For each node, version by version upwards: if its operator did not change, nothing is to be done. If it did, an adapter from
`opset_upgrades` rewrites it; if there is none, the node passes where the newer version has all that the node uses, and means the same
by it. Defaults that changed are written out. What neither an adapter nor this rule covers is refused: a node is never given a newer
version's meaning.
"""

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from stoker.compiler.convert.opset_upgrades import UPGRADES
from stoker.compiler.convert.opset_versions import (
    CannotAdapt,
    adapted,
    next_version,
    refuse_missing_inputs,
    refuse_missing_types,
    schema_of,
)
from stoker.compiler.passes.edit import describe
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.traverse import traverse_nodes


class CannotRaise(Exception):
    """Nodes whose operator means something else, or no longer exists, at the newer opset; the text names the first of each kind.

    Attributes:
        problems: Nodes by operator and reason.
    """

    def __init__(self, problems: Mapping[tuple[str, str], Sequence[ir.Node]]) -> None:
        listed = [
            f"{describe(nodes[0])}{f' and {len(nodes) - 1} more' if len(nodes) > 1 else ''}: {reason}"
            for (_, reason), nodes in problems.items()
        ]
        super().__init__("; ".join(listed))
        self.problems = problems


def raise_opset(model: ir.Model, target: int) -> None:
    """Brings `model` up to opset `target`, in place.

    Raises:
        CannotRaise: some nodes cannot be expressed there; the model is then not to be used further.
    """
    current = model.opset_imports[""]
    infer_shapes(model)  # adapters use ranks and element types
    problems: dict[tuple[str, str], list[ir.Node]] = {}
    for node in list(traverse_nodes(model)):  # adapters may make graphs whose nodes are raised already
        try:
            _raise(node, current, target)
        except CannotAdapt as error:
            problems.setdefault((node.op_type, str(error)), []).append(node)
    if problems:
        raise CannotRaise(problems)
    model.opset_imports[""] = target


def _raise(node: ir.Node, current: int, target: int) -> None:
    waiting = [(node, current)]
    while waiting:
        each, level = waiting.pop()
        if each.domain != "":
            continue
        older = schema_of(each.op_type, level)
        if older is None:
            raise CannotAdapt(f"opset {level} has no {each.op_type}")
        version = next_version(each.op_type, level)
        if version is None or version > target:
            continue
        adapter = UPGRADES.get((each.op_type, version))
        if adapter is not None:
            waiting += [(made, version) for made in adapted(adapter, each)]
            continue
        newer = schema_of(each.op_type, version)
        assert newer is not None, "next_version names versions that exist"
        _keep_if_compatible(each, older, newer)
        waiting.append((each, version))


def _keep_if_compatible(node: ir.Node, older: OpSchema, newer: OpSchema) -> None:
    """Writes out defaults that changed, and drops attributes that are gone and were left at their default.

    Raises:
        CannotAdapt: the newer version lacks something that the node uses.
    """
    version = newer.since_version
    if newer.deprecated:
        raise CannotAdapt(f"opset {version} removed {node.op_type}")
    if len(node.inputs) > newer.max_input:
        raise CannotAdapt(f"it has {len(node.inputs)} inputs, opset {version} allows {newer.max_input}")
    if len(node.outputs) > newer.max_output:
        raise CannotAdapt(f"it has {len(node.outputs)} outputs, opset {version} allows {newer.max_output}")
    refuse_missing_inputs(node, newer, f"since opset {version}")
    for name, attribute in list(node.attributes.items()):
        if name in newer.attributes:
            continue
        default = older.attributes[name].default_value if name in older.attributes else None
        if default is None or default.type == onnx.AttributeProto.UNDEFINED or ir.from_proto(default).value != attribute.value:
            raise CannotAdapt(f"opset {version} removed attribute '{name}'")
        del node.attributes[name]
    for name, formal in newer.attributes.items():
        if name in older.attributes and name not in node.attributes:
            default = older.attributes[name].default_value
            if default != formal.default_value and default.type != onnx.AttributeProto.UNDEFINED:
                node.attributes[name] = ir.from_proto(default)
        elif formal.required and name not in node.attributes:
            raise CannotAdapt(f"opset {version} needs attribute '{name}'")
    refuse_missing_types(node, newer, f"since opset {version}")
