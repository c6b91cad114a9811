"""`PopefExecutable`: one PopEF executable on one simulated device, and the models that use it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, ServingError, Unavailable
from stoker.backends.devices.pool import DeviceCounters, Lease, LoadedExecutable
from stoker.backends.ipu.popef.schema import PopefError
from stoker.backends.ipu.runtime import (
    ApplicationRuntimeError,
    Device,
    IpuRuntimeError,
    ModelRunner,
    RecoverableRuntimeError,
    SessionStopped,
    UnknownRuntimeError,
)
from stoker.backends.ipu.serving.options import RunOptions
from stoker.backends.ipu.timing import load_time_s

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GraphLease(Lease):
    """The right of a version's instance to use a loaded executable.

    Attributes:
        sub_graph: Index of the sub-graph that it serves.
    """

    sub_graph: int


class PopefExecutable(LoadedExecutable):
    """Any thread may run batches on it; only the pool changes its leases.

    Attributes:
        digest: Digest of the executable's file.
        options: The options of its run.
        device: The device that it runs on.
        leases: The leases of the instances that use it.
    """

    device_errors: ClassVar = (IpuRuntimeError, PopefError)

    def __init__(
        self,
        runner: ModelRunner,
        *,
        digest: str,
        options: RunOptions,
        device: Device,
        counters: DeviceCounters[Device, tuple[int, str]],
        clock: Clock,
    ) -> None:
        super().__init__(device.id, counters, clock)
        self.digest = digest
        self.options = options
        self.device = device
        self.leases: list[GraphLease] = []
        self._runner = runner

    @property
    def name(self) -> str:
        """Name of the executable."""
        return self._runner.executable.name

    @property
    def load_s(self) -> float:
        """Modelled time of loading it to the device, in seconds."""
        return load_time_s(self._runner.executable.program)

    @property
    def is_usable(self) -> bool:
        """Whether the device works, or a reset can repair it."""
        return not isinstance(self._runner.error, UnknownRuntimeError)

    @property
    def models(self) -> list[str]:
        """Names of the models that use the executable."""
        return sorted({lease.model for lease in self.leases})

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Runs one call of the main program and waits for its end. Calls from several threads keep the device's rings filled.

        Args:
            inputs: Inputs by anchor, in the shape of a whole call; for a fused executable including its index.

        Returns:
            The outputs of the sub-graph by anchor, in the shape of a whole call, in new memory.

        Raises:
            ServingError: the device or the program failed; UNAVAILABLE if a retry or another device may help.
        """
        with self.counted_batch():
            return self._runner.execute_async(inputs).result()

    def close(self) -> None:
        self._runner.close()

    def failure(self, error: Exception) -> ServingError:
        where = f"simulated IPU {self.device.id}"
        if isinstance(error, PopefError):  # while the executable was loaded again; the error's text would show a path of this host
            return BackendFailed(f"the executable cannot be loaded again: {error.blob or 'its file'}: {error.reason}")
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
