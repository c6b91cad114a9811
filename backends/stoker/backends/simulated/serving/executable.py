"""`LoadedExecutable`: a compiled program in the memory of one simulated device, with the counts of its batches."""

import abc
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ServingError
from stoker.backends.simulated.serving.counters import DeviceCounters


class LoadedExecutable(abc.ABC):
    """Any thread may run batches on it."""

    #: Errors of the device's runtime, which `failure` translates.
    device_errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, device_number: int, counters: DeviceCounters[Any, Hashable] | DeviceCounters[Any, Any], clock: Clock) -> None:
        """On device `device_number`; `clock` times the queue wait."""
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
