"""`VendorCallFailed`: a call of the vendor's library that failed, with the vendor's status if the library states one.

The Python interface of the library does not document how it reports failures. Three forms are recognised: an exception with an attribute
`status`, an exception whose text names a status (`TIF_...`), and the result False or a status other than `TIF_SUCCESS`.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from stoker.backends.gcu.status import Status

_T = TypeVar("_T")
_STATUS_NAME = re.compile(r"TIF_[A-Z_]+")
#: Statuses after which the library or the card must be set up again. The batch is not their cause.
DEVICE_STATUSES = frozenset(
    {
        Status.TIF_NOT_INITIALIZED,
        Status.TIF_INTERNAL_ERROR,
        Status.TIF_LICENSE_ERROR,
        Status.TIF_RUNTIME_PREREQUISITE_MISSING,
        Status.TIF_TERMINATED,
    }
)


class VendorCallFailed(Exception):
    """A failed call.

    Attributes:
        status: The vendor's status; None if the library states none.
    """

    def __init__(self, message: str, status: Status | None = None) -> None:
        super().__init__(message if status is None or status.name in message else f"{message} [{status.name}]")
        self.status = status

    @property
    def kind(self) -> str:
        """The status's name, for metrics."""
        return "unknown" if self.status is None else self.status.name


def called(function: Callable[..., _T], *arguments: Any) -> _T:
    """Calls a function of the library.

    Raises:
        VendorCallFailed: the call failed in one of the three forms.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        result = function(*arguments)
    except Exception as error:
        # The library documents no exception classes.
        raise VendorCallFailed(f"{name}: {str(error) or type(error).__name__}", _status_of(error)) from error
    status = _status(getattr(result, "name", None))
    if result is False or (status is not None and status is not Status.TIF_SUCCESS):
        raise VendorCallFailed(f"{name} reported a failure", status)
    return result


def _status_of(error: Exception) -> Status | None:
    stated = getattr(error, "status", None)
    if isinstance(stated, int) and stated in Status.__members__.values():
        return Status(stated)
    named = _STATUS_NAME.search(str(error))
    return _status(getattr(stated, "name", None)) or (_status(named.group()) if named else None)


def _status(name: object) -> Status | None:
    return Status.__members__.get(name) if isinstance(name, str) else None
