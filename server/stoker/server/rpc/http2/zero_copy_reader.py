"""`ZeroCopyReader`: the protocol of a gRPC connection while large messages arrive. It inherits asyncio's class, so it is never compiled."""

import asyncio
from typing import Any, Final

#: After this many reads without a large message, the transport reads through the connection itself again.
SMALL_READS: Final = 64


class ZeroCopyReader(asyncio.BufferedProtocol):
    """Confined to: the event loop."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_on = False
        self._others = 0

    def begin(self) -> None:
        """Switches the transport to zero-copy reads: a large message has its receive buffer."""
        self._others = 0
        transport = self._connection.transport
        if not self._is_on and not transport.is_closing():
            self._is_on = True
            transport.set_protocol(self)

    def note_small_read(self) -> None:
        """Notes a read while no large message is incomplete."""
        self._others += 1
        transport = self._connection.transport
        if self._others > SMALL_READS and self._is_on and not transport.is_closing():
            self._is_on = False
            transport.set_protocol(self._connection)

    # ---- called by the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer: memoryview = self._connection.receive_buffer()
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.filled(nbytes)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
