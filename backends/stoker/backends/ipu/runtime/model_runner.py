"""`ModelRunner`: runs an executable on dictionaries of numpy arrays.

runner = ModelRunner("executable.popef")
outputs = runner.execute({"x": x})                  # allocated by the runner
runner.execute({"x": x}, {"y": y})                  # written into y
future = runner.execute_async({"x": x}, {"y": y})   # y is written when future.wait() returns
runner.close()

Loading happens once, in the constructor; the main programs run until `close`. Memory of whole batches that is contiguous goes to the
device and comes from it without a copy.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt

from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager
from stoker.backends.ipu.runtime.dynamic_batcher import DynamicBatcher
from stoker.backends.ipu.runtime.errors import IpuRuntimeError
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, Source
from stoker.backends.ipu.runtime.inference_future import (
    InferenceFuture,
    Outputs,
    PendingOutputs,
    RequestTracepoint,
    RequestTracepoints,
    Waiters,
)
from stoker.backends.ipu.runtime.replica import Replica
from stoker.backends.ipu.runtime.runner_io import MicroBatch, RunnerIo, Selection, cut, select
from stoker.backends.ipu.runtime.runtime_config import RuntimeConfig

Array = npt.NDArray[Any]


class ModelRunner:
    """An executable on one or several devices. Any thread may use it.

    Attributes:
        config: The configuration of the run.
        executable: The executable that it runs.
    """

    #: Whether a request that lacks streams of its sub-graph is rejected at once. Otherwise the device starves and the request times out.
    _is_strict = False

    def __init__(
        self,
        source: Executable | Source,
        config: RuntimeConfig | None = None,
        *,
        device: Device | None = None,
        device_manager: DeviceManager | None = None,
    ) -> None:
        """Loads the executable and starts it.

        Args:
            source: The executable, or its files.
            config: The configuration of the run.
            device: The device of the first copy. Other runners may share it, and it stays attached. None: a free device that fits.
            device_manager: The source of devices; by default that of this process's simulated system.

        Raises:
            ValueError: a field of the configuration is out of range.
            PopefError: the source cannot be read, or was compiled by another version.
            DeviceUnavailable: no device is free.
            IpuRuntimeError: no device fits, or the executable cannot be prepared.
        """
        self.config = config or RuntimeConfig()
        self.config.check()
        self.executable = Executable.of(source, check_package_hash=self.config.check_package_hash)
        self._io = RunnerIo(self.executable, self.config.frozen_inputs)
        self._waiters = Waiters()
        self._batcher: DynamicBatcher | None = None
        devices = {**({0: device} if device else {}), **self.config.replica_id_to_device}
        some = next(iter(devices.values()), None)
        manager = device_manager or (DeviceManager(some.system) if some else DeviceManager())
        is_traced = self.config.flush_on_waiting_outputs
        self._tracepoints = RequestTracepoints(manager.system.clock, self.config.request_tracepoints_buffer_size, is_on=is_traced)
        self._replicas: list[Replica] = []
        try:
            for number in range(self.config.replicas):
                self._replicas.append(Replica(self._io, self.config, manager, devices.get(number), self._waiters))
            if self.config.is_batching:
                self._batcher = DynamicBatcher(self._io, self.config, manager.system.clock, functools.partial(_submit, self._replicas))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the runner, one for each copy."""
        return tuple(replica.device for replica in self._replicas)

    def get_execute_inputs(self) -> list[DataDesc]:
        """The inputs that requests may name."""
        return self._io.describe_inputs()

    def get_model_inputs(self) -> list[DataDesc]:
        """The inputs that requests may name, and those that load programs read: weights that are not compiled in."""
        return self._io.describe_all_inputs()

    def get_execute_outputs(self) -> list[DataDesc]:
        """The outputs that requests may name."""
        return self._io.describe_outputs()

    def execute(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> Outputs:
        """Runs one request and waits for it.

        Args:
            inputs: By name: whole multiples of the compiled batch, or any size in `batching_dim`.
            outputs: Memory to write to, by name; None: allocated.

        Returns:
            The outputs by name: those of `outputs`, or all.

        Raises:
            ApplicationRuntimeError: the request does not fit the executable; `RequestTimeout` where only the device noticed.
            IpuRuntimeError: the device failed.
        """
        return self.execute_async(inputs, outputs).result()

    def execute_async(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> InferenceFuture:
        """Queues one request; waits only while the rings are full. All memory must stay as it is until the future is done.

        Raises:
            ApplicationRuntimeError: the request does not fit the executable.
            IpuRuntimeError: the device failed before.
        """
        wants_all = self.config.validate_io_params and not self._is_strict
        selection = select(self._io, inputs, outputs, wants_all=wants_all, is_strict=self._is_strict)
        future = InferenceFuture(self._waiters, self._tracepoints.begin())
        if self._batcher is not None:
            self._batcher.add(selection, future)
        else:
            self._start(selection, future)
        return future

    def request_tracepoints(self) -> tuple[RequestTracepoint, ...]:
        """Returns the start and end times of the latest requests; only with `flush_on_waiting_outputs`."""
        return self._tracepoints.all()

    def close(self) -> None:
        """Stops, fails queued requests, and releases the devices that the runner attached. May be called again."""
        if self._batcher is not None:
            self._batcher.close()
        for replica in self._replicas:
            replica.close()

    def _start(self, selection: Selection, future: InferenceFuture) -> None:
        request = cut(self._io, selection)
        pending_outputs = PendingOutputs(future, request.results, request.count, request.copies)
        batches = []
        for number in range(request.count):
            inputs, outputs = request.part(number)
            batches.append(
                MicroBatch(
                    graph=selection.graph, inputs=inputs, outputs=outputs, on_end=pending_outputs.end_part, missing=selection.missing
                )
            )
        _submit(self._replicas, batches)

    @property
    def error(self) -> IpuRuntimeError | None:
        """The error that stopped the last running copy; None while a copy runs. With `auto_reset` the next request tries again."""
        errors = [replica.error for replica in self._replicas]
        return errors[0] if all(errors) else None

    # Names of PopRT 1.0.2.
    def get_model_outputs(self) -> list[DataDesc]:
        """See `get_execute_outputs`."""
        return self.get_execute_outputs()

    def executeAsync(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> InferenceFuture:  # noqa: N802
        """See `execute_async`."""
        return self.execute_async(inputs, outputs)


def _submit(replicas: Sequence[Replica], batches: Sequence[MicroBatch]) -> None:
    """Submits `batches` to the copy with the fewest outstanding micro-batches; to a failed copy only if all have failed."""
    min(replicas, key=lambda replica: (replica.error is not None, replica.outstanding)).submit(batches)
