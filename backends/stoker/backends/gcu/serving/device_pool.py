"""`DevicePool`: the simulated cards of the server, and what is loaded on them."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime import DeviceFailed, StatusError
from stoker.backends.gcu.serving.device_counters import DeviceCounters
from stoker.backends.gcu.serving.mount import Mount
from stoker.backends.gcu.serving.placement import ClusterAllocator, Lease, Place
from stoker.backends.gcu.serving.sample_layout import SampleLayout
from stoker.backends.gcu.serving.settings import CardSettings

log = logging.getLogger("stoker.backends.topsinference")


class DevicePool:
    """Any thread may use it.

    Attributes:
        settings: What the operator said.
        system: The cards.
        allocator: Who has which clusters.
        counters: What was done.
    """

    def __init__(self, settings: CardSettings) -> None:
        """Makes the cards that `settings` describe."""
        self.settings = settings
        self.system = settings.system()
        self.allocator = ClusterAllocator(settings.cards, settings.clusters)
        self.counters = DeviceCounters()
        self._lock = threading.Lock()
        self._executables: dict[Path, tuple[GcuExecutable, int]] = {}

    @property
    def failed_cards(self) -> frozenset[int]:
        """Those that no reset brings back."""
        return frozenset(each.id for each in self.system.cards if each.failure is not None and each.failure.is_lost)

    def place(self, lease: Lease, *, card: int | None, siblings: int, wanted: int | None) -> Place:
        """Clusters for one more instance of `lease`; see `ClusterAllocator.take`.

        Raises:
            ModelLoadError: there are not enough, or the card is lost.
        """
        return self.allocator.take(lease, card=card, siblings=siblings, wanted=wanted, unusable=self.failed_cards)

    def mount(self, place: Place, executable: GcuExecutable, layout: SampleLayout, depth: int) -> Mount:
        """Puts `executable` on the clusters of `place`; resets their card first if it asks for it. Give it back with `unmount`.

        Raises:
            StatusError: the card is lost, or has not enough memory.
        """
        self._revive(place.card)
        mount = Mount(self.system, place, executable, layout, depth, moves_bytes=self.settings.moves_bytes)
        self.counters.attach(mount.engine)
        return mount

    def unmount(self, mount: Mount) -> None:
        """Takes everything of `mount` off its card. A second call does nothing."""
        self.counters.retire(mount.engine)  # first: an engine that is unloaded tells nothing any more
        mount.close()

    def shared_executable(self, path: Path, read: Callable[[], GcuExecutable]) -> GcuExecutable:
        """What `read` gives for the file at `path`, read once for all instances of a version; give it back with `forget_executable`.

        Raises:
            ModelLoadError: it cannot be read.
        """
        with self._lock:
            executable, users = self._executables.get(path, (None, 0))
            executable = executable or read()
            self._executables[path] = (executable, users + 1)
            return executable

    def forget_executable(self, path: Path) -> None:
        """Gives back what `shared_executable` gave."""
        with self._lock:
            executable, users = self._executables[path]
            if users > 1:
                self._executables[path] = (executable, users - 1)
            else:
                del self._executables[path]

    def _revive(self, number: int) -> None:
        """Resets the card if that cures it. Every engine and buffer on it is gone then; their instances load them again."""
        card = self.system.cards[number]
        with self._lock:
            if card.failure is not None and not card.failure.is_lost:
                log.warning("simulated card %d is reset: %s", number, card.failure.message)
                card.reset()
                self.counters.count_reset(number)


def load_failure(error: StatusError, place: Place) -> ModelLoadError:
    """What is said of a load that the card refused."""
    where = f"simulated card {place.card}, clusters {', '.join(map(str, place.clusters))}"
    hint = "; --backend-config=topsinference,cards=N adds cards" if not isinstance(error, DeviceFailed) else ""
    return ModelLoadError(f"the engine cannot be loaded to {where}: {error}{hint}")
