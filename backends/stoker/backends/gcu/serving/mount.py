"""`Mount`: all that one instance has on a card: clusters, an engine, and a slot for each batch in flight."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime import GcuSystem
from stoker.backends.gcu.serving.placement import Place
from stoker.backends.gcu.serving.sample_layout import SampleLayout
from stoker.backends.gcu.serving.slot import Slot


class Mount:
    """Any thread may use it; whoever closes it sees to it that nobody begins anything new.

    Attributes:
        device: The clusters.
        engine: The executable on them.
    """

    def __init__(
        self, system: GcuSystem, place: Place, executable: GcuExecutable, layout: SampleLayout, depth: int, *, moves_bytes: bool
    ) -> None:
        """Loads `executable` on the clusters of `place`, with slots for `depth` batches, which see `moves_bytes`.

        Raises:
            StatusError: the card cannot be used, or has not so much memory; nothing is left on it then.
        """
        self.device = system.acquire(place.card, place.clusters)
        try:
            self._generation = self.device.card.generation
            self.engine = self.device.load(executable)
            self._slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
            for _ in range(depth):
                self._slots.put(Slot(self.device, self.engine, layout, moves_bytes=moves_bytes))
        except BaseException:
            self.device.release()
            raise

    @property
    def is_usable(self) -> bool:
        """Whether its card works, and was not reset since."""
        card = self.device.card
        return not self.device.is_released and card.failure is None and card.generation == self._generation

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """A slot of one's own; waits for one while all are taken."""
        slot = self._slots.get()
        try:
            yield slot
        finally:
            self._slots.put(slot)

    def close(self) -> None:
        """Ends its streams, hanging ones included, and gives everything back."""
        self.device.release()
