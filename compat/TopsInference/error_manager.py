"""`ErrorManager` records errors for later inspection. The same errors are also raised where they occur."""

import functools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from stoker.backends.gcu.runtime.errors import Status, StatusError

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")
#: Maximum number of errors; the oldest are dropped.
_KEPT = 1000


class ErrorManager:
    """The errors of all threads since its creation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: deque[StatusError] = deque(maxlen=_KEPT)
        _managers.add(self)

    def get_error_count(self) -> int:
        """Returns the number of recorded errors."""
        return len(self._errors)

    def get_error_status(self, index: int) -> Status:
        """Returns the status of the error with that index, from 0.

        Raises:
            StatusError: there is none.
        """
        return self._error(index).status

    def get_error_msg(self, index: int) -> str:
        """Returns the text of the error with that index, from 0.

        Raises:
            StatusError: there is none.
        """
        return self._error(index).message

    def report_status(self, index: int) -> bool:
        """Logs the error with that index.

        Raises:
            StatusError: there is none.
        """
        logger.error("%s", self._error(index))
        return True

    def clear(self) -> bool:
        """Removes all errors."""
        with self._lock:
            self._errors.clear()
        return True

    def record(self, error: StatusError) -> None:
        """Records `error` once."""
        with self._lock:
            if not any(each is error for each in self._errors):
                self._errors.append(error)

    def _error(self, index: int) -> StatusError:
        with self._lock:
            if not 0 <= index < len(self._errors):
                raise StatusError(Status.TIF_INVALID_PARAM, f"there is no error {index}; there are {len(self._errors)}, counted from 0")
            return self._errors[index]


_managers: "weakref.WeakSet[ErrorManager]" = weakref.WeakSet()


def create_error_manager() -> ErrorManager:
    """Returns a manager that records all failures from now on."""
    return ErrorManager()


def record(error: StatusError) -> None:
    """Records `error` in every manager."""
    for manager in tuple(_managers):
        manager.record(error)


def recorded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wraps `function` so that every manager records its failures before they are raised."""

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*arguments, **named)
        except StatusError as error:
            record(error)
            raise

    return call
