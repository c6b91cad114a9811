"""The porting check for the GCU. The vendor publishes no list of operators, so that no node is known to port."""

import onnx_ir as ir

from stoker.backends.gcu.compile.limits import operator_reason
from stoker.compiler.porting import Support, Verdict
from stoker.compiler.porting_walk import lowering_reason

_UNPUBLISHED = "this compiler takes it; the vendor publishes no list of operators"


def judged(node: ir.Node, version: int) -> Verdict:
    """Returns the support of a node of the source model; `version` is that of its operator."""
    reason = lowering_reason(node, version, operator_reason)
    return Verdict(support=Support.IMPOSSIBLE, reason=reason) if reason else Verdict(support=Support.UNPUBLISHED, reason=_UNPUBLISHED)
