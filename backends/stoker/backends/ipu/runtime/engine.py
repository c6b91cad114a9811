"""`Engine`: the loop that a device runs: calls of the main program, micro-batch by micro-batch.

For each micro-batch the device reads its inputs through the streams (and waits for the host where there is nothing yet), computes, and
writes its outputs. In a fused program it reads the index first and then touches the streams of that sub-graph only; inputs given to
another sub-graph stay where they are, and the device starves until a timeout tells the host.

`Delivery`: brings results to the host when they are due. Where a device's lanes overlap (host reads, computing, host writes) it takes the
next micro-batch before the last one's outputs are out. In real time that needs a second thread; otherwise results are delivered as they are
computed.

The inputs of a computed micro-batch are the user's again before its outputs are out. So results that a stop keeps from being delivered are
not lost: the next run delivers them first, or its outputs would go to the memory of another micro-batch.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.runtime.device import RESETS, Device, LoadedProgramState
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, RecoverableRuntimeError, SessionStopped, UnknownRuntimeError
from stoker.backends.ipu.runtime.gate import Gate
from stoker.backends.ipu.runtime.loaded_program import Computation
from stoker.backends.ipu.runtime.queue_manager import QueueManager, TimeoutCallback
from stoker.backends.ipu.runtime.streams import OutputStream, TensorManager, zeros_of
from stoker.backends.simulated.faults import Fault, FaultKind
from stoker.backends.simulated.pacing import NS_PER_S, Pacer, Pacing

Array = npt.NDArray[Any]
#: Called with the anchors that received no data before the timeout.
OnStarved = Callable[[tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class Results:
    """The outputs of one micro-batch.

    Attributes:
        values: Outputs by anchor; each is removed when it is delivered.
        due_ns: Time at which the device has written them.
        has_dummies: Whether some input was dummy data: the device waits for no reader of the outputs.
        is_dummy: Whether all inputs were: no request wants the outputs, and queued memory belongs to other calls.
    """

    values: dict[str, Array]
    due_ns: int
    has_dummies: bool
    is_dummy: bool


class Delivery:
    """Confined to: the device's thread, and the thread it starts where results are delivered behind its back."""

    #: Micro-batches whose results wait to be delivered: one in each stage of reading, computing and writing.
    DEPTH = 3

    def __init__(
        self,
        streams: TensorManager,
        gate: Gate,
        pacer: Pacer,
        undelivered: deque[Results],
        *,
        timeout_ns: int,
        on_starved: OnStarved,
        is_overlapped: bool,
    ) -> None:
        """Delivers to `streams`; on a thread of its own if `is_overlapped`. What a stop leaves undelivered stays in `undelivered`."""
        self._streams = streams
        self._gate = gate
        self._pacer = pacer
        self._timeout_ns = timeout_ns
        self._on_starved = on_starved
        self._pending = undelivered
        self._is_closing = False
        self._thread: threading.Thread | None = None
        if is_overlapped:
            self._thread = threading.Thread(target=self._run, name="ipu-delivery", daemon=True)
            gate.device_threads.add(self._thread)
            self._thread.start()

    def deliver(self, results: Results) -> None:
        """Delivers `results` when they are due, after all earlier ones; may return before that."""
        if self._thread is not None:
            self._gate.wait_for(lambda: len(self._pending) < self.DEPTH, None)
        with self._gate.condition:
            self._pending.append(results)
            self._gate.notify()
        self.catch_up()

    def catch_up(self) -> None:
        """Delivers pending results, unless another thread delivers them."""
        if self._thread is None:
            self._deliver_pending()

    def close(self) -> None:
        """Delivers pending results, unless the gate is stopping, and ends the thread."""
        if self._thread is None:
            return
        self._is_closing = True
        self._gate.notify()
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        try:
            while self._gate.wait_for(lambda: bool(self._pending) or self._is_closing, None) and self._pending:
                if not self._deliver_pending():
                    return
        except Exception as error:  # noqa: BLE001 - whatever a user's callback raised must end the session, not just this thread
            self._gate.fail(error)

    def _deliver_pending(self) -> bool:
        """False: stopped before everything was delivered."""
        while self._pending:
            if not self._deliver(self._pending[0]):
                return False
            with self._gate.condition:
                self._pending.popleft()
                self._gate.notify()
        return True

    def _deliver(self, results: Results) -> bool:
        """False: stopped before all of them were delivered."""
        if not self._pacer.wait_until(results.due_ns, self._gate.condition, lambda: self._gate.is_stopping):
            return False
        for name in () if results.is_dummy else tuple(results.values):
            stream = self._streams.output(name)
            slot = stream.slot()
            if slot is None and not results.has_dummies:
                slot = self._awaited_slot(stream)
                if slot is None and self._gate.is_stopping:
                    return False
            value = results.values.pop(name)
            if slot is not None:
                np.copyto(slot, value)
                stream.release(None)
        return True

    def _awaited_slot(self, stream: OutputStream) -> Array | None:
        """Waits for output memory; None: a flush dropped this output, or the session is stopping."""
        flushes = self._gate.flushes
        starving_since_ns = self._gate.clock.now_ns()
        self._gate.set_starving((stream.anchor.name,))
        try:
            while True:
                seen = self._gate.changes
                slot = stream.slot()
                if slot is not None or self._gate.is_stopping or self._gate.flushes != flushes:
                    return slot
                until_ns = starving_since_ns + self._timeout_ns if self._timeout_ns else None
                if until_ns is not None and self._gate.clock.now_ns() >= until_ns:
                    starving_since_ns = self._gate.clock.now_ns()
                    self._on_starved((stream.anchor.name,))
                    continue
                self._gate.wait_for_change(seen, until_ns)
        finally:
            self._gate.set_starving(())


