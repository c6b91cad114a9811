"""`PerProcess`: an object that forked processes must not share, such as connections and threads."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from stoker_client.errors import ClientClosed

T = TypeVar("T")


class PerProcess(Generic[T]):
    """An object of this process; a forked process makes another one at its first use. Thread-safe, without a lock: a fork would copy its
    state.

    Attributes:
        is_closed: Whether `close` was called.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Makes this process's object at once."""
        self._make = make
        self._of: dict[int, T] = {os.getpid(): make()}
        self.is_closed = False

    def get(self) -> T:
        """The object of this process.

        Raises:
            ClientClosed: `close` was called.
        """
        if self.is_closed:
            raise ClientClosed
        pid = os.getpid()
        mine = self._of.get(pid)
        # The parent's object stays unchanged: closing it here would end the parent's sessions.
        return self._of.setdefault(pid, self._make()) if mine is None else mine

    def close(self) -> list[T]:
        """Ends the use; returns the objects that this process has made, for the caller to close."""
        self.is_closed = True
        mine = self._of.pop(os.getpid(), None)
        return [] if mine is None else [mine]
