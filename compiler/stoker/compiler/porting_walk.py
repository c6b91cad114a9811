"""Walks a source model for the porting check of a target that judges single nodes by tables of operators."""

from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from stoker.compiler.convert.opset_versions import body_operators, schema_of
from stoker.compiler.errors import CompileError
from stoker.compiler.lowering.typed_graph import node_label, static_values
from stoker.compiler.passes.registry import INTERNAL_OPSET
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.simplify import inline_functions
from stoker.compiler.porting import PortingFact, Verdict

#: Judges a node of the source model, given the version of ONNX's definition of its operator; see `PortingFact.version`.
Judge = Callable[[ir.Node, int], Verdict]


def porting_facts(model: onnx.ModelProto, judge: Judge) -> tuple[PortingFact, ...]:
    """Judges every node that a device would run, sub-graphs included, in the order of the graph.

    Two kinds of nodes are omitted: nodes that no output needs, and nodes that are computed when the model is compiled. The latter include
    those that only read the shapes of tensors, because every dimension must be fixed before the model is compiled.

    Args:
        model: The source model; dimensions may be open. Not changed.
        judge: Called once for each node that is not omitted.

    Raises:
        CompileError: the model is no valid ONNX, or its functions cannot be inlined.
    """
    try:
        graph_model = ir.from_proto(model)
    except (ir.serde.SerdeError, ValueError) as error:
        raise CompileError(f"the model cannot be read: {error.__cause__ or error}") from error
    inline_functions(graph_model)
    ir_passes.RemoveUnusedNodesPass()(graph_model)
    infer_shapes(graph_model)
    return tuple(_facts(graph_model, judge))


def _facts(model: ir.Model, judge: Judge) -> Iterator[PortingFact]:
    known = static_values(model, are_shapes_fixed=True)
    opsets = {_domain(domain): version for domain, version in model.opset_imports.items()}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.outputs and all(output in known for output in node.outputs):
            continue
        domain = _domain(node.domain)
        opset = opsets.get(domain, 0)
        schema = schema_of(node.op_type, opset) if not domain else None
        version = int(schema.since_version) if schema is not None else 0
        op_type = f"{domain}::{node.op_type}" if domain else node.op_type
        yield PortingFact(node=node_label(node), op_type=op_type, opset=opset, version=version, verdict=judge(node, version))


def _domain(domain: str) -> str:
    """ONNX's own domain has two spellings; returns the shorter."""
    return "" if domain == "ai.onnx" else domain


def lowering_reason(node: ir.Node, version: int, operator_reason: Callable[[str, str], str]) -> str:
    """Returns the reason why this compiler cannot compile the operator of `node` for a device; empty if it can.

    The converter replaces an operator that is newer than its own opset by the function that defines it in ONNX.

    Args:
        node: A typed node of the source model.
        version: See `PortingFact.version`.
        operator_reason: Returns why the device has no operator, given domain and type of a converted node; empty if it has one.
    """
    training = node.attributes.get("training_mode")
    if training is not None and training.as_int():
        return "it is set to training, and the device only infers"
    reason = operator_reason(_domain(node.domain), node.op_type)
    if not reason or not version or schema_of(node.op_type, INTERNAL_OPSET) is not None:
        return reason
    body = body_operators(node, version)
    missing = sorted(each for each in body if operator_reason("", each))
    if not body:
        return reason
    return f"ONNX defines it by {missing[0]}: {operator_reason('', missing[0])}" if missing else ""
