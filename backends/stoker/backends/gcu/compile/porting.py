"""The porting check for the GCU. The vendor publishes no list of operators, so that no node is known to port."""

from stoker.backends.gcu.compile.limits import operator_reason
from stoker.compiler.porting import Support, Verdict
from stoker.compiler.porting_walk import SourceNode, lowering_reason

_UNPUBLISHED = "this compiler takes it; the vendor publishes no list of operators"


def judged(source: SourceNode) -> Verdict:
    """Returns the support of a node of the source model."""
    reason = lowering_reason(source, operator_reason)
    return Verdict(support=Support.IMPOSSIBLE, reason=reason) if reason else Verdict(support=Support.UNPUBLISHED, reason=_UNPUBLISHED)
