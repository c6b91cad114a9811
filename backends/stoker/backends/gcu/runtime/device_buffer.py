"""`DeviceBuffer`: a block of a card's HBM; `BufferPart`: its bytes from an offset on; `DeviceBlock`: their common interface.

Also gives access to bytes of host arrays.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.backends.gcu.runtime.card import Card
from stoker.backends.gcu.runtime.errors import OutOfDeviceMemory, Status, StatusError

Bytes = npt.NDArray[np.uint8]


def readable_bytes(memory: Any) -> Bytes:
    """Returns the bytes of `memory`, an array or any object with the buffer protocol, without a copy.

    Raises:
        StatusError: the memory is not contiguous, or holds Python objects.
    """
    if isinstance(memory, np.ndarray):
        if memory.dtype.hasobject:
            raise StatusError(
                Status.TIF_UN_SUPPORTED_DATA_TYPE, f"host memory of dtype {memory.dtype} cannot be copied: it holds no numbers"
            )
        if not memory.flags.c_contiguous:
            raise StatusError(
                Status.TIF_INVALID_PARAM, f"the host array of shape {memory.shape} is not contiguous; copies take contiguous arrays"
            )
        return memory.reshape(-1).view(np.uint8)
    try:
        return np.frombuffer(memory, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise StatusError(
            Status.TIF_INVALID_PARAM, f"host memory must be a contiguous array or buffer, not {type(memory).__name__}: {error}"
        ) from error


def writable_bytes(memory: Any) -> Bytes:
    """Like `readable_bytes`, for writable memory.

    Raises:
        StatusError: the memory is not contiguous, holds Python objects, or is read-only.
    """
    view = readable_bytes(memory)
    if not view.flags.writeable:
        raise StatusError(Status.TIF_INVALID_PARAM, f"host memory of {view.nbytes} bytes is read-only; nothing can be copied into it")
    return view


def first_bytes(memory: Bytes, size: int | None) -> Bytes:
    """Returns the first `size` bytes; None: all.

    Raises:
        StatusError: there are fewer than `size` bytes.
    """
    if size is None:
        return memory
    if not 0 <= size <= memory.nbytes:
        raise StatusError(Status.TIF_INVALID_VALUE, f"{size} bytes of host memory are to be copied; it has {memory.nbytes}")
    return memory[:size]


#: Alignment of buffers in bytes, as in an allocator of device memory.
_PAGE_BYTES = 4096


class DeviceBlock(Protocol):
    """The interface that copies and runs use; see `DeviceBuffer`."""

    def check(self, card: Card, offset: int, size_bytes: int, purpose: str) -> None:
        """Rejects what cannot be used."""

    def pin(self) -> None:
        """Adds one use by a queued work item."""

    def unpin(self) -> None:
        """Ends one use by a work item."""

    def read(self, offset: int, size_bytes: int) -> Bytes:
        """Returns a view of its bytes."""

    def write(self, offset: int, source: Bytes) -> None:
        """Writes `source` at `offset`."""

    def write_zeros(self, offset: int, size_bytes: int) -> None:
        """Writes zeros at `offset`."""


class DeviceBuffer:
    """A block of device memory, initially zeros. Any thread may use it.

    Attributes:
        size_bytes: Its size.
        address: Its unique address on the card; never 0.
    """

    PURPOSE = "buffers"

    def __init__(self, card: Card, size_bytes: int, on_free: Callable[["DeviceBuffer"], None]) -> None:
        """Allocates `size_bytes` of the card's HBM.

        Raises:
            StatusError: the size is not positive, or the card is out of memory.
        """
        if size_bytes < 1:
            raise StatusError(Status.TIF_INVALID_VALUE, f"a device buffer has at least one byte, not {size_bytes}")
        card.hbm.take(size_bytes, self.PURPOSE, f"a buffer of {size_bytes} bytes")
        try:
            self._bytes: Bytes = np.zeros(size_bytes, np.uint8)
        except MemoryError as error:
            card.hbm.give_back(size_bytes, self.PURPOSE)
            raise OutOfDeviceMemory(f"a buffer of {size_bytes} bytes: this host has not the memory to simulate it") from error
        self.size_bytes = size_bytes
        self.address = card.next_address(size_bytes, _PAGE_BYTES)
        self.card = card
        self._generation = card.generation
        self._on_free = on_free
        self._lock = threading.Lock()
        self._uses = 0
        self._is_freed = False
        self._is_zero = True

    def __repr__(self) -> str:
        return f"<DeviceBuffer {self.size_bytes} bytes at {self.address:#x} of card {self.card.id}{', freed' if self._is_freed else ''}>"

    @property
    def is_freed(self) -> bool:
        """Whether its memory was freed."""
        return self._is_freed

    def free(self) -> None:
        """Frees its memory.

        Raises:
            StatusError: the memory is already freed, or queued work uses it.
        """
        with self._lock:
            if self._is_freed:
                raise StatusError(Status.TIF_INVALID_PARAM, f"{self!r} is freed twice")
            if self._uses:
                raise StatusError(
                    Status.TIF_INVALID_PARAM, f"{self!r} cannot be freed: work queued on a stream uses it; synchronize the stream first"
                )
            self._let_go()

    def discard(self) -> None:
        """Frees it unless it is freed already. Only its device calls this, after all its streams have ended."""
        with self._lock:
            if not self._is_freed:
                self._let_go()

    def check(self, card: Card, offset: int, size_bytes: int, purpose: str) -> None:
        """Rejects what cannot be used.

        Raises:
            StatusError: the buffer was freed, was lost in a reset, is on another card, or ends before `offset + size_bytes`.
        """
        if self._is_freed:
            raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: {self!r} cannot be used any more")
        if self.card is not card:
            raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: {self!r} is not on card {card.id}")
        if self._generation != card.generation:
            raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: {self!r} was lost when the card was reset")
        if offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise StatusError(
                Status.TIF_INVALID_VALUE,
                f"{purpose}: bytes {offset} to {offset + size_bytes} are outside the buffer of {self.size_bytes} bytes",
            )

    def pin(self) -> None:
        """Adds one use by a queued work item."""
        with self._lock:
            if self._is_freed:
                raise StatusError(Status.TIF_INVALID_PARAM, f"{self!r} cannot be used any more")
            self._uses += 1

    def unpin(self) -> None:
        """Ends one use by a work item."""
        with self._lock:
            self._uses -= 1

    def read(self, offset: int, size_bytes: int) -> Bytes:
        """Returns a view of its bytes. REQUIRES: the access was checked and the buffer is pinned."""
        return self._bytes[offset : offset + size_bytes]

    def write(self, offset: int, source: Bytes) -> None:
        """Writes `source` at `offset`. REQUIRES: as `read`."""
        self._is_zero = False
        np.copyto(self._bytes[offset : offset + source.nbytes], source)

    def write_zeros(self, offset: int, size_bytes: int) -> None:
        """Writes zeros at `offset`; does nothing if the buffer was never written. REQUIRES: as `read`."""
        if not self._is_zero:
            self._bytes[offset : offset + size_bytes] = 0

    def _let_go(self) -> None:
        self._is_freed = True
        self._bytes = np.zeros(0, np.uint8)
        self.card.hbm.give_back(self.size_bytes, self.PURPOSE)
        self._on_free(self)


class BufferPart:
    """The content of `buffer` from byte `start` on."""

    def __init__(self, buffer: DeviceBuffer, start: int) -> None:
        self.buffer = buffer
        self.start = start

    @property
    def size_bytes(self) -> int:
        """Bytes from `start` to the end of the buffer."""
        return self.buffer.size_bytes - self.start

    def check(self, card: Card, offset: int, size_bytes: int, purpose: str) -> None:
        self.buffer.check(card, self.start + offset, size_bytes, purpose)

    def pin(self) -> None:
        self.buffer.pin()

    def unpin(self) -> None:
        self.buffer.unpin()

    def read(self, offset: int, size_bytes: int) -> Bytes:
        return self.buffer.read(self.start + offset, size_bytes)

    def write(self, offset: int, source: Bytes) -> None:
        self.buffer.write(self.start + offset, source)

    def write_zeros(self, offset: int, size_bytes: int) -> None:
        self.buffer.write_zeros(self.start + offset, size_bytes)
