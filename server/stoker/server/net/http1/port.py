"""What all connections of one HTTP port share."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.server.core.limits import Limits
from stoker.server.net.connection_gate import ConnectionGate
from stoker.server.net.http1.direct import DirectRoute, DirectRoutes
from stoker.server.net.http1.disconnect_watch import DisconnectWatch
from stoker.server.net.http1.head import HeadParser, RequestHead

if TYPE_CHECKING:
    from stoker.server.net.http1.connection import HttpConnection

#: Heads that are remembered, and how long one may be for it: half a MiB in all, roughly.
_KEPT_HEADS = 256
_KEPT_HEAD_BYTES = 1024
#: Heads that are remembered to have come once.
_MARKS = 1024
#: What one read takes at most where the bytes go through the port's buffer. Large bodies are read into memory of their own.
READ_BYTES = 64 * 1024


def no_path(_path: str) -> bool:
    """For ports on which no path is answered on a connection in a reserved slot."""
    return False


class KnownHead(NamedTuple):
    """A head, and where requests with it go; `route` None: to the ASGI app."""

    head: RequestHead
    route: DirectRoute | None


class HttpPort:
    """State and settings of one port. Confined to: the event loop.

    Attributes:
        app: The ASGI app that answers what takes no short path.
        limits: Bounds on what clients send.
        is_reserved: Whether a path is answered on a connection in a reserved slot.
        gate: Which connections there may be.
        disconnects: Of clients that say no more and wait for their answer.
        loop: The event loop.
        connections: Those that are open.
        tasks: Of requests in work, those that have one.
        buffer: What connections read into: each is done with it before another one reads.
    """

    def __init__(
        self,
        app: Any,
        limits: Limits,
        direct: DirectRoutes | None,
        loop: asyncio.AbstractEventLoop,
        is_reserved: Callable[[str], bool] = no_path,
    ) -> None:
        self.app = app
        self.is_reserved = is_reserved
        self.limits = limits
        self.gate = ConnectionGate(limits.http_connections, "HTTP", limits.connections_per_address)
        self.loop = loop
        self.disconnects = DisconnectWatch(loop)
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._direct = direct
        self._heads: dict[bytes, KnownHead] = {}
        self._marks: set[int] = set()
        self._empty = asyncio.Event()

    def find(self, block: bytes) -> KnownHead:
        """What the head `block` says, whole from its first byte to its blank line.

        Raises:
            Refusal: it is not one to go on with.
        """
        known = self._heads.get(block)
        if known is None:
            parser = HeadParser(self.limits)
            parser.feed(block)
            known = self.known(parser)
            if len(block) <= _KEPT_HEAD_BYTES:
                self._keep(block, known)
        return known

    def _keep(self, block: bytes, known: KnownHead) -> None:
        """Keeps a head from its second time on: those of clients that number their requests never come again, and would only cost room."""
        mark = hash(block)
        if mark not in self._marks:
            if len(self._marks) >= _MARKS:
                self._marks.clear()
            self._marks.add(mark)
            return
        if len(self._heads) >= _KEPT_HEADS:
            self._heads.clear()
        self._heads[block] = known

    def known(self, parser: HeadParser) -> KnownHead:
        """What `parser` has read, which came in pieces.

        Raises:
            Refusal: it is not one to go on with.
        """
        head = parser.head()
        return KnownHead(head, None if self._direct is None else self._direct.find(head))

    def discard(self, connection: "HttpConnection") -> None:
        """Forgets a connection that has ended."""
        self.connections.discard(connection)
        self.gate.leave(connection)
        if not self.connections:
            self._empty.set()

    async def emptied(self, timeout_s: float) -> bool:
        """Waits until no connection is left; False if some are after `timeout_s`."""
        self._empty.clear()
        if not self.connections:
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
