"""The porting check for the IPU: which nodes PopRT and PopART take, and which only this compiler computes."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from stoker.backends.ipu.compile.popart_operators import PASSES, POPART, REWRITTEN, REWRITTEN_IN_PART, SUCCEEDED, USER_GUIDE, VENDOR_OPSET
from stoker.backends.ipu.compile.supported import operator_reason
from stoker.backends.ipu.hardware import IpuHardware
from stoker.compiler.convert.opset_versions import schema_of
from stoker.compiler.convert.source_operators import recorded
from stoker.compiler.options import CompilerOptions
from stoker.compiler.porting import PortingFact, Support, Verdict
from stoker.compiler.porting_walk import SourceNode, fact_of, lowered_operators, lowering_reason, porting_facts, reject_lowered
from stoker.compiler.target import SourceModel

_logger = logging.getLogger(__name__)

_OLDER_EXPORT = "an export at an older opset may consist of operators that it has"


def ipu_porting(model: onnx.ModelProto, *, has_custom_libraries: bool = False) -> tuple[PortingFact, ...]:
    """Judges each node of a source model; see `Target.porting`.

    Of a model that this converter made, the recorded operators of its source are judged.

    Raises:
        CompileError: the model is no valid ONNX.
    """
    judge = functools.partial(judged, has_custom_libraries=has_custom_libraries)
    if (operators := recorded(model)) is None:
        return porting_facts(model, judge, vendor_opset=VENDOR_OPSET)
    verdicts = [judge(SourceNode(ir.Node(each.domain, each.op_type, []), each.version)) for each in operators]
    # The conversion succeeded. What is left and cannot be run is rejected where its types are known.
    return tuple(
        fact_of(each, dataclasses.replace(verdict, support=Support.LOWERED) if verdict.support is Support.IMPOSSIBLE else verdict)
        for each, verdict in zip(operators, verdicts, strict=True)
    )


def check_operators(sources: Sequence[SourceModel], options: CompilerOptions, hardware: IpuHardware) -> str:
    """Returns the operators in `sources` that PopRT and PopART do not take; empty if there are none. Logs a warning that names them.

    Raises:
        UnsupportedOperators: there are some, and `options` allow only the vendor's; the text lists node, operator, opset and reason.
    """
    facts = []
    for source in sources:
        own = _source_facts(source)
        if options.operators == "vendor":
            name = f"model '{source.name}' on " if len(sources) > 1 else ""
            reject_lowered(own, f"{name}ipu{hardware.ipu_version} ({hardware.system}) by PopRT and PopART")
        facts += own
    if lowered := lowered_operators(facts):
        _logger.warning(
            "PopRT and PopART do not take %s, so that the model does not port as it is; --operators vendor gives details", lowered
        )
    return lowered


def _source_facts(source: SourceModel) -> list[PortingFact]:
    """Judges the source of a model to be compiled, and the converted nodes that a pass of PopRT rewrites in some forms only."""
    model = source.model if source.source is None else source.source
    return [*ipu_porting(model, has_custom_libraries=bool(source.custom_libraries)), *_left_by_passes(source.model)]


def judged(source: SourceNode, *, has_custom_libraries: bool = False) -> Verdict:
    """Returns the support of a node of the source model."""
    node = source.node
    unsupported = functools.partial(operator_reason, has_custom_libraries=has_custom_libraries)
    not_lowered = lowering_reason(source, unsupported)
    if node.domain in ("", "ai.onnx"):
        if (found := _by_popart(source)) is not None:
            return Verdict(support=Support.VENDOR, reason=found[0], source=found[1], not_simulated=not_lowered)
        if node.op_type in REWRITTEN:
            return Verdict(support=Support.VENDOR, reason=_rewritten(node.op_type), source=PASSES)
    elif has_custom_libraries and not operator_reason(node.domain, node.op_type, has_custom_libraries=True):
        return Verdict(support=Support.VENDOR, reason="the library of custom operators has it")
    lacking = f"PopART has no {node.domain}::{node.op_type}" if node.domain else _lacking(source)
    if not_lowered:
        return Verdict(support=Support.IMPOSSIBLE, reason=f"{lacking}; {not_lowered}", source=USER_GUIDE)
    return Verdict(support=Support.LOWERED, reason=lacking, source=USER_GUIDE)


def _by_popart(source: SourceNode) -> tuple[str, str] | None:
    """Returns how PopART takes the node, and the source of that; None if it does not."""
    name, version = source.node.op_type, source.version
    versions, published = POPART.get(name, (frozenset[int](), ""))
    if version in versions:
        return f"PopART has {name}-{version}", published
    if name in SUCCEEDED:
        successor = SUCCEEDED[name]
        return f"PopRT converts it to {successor}, and PopART has {_listed(successor)}", POPART[successor][1]
    at_vendor = schema_of(name, VENDOR_OPSET)
    if not version or at_vendor is None or at_vendor.since_version not in versions or source.conversion_problem:
        return None
    return f"PopART has {name}-{at_vendor.since_version}, to which PopRT converts it", published


def _rewritten(op_type: str) -> str:
    limit = REWRITTEN_IN_PART.get(op_type)
    return f"PopRT's pass {REWRITTEN[op_type]} rewrites it" + (f", but only {limit}" if limit else "")


def _lacking(source: SourceNode) -> str:
    name = source.node.op_type
    if name not in POPART:
        is_newer = source.version > VENDOR_OPSET
        return f"PopART has no {name}" + (f", which is new since opset {VENDOR_OPSET}; {_OLDER_EXPORT}" if is_newer else "")
    reason = f"PopART has {_listed(name)}, not {source.version}"
    return f"{reason}: {source.conversion_problem}" if source.conversion_problem else reason


def _listed(name: str) -> str:
    return f"{name} of version {', '.join(str(version) for version in sorted(POPART[name][0]))}"


def _left_by_passes(converted: onnx.ModelProto) -> Iterator[PortingFact]:
    for fact in porting_facts(converted, judged):
        if fact.op_type in REWRITTEN_IN_PART:
            verdict = Verdict(support=Support.LOWERED, reason=f"{_rewritten(fact.op_type)}; this is another form", source=PASSES)
            yield dataclasses.replace(fact, verdict=verdict)
