"""Memory that a large message is received into, aligned so that its tensor needs no copy.

A buffer that is no longer used serves the next message. Otherwise the allocator would give it back to the system whenever some messages
end at once, and take it anew, page by page: with eight images of 602 KB in flight that was a third of the server's CPU time per request.
"""

import sys
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

#: Where tensors begin: what native kernels and vector instructions want. Executors copy a tensor that lies elsewhere.
_ALIGNMENT: Final = 64
#: Blocks are made in multiples of it, so that messages of about one size share them. A page exists only once it is written to.
_STEP_BYTES: Final = 64 * 1024
#: Sizes that are remembered, and what is kept of each: 64 MiB in all.
_SIZES, _KEPT_BYTES = 4, 16 * 1024 * 1024


def _references_of_unused() -> int:
    """References that the look for an unused block finds to one: ours, its own, and one that not every version of Python counts."""
    for whole in deque((np.empty(1, np.uint8),)):
        count = sys.getrefcount(whole)
    return count


_UNUSED: Final = _references_of_unused()


class MessageBlocks:
    """Confined to: the event loop, but for what it gives, which any thread may let go of."""

    def __init__(self) -> None:
        #: By size, those last made; the size used last at the end. They are here whether they are in use or not.
        self._made: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def take(self, size_bytes: int, lead_bytes: int) -> memoryview:
        """Memory for a message of `size_bytes`, whose tensor begins at byte `lead_bytes`; serves others once nothing refers to it.

        What it holds is what it held before: it may be seen only once all of it is written.

        Raises:
            MemoryError: this host has none left.
        """
        whole_bytes = -(-(size_bytes + _ALIGNMENT) // _STEP_BYTES) * _STEP_BYTES
        whole = np.empty(whole_bytes, np.uint8) if whole_bytes > _KEPT_BYTES else self._unused(whole_bytes)
        skip = -(whole.ctypes.data + lead_bytes) % _ALIGNMENT
        return whole.data[skip : skip + size_bytes]

    def _unused(self, whole_bytes: int) -> npt.NDArray[np.uint8]:
        made = self._made.pop(whole_bytes, None)
        if made is None:
            made = deque(maxlen=_KEPT_BYTES // whole_bytes)
            if len(self._made) >= _SIZES:
                del self._made[next(iter(self._made))]
        self._made[whole_bytes] = made
        for whole in made:
            # A view or an array on the block, however it was derived, refers to it in the end.
            if sys.getrefcount(whole) == _UNUSED:
                return whole
        made.append(np.empty(whole_bytes, np.uint8))
        return made[-1]


_blocks = MessageBlocks()
#: `MessageBlocks.take` of those of this process.
message_block: Final = _blocks.take
