"""What all backends of devices use: the devices (`DevicePool`), the programs in their memory (`LoadedExecutable`), and the record of what
the devices did (`DeviceCounters`).
"""

import abc
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from stoker.backends.api.backend import Figure
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ServingError

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
        """The number of batches, by device."""
        with self._lock:
            return dict(self._batches)

    def faults(self) -> Mapping[tuple[int, str], int]:
        """The number of faults, by device and kind."""
        with self._lock:
            return dict(self._faults)

    def resets(self) -> Mapping[int, int]:
        """The number of resets, by device."""
        with self._lock:
            return dict(self._resets)


def _add(totals: dict[Key, float], counts: Mapping[Key, float]) -> None:
    for key, count in counts.items():
        totals[key] = totals.get(key, 0) + count


class LoadedExecutable(abc.ABC):
    """An executable on one device. Thread-safe."""

    #: Errors of the device's runtime, which `failure` translates.
    device_errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, device_number: int, counters: DeviceCounters[Any, Hashable] | DeviceCounters[Any, Any], clock: Clock) -> None:
        """Stands for device `device_number`; `clock` times the queue wait."""
        self.device_number = device_number
        self._counters = counters
        self._clock = clock
        self._batch_lock = threading.Lock()
        self._in_flight = 0
        self._last_end_ns = clock.now_ns()

    @property
    def in_flight(self) -> int:
        """Batches that have begun and not ended."""
        return self._in_flight

    @abc.abstractmethod
    def failure(self, error: Exception) -> ServingError:
        """The error for the clients of a batch that ended with `error`; counts it as a fault of the device where it is one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Removes the program from the device."""

    @contextmanager
    def counted_batch(self) -> Iterator[None]:
        """Counts the batch that runs in this context and translates its error.

        Raises:
            ServingError: the batch raised one of `device_errors`; see `failure`.
        """
        begin_ns = self._clock.now_ns()
        with self._batch_lock:
            self._in_flight += 1
        has_failed = True
        try:
            yield
            has_failed = False
        except self.device_errors as error:
            raise self.failure(error) from error
        finally:
            end_ns = self._clock.now_ns()
            with self._batch_lock:
                self._in_flight -= 1
                # Its turn began when the batch before it ended.
                wait_ns = max(0, self._last_end_ns - begin_ns)
                self._last_end_ns = end_ns
            self._counters.count_batch(self.device_number, queue_wait_s=wait_ns / 1e9, has_failed=has_failed)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one version's instances to use devices of the pool."""

    model: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of '{self.model}'"


class DevicePool(abc.ABC):
    """Any thread may use it."""

    @abc.abstractmethod
    def metrics(self) -> Iterator[Figure]:
        """All metrics of the devices, grouped by name."""

    @abc.abstractmethod
    def models(self) -> Sequence[str]:
        """Names of the loaded models; a name may occur several times."""

    @abc.abstractmethod
    def hardware(self) -> str:
        """The devices, for a notice: `simulated IPUs, of which there are 4`."""

    @abc.abstractmethod
    def sharing_notices(self) -> Iterator[str]:
        """One line for each device on which models compete."""

    @abc.abstractmethod
    def models_without_numerics(self) -> Sequence[str]:
        """Names of the loaded models whose outputs are zeros."""

    def notices(self, runtime: str) -> Iterator[str]:
        """Notices about the loaded models for the operator, at the start of the server: one line each. `runtime` describes the runtime."""
        yield f"{quoted(self.models())} on {self.hardware()} (runtime: {runtime})"
        yield from self.sharing_notices()
        if zeros := self.models_without_numerics():
            yield f"numerics are off for {quoted(zeros)}: all outputs are zeros"


def quoted(names: Iterable[str]) -> str:
    """The names in quotes, each once."""
    return ", ".join(f"'{name}'" for name in dict.fromkeys(names))
