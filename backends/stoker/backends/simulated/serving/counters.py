"""`DeviceCounters`: what simulated devices did, by device number; no counter falls while models come and go."""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Source = TypeVar("Source", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """Batches of one device.

    Attributes:
        batches: Batches that ended, failed ones included.
        failed_batches: Those that failed.
        queue_wait_s: Time that batches waited for earlier batches of their executable, in seconds.
    """

    batches: int = 0
    failed_batches: int = 0
    queue_wait_s: float = 0.0


class DeviceCounters(Generic[Source, Key]):
    """Any thread may use it.

    A source (a device, an engine) counts by itself. While it is attached its counts are read from it; when it is retired, they are kept.
    """

    def __init__(self, read: Callable[[Source], Mapping[Key, float]]) -> None:
        """Reads the counts of a source by `read`."""
        self._read = read
        self._lock = threading.Lock()
        self._attached: set[Source] = set()
        self._retired: dict[Key, float] = {}
        self._batches: dict[int, BatchCounts] = {}
        self._faults: Counter[tuple[int, str]] = Counter()
        self._resets: Counter[int] = Counter()

    def attach(self, source: Source) -> None:
        """Includes the counts of `source` from now on."""
        with self._lock:
            self._attached.add(source)

    def retire(self, source: Source) -> None:
        """Keeps the counts of `source`, which is about to be released. A second call does nothing."""
        counts = self._read(source)
        with self._lock:
            if source in self._attached:
                self._attached.remove(source)
                _add(self._retired, counts)

    def totals(self) -> Mapping[Key, float]:
        """The counts of all sources, attached and retired."""
        with self._lock:
            totals = dict(self._retired)
            for source in self._attached:
                _add(totals, self._read(source))
            return totals

    def count_batch(self, device: int, *, has_failed: bool, queue_wait_s: float = 0.0) -> None:
        """Adds a batch."""
        with self._lock:
            now = self._batches.get(device, BatchCounts())
            self._batches[device] = replace(
                now,
                batches=now.batches + 1,
                failed_batches=now.failed_batches + has_failed,
                queue_wait_s=now.queue_wait_s + queue_wait_s,
            )

    def count_fault(self, device: int, kind: str) -> None:
        """Adds a failure of the device or of a program on it."""
        with self._lock:
            self._faults[device, kind] += 1

    def count_reset(self, device: int) -> None:
        """Adds a reset of the device."""
        with self._lock:
            self._resets[device] += 1

    def batches(self) -> Mapping[int, BatchCounts]:
        """By device."""
        with self._lock:
            return dict(self._batches)

    def faults(self) -> Mapping[tuple[int, str], int]:
        """By device and kind."""
        with self._lock:
            return dict(self._faults)

    def resets(self) -> Mapping[int, int]:
        """By device."""
        with self._lock:
            return dict(self._resets)


def _add(totals: dict[Key, float], counts: Mapping[Key, float]) -> None:
    for key, count in counts.items():
        totals[key] = totals.get(key, 0) + count
