"""The limits of the device, and the status that the vendor's library would return.

TopsInference reports by a status (`stoker.backends.gcu.status`). Errors here carry the one that fits; `with_status` puts its name behind
our own words, so that people who know the vendor's logs find their way.
"""

import contextlib
import enum
from collections.abc import Iterator, Sequence

from stoker.backends.gcu.status import Status
from stoker.compiler.errors import CompileError, OptionError, ShapeError, Unsupported, UnsupportedOperators

_MARK = "[TopsInference:"


class VendorStatus(enum.Enum):
    """Why a model is refused; the value is the vendor's code."""

    UNSUPPORTED_MODEL = Status.TIF_PARSER_UNSUPPORTED_MODEL
    UNSUPPORTED_OPERATOR = Status.TIF_UN_SUPPORTED_OPERATOR
    UNSUPPORTED_SHAPE = Status.TIF_MIS_MATCHED_SHAPE_OR_DIM
    UNSUPPORTED_TYPE = Status.TIF_UN_SUPPORTED_DATA_TYPE
    OUT_OF_MEMORY = Status.TIF_ALLOCATE_FAILED
    INVALID_OPTION = Status.TIF_INVALID_PARAM
    BUILD_FAILED = Status.TIF_OPTIMIZER_BUILD_FAILED


class GcuCompileError(CompileError):
    """A limit of the device is exceeded.

    Attributes:
        status: The status that the vendor's library would return.
    """

    def __init__(self, reason: str, status: VendorStatus) -> None:
        super().__init__(reason)
        self.status = status


class GcuUnsupportedOperators(UnsupportedOperators):
    """All nodes that the device cannot run, at once.

    Attributes:
        status: The status that the vendor's library would return.
    """

    def __init__(self, card: str, operators: Sequence[Unsupported]) -> None:
        super().__init__(f"the GCU ({card})", operators)
        self.status = VendorStatus.UNSUPPORTED_OPERATOR


def status_of(error: CompileError) -> VendorStatus:
    """The status that the vendor's library would return for the model or option that `error` is about."""
    if isinstance(error, GcuCompileError | GcuUnsupportedOperators):
        return error.status
    if isinstance(error, ShapeError):
        return VendorStatus.UNSUPPORTED_SHAPE
    return VendorStatus.INVALID_OPTION if isinstance(error, OptionError) else VendorStatus.BUILD_FAILED


@contextlib.contextmanager
def with_status() -> Iterator[None]:
    """Errors of the block say the vendor's status name behind their own words; they stay of their kind."""
    try:
        yield
    except CompileError as error:
        add_status(error)
        raise


def add_status(error: CompileError) -> None:
    """Puts the vendor's status name behind the text of `error`, once."""
    if _MARK not in str(error):
        error.args = (f"{error} {_MARK} {status_of(error).value.name}]",)
