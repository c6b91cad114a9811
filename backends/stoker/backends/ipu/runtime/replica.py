"""`Replica`: one copy of an executable on one device, whose rings it keeps filled.

A caller puts the micro-batches of its request into the rings on its own thread. Errors occur on the device's thread: it starves, or the
session fails. A starving device gets data in two ways, never a flush, so that host and device always agree on the number of the current
micro-batch:

* In the midst of a call of the main program (several micro-batches a call) it gets dummy micro-batches up to the end of the call.
* In the midst of a micro-batch whose request lacks streams it gets zeros for them, and the request fails with a `RequestTimeout`.
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager
from stoker.backends.ipu.runtime.errors import (
    ApplicationRuntimeError,
    IpuRuntimeError,
    RecoverableRuntimeError,
    RecoveryAction,
    RequestTimeout,
    SessionStopped,
)
from stoker.backends.ipu.runtime.inference_future import Waiters
from stoker.backends.ipu.runtime.queue_manager import Queue, QueueManager
from stoker.backends.ipu.runtime.runner_io import GraphIo, MicroBatch, RunnerIo
from stoker.backends.ipu.runtime.runtime_config import RuntimeConfig, nanoseconds
from stoker.backends.ipu.runtime.session import Session, SessionState
from stoker.backends.ipu.runtime.streams import AnchorCallbackPolicy, zeros_of

Array = npt.NDArray[Any]


class Replica:
    """Any thread may use it.

    Attributes:
        device: The device that it runs on.
        session: The current session; some resets replace it.
    """

    def __init__(self, io: RunnerIo, config: RuntimeConfig, manager: DeviceManager, device: Device | None, waiters: Waiters) -> None:
        """Loads the executable and starts its main programs.

        Args:
            io: The executable and its streams.
            config: The configuration of the run.
            manager: The source of devices.
            device: The device to run on; None: a free device that fits.
            waiters: Counts the threads that wait for outputs.

        Raises:
            DeviceUnavailable: no device is free.
            IpuRuntimeError: no device fits, or the executable cannot be loaded.
        """
        self._io = io
        self._config = config
        self._waiters = waiters
        self.device = device or manager.get_device(io.executable.program, config.device_wait_config)
        # A runner without references gives its device back, at the interpreter's exit at the latest.
        self._give_back = weakref.finalize(self, _detach, None if device else self.device)
        self._lock = threading.RLock()
        self._count = threading.Condition()  # taken after the lock, never before it
        self._outstanding = 0
        self._position = 0  # micro-batches queued in the call of the main program that they belong to
        self._latest = next(iter(io.graphs.values()))
        self._unfit: MicroBatch | None = None
        self._is_unfit_queued = False
        self._is_fit = threading.Event()
        self._is_closed = False
        self._weights: Mapping[str, Array] = dict(io.frozen_weights)
        try:
            self.session, self._queues = self._started()
        except BaseException:
            self._give_back()
            raise

    @property
    def outstanding(self) -> int:
        """Number of micro-batches in flight."""
        return self._outstanding

    @property
    def error(self) -> IpuRuntimeError | None:
        """The error that stopped it; None if there was none."""
        return self.session.error

    def submit(self, batches: Sequence[MicroBatch]) -> None:
        """Queues `batches` in their order; waits while the rings are full. The end of each is reported, also if this call raises an error.

        Raises:
            IpuRuntimeError: the device failed before, or now.
        """
        counted = [self._counted(batch) for batch in batches]
        queued = 0
        try:
            with self._lock:
                for batch in counted:
                    self._await_fit()
                    self._ensure_running()
                    self._enqueue(batch)
                    queued += 1
        except IpuRuntimeError as error:
            for batch in counted[queued:]:  # the others receive it from their queues
                batch.on_end(error)
            raise

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Loads other weights after queued work has ended. A stopped replica loads them with `restart`.

        Args:
            weights: New weights by stream; other weights are unchanged.

        Raises:
            IpuRuntimeError: the executable cannot be loaded again.
        """
        while True:
            with self._waiters, self._count:
                self._count.wait_for(lambda: not self._outstanding)
            with self._lock:
                if self._outstanding:
                    continue  # another thread was faster
                self._weights = {**self._weights, **weights}
                if self.session.state is SessionState.RUNNING:
                    self.restart()
                return

    def restart(self) -> None:
        """Stops and loads the executable again. Queued work fails.

        Raises:
            IpuRuntimeError: it cannot be loaded.
        """
        with self._lock:
            self.session.close()
            self.session, self._queues = self._started()

    def stop(self) -> None:
        """Ends the session; queued work fails. `restart` starts a new run."""
        self.session.close()
        with self._lock:  # no thread is between two of its queues any more
            self._queues.fail_all(SessionStopped(f"the runner of '{self._io.executable.name}' was stopped"))

    def close(self) -> None:
        """Stops permanently, and releases the device if the replica attached it. May be called again."""
        self._is_closed = True
        self.stop()
        self._give_back()

    def _started(self) -> tuple[Session, QueueManager]:
        self._position = 0
        session = Session(self._io.executable, self._config.session_config(), device=self.device)
        try:
            for name, data in self._weights.items():
                session.set_user_input_handler(name, _filling(data))
            queues = session.create_queue_manager(
                self._config.ring_buffer_size_multiplier * self._io.executable.program.batches_per_step,
                _weakly(self._on_starved),
                nanoseconds(self._config.timeout_ns, "timeout_ns"),
                in_pred=self._is_queued,
                out_pred=self._is_queued,
            )
            session.run_load_programs()
            session.run_main_programs()
        except BaseException:
            session.close()
            raise
        return session, queues

    def _is_queued(self, anchor: Anchor) -> AnchorCallbackPolicy:
        index = self._io.index_anchor
        is_main = anchor.name in self._io.inputs or anchor.name in self._io.outputs or (index is not None and anchor.name == index.name)
        return AnchorCallbackPolicy.BIND_USER_CB if is_main else AnchorCallbackPolicy.BIND_EMPTY_CB

    def _ensure_running(self) -> None:
        if self._is_closed:
            raise SessionStopped(f"the runner of '{self._io.executable.name}' is closed")
        error = self.session.error
        if error is None and self.session.state is SessionState.RUNNING:
            return
        if error is None:
            raise SessionStopped(f"the runner of '{self._io.executable.name}' is stopped")
        if not self._config.auto_reset:
            raise error.with_traceback(None)
        if isinstance(error, RecoverableRuntimeError) and error.action is RecoveryAction.IPU_RESET:
            self.device.reset(error.action)
        elif not isinstance(error, ApplicationRuntimeError):
            raise error.with_traceback(None)
        self.restart()

    def _enqueue(self, batch: MicroBatch) -> None:
        """Queues a micro-batch. REQUIRES: the lock is held."""
        graph = batch.graph
        self._latest = graph
        self._position = (self._position + 1) % self._io.executable.program.batches_per_step
        if batch.missing:
            self._enqueue_unfit(batch)
            return
        last = graph.outputs[-1].name if graph.outputs else None
        for anchor in graph.outputs:
            self._queues.output_queue(anchor.name).enqueue(
                batch.outputs[anchor.name], callback=batch.on_end if anchor.name == last else None
            )
        self._enqueue_inputs(batch, None if last else batch.on_end)

    def _enqueue_unfit(self, batch: MicroBatch) -> None:
        """Queues the available streams of an incomplete micro-batch. The device will starve during this micro-batch."""
        self._unfit, self._is_unfit_queued = batch, False
        self._is_fit.clear()
        try:
            self._enqueue_inputs(batch, self._end_unfit)
        except IpuRuntimeError:
            self._unfit = None
            self._is_fit.set()
            raise
        self._is_unfit_queued = True

    def _enqueue_inputs(self, batch: MicroBatch, on_end: Callable[[Exception | None], None] | None) -> None:
        graph, index = batch.graph, self._io.index_anchor
        names = [anchor.name for anchor in graph.inputs if anchor.name in batch.inputs]
        if index is not None:
            selector = np.full(index.tensor_info.shape, graph.index, index.tensor_info.data_type.numpy)
            self._queues.input_queue(index.name).enqueue(selector, callback=None if names else on_end)
        for name in names:
            self._queues.input_queue(name).enqueue(batch.inputs[name], callback=on_end if name == names[-1] else None)

    def _counted(self, batch: MicroBatch) -> MicroBatch:
        """`batch`, counted as outstanding until its end, which it receives once."""
        is_ended = False

        def end(error: Exception | None) -> None:
            nonlocal is_ended
            with self._count:
                if is_ended:
                    return
                is_ended = True
                self._outstanding -= 1
                self._count.notify_all()
            batch.on_end(error)

        with self._count:
            self._outstanding += 1
        return replace(batch, on_end=end)

    def _await_fit(self) -> None:
        """Waits for the end of an incomplete micro-batch. The device would use data queued behind it for the missing streams."""
        if self._unfit is not None:
            self._is_fit.wait()

    def _end_unfit(self, error: Exception | None) -> None:
        """The session ended while the device waited for what `_unfit` lacks."""
        unfit = self._unfit
        if error is not None and unfit is not None:
            self._unfit = None
            unfit.on_end(error)
            self._is_fit.set()

    def _on_starved(self, queue: Queue) -> None:
        """Handles a timeout of the device, on a thread of the device."""
        unfit = self._unfit
        if unfit is not None:
            if self._is_unfit_queued:
                self._complete(unfit)
        elif self._position and (not self._config.flush_on_waiting_outputs or self._waiters.is_anyone_waiting):
            self._fill_call()

    def _complete(self, unfit: MicroBatch) -> None:
        """Gives the device zeros and output memory in place of the request's missing streams."""
        waited_s = nanoseconds(self._config.timeout_ns, "timeout_ns") / 1e9
        waiting = ", ".join(f"'{name}'" for name in unfit.missing)
        unfit.on_end(
            RequestTimeout(
                f"timeout after {waited_s:g} s: sub-graph '{unfit.graph.name}' of executable '{self._io.executable.name}' waits for "
                f"{waiting}, which the request does not have"
            )
        )
        for anchor in unfit.graph.outputs:
            self._queues.output_queue(anchor.name).enqueue(zeros_of(anchor))
        for anchor in unfit.graph.inputs:
            if anchor.name in unfit.missing:
                self._queues.input_queue(anchor.name).enqueue(zeros_of(anchor))
        self._unfit = None
        self._is_fit.set()

    def _fill_call(self) -> None:
        """Gives the device dummy micro-batches up to the end of its current call."""
        if not self._lock.acquire(blocking=False):
            return  # a caller is about to queue real data
        try:
            graph = self._dummy_graph()
            while self._position:
                inputs = {anchor.name: self._dummy(anchor) for anchor in graph.inputs}
                outputs = {anchor.name: zeros_of(anchor) for anchor in graph.outputs}
                self._enqueue(self._counted(MicroBatch(graph=graph, inputs=inputs, outputs=outputs, on_end=_forget)))
        finally:
            self._lock.release()

    def _dummy_graph(self) -> GraphIo:
        named = {self._io.canonical(name) for name in self._config.flush_by_name}
        for graph in self._io.graphs.values():
            if named and named >= {anchor.name for anchor in graph.inputs}:
                return graph
        return self._latest

    def _dummy(self, anchor: Anchor) -> Array:
        for given, data in self._config.flush_by_name.items():
            if self._io.canonical(given) == anchor.name:
                return data
        return self._io.defaults.get(anchor.name, zeros_of(anchor))


def _detach(device: Device | None) -> None:
    if device is not None:
        device.detach()


def _weakly(method: Callable[[Queue], None]) -> Callable[[Queue], None]:
    """Returns a wrapper of `method` with a weak reference to its object, so that the session's thread does not keep a runner alive."""
    reference = weakref.WeakMethod(method)

    def call(queue: Queue) -> None:
        target = reference()
        if target is not None:
            target(queue)

    return call


def _forget(_: Exception | None) -> None:
    """Ignores the end of dummy data, which has no waiting caller."""


def _filling(data: Array) -> Callable[[Array], None]:
    """Returns a handler that copies `data` into the memory that it receives."""

    def fill(memory: Array) -> None:
        np.copyto(memory, data)

    return fill
