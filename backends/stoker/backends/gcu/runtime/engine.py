"""`Engine`: an executable on the clusters of a device.

A call takes any number of samples. The engine runs the largest compiled batch until that batch or a smaller one holds the remaining
samples; it then runs the smallest batch that holds them. So a call with one sample takes the time of one sample if batch size 1 was
compiled.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.backends.gcu.program import CompiledBatch, GcuExecutable, GcuTensor
from stoker.backends.gcu.runtime.card import Card, Direction, Lane
from stoker.backends.gcu.runtime.device_buffer import BufferPart, DeviceBlock, DeviceBuffer, readable_bytes
from stoker.backends.gcu.runtime.errors import DeviceFailed, OutOfDeviceMemory, Status, StatusError, StreamClosed
from stoker.backends.gcu.runtime.stream import Stream
from stoker.backends.gcu.timing import copy_time_s, run_time_s
from stoker.backends.simulated.faults import Fault, FaultKind
from stoker.backends.simulated.numerics import (
    MIN_ROWS,
    MIN_VARIABLE_BATCH,
    PADDED_ON_HOST,
    GraphRunner,
    GraphValue,
    Numerics,
    NumericsError,
)
from stoker.backends.simulated.pacing import NS_PER_S

Array = npt.NDArray[Any]

log = logging.getLogger("stoker.backends.topsinference")


class LoadedBatch:
    """One thread at a time.

    Attributes:
        compiled: The batch that it runs.
    """

    def __init__(self, executable: GcuExecutable, compiled: CompiledBatch, numerics: Numerics, threads: int) -> None:
        """Prepares the graph, if its outputs are to be computed.

        Raises:
            StatusError: the graph cannot be prepared, or does not match the executable; the text names the batch size.
        """
        self.compiled = compiled
        self._executable = executable
        self._where = f"engine '{executable.name}', batch {compiled.batch_size}"
        self._runner: GraphRunner | None = None
        if numerics is Numerics.REAL:
            try:
                self._runner = GraphRunner(compiled.onnx, threads, weights=executable.weights)
            except NumericsError as error:
                raise StatusError(Status.TIF_MAPPING_ERROR, f"{self._where}: {error}") from error
            self._check(executable.inputs, self._runner.inputs, "input")
            self._check(executable.outputs, self._runner.outputs, "output")
        self._has_variable_rows = self._runner is not None and self._runner.has_variable_rows([each.name for each in executable.inputs])

    @property
    def is_real(self) -> bool:
        """Whether it computes outputs."""
        return self._runner is not None

    @property
    def pads(self) -> bool:
        """Whether the host computes the whole compiled batch for fewer samples."""
        return self.is_real and self.compiled.batch_size >= MIN_VARIABLE_BATCH and not self._has_variable_rows

    def run(self, first: int, samples: int, inputs: Sequence[DeviceBlock], outputs: Sequence[DeviceBlock]) -> None:
        """Runs `samples` samples, from sample `first` of the buffers on.

        The host computes these samples only if the graph has a variable batch; otherwise the batch is padded with zeros. Outputs of the
        padding are dropped. The modelled time is that of the compiled batch in both cases.

        Raises:
            StatusError: an operator failed.
        """
        if self._runner is None:
            for tensor, buffer in zip(self._executable.outputs, outputs, strict=True):
                buffer.write_zeros(first * tensor.sample_bytes, samples * tensor.sample_bytes)
            return
        given = {
            tensor.name: self._rows(tensor, buffer, first, samples) for tensor, buffer in zip(self._executable.inputs, inputs, strict=True)
        }
        try:
            values = self._runner.run(given, [tensor.name for tensor in self._executable.outputs])
        except NumericsError as error:
            raise StatusError(Status.TIF_ENGINE_RUN_FAILED, f"{self._where}: {error}") from error
        for tensor, buffer in zip(self._executable.outputs, outputs, strict=True):
            rows = np.ascontiguousarray(values[tensor.name][:samples])
            buffer.write(first * tensor.sample_bytes, readable_bytes(rows))

    def write_garbage(self, first: int, samples: int, outputs: Sequence[DeviceBlock]) -> None:
        """Sets all bits of the outputs instead of running: NaN in floats, -1 or the maximum in integers, true in booleans."""
        for tensor, buffer in zip(self._executable.outputs, outputs, strict=True):
            value = 0x01 if tensor.dtype.numpy == np.bool_ else 0xFF
            buffer.write(first * tensor.sample_bytes, np.full(samples * tensor.sample_bytes, value, np.uint8))

    def _rows(self, tensor: GcuTensor, buffer: DeviceBlock, first: int, samples: int) -> Array:
        shape = (samples, *tensor.dims)
        rows = buffer.read(first * tensor.sample_bytes, samples * tensor.sample_bytes).view(tensor.dtype.numpy).reshape(shape)
        size = self.compiled.batch_size
        if self._has_variable_rows:
            size = min(size, max(samples, MIN_ROWS))
        if samples == size:
            return rows
        padded = np.zeros((size, *tensor.dims), tensor.dtype.numpy)
        padded[:samples] = rows
        return padded

    def _check(self, tensors: Sequence[GcuTensor], values: Mapping[str, GraphValue], kind: str) -> None:
        for tensor in tensors:
            shape = (self.compiled.batch_size, *tensor.dims)
            value = values.get(tensor.name)
            if value is None:
                raise StatusError(Status.TIF_NOT_FOUND, f"{self._where}: its graph has no {kind} '{tensor.name}'")
            if not value.fits(shape, tensor.dtype.numpy):
                expected = f"{tensor.dtype.numpy}{list(shape)}"
                raise StatusError(
                    Status.TIF_MIS_MATCHED_SHAPE_OR_DIM,
                    f"{self._where}: {kind} '{tensor.name}' is {value} in its graph, and {expected} in the executable",
                )


class Host(Protocol):
    """The part of a `Device` that an engine on it uses."""

    @property
    def card(self) -> Card:
        """The card."""

    @property
    def clusters(self) -> tuple[int, ...]:
        """Numbers of its clusters, ascending."""

    @property
    def is_released(self) -> bool:
        """Whether `release` was called."""

    def check(self) -> None:
        """Raises `StatusError` if the device cannot be used."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples of a call that one run of a compiled batch computes."""

    first: int
    samples: int
    batch_size: int
    inputs: Sequence[DeviceBlock]
    outputs: Sequence[DeviceBlock]