#: How long the host waits for a device that hangs [P: Poplar's engine option hostSyncTimeout].
HOST_SYNC_TIMEOUT_S = 300


def apply_fault(fault: Fault, device: Device, gate: Gate) -> None:
    """Injects `fault` at the beginning of a call. Returns if the call continues despite it.

    REQUIRES: a system has accepted its plan.

    Raises:
        RecoverableRuntimeError: a reset is needed.
        UnknownRuntimeError: the device is lost, or hung until the host gave up.
        ApplicationRuntimeError: out of memory.
        SessionStopped: the session was stopped while the device hung.
    """
    where = f"device {device.id}, execution {fault.execution} (injected)"
    if fault.kind is FaultKind.RESET:
        action = RESETS[fault.detail]
        error = RecoverableRuntimeError(f"{where}: the device needs {action.value}", action)
        device.break_down(error)
        raise error
    if fault.kind is FaultKind.LOST:
        lost = UnknownRuntimeError(f"{where}: the device is lost")
        device.break_down(lost, is_lost=True)
        raise lost
    if fault.kind is FaultKind.OUT_OF_MEMORY:
        raise ApplicationRuntimeError(f"{where}: out of memory while the program ran")
    if fault.kind is FaultKind.HANG:
        if gate.wait_for(lambda: gate.is_stopping, gate.clock.now_ns() + HOST_SYNC_TIMEOUT_S * NS_PER_S):
            raise SessionStopped(f"{where}: the session was stopped while the device hung")
        hung = UnknownRuntimeError(f"{where}: no response for {HOST_SYNC_TIMEOUT_S} s (host sync timeout)")
        device.break_down(hung)
        raise hung


def garbage(value: Array) -> Array:
    """Returns an array with all bits set: NaN in floats, -1 or the maximum in integers."""
    pattern = b"\x01" if value.dtype == np.bool_ else b"\xff"
    return np.frombuffer(pattern * value.nbytes, value.dtype).reshape(value.shape)


@dataclass(slots=True)
class _MicroBatch:
    computation: Computation
    inputs: dict[str, Array]
    dummies: set[str]
    was_waiting: bool
    """Whether its data was queued before the device needed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine.

    Attributes:
        computations: By the index that selects them.
        index_anchor: The input that selects the computation; None if there is only one sub-graph.
        streams: The connections of the anchors.
        weights: Weights on the device, by anchor.
        device: The device that it runs on.
        program: The program that the device holds.
        gate: The gate where host and device wait for each other.
        pacer: The pacing of modelled time.
        iterations: Micro-batches of a call.
        undelivered: Results that an earlier run did not deliver; this run adds its own when it stops.
        timeout_ns: Time without data before `on_starved` is called; 0: no limit.
        on_starved: Called with the anchors that the device waits for.
    """

    computations: Mapping[int, Computation]
    index_anchor: Anchor | None
    streams: TensorManager
    weights: Mapping[str, Array]
    device: Device
    program: LoadedProgramState
    gate: Gate
    pacer: Pacer
    iterations: int
    undelivered: deque[Results]
    timeout_ns: int
    on_starved: OnStarved


