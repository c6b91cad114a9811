"""Fixed rings between one producer and one consumer, which `QueueManager` keeps for each tensor, and their entries.

A ring holds *views* of the user's memory, never copies: the device reads from, or writes to, the very bytes that were enqueued.
"""

import enum
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError

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
        """Whether the device is done with it, or will never see it."""
        return self._fate is _Fate.ENDED

    def take(self) -> None:
        """From here on the device uses it."""
        self._fate = _Fate.TAKEN

    def withdraw(self) -> bool:
        """Takes it back; False if the device has it already, or is done with it."""
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
    """`memory` seen with the anchor's shape and dtype: the same bytes, no copy.

    Args:
        anchor: Whose data it is.
        memory: A C-contiguous array of exactly the anchor's size in bytes; of the anchor's dtype, or plain bytes (uint8).
        size: Bytes that the caller means; None: all of `memory`.
        is_written: Whether the device writes it.

    Raises:
        ApplicationRuntimeError: the memory cannot be used as it is; says why.
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

    Only the producer moves the tail and only the consumer moves the head; both count up for ever, so neither needs a lock.
    """

    def __init__(self, capacity: int) -> None:
        """An empty ring.

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
        """The oldest element, which stays; None if the ring is empty. Consumer only."""
        return self._slots[self._head % self.capacity] if self.read_available else None

    def pop(self) -> T | None:
        """Takes the oldest element out; None if the ring is empty. Consumer only."""
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
