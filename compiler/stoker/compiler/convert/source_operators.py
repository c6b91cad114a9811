"""The operators of a source model, and their record in the metadata of the converted model.

Passes replace, fuse and split operators. The record lets a target that gets only the converted model judge the source's operators.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from stoker.compiler.convert.opset_versions import schema_of
from stoker.compiler.errors import CompileError
from stoker.compiler.marks import SOURCE_OPERATORS
from stoker.compiler.passes.edit import traverse_nodes
from stoker.compiler.passes.registry import read_model
from stoker.compiler.passes.simplify import inline_functions
from stoker.compiler.passes.static_values import static_values


class SourceOperator(NamedTuple):
    """One operator of a source model.

    Attributes:
        domain: Empty for ONNX's own.
        op_type: Its name.
        opset: Version of the domain that the model imports; 0 if it imports none.
        version: Version of ONNX's definition of the operator at that opset; 0 if ONNX does not define it.
        node: Name of the first node, or else of its first output.
        nodes: Number of nodes.
    """

    domain: str
    op_type: str
    opset: int
    version: int
    node: str
    nodes: int


def device_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields the nodes of `model`, sub-graphs included, that depend on the data of its inputs, in the order of `traverse_nodes`."""
    known = static_values(model, are_shapes_fixed=True)
    for node in traverse_nodes(model):
        if not node.outputs or not all(output in known for output in node.outputs):
            yield node


def operator_of(node: ir.Node, model: ir.Model) -> SourceOperator:
    """Returns the operator of one node of `model`."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    opset = max((version for name, version in model.opset_imports.items() if (name if name != "ai.onnx" else "") == domain), default=0)
    schema = schema_of(node.op_type, opset) if not domain else None
    label = node.name or next((output.name for output in node.outputs if output.name), node.op_type)
    return SourceOperator(domain, node.op_type, opset, 0 if schema is None else schema.since_version, label or "", 1)


def source_operators(model: ir.Model) -> list[SourceOperator]:
    """Returns the operators that a device would run, each once, in the order of their first nodes."""
    found: dict[tuple[str, str], SourceOperator] = {}
    for node in device_nodes(model):
        one = operator_of(node, model)
        before = found.get((one.domain, one.op_type))
        found[one.domain, one.op_type] = one if before is None else before._replace(nodes=before.nodes + 1)
    return list(found.values())


def operators_of(model: onnx.ModelProto) -> list[SourceOperator]:
    """Returns `source_operators` of a valid model, with the functions of the model inlined.

    Raises:
        CompileError: a function cannot be inlined.
    """
    graph = read_model(model)
    inline_functions(graph)
    RemoveUnusedNodesPass()(graph)
    return source_operators(graph)


def record(converted: onnx.ModelProto, operators: Iterable[SourceOperator]) -> None:
    """Writes the operators of the source into the metadata of the converted model."""
    entry = next((each for each in converted.metadata_props if each.key == SOURCE_OPERATORS), None) or converted.metadata_props.add()
    entry.key, entry.value = SOURCE_OPERATORS, json.dumps(list(operators))


def recorded(model: onnx.ModelProto) -> Sequence[SourceOperator] | None:
    """Returns the operators of the source of a converted model; None if it has no record.

    Raises:
        CompileError: the record is not as `record` writes it.
    """
    text = next((each.value for each in model.metadata_props if each.key == SOURCE_OPERATORS), None)
    if text is None:
        return None
    try:
        return [
            SourceOperator(str(domain), str(op_type), int(opset), int(version), str(node), int(nodes))
            for domain, op_type, opset, version, node, nodes in json.loads(text)
        ]
    except (ValueError, TypeError) as error:
        raise CompileError(f"metadata '{SOURCE_OPERATORS}' of the model: {error}") from error
