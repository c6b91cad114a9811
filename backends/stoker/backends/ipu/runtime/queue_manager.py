"""Queues of the user's memory, one ring per tensor, from which the device takes data when it needs it.

Preparing data and running the model overlap: the user's thread fills the rings, the device's thread drains them in the same order.
`enqueue` stores a view and returns; only an empty ring blocks the device, and only a full ring blocks the user.

Fixed rings between one producer and one consumer, which `QueueManager` keeps for each tensor, and their entries. A ring holds *views* of
the user's memory, never copies: the device reads or writes exactly the bytes that were enqueued.
"""

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor, TensorInfo
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, SessionStopped
from stoker.backends.ipu.runtime.gate import Gate

Array = npt.NDArray[Any]
Callback = Callable[[Exception | None], None]


class _Fate(enum.Enum):
    QUEUED = enum.auto()
    TAKEN = enum.auto()
    ENDED = enum.auto()


class Enqueued:
    """A view of the user's memory in a ring, and the callback for the end of its use by the device.

    Its methods are called with the session's gate held.
    """

    __slots__ = ("_callback", "_fate", "view")

    def __init__(self, view: Array, callback: Callback | None) -> None:
        self.view = view
        self._callback = callback
        self._fate = _Fate.QUEUED

    @property
    def is_ended(self) -> bool:
        """Whether the device has finished with the entry, or will never use it."""
        return self._fate is _Fate.ENDED

    def take(self) -> None:
        """Marks the entry as in use by the device."""
        self._fate = _Fate.TAKEN

    def withdraw(self) -> bool:
        """Withdraws the entry; False if the device already uses it or has finished with it."""
        if self._fate is not _Fate.QUEUED:
            return False
        self._fate = _Fate.ENDED
        return True

    def end(self) -> Callback | None:
        """Ends it. Returns the callback to call outside the gate, with None if the data was moved, else the error; at most once."""
        callback = None if self.is_ended else self._callback
        self._fate, self._callback = _Fate.ENDED, None
        return callback


def view_of(anchor: Anchor, memory: Array, size: int | None, *, is_written: bool) -> Array:
    """Returns a view of `memory` with the anchor's shape and dtype, without a copy.

    Args:
        anchor: The anchor of the data.
        memory: A C-contiguous array of exactly the anchor's size in bytes; of the anchor's dtype, or plain bytes (uint8).
        size: Number of bytes to use; None: all of `memory`.
        is_written: Whether the device writes it.

    Raises:
        ApplicationRuntimeError: the memory cannot be used; the text names the reason.
    """
    info = anchor.tensor_info
    dtype = info.data_type.numpy
    where = f"anchor '{anchor.name}'"
    if not isinstance(memory, np.ndarray):
        raise ApplicationRuntimeError(f"{where}: expected a numpy array that stays where it is, got {type(memory).__name__}")
    if memory.nbytes != info.size_in_bytes or (size is not None and size != info.size_in_bytes):
        given = memory.nbytes if size is None else size
        raise ApplicationRuntimeError(
            f"{where}: {given} bytes given, one micro-batch of shape {list(info.shape)} and type {info.data_type.name} takes "
            f"{info.size_in_bytes}"
        )
    if memory.dtype != dtype and memory.dtype != np.uint8:
        raise ApplicationRuntimeError(f"{where}: the memory holds {memory.dtype}, the anchor {dtype}")
    if not memory.flags.c_contiguous:
        raise ApplicationRuntimeError(f"{where}: the memory is not C-contiguous; enqueue a contiguous array, queues do not copy")
    if is_written and not memory.flags.writeable:
        raise ApplicationRuntimeError(f"{where}: the memory is read-only, the device writes its output there")
    view: Array = memory.reshape(-1).view(dtype).reshape(info.shape)
    return view


T = TypeVar("T")


