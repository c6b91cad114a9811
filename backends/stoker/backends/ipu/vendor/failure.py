"""`VendorRunFailed`: a failure of the vendor's runtime, by the error classes that its documentation names.

application_runtime_error    the request or its use is wrong
recoverable_runtime_error    the device needs an action: IPU_RESET, LINK_RESET, PARTITION_RESET or FULL_RESET
unknown_runtime_error        anything else of the device
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
APPLICATION: Final = "application"
UNKNOWN: Final = "unknown"
IPU_RESET: Final = "IPU_RESET"
_ACTION = re.compile(r"(IPU|LINK|PARTITION|FULL)_RESET")
_RECOVERABLE = frozenset({"recoverable_runtime_error", "RecoverableRuntimeError"})
_APPLICATION = frozenset({"application_runtime_error", "ApplicationRuntimeError"})


class VendorRunFailed(Exception):
    """A failed call.

    Attributes:
        kind: `application`, `unknown`, or the recovery action that the vendor's error names, such as `IPU_RESET`.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def called(function: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """Calls a function of the vendor's runtime.

    Raises:
        VendorRunFailed: it failed.
    """
    try:
        return function(*arguments, **named)
    except Exception as error:
        # Classes of the vendor's module cannot be named without importing it, and it may raise others.
        raise VendorRunFailed(str(error) or type(error).__name__, _kind(error)) from error


def _kind(error: Exception) -> str:
    names = {each.__name__ for each in type(error).__mro__}
    if names & _RECOVERABLE:
        action = getattr(error, "action", "")
        stated = _ACTION.search(f"{getattr(action, 'name', action)} {error}")
        return stated.group() if stated else UNKNOWN
    return APPLICATION if names & _APPLICATION else UNKNOWN
