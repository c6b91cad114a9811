"""Device memory by address, as in the vendor's functions. An address may lie inside a block."""

import bisect
import operator
import threading
from typing import Any

from stoker.backends.gcu.runtime.device_buffer import BufferPart, DeviceBuffer
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.gcu.runtime.stream import Stream
from TopsInference.constants import MemcpyKind
from TopsInference.error_manager import recorded
from TopsInference.owned_devices import checked_stream, owned_device


class _Blocks:
    """Memory blocks by address; addresses are never reused. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: list[int] = []
        self._blocks: dict[int, DeviceBuffer] = {}

    def add(self, buffer: DeviceBuffer) -> None:
        with self._lock:
            gone = [address for address, block in self._blocks.items() if block.is_freed]  # with their device
            for address in gone:
                self._drop(address)
            bisect.insort(self._addresses, buffer.address)
            self._blocks[buffer.address] = buffer

    def remove(self, buffer: DeviceBuffer) -> None:
        with self._lock:
            if self._blocks.get(buffer.address) is buffer:
                self._drop(buffer.address)

    def find(self, address: int) -> BufferPart | None:
        with self._lock:
            index = bisect.bisect_right(self._addresses, address) - 1
            if index < 0:
                return None
            buffer = self._blocks[self._addresses[index]]
        offset = address - buffer.address
        return BufferPart(buffer, offset) if offset < buffer.size_bytes else None

    def _drop(self, address: int) -> None:
        del self._blocks[address]
        del self._addresses[bisect.bisect_left(self._addresses, address)]


_blocks = _Blocks()


def block_at(pointer: Any, purpose: str) -> BufferPart:
    """Returns the memory that starts at `pointer`.

    Raises:
        StatusError: it is no address of device memory that is allocated.
    """
    try:
        address = operator.index(pointer)
    except TypeError:
        raise StatusError(
            Status.TIF_INVALID_PARAM, f"{purpose}: an address from mem_alloc is needed, not {type(pointer).__name__}"
        ) from None
    found = _blocks.find(address)
    if found is None:
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: no device memory is allocated at {address:#x}; was it freed?")
    return found


@recorded
def mem_alloc(nbytes: int) -> int:
    """Allocates `nbytes` zeroed bytes on this thread's device and returns their address.

    Raises:
        StatusError: no device is set, no positive size, or out of memory.
    """
    buffer = owned_device("mem_alloc").allocate(_size(nbytes, "mem_alloc"))
    _blocks.add(buffer)
    return buffer.address


@recorded
def mem_free(pointer: int) -> bool:
    """Frees memory of `mem_alloc`.

    Raises:
        StatusError: it is no such address, was freed before, or queued work uses it.
    """
    found = block_at(pointer, "mem_free")
    if found.start:
        raise StatusError(
            Status.TIF_INVALID_PARAM,
            f"mem_free: {pointer:#x} lies {found.start} bytes inside a block that begins at {found.buffer.address:#x}",
        )
    found.buffer.free()
    _blocks.remove(found.buffer)
    return True


@recorded
def mem_h2d_copy(host: Any, pointer: int, nbytes: int) -> bool:
    """Copies the first `nbytes` of the array `host` to the device.

    Raises:
        StatusError: the memory cannot be used, or is too small.
    """
    device = owned_device("mem_h2d_copy")
    device.copy_to_device(host, block_at(pointer, "mem_h2d_copy"), 0, _size(nbytes, "mem_h2d_copy"))
    return True


@recorded
def mem_d2h_copy(pointer: int, host: Any, nbytes: int) -> bool:
    """Copies `nbytes` from the device to the beginning of the array `host`.

    Raises:
        StatusError: the memory cannot be used, or is too small.
    """
    device = owned_device("mem_d2h_copy")
    device.copy_to_host(block_at(pointer, "mem_d2h_copy"), host, 0, _size(nbytes, "mem_d2h_copy"))
    return True


@recorded
def mem_copy(source: Any, target: Any, nbytes: int, kind: int) -> bool:
    """Copies in the direction `kind`.

    Raises:
        StatusError: as theirs, or no such kind.
    """
    if _kind(kind, "mem_copy") is MemcpyKind.TIF_MEMCPY_HOST_TO_DEVICE:
        return mem_h2d_copy(source, target, nbytes)
    return mem_d2h_copy(source, target, nbytes)


@recorded
def mem_copy_async(source: Any, target: Any, nbytes: int, kind: int, stream: Stream) -> bool:
    """Queues a copy on `stream`; the array must not change until the stream is synchronised.

    Raises:
        StatusError: the memory or the stream cannot be used, or the memory is too small.
    """
    size = _size(nbytes, "mem_copy_async")
    checked_stream(stream, "mem_copy_async")
    if _kind(kind, "mem_copy_async") is MemcpyKind.TIF_MEMCPY_HOST_TO_DEVICE:
        stream.copy_to_device(source, block_at(target, "mem_copy_async"), 0, size)
    else:
        stream.copy_to_host(block_at(source, "mem_copy_async"), target, 0, size)
    return True


def _size(nbytes: Any, purpose: str) -> int:
    try:
        return operator.index(nbytes)
    except TypeError:
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: a number of bytes is needed, not {nbytes!r}") from None


def _kind(kind: Any, purpose: str) -> MemcpyKind:
    try:
        return MemcpyKind(kind)
    except ValueError:
        known = ", ".join(each.name for each in MemcpyKind)
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: {kind!r} is no kind of copy; there are {known}") from None