class RingBuffer(Generic[T]):
    """A FIFO of constant capacity for a single producer and a single consumer, each of which may be a thread of its own.

    Only the producer moves the tail and only the consumer moves the head; both counters only increase, so neither needs a lock.
    """

    def __init__(self, capacity: int) -> None:
        """Creates an empty ring.

        Raises:
            ValueError: `capacity` is below 1.
        """
        if capacity < 1:
            raise ValueError(f"a ring needs room for at least one element, not {capacity}")
        self.capacity = capacity
        self._slots: list[T | None] = [None] * capacity
        self._head = 0
        self._tail = 0

    @property
    def read_available(self) -> int:
        """Elements that the consumer can take."""
        return self._tail - self._head

    @property
    def write_available(self) -> int:
        """Elements that the producer can still put."""
        return self.capacity - self.read_available

    def push(self, element: T) -> bool:
        """Puts `element` at the end; False if the ring is full. Producer only."""
        if not self.write_available:
            return False
        self._slots[self._tail % self.capacity] = element
        self._tail += 1  # last: from here on the consumer sees it
        return True

    def front(self) -> T | None:
        """Returns the oldest element without removing it; None if the ring is empty. Consumer only."""
        return self._slots[self._head % self.capacity] if self.read_available else None

    def pop(self) -> T | None:
        """Removes and returns the oldest element; None if the ring is empty. Consumer only."""
        element = self.front()
        if element is not None:
            self._slots[self._head % self.capacity] = None  # release the user's memory
            self._head += 1
        return element


class InputRingBuffer(RingBuffer[Enqueued]):
    """The ring of one input anchor: memory that the device will read."""

    def __init__(self, anchor: Anchor, capacity: int) -> None:
        super().__init__(capacity)
        self.anchor = anchor


class OutputRingBuffer(RingBuffer[Enqueued]):
    """The ring of one output anchor: memory that the device will write."""

    def __init__(self, anchor: Anchor, capacity: int) -> None:
        super().__init__(capacity)
        self.anchor = anchor


_logger = logging.getLogger(__name__)
Q = TypeVar("Q", "InputQueue", "OutputQueue")


class _Queue:
    """The common base of input and output queues. One producer thread; the device is the consumer."""

    def __init__(self, ring: InputRingBuffer | OutputRingBuffer, gate: Gate, *, is_written: bool) -> None:
        self.ring = ring
        self._gate = gate
        self._is_written = is_written
        self._is_connected = True

    @property
    def anchor(self) -> Anchor:
        """The anchor of the queue."""
        return self.ring.anchor

    @property
    def tensor_info(self) -> TensorInfo:
        """Shape and type of one entry."""
        return self.ring.anchor.tensor_info

    def read_available(self) -> int:
        """Number of entries that the device has not finished, including the current one."""
        return self.ring.read_available

    def enqueue(self, memory: Array, size: int | None = None, callback: Callback | None = None) -> Enqueued:
        """Queues one micro-batch of memory; waits while the ring is full.

        The memory must stay untouched until `callback` is called, which happens once, on a thread of the device: with None when the device
        has read it (or written it, for outputs), or with the error that prevents it. The callback should return soon, because the device
        waits for it.

        Args:
            memory: C-contiguous memory of exactly the anchor's size. It is not copied.
            size: Its size in bytes, if it is to be checked.
            callback: Called when the caller may use the memory again.

        Returns:
            The entry, which `withdraw` takes back.

        Raises:
            ApplicationRuntimeError: the memory does not fit the anchor.
            SessionStopped: the queue is disconnected, or the session stopped while the ring was full.
            IpuRuntimeError: the session failed.
        """
        entry = Enqueued(view_of(self.anchor, memory, size, is_written=self._is_written), callback)
        with self._gate.condition:
            self._reject_if_dead()
            if not self._gate.wait_for(lambda: self.ring.write_available > 0 or not self._is_connected, None):
                self._reject_if_dead()
                raise SessionStopped(f"queue '{self.anchor.name}' is full and the session has stopped")
            self._reject_if_dead()
            self.ring.push(entry)
            self._gate.notify()
        return entry

    def withdraw(self, entry: Enqueued) -> bool:
        """Withdraws an entry that the device has not begun to use, without calling its callback; False if it has begun."""
        with self._gate.condition:
            return entry.withdraw()

    def fail_all(self, error: Exception) -> None:
        """Ends all entries with `error`. REQUIRES: no device thread uses the ring."""
        while self.ring.read_available:
            try:
                self.release(error)
            except Exception:  # a callback that raises must not prevent the other calls
                _logger.exception("a callback of queue '%s' raised on the report that its data is not transferred", self.anchor.name)

    def disconnect(self) -> None:
        """Accepts no more data."""
        self._is_connected = False
        self._gate.notify()

    def release(self, error: Exception | None) -> None:
        """See `InputStream.release` and `OutputStream.release`."""
        with self._gate.condition:
            entry = self.ring.pop()
            callback = entry.end() if entry is not None else None
        if callback is not None:
            callback(error)
        self._gate.notify()

    def _front(self) -> Array | None:
        with self._gate.condition:
            while (entry := self.ring.front()) is not None and entry.is_ended:
                self.ring.pop()  # withdrawn
                self._gate.notify()
            if entry is None:
                return None
            entry.take()
            return entry.view

    def _reject_if_dead(self) -> None:
        if self._gate.error is not None:
            raise self._gate.error
        if not self._is_connected:
            raise SessionStopped(f"queue '{self.anchor.name}' is disconnected")


