"""`ClusterLocks`: who runs on which clusters of a card. Runs that share no cluster go on side by side; the others take turns."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class ClusterLocks:
    """First come, first served, for each set of clusters. Any thread may use it."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self._queue: list[tuple[object, frozenset[int]]] = []
        self._busy: set[int] = set()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    @contextmanager
    def held(self, clusters: Sequence[int], is_stopped: Callable[[], bool]) -> Iterator[bool]:
        """Has all of `clusters` while the block runs.

        Yields:
            False if `is_stopped` became true before they were free: the block has nothing then. Whoever stops it notifies `condition`.
        """
        wanted = frozenset(clusters)
        ticket = (object(), wanted)
        with self.condition:
            self._queue.append(ticket)
            self.condition.notify_all()
            try:
                self.condition.wait_for(lambda: is_stopped() or self._is_next(ticket))
                is_held = not is_stopped()
                if is_held:
                    self._busy |= wanted
            finally:
                self._queue.remove(ticket)
                self.condition.notify_all()
        try:
            yield is_held
        finally:
            if is_held:
                with self.condition:
                    self._busy -= wanted
                    self.condition.notify_all()

    def _is_next(self, ticket: tuple[object, frozenset[int]]) -> bool:
        """Whether its clusters are free, and no earlier caller waits for one of them."""
        wanted = ticket[1]
        if wanted & self._busy:
            return False
        for earlier in self._queue:
            if earlier is ticket:
                return True
            if earlier[1] & wanted:
                return False
        return True
