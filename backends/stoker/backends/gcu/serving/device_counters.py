"""`DeviceCounters`: what serving did on the cards of the server; never falls while models come and go."""

import threading
from collections import Counter
from collections.abc import Mapping

from stoker.backends.gcu.runtime import Engine


class DeviceCounters:
    """Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: set[Engine] = set()
        self._retired: Counter[tuple[int, int]] = Counter()
        self._batches: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._faults: Counter[tuple[int, str]] = Counter()
        self._resets: Counter[int] = Counter()

    def attach(self, engine: Engine) -> None:
        """Counts the runs of `engine` from here on."""
        with self._lock:
            self._engines.add(engine)

    def retire(self, engine: Engine) -> None:
        """Keeps what `engine`, which is about to be unloaded, has counted. A second call does nothing."""
        runs = engine.runs
        with self._lock:
            if engine in self._engines:
                self._engines.remove(engine)
                self._add_runs(self._retired, engine, runs)

    def count_batch(self, card: int, *, has_failed: bool) -> None:
        """Adds a batch of requests."""
        with self._lock:
            self._batches[card] += 1
            self._failed[card] += has_failed

    def count_fault(self, card: int, status: str) -> None:
        """Adds a failure, by the name of its status."""
        with self._lock:
            self._faults[card, status] += 1

    def count_reset(self, card: int) -> None:
        """Adds a reset."""
        with self._lock:
            self._resets[card] += 1

    def runs(self) -> Mapping[tuple[int, int], int]:
        """Runs by card and compiled batch size."""
        with self._lock:
            total = self._retired.copy()
            for engine in self._engines:
                self._add_runs(total, engine, engine.runs)
            return dict(total)

    def batches(self) -> Mapping[int, int]:
        """Batches of requests by card, failed ones included."""
        with self._lock:
            return dict(self._batches)

    def failed_batches(self) -> Mapping[int, int]:
        """Those that failed."""
        with self._lock:
            return dict(self._failed)

    def faults(self) -> Mapping[tuple[int, str], int]:
        """Failures by card and status."""
        with self._lock:
            return dict(self._faults)

    def resets(self) -> Mapping[int, int]:
        """Resets by card."""
        with self._lock:
            return dict(self._resets)

    @staticmethod
    def _add_runs(total: Counter[tuple[int, int]], engine: Engine, runs: Mapping[int, int]) -> None:
        for size, count in runs.items():
            total[engine.device.card.id, size] += count
