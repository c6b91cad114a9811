"""zlib and gzip bodies: requests are decompressed in steps under a limit, responses compressed likewise, beside the event loop.

A thread blocks the event loop while it holds the GIL, as it does for every copy. So a step reads and writes few bytes,
and the output grows in one block: joining parts at the end would copy all of it once more.
"""

import enum
import io
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from stoker.server.core.tasks import run_off_loop

#: Bytes that one step reads and writes at most: about a millisecond of work.
_STEP_IN_BYTES: Final = 64 * 1024
STEP_OUT_BYTES: Final = 1024 * 1024
#: The fastest level: a response must not wait for a better ratio.
_LEVEL: Final = 1


class Fault(enum.Enum):
    """The ways in which compressed data is invalid."""

    INVALID = enum.auto()
    CUT_SHORT = enum.auto()
    FOLLOWED = enum.auto()
    TOO_LARGE = enum.auto()


class InflationError(Exception):
    """The compressed data is invalid.

    Attributes:
        fault: The kind.
        more_bytes: How many bytes follow the data, where `fault` is FOLLOWED.
    """

    def __init__(self, fault: Fault, text: str = "", more_bytes: int = 0) -> None:
        super().__init__(text)
        self.fault = fault
        self.more_bytes = more_bytes


class Inflation:
    """Decompresses one message in steps.

    Attributes:
        is_done: Whether all of it is decompressed.
    """

    __slots__ = ("_at", "_data", "_inflator", "_left_bytes", "_out", "_unread", "is_done")

    def __init__(self, data: bytes | bytearray | memoryview, window_bits: int, most_bytes: int) -> None:
        """Decompresses `data` to at most `most_bytes`; `window_bits` names the format as zlib does."""
        self._inflator = zlib.decompressobj(wbits=window_bits)
        self._data = memoryview(data)
        self._at = 0
        self._unread: bytes | memoryview = b""
        self._left_bytes = most_bytes
        self._out = io.BytesIO()
        self.is_done = False

    def step(self, most_out_bytes: int = STEP_OUT_BYTES) -> int:
        """Decompresses the next part; returns its size in bytes, perhaps 0.

        Raises:
            InflationError: the data is invalid, is truncated, is followed by other data, or exceeds its limit.
        """
        if not self._unread:
            self._unread = self._data[self._at : self._at + _STEP_IN_BYTES]
            self._at += len(self._unread)
        try:
            # One byte above the limit is enough to know that it is exceeded.
            part = self._inflator.decompress(self._unread, min(most_out_bytes, self._left_bytes + 1))
        except zlib.error as error:
            raise InflationError(Fault.INVALID, str(error)) from None
        self._left_bytes -= len(part)
        if self._left_bytes < 0:
            raise InflationError(Fault.TOO_LARGE)
        self._out.write(part)
        self._unread = self._inflator.unconsumed_tail
        if self._inflator.eof:
            more_bytes = len(self._inflator.unused_data) + len(self._data) - self._at
            if more_bytes:
                raise InflationError(Fault.FOLLOWED, more_bytes=more_bytes)
            self.is_done = True
        elif not part and not self._unread and self._at == len(self._data):
            raise InflationError(Fault.CUT_SHORT)
        return len(part)

    def result(self) -> bytes:
        """The decompressed message, without a copy. REQUIRES: it is done; called once."""
        out, self._out = self._out, io.BytesIO()
        return out.getvalue()


async def joined(pieces: Sequence[bytes | memoryview], most_inline_bytes: int) -> bytes:
    """Joins `pieces`: up to `most_inline_bytes` on the event loop, more in a thread."""
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return pieces[0]
    is_large = sum(map(len, pieces)) > most_inline_bytes
    return await run_off_loop(b"".join, pieces) if is_large else b"".join(pieces)


async def inflate(
    data: bytes | bytearray | memoryview, window_bits: int, most_bytes: int, take: Callable[[int], None], most_inline_bytes: int
) -> bytes:
    """The decompressed content of `data`.

    Args:
        data: The compressed data.
        window_bits: See `Inflation`.
        most_bytes: Bound of the decompressed size.
        take: Called on the event loop with the size of each part before the next is made; raises to stop.
        most_inline_bytes: Bodies up to this size, compressed and decompressed, stay on the event loop; larger ones use a thread.

    Raises:
        InflationError: see `Inflation.step`. Also the exceptions of `take`.
    """
    work = Inflation(data, window_bits, most_bytes)
    if len(data) <= most_inline_bytes:
        take(work.step(min(most_inline_bytes, STEP_OUT_BYTES)))
    while not work.is_done:
        take(await run_off_loop(work.step))
    return work.result()


def deflate(data: Sequence[bytes | memoryview], window_bits: int) -> bytes:
    """Compresses the pieces of `data` together, for speed rather than size."""
    packer = zlib.compressobj(level=_LEVEL, wbits=window_bits)
    parts: list[bytes] = []
    for piece in data:
        view = memoryview(piece)
        parts += [packer.compress(view[at : at + STEP_OUT_BYTES]) for at in range(0, len(view), STEP_OUT_BYTES)]
    parts.append(packer.flush())
    # `join` releases the interpreter's lock for a large copy; `+` does not.
    return b"".join(parts)