class InputQueue(_Queue):
    """Data for one input anchor."""

    def fetch(self) -> Array | None:
        """See `InputStream.fetch`."""
        return self._front()


class OutputQueue(_Queue):
    """Output memory for one output anchor."""

    def slot(self) -> Array | None:
        """See `OutputStream.slot`."""
        return self._front()


Queue: TypeAlias = InputQueue | OutputQueue
#: Called with the queue at which the device starves.
TimeoutCallback = Callable[[Queue], None]


class QueueManager:
    """The queues of a session. `Session.create_queue_manager` makes it."""

    def __init__(self, inputs: Sequence[Anchor], outputs: Sequence[Anchor], num_buffers: int, gate: Gate) -> None:
        """Creates a ring of `num_buffers` entries for each anchor."""
        self.inputs: Mapping[str, InputQueue] = {
            anchor.name: InputQueue(InputRingBuffer(anchor, num_buffers), gate, is_written=False) for anchor in inputs
        }
        self.outputs: Mapping[str, OutputQueue] = {
            anchor.name: OutputQueue(OutputRingBuffer(anchor, num_buffers), gate, is_written=True) for anchor in outputs
        }
        self._gate = gate

    def input_queue(self, name: str) -> InputQueue:
        """The queue of input anchor `name`.

        Raises:
            ApplicationRuntimeError: there is no such anchor.
        """
        return _named(self.inputs, name, "input")

    def output_queue(self, name: str) -> OutputQueue:
        """The queue of output anchor `name`.

        Raises:
            ApplicationRuntimeError: there is no such anchor.
        """
        return _named(self.outputs, name, "output")

    def starving(self) -> tuple[str, ...]:
        """Anchors that the device waits for at this moment."""
        return self._gate.starving()

    def flush_all(self) -> None:
        """Lets the device finish its current call of the main program, with zeros for missing data.

        Results of earlier entries are then delivered; outputs of dummy data are dropped. A device that has not begun a call stays idle.
        """
        self._gate.flush()

    def fail_all(self, error: Exception) -> None:
        """Ends all queued entries with `error`. REQUIRES: the session's loop does not run."""
        for queue in (*self.inputs.values(), *self.outputs.values()):
            queue.fail_all(error)

    def disconnect_all(self) -> None:
        """Ends all queued entries and accepts no more. REQUIRES: the session's loop does not run."""
        for queue in (*self.inputs.values(), *self.outputs.values()):
            queue.disconnect()
        self.fail_all(SessionStopped("the queues were disconnected"))


def _named(queues: Mapping[str, Q], name: str, kind: str) -> Q:
    try:
        return queues[name]
    except KeyError:
        known = ", ".join(sorted(queues)) or "none"
        raise ApplicationRuntimeError(f"there is no {kind} queue '{name}'; there are {known}") from None
