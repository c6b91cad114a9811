"""Where a body ends, and whether it comes fast enough. Sans-IO: bytes and times are parameters."""

from http import HTTPStatus

from stoker.server.core.limits import Limits
from stoker.server.net.http1.chunks import ChunkedBody
from stoker.server.net.http1.refusal import Refusal
from stoker.server.net.progress import Progress


class BodyFrame:
    """A body on its way.

    Attributes:
        size_bytes: What has come of it.
        progress: How fast it comes.
    """

    __slots__ = ("_chunks", "_left", "progress", "size_bytes")

    def __init__(self, length: int | None, limits: Limits, now_s: float) -> None:
        """`length` is in bytes; None: the body comes in chunks."""
        self._left = length
        self._chunks = ChunkedBody(limits) if length is None else None
        self.progress = Progress(limits, now_s)
        self.size_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether its end has come."""
        return not self._left if self._chunks is None else self._chunks.is_complete

    def most(self, available: int) -> int:
        """How many of so many bytes belong to it. REQUIRES: it does not come in chunks."""
        return min(self._left or 0, available)

    def note(self, size: int, now_s: float) -> None:
        """So many bytes of it have come, and are where they are wanted. REQUIRES: it does not come in chunks."""
        self._left = (self._left or 0) - size
        self.size_bytes += size
        self.progress.note(size, now_s)

    def take(self, data: bytes, at: int, now_s: float) -> tuple[bytes, int]:
        """The part of it that `data` holds from `at` on, and where reading stopped.

        Raises:
            Refusal: the chunks are not what they must be.
        """
        if self._chunks is None:
            piece = data[at : at + self.most(len(data) - at)]
            self.note(len(piece), now_s)
            return piece, at + len(piece)
        unframed = bytearray()
        at = self._chunks.feed(data, at, unframed)
        # Bytes of the framing do not count.
        self.progress.note(len(unframed), now_s)
        self.size_bytes = self._chunks.size_bytes
        return bytes(unframed), at

    def slowness(self, now_s: float) -> Refusal | None:
        """Why not to wait for the rest of it any longer; None: its client may go on."""
        slowness = self.progress.slowness(now_s)
        return None if slowness is None else Refusal(HTTPStatus.REQUEST_TIMEOUT, slowness)
