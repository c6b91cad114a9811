"""Fixed rings between one producer and one consumer: what `QueueManager` keeps per tensor.

A ring holds *views* of the user's memory, never copies: the device reads from, or writes to, the very bytes that were enqueued.
"""

from typing import Generic, TypeVar

from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.runtime.enqueued import Enqueued

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
