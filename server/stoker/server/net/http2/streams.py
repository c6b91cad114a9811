"""The streams of a connection: those that are open, and what is remembered of the others."""

from collections import deque
from typing import Final

from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.output import Inflow
from stoker.server.net.http2.stream_states import Next

#: Gaps between the ids a peer has used; one that leaves more is not told apart from one that reuses ids.
_GAPS = 16
_CLOSED: Final = Next.CLOSED


class Stream:
    """One request and its answer. Confined to: one connection.

    Attributes:
        state: See `stream_states`.
        receive_window: Bytes the peer may still send.
        unconsumed: Received bytes whose window the application holds.
        owed: Bytes it has given back that the peer has not been told of.
        body_left: What is missing of the content-length; None: there was none.
        send_window: Bytes that we may still send; negative after the peer has shrunk its windows.
        has_responded: Header fields were sent.
        is_ending: The application has given the end of the answer; perhaps it waits.
        is_abandoned: The application wants no more of the request than it has; the stream ends with the answer.
        waiting: Data that waits for windows or room.
        waiting_bytes: Its size.
        trailers: Header block to follow the waiting data.
        is_listed: Whether it stands in the sender's queue.
        receive_buffer: Where the next bytes of the request go; None: to the application, as they come.
        unreported_bytes: What was put there that the application has not been told of.
    """

    __slots__ = (
        "body_left",
        "has_responded",
        "id",
        "is_abandoned",
        "is_ending",
        "is_listed",
        "owed",
        "receive_buffer",
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
        self.owed = 0
        self.has_responded = False
        self.is_ending = False
        self.is_abandoned = False
        self.waiting: deque[memoryview] | None = None
        self.waiting_bytes = 0
        self.trailers: bytes | None = None
        self.is_listed = False
        self.receive_buffer: memoryview | None = None
        self.unreported_bytes = 0


class StreamTable:
    """Confined to: one connection.

    Attributes:
        open: Streams that are neither idle nor closed, by id.
        last_id: Highest id the peer has used.
        opened: How many streams were opened, those that were refused not among them.
    """

    __slots__ = ("_gaps", "_inflow", "_most_reset", "_reset_here", "last_id", "open", "opened")

    def __init__(self, inflow: Inflow, limits: H2Limits) -> None:
        self.open: dict[int, Stream] = {}
        self.last_id = 0
        self.opened = 0
        self._inflow = inflow
        self._most_reset = limits.closed_streams
        self._reset_here: dict[int, None] = {}
        self._gaps: deque[range] = deque(maxlen=_GAPS)

    def begin(self, stream_id: int) -> None:
        """Notes that the peer has used a new id; all lower ones are closed from now on (RFC 9113, section 5.1.1)."""
        if stream_id != self.last_id + 2 and stream_id != 1:
            self._gaps.append(range(self.last_id + 1, stream_id))
        self.last_id = stream_id

    def close(self, stream: Stream) -> None:
        """Forgets a stream; the window that the application still holds of it goes back to the peer."""
        del self.open[stream.id]
        stream.state = _CLOSED
        stream.receive_buffer = None
        if stream.unconsumed:
            self._inflow.refund(stream.unconsumed)
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
        """Notes that we have reset a stream: the peer may not know, and what it sends meanwhile is no fault."""
        self._reset_here[stream_id] = None
        if len(self._reset_here) > self._most_reset:
            del self._reset_here[next(iter(self._reset_here))]

    def was_reset_here(self, stream_id: int) -> bool:
        return stream_id in self._reset_here

    def state_of(self, stream_id: int) -> Next:
        """The state of a stream that is not open; one whose id the peer has skipped counts as never opened."""
        if stream_id > self.last_id or not stream_id & 1 or any(stream_id in gap for gap in self._gaps):
            return Next.IDLE
        return Next.CLOSED
