"""What the handlers of frames share: what to tell, what must come next, the budgets, and how a stream ends for a fault."""

from typing import Final

from stoker.server.net.http2 import frames
from stoker.server.net.http2.budgets import Flood
from stoker.server.net.http2.error_codes import ErrorCode
from stoker.server.net.http2.events import DataWritten, Event, FloodRejected, StreamReset
from stoker.server.net.http2.faults import ConnectionFault, StreamFault
from stoker.server.net.http2.floods import FloodGuard
from stoker.server.net.http2.frames import SETTINGS
from stoker.server.net.http2.output import Output
from stoker.server.net.http2.stream_states import NEXT, Next, Step
from stoker.server.net.http2.streams import Stream, StreamTable

#: `Inbound.expected` when any frame may come.
ANY: Final = -1
#: Payload of the PING behind a GOAWAY: the peer's answer shows that it has read the GOAWAY.
DRAIN_PING: Final = b"draining"


class Inbound:
    """Confined to: one connection.

    Attributes:
        events: For the application.
        now_s: The time of what is being received.
        expected: The type of the only frame that may come next, or `ANY`.
        is_refusing: New streams are refused.
        is_lingering: They are, and the peer may not know it yet.
    """

    __slots__ = (
        "_guard",
        "_has_flooded",
        "_last_served",
        "_output",
        "_table",
        "events",
        "expected",
        "is_lingering",
        "is_refusing",
        "now_s",
    )

    def __init__(self, guard: FloodGuard, output: Output, table: StreamTable, now_s: float) -> None:
        self._guard = guard
        self._output = output
        self._table = table
        self.events: list[Event] = []
        self.now_s = now_s
        self.expected = SETTINGS
        self.is_refusing = False
        self.is_lingering = False
        self._has_flooded = False
        self._last_served = 0

    def charge(self, flood: Flood, what: str) -> None:
        """Takes one from a budget. When it is empty for the first time, new streams are refused and the open ones go on.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM, a budget is empty for the second time.
        """
        if self._guard.spend(flood, self.now_s):
            return
        self.flooded(flood, f"too many {what}")
        self._guard.refill(flood)

    def flooded(self, flood: Flood, text: str) -> None:
        """Refuses new streams and lets the open ones go on, for what `text` says.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM, it is the second time.
        """
        if self._has_flooded:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)
        self._has_flooded = True
        # NO_ERROR, and the reason in words: several clients drop their open streams at once for any other code.
        self.refuse_at_once(ErrorCode.NO_ERROR, text.encode())
        self.events.append(FloodRejected(flood, text))

    def fault(self, fault: StreamFault) -> None:
        """Resets a stream whose peer broke a rule."""
        self.charge(Flood.FAULTS, "frames that break rules")
        self.reset(fault.stream_id, fault.code)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Resets a stream, known to the application or not."""
        self._output.reply(frames.rst_stream(stream_id, code))
        self._table.remember_reset(stream_id)
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self.report_written(stream)
            self._table.close(stream)
            self.events.append(StreamReset(stream_id, code, True))

    def report_written(self, stream: Stream, *, ends: bool = False) -> None:
        """Tells what of a body was put to its place since it was last told."""
        if stream.unreported_bytes or ends:
            self.events.append(DataWritten(stream.id, stream.unreported_bytes, ends))
            stream.unreported_bytes = 0

    def refuse_at_once(self, code: ErrorCode, debug: bytes) -> None:
        """Refuses new streams although the peer does not know it yet; the connection lasts until it does, and until the open ones end."""
        self.go_away(code, debug)
        self.is_refusing = self.is_lingering = True
        self._output.control(frames.frame(frames.PING, 0, 0, DRAIN_PING))

    def refuse_new(self) -> None:
        """Names the last stream to the peer, and refuses later ones."""
        if not self.is_refusing:
            self.go_away(ErrorCode.NO_ERROR, b"")
            self.is_refusing = True

    def go_away(self, code: ErrorCode, debug: bytes) -> None:
        """Sends GOAWAY with the last stream that is or was served. It never names a later one than before (RFC 9113, section 6.8)."""
        if not self.is_refusing:
            self._last_served = self._table.last_id
        self._output.control(frames.goaway(self._last_served, code, debug))

    def check_crossed(self, stream_id: int, step: Step) -> None:
        """Lets a frame for a stream that is not open pass if it may have crossed with the stream's end.

        Raises:
            ConnectionFault: the stream was never opened, or the peer must know that it is closed.
        """
        outcome = NEXT[self._table.state_of(stream_id)][step]
        if outcome is not Next.IGNORED:
            code = ErrorCode.STREAM_CLOSED if outcome is Next.LONG_CLOSED else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFault(code, f"{step.name.removeprefix('RECEIVE_')} for stream {stream_id}, which is not open")
