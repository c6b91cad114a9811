"""The objects that all connections of the gRPC port share, and the interface of a connection for its parts."""

import asyncio
from typing import Any, Protocol

from stoker.server.core.byte_budget import ConnectionShare
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.net.connection_gate import ConnectionGate, Idleness, Slot
from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.limits import H2Limits
from stoker.server.observability.recorder import GoawayReason
from stoker.server.rpc.method import MethodTable
from stoker.server.rpc.rejection import Rejection
from stoker.server.rpc.settings import GrpcSettings

#: What one read takes at most, but for what is read straight to its place.
READ_BYTES = 256 * 1024


class CallTable(Protocol):
    """The calls of a connection, as a call sees them.

    Attributes:
        receiving: Unary calls whose request is not complete, by stream.
        arriving: Streamed calls that have part of a message, by stream.
    """

    receiving: dict[int, Any]
    arriving: dict[int, Any]

    def expect_zero_copy(self, call: Any) -> None:
        """Receives the rest of a call's message into its buffer, as soon as all is handled that has come before."""


class Connection(Protocol):
    """A connection, as its calls and the server see it; `GrpcProtocol` is the one implementation. Confined to: the event loop."""

    core: ServerConnection
    share: ConnectionShare
    is_reserved: bool

    @property
    def context(self) -> "ConnectionContext":
        """The objects that all connections share."""

    @property
    def calls(self) -> CallTable:
        """Its calls."""

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""

    @property
    def taken_bytes(self) -> int:
        """Bytes that the client has taken of all that was written to it."""

    def send_end(self, stream_id: int, block: bytes) -> None:
        """Ends a response by a header block."""

    def hold_unflushed(self, stream_id: int, size_bytes: int, *, is_unary: bool) -> None:
        """Notes what of a complete response waits for the client."""

    def responded(self, call: Any) -> None:
        """Forgets a call whose response was given to the core."""

    def streamed(self) -> None:
        """Notes that part of a response was given to the core."""

    def notice_output(self) -> None:
        """Sees to it that what the core has to send is written, once a turn."""

    async def drained(self, stream_id: int) -> None:
        """Returns when what waits on the stream has gone out."""

    def read_zero_copy(self) -> None:
        """A large message has its receive buffer: what comes is read to there from now on."""

    def note_refused(self, reason: GoawayReason) -> None:
        """Notes that the core refuses new streams."""

    def idleness(self) -> Idleness | None:
        """See `net.connection_gate`."""

    def close_idle(self) -> None:
        """See `net.connection_gate`."""

    def drain(self, reason: GoawayReason) -> None:
        """Lets calls in work end, takes no new ones, and closes."""

    def fail_call(self, rejection: Rejection) -> None:
        """Ends all calls by `rejection`, and the connection."""

    def sweep(self, now_s: float) -> None:
        """Ends what is too slow at `now_s` of the loop's clock."""

    def abort(self) -> None:
        """Drops the connection, with whatever is to be written."""


class ConnectionContext:
    """Confined to: the event loop.

    Attributes:
        methods: What is served.
        engine: Runs the requests.
        reads: Its reads.
        limits: Bounds on what clients send.
        h2_limits: The same for HTTP/2 itself.
        settings: What the operator set.
        loop: The event loop.
        connections: Those that are open.
        calls: How many are in work on all of them.
        is_draining: New connections are turned away.
        wait_closed: Set while no connection is open.
        buffer: What connections read into: each is done with it before another one reads.
    """

    def __init__(
        self, methods: MethodTable, engine: Engine, limits: Limits, settings: GrpcSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.methods = methods
        self.engine = engine
        self.reads = engine.reads
        self.limits = limits
        self.h2_limits = H2Limits.of(limits)
        self.settings = settings
        self.loop = loop
        self.connections: set[Connection] = set()
        self.calls = 0
        self.is_draining = False
        self.wait_closed = asyncio.Event()
        self.wait_closed.set()
        self._gate = ConnectionGate(limits.grpc_connections, "gRPC", limits.connections_per_address)
        self.buffer = memoryview(bytearray(READ_BYTES))

    def admit(self, connection: "Connection", address: str | None) -> Slot | None:
        """Notes a new connection from `address`; None: it may not stay."""
        if self.is_draining:
            return None
        slot = self._gate.enter(connection, address, self.loop.time())
        if slot is not None:
            self.connections.add(connection)
            self.wait_closed.clear()
        return slot

    def leave(self, connection: "Connection") -> None:
        """Forgets a connection."""
        self.connections.discard(connection)
        self._gate.leave(connection)
        if not self.connections:
            self.wait_closed.set()
