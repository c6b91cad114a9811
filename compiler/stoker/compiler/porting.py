"""The porting check: which nodes of a source model the vendor's tools compile for a device, and which only this compiler does.

`Target.porting` returns a `PortingFact` for each node. `porting_walk.py` walks the model for targets that judge by tables.
"""

import enum
from dataclasses import dataclass


class Support(enum.Enum):
    """Whether a node can be compiled for a device, and by which tools."""

    VENDOR = "vendor"
    """The vendor's tools take it, by the vendor's public documentation or source."""

    UNPUBLISHED = "unpublished"
    """This compiler takes it. The vendor publishes no list of operators, so that the vendor's tools may reject it."""

    LOWERED = "lowered"
    """The vendor's tools reject it. This compiler computes it with other operators of the device."""

    IMPOSSIBLE = "impossible"
    """Neither the vendor's tools nor this compiler take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The support of one node.

    Attributes:
        support: By which tools the node can be compiled.
        reason: Why, as a clause without a full stop: `PopRT's pass replace_hardswish rewrites it`, `PopART has no DFT`.
        source: Where the vendor publishes its part of the fact: a page or a file; empty if the vendor publishes nothing.
        not_simulated: Why this compiler rejects a node that the vendor's tools take; empty for all other nodes.
    """

    support: Support
    reason: str
    source: str = ""
    not_simulated: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortingFact:
    """The support of one node of a source model.

    Attributes:
        node: Name of the node, or else of its first output.
        op_type: Operator, with its domain unless that is ONNX's own: `Conv`, `com.microsoft::Gelu`.
        opset: Version of the operator's domain that the model imports; 0 if it imports none.
        version: Version of ONNX's definition of the operator at that opset, 13 of `Resize-13`; 0 for an operator that ONNX does not define.
        verdict: The support, with reason and source.
        count: Number of nodes that the fact holds for: more than 1 where only a record of the source's operators is left.
    """

    node: str
    op_type: str
    opset: int
    version: int
    verdict: Verdict
    count: int = 1

    @property
    def operator(self) -> str:
        """The operator with the version of its definition, such as `Resize-13`."""
        return f"{self.op_type}-{self.version}" if self.version else self.op_type
