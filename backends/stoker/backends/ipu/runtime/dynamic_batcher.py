"""`DynamicBatcher`: requests of any size in the batching dimension, merged into batches of the compiled size.

Callers queue full batches on their own threads. While a batch with a timeout is open, one thread waits for the timeout.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, IpuRuntimeError, SessionStopped
from stoker.backends.ipu.runtime.executable import user_shape
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, PendingOutputs
from stoker.backends.ipu.runtime.runner_io import GraphIo, MicroBatch, RunnerIo, Selection, is_direct, reject_violation
from stoker.backends.ipu.runtime.runtime_config import MAX_TIMEOUT_NS, RuntimeConfig, nanoseconds
from stoker.backends.simulated.pacing import WaitableClock

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Piece(Generic[R]):
    """Rows `start` to `stop` of a request, at `offset` in their batch."""

    request: R
    start: int
    stop: int
    offset: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


@dataclass(slots=True)
class Batch(Generic[R]):
    """Pieces of one batch, in the order of their rows."""

    pieces: list[Piece[R]] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimeouts:
    """The time for which an open batch waits for later requests, in nanoseconds; None: no limit.

    Attributes:
        partial_ns: While the batch of some replica is incomplete.
        data_parallel_ns: While whole batches of some replicas wait for those of the others.
    """

    partial_ns: int | None
    data_parallel_ns: int | None


class BatchPlan(Generic[R]):
    """The open batch of one sub-graph. One thread at a time."""

    def __init__(self, capacity: int, timeouts: BatchTimeouts, *, replicas: int = 1) -> None:
        """Creates an empty plan.

        Args:
            capacity: Rows of a batch over all replicas.
            timeouts: The time for which an open batch waits.
            replicas: Number of replicas that share a batch in equal parts.

        Raises:
            ValueError: a batch has no rows, or is not divisible by the number of replicas.
        """
        if capacity < 1 or replicas < 1 or capacity % replicas:
            raise ValueError(f"a batch of {capacity} rows cannot be shared by {replicas} replicas")
        self.capacity = capacity
        self._replica_rows = capacity // replicas
        self._timeouts = timeouts
        self._open: Batch[R] = Batch()
        self._since_ns = 0

    def count_pieces(self, rows: int) -> int:
        """Returns the number of pieces that `add` would cut a request of `rows` rows into."""
        whole, rest = divmod(rows, self.capacity)
        is_split = rest > self.capacity - self._open.rows
        return whole + (rest > 0) + is_split

    def add(self, request: R, rows: int, now_ns: int) -> list[Batch[R]]:
        """Adds a request of `rows` rows; returns the batches that are now full."""
        whole = rows - rows % self.capacity
        full = [Batch([Piece(request, at, at + self.capacity, 0)], self.capacity) for at in range(0, whole, self.capacity)]
        at = whole
        while at < rows:
            if not self._open.rows:
                self._since_ns = now_ns
            size = min(rows - at, self.capacity - self._open.rows)
            self._open.pieces.append(Piece(request, at, at + size, self._open.rows))
            self._open.rows += size
            at += size
            if self._open.rows == self.capacity:
                full.append(self.take())
        return full

    def due_ns(self) -> int | None:
        """The time at which the open batch must be queued although it is not full; None: no limit."""
        if not self._open.rows:
            return None
        is_partial = self._open.rows % self._replica_rows > 0
        timeout_ns = self._timeouts.partial_ns if is_partial else self._timeouts.data_parallel_ns
        return None if timeout_ns is None else self._since_ns + timeout_ns

    def take(self) -> Batch[R]:
        """Closes and returns the open batch, full or not."""
        batch, self._open = self._open, Batch()
        return batch


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    inputs: Mapping[str, Array]
    """Arrays by stream name, in the user's shapes."""
    outputs: Mapping[str, Array]
    """Memory for outputs by stream, in the user's shapes; written piece by piece."""
    pending_outputs: PendingOutputs