class Engine:
    """Created by `Device.load`. Any thread may use it.

    Attributes:
        executable: The executable that it runs.
        device: The device that it runs on.
        clusters: The clusters of the device that it runs on.
        inputs, outputs: Its tensors, in the order of the buffers of a call.
        hbm_bytes: Bytes of the weights and the largest workspace.
    """

    PURPOSE = "engines"

    def __init__(
        self,
        executable: GcuExecutable,
        device: Host,
        clusters: Sequence[int],
        on_unload: Callable[["Engine"], None],
        *,
        numerics: Numerics,
        host_threads: int,
    ) -> None:
        """Loads `executable`; see `Device.load`. `numerics` selects whether this host computes outputs, on `host_threads` threads."""
        card = device.card
        if executable.card != card.hardware.name:
            raise StatusError(
                Status.TIF_EXECUTABLE_DEVICE_VERIFY_FAILED,
                f"engine '{executable.name}' was compiled for {executable.card}; card {card.id} is of type {card.hardware.name}",
            )
        for tensor in (*executable.inputs, *executable.outputs):
            if len(tensor.dims) + 1 > card.hardware.max_dims:
                raise StatusError(
                    Status.TIF_MIS_MATCHED_SHAPE_OR_DIM,
                    f"engine '{executable.name}', tensor '{tensor.name}' has {len(tensor.dims) + 1} dimensions, the batch included; "
                    f"the {card.hardware.name} takes {card.hardware.max_dims}",
                )
        if not clusters or not set(clusters) <= set(device.clusters):
            raise StatusError(
                Status.TIF_MORE_CLUSTER_APPLIED,
                f"engine '{executable.name}' is to run on clusters {list(clusters)}; {device!r} has {list(device.clusters)}",
            )
        self.executable = executable
        self.device = device
        self.clusters = tuple(sorted(set(clusters)))
        self.inputs = executable.inputs
        self.outputs = executable.outputs
        self.hbm_bytes = executable.weight_bytes + max(batch.workspace_bytes for batch in executable.batches)
        self._card = card
        self._generation = card.generation
        self._on_unload = on_unload
        self._changed = threading.Condition()
        self._runs: Counter[int] = Counter()
        self._uses = 0
        self._is_unloaded = False
        card.hbm.take(self.hbm_bytes, self.PURPOSE, f"engine '{executable.name}' (weights {executable.weight_bytes} bytes, and workspace)")
        try:
            self._batches = {batch.batch_size: LoadedBatch(executable, batch, numerics, host_threads) for batch in executable.batches}
        except BaseException:
            card.hbm.give_back(self.hbm_bytes, self.PURPOSE)
            raise
        padding = [str(each.compiled.batch_size) for each in self._batches.values() if each.pads]
        if padding:
            reason = executable.attributes.get(PADDED_ON_HOST, "the artefact was compiled before graphs had a variable batch")
            log.info(
                "engine '%s': the host computes whole batches of %s for fewer samples: %s", executable.name, ", ".join(padding), reason
            )
        lane, size_bytes = Lane(), executable.weight_bytes
        card.copy(Direction.TO_DEVICE, size_bytes, copy_time_s(card.hardware, size_bytes), lane, card.pacer.clock.now_ns())
        self._wait_for(lane)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The compiled batch sizes, ascending."""
        return tuple(self._batches)

    @property
    def runs(self) -> Mapping[int, int]:
        """The number of runs of each compiled batch."""
        with self._changed:
            return {size: self._runs[size] for size in self._batches}

    @property
    def is_unloaded(self) -> bool:
        """Whether `unload` was called."""
        return self._is_unloaded

    @property
    def is_stale(self) -> bool:
        """Whether the engine was unloaded, or lost in a reset of its card."""
        return self._is_unloaded or self._generation != self._card.generation

    def run_with_batch(
        self, samples: int, inputs: Sequence[DeviceBlock], outputs: Sequence[DeviceBlock], stream: Stream | None = None
    ) -> "Future[None]":
        """Runs `samples` consecutive samples in `inputs`, and writes the results to `outputs`.

        Args:
            samples: Number of samples, from 1 to the capacity of the buffers.
            inputs: One buffer for each of the engine's inputs.
            outputs: One for each of its outputs.
            stream: The stream that queues the run; None: the call returns when the run has ended.

        Returns:
            A future that completes when the run has ended in modelled time, with its error if it failed.

        Raises:
            StatusError: the arguments are invalid, or the engine or stream cannot be used. Without a stream, also the error of the run.
        """
        self._check(samples, inputs, outputs, stream)

        def action(lane: Lane, queued_ns: int, is_stopped: Callable[[], bool]) -> None:
            try:
                for first, count, batch in self.plan(samples):
                    self._run(_Part(first, count, batch, inputs, outputs), lane, queued_ns, is_stopped)
            finally:
                self._release()

        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        self._hold()
        if stream is not None:
            try:
                stream.submit(action, [*inputs, *outputs], future, on_skip=self._release)
            except BaseException:
                self._release()
                raise
        else:
            self._run_now(action, [*inputs, *outputs])
            future.set_result(None)
        return future

    def plan(self, samples: int) -> Iterator[tuple[int, int, int]]:
        """Returns the runs for `samples` samples: the first sample, the number of samples and the compiled batch of each."""
        first = 0
        while first < samples:
            size = self.executable.batch_for(samples - first).batch_size
            count = min(samples - first, size)
            yield first, count, size
            first += count

    def unload(self) -> None:
        """Unloads the engine from the device. A second call does nothing.

        Raises:
            StatusError: queued work uses the engine.
        """
        self._end(is_patient=False)

    def discard(self) -> None:
        """Unloads the engine once the work that uses it has ended. Only its device calls this, after it stops accepting work."""
        self._end(is_patient=True)

    def _end(self, *, is_patient: bool) -> None:
        with self._changed:
            if is_patient:
                self._changed.wait_for(lambda: not self._uses)
            if self._is_unloaded:
                return
            if self._uses:
                raise StatusError(
                    Status.TIF_INVALID_PARAM,
                    f"engine '{self.executable.name}' cannot be unloaded: work queued on a stream uses it; synchronize the stream first",
                )
            self._is_unloaded = True
            self._batches = {}
        self._card.hbm.give_back(self.hbm_bytes, self.PURPOSE)
        self._on_unload(self)

    def _run_now(self, action: Callable[[Lane, int, Callable[[], bool]], None], buffers: Sequence[DeviceBlock]) -> None:
        pinned: list[DeviceBlock] = []
        lane = Lane()
        try:
            for buffer in buffers:
                buffer.pin()
                pinned.append(buffer)
            action(lane, self._card.pacer.clock.now_ns(), lambda: self.device.is_released)
        finally:
            for buffer in pinned:
                buffer.unpin()
        self._wait_for(lane)

    def _run(self, part: _Part, lane: Lane, queued_ns: int, is_stopped: Callable[[], bool]) -> None:
        card, clusters = self._card, self.clusters
        with card.turns.held(clusters, is_stopped) as is_held:
            if not is_held:
                raise StreamClosed(f"engine '{self.executable.name}' was stopped while it waited for its clusters")
            card.reject_if_broken()
            self._reject_if_lost()
            fault = card.faults.strike()
            if fault is not None:
                self._apply(fault, is_stopped)
            batch = self._batches[part.batch_size]
            run_s = run_time_s(batch.compiled, len(clusters))
            begun_ns = card.pacer.clock.now_ns()
            card.run(clusters, run_s, lane, queued_ns)
            batch.run(part.first, part.samples, part.inputs, part.outputs)
            if fault is not None and fault.kind is FaultKind.BAD_OUTPUT:
                batch.write_garbage(part.first, part.samples, part.outputs)
            is_slow = batch.is_real and card.pacer.clock.now_ns() - begun_ns > run_s * NS_PER_S
        card.count_run(samples=part.samples, padded_samples=part.batch_size - part.samples, is_slow=is_slow)
        with self._changed:
            self._runs[part.batch_size] += 1

    def _apply(self, fault: Fault, is_stopped: Callable[[], bool]) -> None:
        """Injects `fault`. Returns if the run continues despite it."""
        card = self._card
        where = f"card {card.id}, run {fault.execution} (injected)"
        if fault.kind is FaultKind.OUT_OF_MEMORY:
            raise OutOfDeviceMemory(f"{where}: out of memory while engine '{self.executable.name}' ran")
        if fault.kind is FaultKind.HANG:
            card.hang(is_stopped)
            card.reject_if_broken()
            raise StreamClosed(f"{where}: engine '{self.executable.name}' hung until it was given up")
        if fault.kind in (FaultKind.LOST, FaultKind.RESET):
            is_lost = fault.kind is FaultKind.LOST
            card.break_down(DeviceFailed(f"{where}: the card {'is lost' if is_lost else 'needs a reset'}", is_lost=is_lost))
            card.reject_if_broken()

    def _check(self, samples: int, inputs: Sequence[DeviceBlock], outputs: Sequence[DeviceBlock], stream: Stream | None) -> None:
        name = f"engine '{self.executable.name}'"
        self.device.check()
        if self._is_unloaded:
            raise StatusError(Status.TIF_NOT_INITIALIZED, f"{name} is unloaded")
        self._reject_if_lost()
        if samples < 1:
            raise StatusError(Status.TIF_INVALID_VALUE, f"{name}: a run takes at least one sample, not {samples}")
        if stream is not None and stream.card is not self._card:
            raise StatusError(
                Status.TIF_INVALID_PARAM, f"{name} is on card {self._card.id}, stream {stream.number} on card {stream.card.id}"
            )
        self._check_buffers(samples, self.inputs, inputs, f"{name}, input")
        self._check_buffers(samples, self.outputs, outputs, f"{name}, output")

    def _reject_if_lost(self) -> None:
        if self._generation != self._card.generation:
            raise StatusError(
                Status.TIF_NOT_INITIALIZED,
                f"engine '{self.executable.name}' was lost when card {self._card.id} was reset; load it again",
            )

    def _check_buffers(self, samples: int, tensors: Sequence[GcuTensor], buffers: Sequence[DeviceBlock], where: str) -> None:
        if len(buffers) != len(tensors):
            names = ", ".join(f"'{tensor.name}'" for tensor in tensors)
            raise StatusError(Status.TIF_INVALID_PARAM, f"{where}s: {len(buffers)} buffers for {len(tensors)} tensors ({names})")
        for tensor, buffer in zip(tensors, buffers, strict=True):
            if not isinstance(buffer, DeviceBuffer | BufferPart):
                raise StatusError(
                    Status.TIF_INVALID_PARAM, f"{where} '{tensor.name}': a buffer of the device is needed, not {type(buffer).__name__}"
                )
            buffer.check(self._card, 0, samples * tensor.sample_bytes, f"{where} '{tensor.name}', {samples} samples")

    def _hold(self) -> None:
        with self._changed:
            self._uses += 1

    def _release(self) -> None:
        with self._changed:
            self._uses -= 1
            self._changed.notify_all()

    def _wait_for(self, lane: Lane) -> None:
        self._card.pacer.wait_until(lane.ready_at_ns, self._card.turns.condition, lambda: self.device.is_released)
