"""The streams of a connection: their states and transitions, their windows, and the connection's receive window.

`NEXT` is RFC 9113, section 5.1, as one table: `NEXT[state][step]` is the next state, or the error that the step amounts to. A server that
never pushes has no reserved states. IDLE and CLOSED streams have no object; their rows of the table apply all the same.
"""

import enum
from collections import deque
from collections.abc import Callable
from typing import Final

from stoker.server.net.http2 import frames
from stoker.server.net.http2.frames import DEFAULT_WINDOW_BYTES
from stoker.server.net.http2.limits import H2Limits


class Next(enum.IntEnum):
    """The state of a stream, or the error that a step amounts to where the state does not allow it."""

    IDLE = 0
    OPEN = 1
    #: The server has ended its side; the peer may still send.
    HALF_CLOSED_LOCAL = 2
    #: The peer has ended its side; the server may still send.
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4

    #: The frame is late, not wrong: dropped.
    IGNORED = 5
    #: Stream error PROTOCOL_ERROR.
    MALFORMED = 6
    #: Stream error STREAM_CLOSED.
    STREAM_ERROR = 7
    #: Connection error PROTOCOL_ERROR.
    NEVER_OPENED = 8
    #: Connection error STREAM_CLOSED.
    LONG_CLOSED = 9
    #: The application broke the rule: `MisuseError`.
    MISUSE = 10


class Step(enum.IntEnum):
    """A frame that is received or sent on a stream."""

    RECEIVE_HEADERS = 0
    RECEIVE_HEADERS_END = 1
    RECEIVE_DATA = 2
    RECEIVE_DATA_END = 3
    RECEIVE_RST_STREAM = 4
    RECEIVE_WINDOW_UPDATE = 5
    SEND_HEADERS = 6
    SEND_HEADERS_END = 7
    SEND_DATA = 8
    SEND_DATA_END = 9
    SEND_RST_STREAM = 10


_N: Final = Next
#: Outcome by state and step: `NEXT[state][step]`, the columns in the order of `Step`.
NEXT: Final[tuple[tuple[Next, ...], ...]] = (
    # IDLE. HEADERS opens it; nothing else may come before (PRIORITY, which is ignored everywhere, has no column).
    (
        *(_N.OPEN, _N.HALF_CLOSED_REMOTE),
        *(_N.NEVER_OPENED, _N.NEVER_OPENED, _N.NEVER_OPENED, _N.NEVER_OPENED),
        *(_N.MISUSE, _N.MISUSE, _N.MISUSE, _N.MISUSE, _N.MISUSE),
    ),
    # OPEN. A second HEADERS is trailers, which must end the stream (section 8.1).
    (
        *(_N.MALFORMED, _N.HALF_CLOSED_REMOTE, _N.OPEN, _N.HALF_CLOSED_REMOTE),
        *(_N.CLOSED, _N.OPEN),
        *(_N.OPEN, _N.HALF_CLOSED_LOCAL, _N.OPEN, _N.HALF_CLOSED_LOCAL, _N.CLOSED),
    ),
    # HALF_CLOSED_LOCAL
    (
        *(_N.MALFORMED, _N.CLOSED, _N.HALF_CLOSED_LOCAL, _N.CLOSED),
        *(_N.CLOSED, _N.HALF_CLOSED_LOCAL),
        *(_N.MISUSE, _N.MISUSE, _N.MISUSE, _N.MISUSE, _N.CLOSED),
    ),
    # HALF_CLOSED_REMOTE
    (
        *(_N.STREAM_ERROR, _N.STREAM_ERROR, _N.STREAM_ERROR, _N.STREAM_ERROR),
        *(_N.CLOSED, _N.HALF_CLOSED_REMOTE),
        *(_N.HALF_CLOSED_REMOTE, _N.CLOSED, _N.HALF_CLOSED_REMOTE, _N.CLOSED, _N.CLOSED),
    ),
    # CLOSED. Late frames for a stream that the server has reset are dropped before this row applies. RST_STREAM and WINDOW_UPDATE may have
    # crossed with the server's end of the stream. The application may not know yet that the peer has reset the stream.
    (
        *(_N.LONG_CLOSED, _N.LONG_CLOSED, _N.LONG_CLOSED, _N.LONG_CLOSED),
        *(_N.IGNORED, _N.IGNORED),
        *(_N.IGNORED, _N.IGNORED, _N.IGNORED, _N.IGNORED, _N.IGNORED),
    ),
)


