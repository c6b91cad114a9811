"""`RejectedCall`: a call that is rejected because of its headers."""

import asyncio
from typing import Final

from stoker.server.rpc.http2.connection_context import Connection
from stoker.server.rpc.rejection import Rejection

#: grpcio's asyncio client turns a status that arrives before it has sent its first message into INTERNAL. curl reports a response that
#: arrives before it has sent its body as a broken stream. The response is sent when the client's first DATA arrives, or after this time in
#: seconds.
_PATIENCE_S: Final = 0.05


class RejectedCall:
    """A rejected call, which sends its response once the client has begun to send. Confined to: the event loop."""

    __slots__ = ("_block", "_connection", "_timer", "has_ended", "is_over", "stream_id")

    def __init__(self, connection: Connection, stream_id: int, block: bytes) -> None:
        """`block` is the header block of the whole response."""
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

    def reject(self, rejection: Rejection) -> None:
        """As `H2Call.reject`, without effect: the first rejection is kept."""
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
