"""Memory that a large message is received into, aligned so that its tensor needs no copy.

A buffer that is no longer used serves the next message. Otherwise the allocator would give it back to the system whenever some messages
end at once, and take it anew, page by page: with eight images of 602 KB in flight that was a third of the server's CPU time per request,
and with batches of 147 MB two fifths.
"""

import sys
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

#: Alignment of tensors for native kernels and vector instructions. Executors copy a tensor that is not aligned.
_ALIGNMENT: Final = 64
#: Blocks are multiples of it, so that messages of about one size share them. The system commits a page when it is first written.
_STEP_BYTES: Final = 64 * 1024
#: Sizes of which blocks are kept, and bytes kept of each: 64 MiB in all.
_SIZES: Final = 4
_KEPT_BYTES: Final = 16 * 1024 * 1024
#: Bytes kept of larger blocks, of any size, until the server is idle.
_KEPT_LARGE_BYTES: Final = 512 * 1024 * 1024


def _references_of_unused() -> int:
    """`sys.getrefcount` of an unused block as `_unused` calls it, which depends on the version of Python."""
    for whole in deque((np.empty(1, np.uint8),)):
        count = sys.getrefcount(whole)
    return count


_UNUSED: Final = _references_of_unused()


class MessageBlocks:
    """A pool of memory blocks. Confined to: the event loop; any thread may drop the last reference to a block."""

    def __init__(self) -> None:
        #: By size, the blocks made last, in use or not; the size used last at the end.
        self._made: dict[int, deque[npt.NDArray[np.uint8]]] = {}
        #: Larger blocks, in use or not; the one made last at the end.
        self._large: deque[npt.NDArray[np.uint8]] = deque()

    def take(self, size_bytes: int, lead_bytes: int) -> memoryview:
        """Memory for a message of `size_bytes`, whose tensor begins at byte `lead_bytes`. It is used again once nothing refers to it.

        It holds the bytes of an earlier message: it may be read only once all of it is written.

        Raises:
            MemoryError: the host has no memory left.
        """
        whole_bytes = -(-(size_bytes + _ALIGNMENT) // _STEP_BYTES) * _STEP_BYTES
        whole = self._unused_large(whole_bytes) if whole_bytes > _KEPT_BYTES else self._unused(whole_bytes)
        skip = -(whole.ctypes.data + lead_bytes) % _ALIGNMENT
        return whole.data[skip : skip + size_bytes]

    def forget_large(self) -> None:
        """Returns the memory of large blocks that are not in use. Any thread may call it."""
        self._large = deque()

    def _unused_large(self, whole_bytes: int) -> npt.NDArray[np.uint8]:
        large = self._large
        for whole in large:
            if whole.nbytes == whole_bytes and sys.getrefcount(whole) == _UNUSED:
                return whole
        made = np.empty(whole_bytes, np.uint8)
        if whole_bytes <= _KEPT_LARGE_BYTES:
            large.append(made)
            kept_bytes = sum([whole.nbytes for whole in large])
            while kept_bytes > _KEPT_LARGE_BYTES:
                kept_bytes -= large.popleft().nbytes
        return made

    def _unused(self, whole_bytes: int) -> npt.NDArray[np.uint8]:
        made = self._made.pop(whole_bytes, None)
        if made is None:
            made = deque(maxlen=_KEPT_BYTES // whole_bytes)
            if len(self._made) >= _SIZES:
                del self._made[next(iter(self._made))]
        self._made[whole_bytes] = made
        for whole in made:
            # Every view of the block and every array on it refers to it.
            if sys.getrefcount(whole) == _UNUSED:
                return whole
        made.append(np.empty(whole_bytes, np.uint8))
        return made[-1]


_blocks: Final = MessageBlocks()
#: `MessageBlocks.take` of those of this process.
message_block: Final = _blocks.take
#: `MessageBlocks.forget_large` of those of this process.
forget_large_blocks: Final = _blocks.forget_large