class Engine:
    """Confined to: the thread that calls `run`."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._gate = parts.gate
        self._flushes_seen = parts.gate.flushes
        self._is_begun = False
        overlaps = any(each.latency_ns > each.period_ns for each in parts.computations.values())
        self._delivery = Delivery(
            parts.streams,
            parts.gate,
            parts.pacer,
            parts.undelivered,
            timeout_ns=parts.timeout_ns,
            on_starved=parts.on_starved,
            is_overlapped=overlaps and parts.pacer.pacing is Pacing.REALTIME,
        )

    def run(self, calls: int | None) -> None:
        """Runs `calls` calls of the main program, or calls until the gate stops; None: for ever.

        Raises:
            IpuRuntimeError: the device failed, or the program cannot go on.
        """
        try:
            self._delivery.catch_up()
            done = 0
            while (calls is None or done < calls) and self._call():
                done += 1
        finally:
            self._delivery.close()

    def _call(self) -> bool:
        """One call of the main program; False: stopped. The device is claimed once the call's first data are there."""
        device = self._parts.device
        self._is_begun = False
        batch = self._next_batch()
        if batch is None:
            return False
        self._is_begun = True
        with device.claimed(self._parts.program, lambda: self._gate.is_stopping) as fault:
            if fault is not None:
                apply_fault(fault, device, self._gate)
            for iteration in range(self._parts.iterations):
                if iteration:
                    batch = self._next_batch()
                if batch is None or not self._process(batch, fault):
                    return False
        return True

    def _process(self, batch: _MicroBatch, fault: Fault | None) -> bool:
        device, clock, computation = self._parts.device, self._gate.clock, batch.computation
        begun_ns = clock.now_ns()
        begins_ns = device.timeline.reserve(computation.period_ns, now_ns=begun_ns, was_waiting=batch.was_waiting)
        values = computation.run(batch.inputs, self._parts.weights)
        for name in batch.inputs:
            if name not in batch.dummies:
                self._parts.streams.input(name).release(None)
        if fault is not None and fault.kind is FaultKind.BAD_OUTPUT:
            values = {name: garbage(value) for name, value in values.items()}
        device.count(
            micro_batches=1,
            busy_ns=computation.period_ns,
            cycles=computation.cycles,
            slow_micro_batches=int(computation.is_timed and clock.now_ns() - begun_ns > computation.period_ns),
        )
        is_dummy = len(batch.dummies) == len(batch.inputs) and bool(batch.inputs)
        self._delivery.deliver(Results(dict(values), begins_ns + computation.latency_ns, bool(batch.dummies), is_dummy))
        return not self._gate.is_stopping

    def _next_batch(self) -> _MicroBatch | None:
        """The inputs of the next micro-batch, once the device is free for it; None: stopped."""
        if not self._parts.pacer.wait_until(self._parts.device.timeline.free_at_ns, self._gate.condition, lambda: self._gate.is_stopping):
            return None
        batch = _MicroBatch(next(iter(self._parts.computations.values())), {}, set(), was_waiting=True)
        index_anchor = self._parts.index_anchor
        if index_anchor is not None:
            if not self._gather(batch, [index_anchor]):
                return None
            if index_anchor.name not in batch.dummies:
                batch.computation = self._selected(index_anchor, batch.inputs[index_anchor.name])
        return batch if self._gather(batch, batch.computation.inputs) else None

    def _selected(self, anchor: Anchor, index: Array) -> Computation:
        number = int(index.reshape(-1)[0])
        try:
            return self._parts.computations[number]
        except KeyError:
            known = ", ".join(map(str, sorted(self._parts.computations)))
            raise ApplicationRuntimeError(f"input '{anchor.name}' selects sub-graph {number}; the executable has {known}") from None

    def _gather(self, batch: _MicroBatch, anchors: Sequence[Anchor]) -> bool:
        """Adds the data of `anchors` to `batch`, waiting for the host where there are none; False: stopped."""
        missing = {anchor.name: anchor for anchor in anchors}
        is_patient = True  # an idle device reports starvation once; a device in a call reports it after every timeout
        starving_since_ns: int | None = None
        try:
            while True:
                seen = self._gate.changes
                if self._fetch(batch, missing):
                    starving_since_ns, is_patient = None, True
                if not missing:
                    return True
                if self._gate.is_stopping:
                    return False
                if self._is_flushed(batch):
                    batch.inputs |= {name: zeros_of(anchor) for name, anchor in missing.items()}
                    batch.dummies |= set(missing)
                    return True
                batch.was_waiting = False
                self._gate.set_starving(missing)
                now_ns = self._gate.clock.now_ns()
                if starving_since_ns is None:
                    starving_since_ns = now_ns
                until_ns = starving_since_ns + self._parts.timeout_ns if self._parts.timeout_ns and is_patient else None
                if until_ns is not None and now_ns >= until_ns:
                    starving_since_ns = now_ns
                    is_patient = self._is_begun or bool(batch.inputs)
                    self._parts.on_starved(tuple(missing))
                    continue
                self._gate.wait_for_change(seen, until_ns)
        finally:
            self._gate.set_starving(())

    def _fetch(self, batch: _MicroBatch, missing: dict[str, Anchor]) -> bool:
        """Fetches the available data; returns whether there was any. Does not hold the gate, because a user's handler may block."""
        found = False
        for name in tuple(missing):
            data = self._parts.streams.input(name).fetch()
            if data is not None:
                batch.inputs[name] = data
                del missing[name]
                found = True
        return found

    def _is_flushed(self, batch: _MicroBatch) -> bool:
        """Whether dummy data replaces missing data because of a flush during this call.

        A device that has not begun a call ignores flushes.
        """
        if self._is_begun or batch.inputs:
            return self._gate.flushes != self._flushes_seen
        self._flushes_seen = self._gate.flushes
        return False


