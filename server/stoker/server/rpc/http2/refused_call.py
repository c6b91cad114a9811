"""A request that is refused for its header fields alone, before anything of its body has come."""

import asyncio
from typing import TYPE_CHECKING, Final

from stoker.server.rpc.refusal import Refusal

if TYPE_CHECKING:
    from stoker.server.rpc.http2.protocol import GrpcProtocol

#: grpcio's asyncio client turns a status that overtakes its first message into INTERNAL, and curl takes an answer that overtakes its body
#: for a broken stream. Both are answered when the first of the body comes, or after this time.
_PATIENCE_S: Final = 0.05


class RefusedCall:
    """Answers when the client has begun to send. Confined to: the event loop."""

    __slots__ = ("_block", "_connection", "_timer", "has_ended", "is_over", "stream_id")

    def __init__(self, connection: "GrpcProtocol", stream_id: int, block: bytes) -> None:
        """`block` is the whole answer."""
        self._connection = connection
        self._block = block
        self._timer: asyncio.TimerHandle = connection.context.loop.call_later(_PATIENCE_S, self._respond)
        self.stream_id = stream_id
        self.has_ended = False
        self.is_over = False

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        """As `H2Call.feed`."""
        self.has_ended = has_ended
        self._respond()

    def refuse(self, refusal: Refusal) -> None:
        """As `H2Call.refuse`; what it was refused for stays."""
        self._respond()

    def abandon(self) -> None:
        """As `H2Call.abandon`."""
        self.is_over = True
        self._timer.cancel()

    def _respond(self) -> None:
        if not self.is_over:
            self.abandon()
            self._connection.send_end(self.stream_id, self._block)
            self._connection.responded(self)
