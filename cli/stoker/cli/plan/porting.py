"""The porting check: for each target, the operators of the model and whether the vendor's tools, or this compiler, take them."""

from collections.abc import Sequence

from stoker.cli.plan.conversions import Conversions
from stoker.cli.plan.model import Combination, OperatorSupport, Porting
from stoker.cli.plan.texts import one_line
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.porting import PortingFact, Support
from stoker.compiler.target import Target

#: Names of nodes that are kept for each operator.
MOST_NODES = 5
#: The order of operators: what stops a user first.
_ORDER = (Support.IMPOSSIBLE, Support.LOWERED, Support.UNPUBLISHED, Support.VENDOR)


def porting_of(target: Target, conversions: Conversions) -> Porting:
    """Checks every node of the source model for `target`, and whether the model as a whole can be converted for it."""
    try:
        facts = target.porting(conversions.source, CompilerOptions())
        operators = _operators(facts)
        if not any(fact.verdict.support is Support.IMPOSSIBLE for fact in facts):
            conversions.of(target, "fp32")
    except CompileError as error:
        return Porting(target=target.name, ports=False, problem=one_line(error))
    return Porting(target=target.name, ports=all(fact.verdict.support is not Support.IMPOSSIBLE for fact in facts), operators=operators)


def porting_to_cpu(measured: Sequence[Combination], unmeasured: str) -> Porting:
    """Returns the porting check of this machine's CPU: the model ports if a runtime has run it.

    Args:
        measured: What each runtime did.
        unmeasured: Why no runtime was measured; empty if one was.
    """
    if unmeasured:
        return Porting(target="cpu", ports=None, problem=f"not measured: {unmeasured}")
    ports = any(each.fits for each in measured)
    return Porting(target="cpu", ports=ports, problem="" if ports else next((each.problem for each in measured if each.problem), ""))


def _operators(facts: Sequence[PortingFact]) -> tuple[OperatorSupport, ...]:
    nodes: dict[tuple[str, Support, str, str], list[str]] = {}
    for fact in facts:
        verdict = fact.verdict
        nodes.setdefault((fact.operator, verdict.support, verdict.reason, verdict.source), []).append(fact.node)
    ordered = sorted(nodes.items(), key=lambda item: (_ORDER.index(item[0][1]), -len(item[1]), item[0][0]))
    return tuple(
        OperatorSupport(operator=operator, support=support.value, nodes=names[:MOST_NODES], count=len(names), reason=reason, source=source)
        for (operator, support, reason, source), names in ordered
    )