class MainLoop:
    """Runs an engine on at most one thread at a time. It has no reference to the session, so that an unreferenced session can be
    garbage-collected.

    Attributes:
        queues: The queues whose entries fail when the loop fails; None: no queues.
        timeout_callback: Called with the queue at which the device starved.
        timeout_ns: Time without data before the callback; 0: never.
        undelivered: Results that a stop kept from reaching the queues.
    """

    def __init__(self, name: str, gate: Gate) -> None:
        """Creates a loop that does not run yet; `name` names the thread."""
        self.queues: QueueManager | None = None
        self.timeout_callback: TimeoutCallback | None = None
        self.timeout_ns = 0
        self.undelivered: deque[Results] = deque()
        self._name = name
        self._gate = gate
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread is running."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self, parts: EngineParts, calls: int | None) -> None:
        """Runs `calls` calls of the main program on a thread of its own; None: until the gate stops."""
        self._gate.reopen()
        self._thread = threading.Thread(target=self._run, args=(parts, calls), name=self._name, daemon=True)
        self._gate.device_threads.add(self._thread)
        self._thread.start()

    def connect(self, queues: QueueManager, timeout_callback: TimeoutCallback | None, timeout_ns: int) -> None:
        """Connects `queues`.

        Entries of the previous queues fail, and their undelivered results are dropped. REQUIRES: the loop does not run.
        """
        if self.queues is not None:
            self.queues.disconnect_all()
        self.undelivered.clear()
        self.queues, self.timeout_callback, self.timeout_ns = queues, timeout_callback, timeout_ns

    def on_starved(self, anchors: tuple[str, ...]) -> None:
        """Calls the user's callback with the first queue that the device waits for. Called on a thread of the device."""
        if self.queues is None or self.timeout_callback is None:
            return
        for name in anchors:
            queue = self.queues.inputs.get(name) or self.queues.outputs.get(name)
            if queue is not None:
                self.timeout_callback(queue)
                return

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the thread; returns whether it has ended. A call on a thread of the device does not wait."""
        thread = self._thread
        if thread is not None and threading.current_thread() not in self._gate.device_threads:
            thread.join(timeout_s)
        return not self.is_running

    def _run(self, parts: EngineParts, calls: int | None) -> None:
        try:
            Engine(parts).run(calls)
        except SessionStopped:
            pass  # it was stopped while it waited
        except Exception as error:  # noqa: BLE001 - whatever a user's handler raised must reach those who wait
            self._gate.fail(error)
        if self._gate.error is not None:
            self.undelivered.clear()
            if self.queues is not None:
                self.queues.fail_all(self._gate.error)