class DynamicBatcher:
    """Any thread may use it."""

    def __init__(self, io: RunnerIo, config: RuntimeConfig, clock: WaitableClock, submit: Callable[[Sequence[MicroBatch]], None]) -> None:
        """Creates a batcher for all sub-graphs of an executable.

        Args:
            io: The executable's streams.
            config: The configuration, with a `batching_dim`.
            clock: The clock of timeouts.
            submit: Queues micro-batches. It reports the end of each one, also if it raises an error.

        Raises:
            ApplicationRuntimeError: an input or output lacks the dimension, or its size differs from the others.
        """
        self._io = io
        self._dim = config.batching_dim
        self._clock = clock
        self._submit = submit
        self._condition = threading.Condition()
        self._is_closed = False
        self._watcher: threading.Thread | None = None
        timeouts = _timeouts(config)
        self._plans: dict[int, BatchPlan[_Request]] = {}
        for graph in io.graphs.values():
            rows, replicas = self._compiled_rows(graph), io.executable.program.replication_factor if self._dim == 0 else 1
            self._plans[graph.index] = BatchPlan(rows, timeouts, replicas=replicas if rows % replicas == 0 else 1)

    def add(self, selection: Selection, future: InferenceFuture) -> None:
        """Adds a request and queues the batches that are now full.

        Raises:
            ApplicationRuntimeError: a shape or dtype is wrong; the text names the expected one.
            IpuRuntimeError: the device failed before, or now.
        """
        graph = selection.graph
        rows = self._given_rows(selection)
        if selection.missing:
            self._submit([self._unfit(selection, PendingOutputs(future, {}, 1))])
            return
        memory = {
            anchor.name: np.zeros(self._shape(anchor, rows), anchor.tensor_info.data_type.numpy)
            for anchor in graph.outputs
            if selection.outputs is None
        }
        memory.update(selection.outputs or {})
        results = {selection.given_names[name]: array for name, array in memory.items()}
        plan = self._plans[graph.index]
        with self._condition:
            if self._is_closed:
                raise SessionStopped(f"the runner of '{self._io.executable.name}' is closed")
            request = _Request(selection.inputs, memory, PendingOutputs(future, results, plan.count_pieces(rows)))
            full = plan.add(request, rows, self._clock.now_ns())
            self._watch()
        self._submit([self._micro_batch(graph, batch) for batch in full])

    def close(self) -> None:
        """Ends the thread; requests that wait for a batch to fill fail. May be called again."""
        with self._condition:
            self._is_closed = True
            waiting = [plan.take() for plan in self._plans.values()]
            self._condition.notify_all()
            watcher = self._watcher
        error = SessionStopped(f"the runner of '{self._io.executable.name}' was closed while the request waited for its batch to fill")
        for batch in waiting:
            for piece in batch.pieces:
                piece.request.pending_outputs.end_part(error)
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join()

    def _watch(self) -> None:
        """Notifies the thread of open batches. REQUIRES: the condition is held."""
        if self._watcher is not None:
            self._condition.notify_all()
        elif self._next_due_ns() is not None:
            self._watcher = threading.Thread(target=self._run, name=f"ipu-batcher-{self._io.executable.name}", daemon=True)
            self._watcher.start()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._is_closed and (due_ns := self._next_due_ns()) is not None and due_ns > self._clock.now_ns():
                    self._clock.wait(self._condition, due_ns)
                if self._is_closed or self._next_due_ns() is None:
                    self._watcher = None
                    return
                now_ns = self._clock.now_ns()
                due = [(index, plan.take()) for index, plan in self._plans.items() if (at := plan.due_ns()) is not None and at <= now_ns]
            for index, batch in due:
                try:
                    self._submit([self._micro_batch(self._io.graphs[index], batch)])
                except IpuRuntimeError:
                    continue  # the requests in the batch already received their error

    def _next_due_ns(self) -> int | None:
        return min((at for plan in self._plans.values() if (at := plan.due_ns()) is not None), default=None)

    def _micro_batch(self, graph: GraphIo, batch: Batch[_Request]) -> MicroBatch:
        """Returns `batch` for the device: the user's memory if it holds exactly one contiguous batch, else copies of its pieces."""
        only = batch.pieces[0] if len(batch.pieces) == 1 and batch.rows == self._plans[graph.index].capacity else None
        inputs = {}
        for anchor in graph.inputs:
            if anchor.name in self._io.defaults:
                inputs[anchor.name] = self._io.defaults[anchor.name]
                continue
            whole = None if only is None else self._rows(only.request.inputs[anchor.name], only)
            if whole is None or not whole.flags.c_contiguous:
                whole = self._gathered(anchor, batch)
            inputs[anchor.name] = whole.reshape(anchor.tensor_info.shape)
        outputs, copies = {}, []
        for anchor in graph.outputs:
            wanted = None if only is None else only.request.outputs.get(anchor.name)
            room = None if only is None or wanted is None else self._rows(wanted, only)
            if room is None or not is_direct(room):
                room = np.zeros(user_shape(anchor), anchor.tensor_info.data_type.numpy)
                copies.append((anchor.name, room))
            outputs[anchor.name] = room.reshape(anchor.tensor_info.shape)

        def end(error: Exception | None) -> None:
            for piece in batch.pieces:
                if error is None:
                    self._scatter(copies, piece)
                piece.request.pending_outputs.end_part(error)

        return MicroBatch(graph=graph, inputs=inputs, outputs=outputs, on_end=end)

    def _gathered(self, anchor: Anchor, batch: Batch[_Request]) -> Array:
        """Returns the concatenated rows of all pieces, padded with zeros to a whole batch."""
        data = np.zeros(user_shape(anchor), anchor.tensor_info.data_type.numpy)
        for piece in batch.pieces:
            data[self._slices(piece.offset, piece.offset + piece.rows)] = self._rows(piece.request.inputs[anchor.name], piece)
        return data

    def _scatter(self, copies: Sequence[tuple[str, Array]], piece: Piece[_Request]) -> None:
        for name, computed in copies:
            target = piece.request.outputs.get(name)
            if target is not None:
                np.copyto(self._rows(target, piece), computed[self._slices(piece.offset, piece.offset + piece.rows)])

    def _rows(self, array: Array, piece: Piece[_Request]) -> Array:
        return array[self._slices(piece.start, piece.stop)]

    def _slices(self, start: int, stop: int) -> tuple[slice, ...]:
        return (*(slice(None) for _ in range(self._dim)), slice(start, stop))

    def _unfit(self, selection: Selection, pending_outputs: PendingOutputs) -> MicroBatch:
        """Returns a batch for a request that lacks streams. The device will wait for these streams, so the data is irrelevant."""
        inputs = {
            anchor.name: np.zeros(anchor.tensor_info.shape, anchor.tensor_info.data_type.numpy)
            for anchor in selection.graph.inputs
            if anchor.name not in selection.missing
        }
        return MicroBatch(graph=selection.graph, inputs=inputs, outputs={}, on_end=pending_outputs.end_part, missing=selection.missing)

    def _shape(self, anchor: Anchor, rows: int) -> tuple[int, ...]:
        shape = user_shape(anchor)
        return (*shape[: self._dim], rows, *shape[self._dim + 1 :])

    def _compiled_rows(self, graph: GraphIo) -> int:
        sizes = {}
        for anchor in (*graph.inputs, *graph.outputs):
            if anchor.name in self._io.defaults:
                continue  # the same in every batch, whatever its shape
            shape = user_shape(anchor)
            if len(shape) <= self._dim:
                raise ApplicationRuntimeError(f"batching_dim is {self._dim}, but '{anchor.name}' has shape {list(shape)}")
            sizes[anchor.name] = shape[self._dim]
        if len(set(sizes.values())) != 1 or not min(sizes.values()):
            each = ", ".join(f"'{name}' {size}" for name, size in sizes.items()) or "none"
            raise ApplicationRuntimeError(
                f"batching_dim is {self._dim}, but that dimension is not the compiled batch: its sizes differ, or are 0 ({each})"
            )
        return next(iter(sizes.values()))

    def _given_rows(self, selection: Selection) -> int:
        """Returns the number of rows of the request."""
        anchors = {anchor.name: anchor for anchor in (*selection.graph.inputs, *selection.graph.outputs)}
        sizes = {}
        for name, array in (*selection.inputs.items(), *(selection.outputs or {}).items()):
            reject_violation(anchors[name], array)
            if name in self._io.defaults:
                raise ApplicationRuntimeError(
                    f"input '{name}' has data of its own (tensor data or frozen_inputs), which requests of one batch share; "
                    "with batching_dim a request cannot give other data"
                )
            shape = user_shape(anchors[name])
            if array.ndim != len(shape) or self._shape(anchors[name], array.shape[self._dim]) != array.shape or not array.size:
                wanted = [*map(str, shape[: self._dim]), "N", *map(str, shape[self._dim + 1 :])]
                raise ApplicationRuntimeError(
                    f"'{name}' has shape {list(array.shape)}, expected [{', '.join(wanted)}] for any N from 1 (batching_dim {self._dim})"
                )
            sizes[name] = array.shape[self._dim]
        if len(set(sizes.values())) > 1:
            each = ", ".join(f"'{name}' {size}" for name, size in sizes.items())
            raise ApplicationRuntimeError(f"inputs and outputs differ in dimension {self._dim} (batching_dim): {each}")
        return next(iter(sizes.values()), self._plans[selection.graph.index].capacity)


def _timeouts(config: RuntimeConfig) -> BatchTimeouts:
    """Returns the timeouts:

    `timeout_ns` for both, unless the separate timeouts are enabled. 0 for `timeout_ns`, and the maximum for the separate ones, mean no
    limit.
    """
    if not config.is_batch_size_timeout_enabled:
        timeout_ns = nanoseconds(config.timeout_ns, "timeout_ns") or None
        return BatchTimeouts(partial_ns=timeout_ns, data_parallel_ns=timeout_ns)
    partial_ns = nanoseconds(config.batch_size_timeout_ns, "batch_size_timeout_ns")
    data_parallel_ns = nanoseconds(config.data_parallel_timeout_ns, "data_parallel_timeout_ns")
    return BatchTimeouts(
        partial_ns=partial_ns if partial_ns < MAX_TIMEOUT_NS else None,
        data_parallel_ns=data_parallel_ns if data_parallel_ns < MAX_TIMEOUT_NS else None,
    )