class Inflow:
    """The connection's receive window: the bytes the peer may still send, and those it is owed. Confined to: one connection.

    Attributes:
        window: Bytes the peer may still send on all streams together.
    """

    __slots__ = ("_granted", "_half", "_pending_update", "_send", "window")

    def __init__(self, send: Callable[[bytes], None], window_bytes: int) -> None:
        """`send` puts a frame into the output."""
        self._send = send
        self._half = max(1, window_bytes // 2)
        self._pending_update = 0
        self._granted = window_bytes
        self.window = window_bytes
        if window_bytes > DEFAULT_WINDOW_BYTES:
            send(frames.window_update(0, window_bytes - DEFAULT_WINDOW_BYTES))

    def refund(self, count: int) -> None:
        """Owes the peer `count` bytes more; one WINDOW_UPDATE gives them back when they make half the window."""
        self._pending_update += count
        if self._pending_update >= self._half:
            self._send(frames.window_update(0, self._pending_update))
            self.window += self._pending_update
            self._granted += self._pending_update
            self._pending_update = 0

    @property
    def pending_update_bytes(self) -> int:
        """Bytes given back that no WINDOW_UPDATE has reported."""
        return self._pending_update

    @property
    def received_bytes(self) -> int:
        """DATA received so far, padding included."""
        return self._granted - self.window


#: Gaps between the ids that a peer has used, of which so many are remembered: an older gap counts as closed streams.
_GAPS: Final = 16
_CLOSED: Final = Next.CLOSED


class Stream:
    """One request and its response. Confined to: one connection.

    Attributes:
        state: A row of `NEXT`.
        receive_window: Bytes the peer may still send.
        unconsumed: Received bytes that the application has not given back.
        pending_update: Bytes that it has given back and no WINDOW_UPDATE has reported.
        is_held_back: Whether no WINDOW_UPDATE may report them yet.
        body_left: Bytes that are missing of the content-length; None: there was none.
        send_window: Bytes that the server may still send; negative after the peer has shrunk its windows.
        has_responded: Whether header fields were sent.
        is_ending: Whether the application has given the end of the response, which may wait.
        is_abandoned: Whether the application wants no more of the request: the stream ends with the response.
        waiting: Data that waits for windows or the transport.
        waiting_bytes: Its size.
        trailers: Header block that follows the waiting data.
        is_listed: Whether it stands in the sender's queue.
        receive_buffer: Takes the next bytes of the request; None: the application gets them as they arrive.
        receive_left: How many of them; the buffer may be larger.
        unreported_bytes: Bytes in the buffer that no `DataWritten` has reported.
    """

    __slots__ = (
        "body_left",
        "has_responded",
        "id",
        "is_abandoned",
        "is_ending",
        "is_held_back",
        "is_listed",
        "pending_update",
        "receive_buffer",
        "receive_left",
        "receive_window",
        "send_window",
        "state",
        "trailers",
        "unconsumed",
        "unreported_bytes",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, stream_id: int, state: Next, receive_window: int, send_window: int, body_left: int | None) -> None:
        self.id = stream_id
        self.state = state
        self.receive_window = receive_window
        self.send_window = send_window
        self.body_left = body_left
        self.unconsumed = 0
        self.pending_update = 0
        self.is_held_back = False
        self.has_responded = False
        self.is_ending = False
        self.is_abandoned = False
        self.waiting: deque[memoryview] | None = None
        self.waiting_bytes = 0
        self.trailers: bytes | None = None
        self.is_listed = False
        self.receive_buffer: memoryview | None = None
        self.receive_left = 0
        self.unreported_bytes = 0


class StreamTable:
    """Confined to: one connection.

    Attributes:
        open: Streams that are neither idle nor closed, by id.
        last_id: Highest id the peer has used.
        opened: How many streams were opened; refused ones do not count.
        inflow: The connection's receive window.
    """

    __slots__ = ("_gaps", "_most_reset", "_reset_here", "inflow", "last_id", "open", "opened")

    def __init__(self, inflow: Inflow, limits: H2Limits) -> None:
        self.open: dict[int, Stream] = {}
        self.last_id = 0
        self.opened = 0
        self.inflow = inflow
        self._most_reset = limits.closed_streams
        self._reset_here: dict[int, None] = {}
        #: None: the peer has skipped no id.
        self._gaps: deque[range] | None = None

    def begin(self, stream_id: int) -> None:
        """Notes that the peer has used a new id; all lower ones are closed from now on (RFC 9113, section 5.1.1)."""
        if stream_id != self.last_id + 2 and stream_id != 1:
            if self._gaps is None:
                self._gaps = deque(maxlen=_GAPS)
            self._gaps.append(range(self.last_id + 1, stream_id))
        self.last_id = stream_id

    def close(self, stream: Stream) -> None:
        """Forgets a stream, and gives the window that the application has not given back to the peer."""
        del self.open[stream.id]
        stream.state = _CLOSED
        stream.receive_buffer = None
        if stream.unconsumed:
            self.inflow.refund(stream.unconsumed)
            stream.unconsumed = 0
        if stream.waiting:
            stream.waiting = None
            stream.waiting_bytes = 0

    def close_all(self) -> None:
        for stream in self.open.values():
            stream.state = Next.CLOSED
            stream.receive_buffer = None
            stream.waiting = None
            stream.waiting_bytes = 0
        self.open.clear()

    def remember_reset(self, stream_id: int) -> None:
        """Notes that the server has reset a stream: frames that the peer sends before it knows are no fault."""
        self._reset_here[stream_id] = None
        if len(self._reset_here) > self._most_reset:
            del self._reset_here[next(iter(self._reset_here))]

    def was_reset_here(self, stream_id: int) -> bool:
        return stream_id in self._reset_here

    def state_of(self, stream_id: int) -> Next:
        """The state of a stream that is not open. A stream whose id the peer has skipped counts as never opened."""
        if stream_id > self.last_id or not stream_id & 1 or any(stream_id in gap for gap in self._gaps or ()):
            return Next.IDLE
        return Next.CLOSED
