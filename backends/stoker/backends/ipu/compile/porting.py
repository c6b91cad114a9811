"""The porting check for the IPU: PopART's operators, PopRT's documented passes, and what this compiler lowers."""

import functools

import onnx_ir as ir

from stoker.backends.ipu.compile.supported import operator_reason
from stoker.compiler.porting import Support, Verdict
from stoker.compiler.porting_walk import lowering_reason


def judged(node: ir.Node, version: int, *, has_custom_libraries: bool = False) -> Verdict:
    """Returns the support of a node of the source model; `version` is that of its operator."""
    reason = lowering_reason(node, version, functools.partial(operator_reason, has_custom_libraries=has_custom_libraries))
    if reason:
        return Verdict(support=Support.IMPOSSIBLE, reason=reason)
    return Verdict(support=Support.LOWERED, reason="this compiler takes it")
