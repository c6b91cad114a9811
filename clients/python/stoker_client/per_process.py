"""`PerProcess`: what a process must not share with the children that are forked from it, such as connections and threads."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from stoker_client.errors import ClientClosed

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A thing of this process; a child makes its own at its first use. Thread-safe, without a lock: a fork would copy it as it is.

    Attributes:
        is_closed: Whether `close` was called.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Makes the one of this process at once."""
        self._make = make
        self._of: dict[int, T] = {os.getpid(): make()}
        self.is_closed = False

    def get(self) -> T:
        """The one of this process.

        Raises:
            ClientClosed: it was closed.
        """
        if self.is_closed:
            raise ClientClosed
        pid = os.getpid()
        mine = self._of.get(pid)
        # The parent's stays as it is: closing it here would end its sessions.
        return self._of.setdefault(pid, self._make()) if mine is None else mine

    def close(self) -> list[T]:
        """Nothing is given out any more; returns what this process has made, for the caller to close."""
        self.is_closed = True
        mine = self._of.pop(os.getpid(), None)
        return [] if mine is None else [mine]
