"""The objects that all connections of the gRPC port share, and the interface of a connection for its parts."""

import asyncio
from typing import Any, Final, Protocol

from stoker.server.core.byte_budget import ConnectionShare
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.net.connection_gate import ConnectionGate, Idleness, Slot
from stoker.server.net.http2.common_blocks import CommonBlocks
from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.limits import H2Limits
from stoker.server.observability.recorder import GoawayReason
from stoker.server.rpc.method import MethodTable
from stoker.server.rpc.rejection import Rejection
from stoker.server.rpc.settings import GrpcSettings

#: Most bytes of one read, except for zero-copy reads.
READ_BYTES: Final = 256 * 1024


class CallTable(Protocol):
    """The calls of a connection, as a call sees them.

    Attributes:
        receiving: Unary calls whose request is incomplete, and streamed calls with a message that has its buffer, by stream id.
        arriving: Streamed calls with an incomplete message, by stream id.
    """

    receiving: dict[int, Any]
    arriving: dict[int, Any]

    def expect_zero_copy(self, call: Any) -> None:
        """Receives the rest of a call's message into its buffer, once all earlier events are handled."""


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
        """The calls of the connection."""

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""

    @property
    def taken_bytes(self) -> int:
        """Bytes that the client has received of all that was written."""

    def send_end(self, stream_id: int, block: bytes) -> None:
        """Ends a response with a header block of trailers."""

    def has_response_space(self, size_bytes: int) -> bool:
        """Whether the byte budget has space for a response."""

    def hold_unflushed(self, stream_id: int, size_bytes: int, *, is_unary: bool) -> None:
        """Counts the unsent bytes of a complete response against the byte budget."""

    def responded(self, call: Any) -> None:
        """Forgets a call whose response was given to the core."""

    def streamed(self) -> None:
        """Notes that part of a response was given to the core."""

    def notice_output(self) -> None:
        """Schedules one write of the core's output in this loop iteration."""

    async def drained(self, stream_id: int) -> None:
        """Returns when all data that waits on the stream has been sent."""

    def read_zero_copy(self) -> None:
        """Switches the transport to zero-copy reads: a large message has its receive buffer."""

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
        """Enforces timeouts at `now_s` of the loop's clock, in seconds."""

    def abort(self) -> None:
        """Drops the connection and its unsent output."""


class ConnectionContext:
    """Confined to: the event loop.

    Attributes:
        methods: The served methods by path.
        engine: Runs the requests.
        reads: Its reads.
        limits: Bounds on what clients send.
        h2_limits: The limits of each HTTP/2 connection.
        common_blocks: Decoded header blocks that the connections share.
        settings: The operator's settings of the gRPC port.
        loop: The event loop.
        connections: The open connections.
        calls: Number of calls in work on all connections.
        is_draining: Whether new connections are refused.
        wait_closed: Set while no connection is open.
        buffer: The shared receive buffer: a connection copies its bytes before another one reads.
    """

    def __init__(
        self, methods: MethodTable, engine: Engine, limits: Limits, settings: GrpcSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.methods = methods
        self.engine = engine
        self.reads = engine.reads
        self.limits = limits
        self.h2_limits = H2Limits.of(limits)
        self.common_blocks = CommonBlocks()
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
        """Registers a new connection from `address` and returns its slot; None: the connection must close."""
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
