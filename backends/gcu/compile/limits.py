"""What the device cannot hold or do, and what the vendor's library would answer.

TopsInference reports by a status. Of the vendor's codes only some meanings are known publicly; a failure here carries the one that fits, in
brackets behind our own words, so that people who know the vendor's logs find their way.
"""

import enum
from collections.abc import Sequence

from compiler.errors import CompileError, Unsupported, UnsupportedOperators


class VendorStatus(enum.Enum):
    """What TopsInference would answer; the values are the meanings as its users know them."""

    UNSUPPORTED_MODEL = "unsupported model"
    UNSUPPORTED_OPERATOR = "unsupported operator"
    UNSUPPORTED_SHAPE = "unsupported dynamic shape"
    UNSUPPORTED_TYPE = "unsupported data type"
    OUT_OF_MEMORY = "device memory allocation failed"


class GcuCompileError(CompileError):
    """A limit of the device is exceeded.

    Attributes:
        status: What the vendor's library would answer.
    """

    def __init__(self, reason: str, status: VendorStatus) -> None:
        super().__init__(with_status(reason, status))
        self.status = status


class GcuUnsupportedOperators(UnsupportedOperators):
    """All nodes that the device cannot run, at once.

    Attributes:
        status: What the vendor's library would answer.
    """

    def __init__(self, card: str, operators: Sequence[Unsupported]) -> None:
        super().__init__(f"the GCU ({card})", operators)
        self.status = VendorStatus.UNSUPPORTED_OPERATOR
        self.args = (with_status(str(self), self.status),)


def with_status(reason: str, status: VendorStatus) -> str:
    """`reason` with the vendor's name for it behind."""
    return f"{reason} [TopsInference: {status.value}]"
