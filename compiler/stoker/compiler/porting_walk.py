"""Walks a source model for the porting check of a target that judges single nodes by tables of operators."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from stoker.compiler.convert.opset_versions import body_operators, schema_of
from stoker.compiler.convert.opset_walk import conversion_problems
from stoker.compiler.convert.source_operators import SourceOperator, device_nodes, operator_of
from stoker.compiler.errors import CompileError, Unsupported, UnsupportedOperators
from stoker.compiler.passes.edit import traverse_nodes
from stoker.compiler.passes.registry import INTERNAL_OPSET, read_model
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.simplify import inline_functions
from stoker.compiler.porting import PortingFact, Support, Verdict


@dataclass(frozen=True, slots=True)
class SourceNode:
    """One node of a source model, with types and shapes inferred as far as they are known.

    Attributes:
        node: The node. Not to be changed.
        version: See `PortingFact.version`.
        conversion_problem: Why the node cannot be converted to the vendor's opset; empty if it can, or if no such opset was given.
    """

    node: ir.Node
    version: int
    conversion_problem: str = ""


#: Judges a node of the source model.
Judge = Callable[[SourceNode], Verdict]


def porting_facts(model: onnx.ModelProto, judge: Judge, *, vendor_opset: int | None = None) -> tuple[PortingFact, ...]:
    """Judges every node that a device would run, sub-graphs included, in the order of the graph.

    Two kinds of nodes are omitted: nodes that no output needs, and nodes that are computed when the model is compiled. The latter include
    those that only read the shapes of tensors, because every dimension must be fixed before the model is compiled.

    Args:
        model: The source model; dimensions may be open. Not changed.
        judge: Called once for each node that is not omitted.
        vendor_opset: The opset to which the vendor's tools convert a model of a newer opset.

    Raises:
        CompileError: the model is no valid ONNX, or its functions cannot be inlined.
    """
    graph = _typed(model)
    nodes = list(traverse_nodes(graph))
    problems = [""] * len(nodes)
    if vendor_opset is not None and graph.opset_imports.get("", 0) > vendor_opset:
        problems = conversion_problems(_typed(model), vendor_opset)  # of a second copy, which the conversion changes
    problem_of = dict(zip(nodes, problems, strict=True))
    return tuple(
        fact_of(operator := operator_of(node, graph), judge(SourceNode(node, operator.version, problem_of[node])))
        for node in device_nodes(graph)
    )


def fact_of(operator: SourceOperator, verdict: Verdict) -> PortingFact:
    """Returns the fact of an operator that was judged."""
    return PortingFact(
        node=operator.node,
        op_type=f"{operator.domain}::{operator.op_type}" if operator.domain else operator.op_type,
        opset=operator.opset,
        version=operator.version,
        count=operator.nodes,
        verdict=verdict,
    )


def _typed(model: onnx.ModelProto) -> ir.Model:
    try:
        graph = read_model(model)
    except (ir.serde.SerdeError, ValueError) as error:
        raise CompileError(f"the model cannot be read: {error.__cause__ or error}") from error
    if "ai.onnx" in graph.opset_imports:
        graph.opset_imports[""] = graph.opset_imports.pop("ai.onnx")
    inline_functions(graph)
    ir_passes.RemoveUnusedNodesPass()(graph)
    infer_shapes(graph)
    return graph


def reject_lowered(facts: Sequence[PortingFact], target: str) -> None:
    """Rejects nodes that the vendor's tools do not take, for `--operators vendor`.

    Nodes that are impossible are listed too, but alone they are no reason: a pass may still remove them.

    Raises:
        UnsupportedOperators: the text lists node, operator, opset and reason.
    """
    if any(fact.verdict.support is Support.LOWERED for fact in facts):
        listed = [fact for fact in facts if fact.verdict.support in (Support.LOWERED, Support.IMPOSSIBLE)]
        raise UnsupportedOperators(target, [Unsupported(fact.node, _with_opset(fact), _advised(fact)) for fact in listed])


def lowered_operators(facts: Sequence[PortingFact]) -> str:
    """Returns the operators that only this compiler takes, with their numbers of nodes: `DFT-17, LayerNormalization-17 (24)`."""
    counts = Counter[str]()
    for fact in facts:
        if fact.verdict.support is Support.LOWERED:
            counts[fact.operator] += fact.count
    return ", ".join(f"{operator} ({count})" if count > 1 else operator for operator, count in sorted(counts.items()))


def _with_opset(fact: PortingFact) -> str:
    return f"{fact.operator} of opset {fact.opset}" if fact.opset else fact.operator


def _advised(fact: PortingFact) -> str:
    can_be_lowered = fact.verdict.support is Support.LOWERED
    advice = "; --operators lowered compiles it from other operators" if can_be_lowered else "; it cannot be lowered either"
    return fact.verdict.reason + advice


def lowering_reason(source: SourceNode, operator_reason: Callable[[str, str], str]) -> str:
    """Returns the reason why this compiler cannot compile a node for a device; empty if it can.

    The converter replaces an operator that is newer than its own opset by the function that defines it in ONNX.

    Args:
        source: The node.
        operator_reason: Returns why the device has no operator, given domain and type of a converted node; empty if it has one.
    """
    node, version = source.node, source.version
    training = node.attributes.get("training_mode")
    if training is not None and training.as_int():
        return "it is set to training, and the device only infers"
    reason = operator_reason("" if node.domain == "ai.onnx" else node.domain, node.op_type)
    if not reason or not version or schema_of(node.op_type, INTERNAL_OPSET) is not None:
        return reason
    body = body_operators(node, version)
    missing = sorted(each for each in body if operator_reason("", each))
    if not body:
        return reason
    return f"ONNX defines it by {missing[0]}: {operator_reason('', missing[0])}" if missing else ""
