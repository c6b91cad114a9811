"""`LoadedExecutable`: one executable on one device, and the models that use it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, ServingError, Unavailable
from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.runtime import (
    ApplicationRuntimeError,
    Device,
    IpuRuntimeError,
    ModelRunner,
    RecoverableRuntimeError,
    SessionStopped,
    UnknownRuntimeError,
)
from stoker.backends.ipu.serving.device_counters import DeviceCounters
from stoker.backends.ipu.serving.parameters import RunOptions
from stoker.backends.ipu.timing import load_time_s

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lease:
    """Whose instance uses a resident executable.

    Attributes:
        model: Its name.
        version: Its version.
        sub_graph: Index of the sub-graph it serves.
    """

    model: str
    version: int
    sub_graph: int


class LoadedExecutable:
    """Any thread may run batches on it; its tenants are the fleet's to change.

    Attributes:
        digest: Of the executable's file.
        options: How it runs.
        device: Where.
        tenants: Who uses it.
    """

    def __init__(
        self, runner: ModelRunner, *, digest: str, options: RunOptions, device: Device, counters: DeviceCounters, clock: Clock
    ) -> None:
        self.digest = digest
        self.options = options
        self.device = device
        self.tenants: list[Lease] = []
        self._runner = runner
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._in_flight = 0
        self._last_end_ns = clock.now_ns()

    @property
    def name(self) -> str:
        """Of the executable."""
        return self._runner.executable.name

    @property
    def load_s(self) -> float:
        """Modelled time of loading it to the device, in seconds."""
        return load_time_s(self._runner.executable.program)

    @property
    def is_usable(self) -> bool:
        """Whether the device is not beyond what a reset cures."""
        return not isinstance(self._runner.error, UnknownRuntimeError)

    @property
    def in_flight(self) -> int:
        """Batches on their way."""
        return self._in_flight

    @property
    def models(self) -> list[str]:
        """Names of the models that use it."""
        return sorted({lease.model for lease in self.tenants})

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Runs one call of the main program and waits for it; several threads keep the device's rings filled.

        Args:
            inputs: By anchor, in the shape of a whole call; of a fused executable also its index.

        Returns:
            The outputs of the sub-graph by anchor, likewise: fresh memory.

        Raises:
            ServingError: the device or the program failed; UNAVAILABLE where trying again may help, or another device is needed.
        """
        begin_ns = self._clock.now_ns()
        with self._lock:
            self._in_flight += 1
        has_failed = True
        try:
            outputs = self._runner.execute_async(inputs).result()
            has_failed = False
        except IpuRuntimeError as error:
            raise self._failure(error) from error
        except PopefError as error:  # while the executable was loaded again; its text would show a path of this host
            raise BackendFailed(f"the executable cannot be loaded again: {error.blob or 'its file'}: {error.reason}") from error
        finally:
            end_ns = self._clock.now_ns()
            with self._lock:
                self._in_flight -= 1
                # It was its turn when the batch before it had ended.
                wait_ns = max(0, self._last_end_ns - begin_ns)
                self._last_end_ns = end_ns
            self._counters.count_batch(self.device.id, queue_wait_s=wait_ns / 1e9, has_failed=has_failed)
        return outputs

    def close(self) -> None:
        """Takes the executable off the device."""
        self._runner.close()

    def _failure(self, error: IpuRuntimeError) -> ServingError:
        where = f"simulated IPU {self.device.id}"
        if isinstance(error, SessionStopped):
            return Unavailable(f"{where} stopped before this batch ran: {error}")
        if isinstance(error, RecoverableRuntimeError):
            self._counters.count_fault(self.device.id, error.action.value)
            hint = "it is reset before the next batch" if self.options.auto_reset else "auto_reset is off: load the model again"
            return Unavailable(f"{where} failed: {error}; {hint}")
        if isinstance(error, ApplicationRuntimeError):
            self._counters.count_fault(self.device.id, "application")
            return BackendFailed(f"{where}: {error}")
        self._counters.count_fault(self.device.id, "unknown")
        return Unavailable(f"{where} failed: {error}")
