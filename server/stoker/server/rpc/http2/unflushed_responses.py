"""Answers that are given, but that the client does not take: they wait for its windows, and the budget of bytes in flight counts them."""

from typing import TYPE_CHECKING

from stoker.server.net.http2.frames import ErrorCode
from stoker.server.net.progress import Progress

if TYPE_CHECKING:
    from stoker.server.rpc.http2.protocol import GrpcProtocol


class UnflushedResponses:
    """Those of one connection: an `Upload` in the other direction. Evicting it resets their streams. Confined to: the event loop.

    Attributes:
        size_bytes: All of them together.
        unary: How many are answers to unary calls, which clients take as they come.
    """

    __slots__ = ("_connection", "_progress", "_sizes", "_taken_bytes", "_unary", "size_bytes")

    def __init__(self, connection: "GrpcProtocol") -> None:
        self._connection = connection
        self._sizes: dict[int, int] = {}
        self._unary: set[int] = set()
        self._progress: Progress | None = None
        self._taken_bytes = 0
        self.size_bytes = 0

    def streams(self) -> list[int]:
        """Whose answers wait."""
        return list(self._sizes)

    @property
    def unary(self) -> int:
        return len(self._unary)

    def keep(self, stream_id: int, size_bytes: int, *, is_unary: bool) -> bool:
        """Takes room for what waits on the stream; False: there is none."""
        context = self._connection.context
        if not context.engine.budget.reserve(size_bytes):
            return False
        self._sizes[stream_id] = size_bytes
        self.size_bytes += size_bytes
        if is_unary:
            self._unary.add(stream_id)
        if self._progress is None:
            self._progress = Progress(context.limits, context.loop.time())
            self._taken_bytes = self._connection.taken_bytes
            context.engine.budget.watch(self)
        return True

    def forget(self, stream_id: int) -> None:
        """The answer is out, or nobody wants it any more."""
        size_bytes = self._sizes.pop(stream_id, 0)
        if size_bytes:
            self.size_bytes -= size_bytes
            self._connection.context.engine.budget.release(size_bytes)
            self._unary.discard(stream_id)
            if not self._sizes:
                self._progress = None
                self._connection.context.engine.budget.unwatch(self)

    def look(self) -> None:
        """Notes what the client has taken; to be called now and then."""
        if self._progress is not None:
            taken_bytes = self._connection.taken_bytes
            self._progress.note(taken_bytes - self._taken_bytes, self._connection.context.loop.time())
            self._taken_bytes = taken_bytes

    def held_bytes(self) -> int:
        return self.size_bytes

    def rate(self) -> float | None:
        self.look()
        return None if self._progress is None else self._progress.rate(self._connection.context.loop.time())

    def evict(self) -> None:
        for stream_id in self.streams():
            # To a gRPC client this is RESOURCE_EXHAUSTED.
            self._connection.core.reset_stream(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            self.forget(stream_id)
        self._connection.notice_output()
