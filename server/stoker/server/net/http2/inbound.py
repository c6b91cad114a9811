"""The state that all frame handlers share: the events, the budgets against floods, and the ends of streams and of the connection."""

from typing import Final

from stoker.server.net.http2 import frames
from stoker.server.net.http2.events import DataWritten, Event, Flood, FloodRejected, StreamReset
from stoker.server.net.http2.frames import SETTINGS, ConnectionFault, ErrorCode, StreamFault
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.send import Output, Sender
from stoker.server.net.http2.streams import NEXT, Inflow, Next, Step, Stream, StreamTable


class Budget:
    """A token bucket that is filled only when it is empty: after a long silence a burst may come twice. Confined to: one connection.

    Attributes:
        left: The remaining count; callers may take 1 from a count of at least 1 without `spend`.
    """

    __slots__ = ("_burst", "_per_s", "_since_s", "left")

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        """`burst` at once, and `per_s` each second after."""
        self._burst = burst
        self._per_s = per_s
        self.left = burst
        self._since_s = now_s

    def spend(self, now_s: float) -> bool:
        """Takes one; False: the peer has none left."""
        left = self.left
        if left < 1.0:
            left = min(self._burst, left + (now_s - self._since_s) * self._per_s)
            self._since_s = now_s
            if left < 1.0:
                self.left = left
                return False
        self.left = left - 1.0
        return True

    def earn(self, count: float) -> None:
        """Gives `count` more, never above the burst."""
        self.left = min(self._burst, self.left + count)

    def refill(self) -> None:
        """Gives the whole burst again."""
        self.left = self._burst


#: Bytes of DATA, sent or received, that entitle the peer to one control frame.
_BYTES_PER_FRAME: Final = 1024


class FloodGuard:
    """The budgets of one connection, and the credit for its traffic. Confined to: one connection.

    Control frames that come with traffic are no flood: a client sends WINDOW_UPDATE for the data it receives and for each of its calls, and
    PING to measure the bandwidth. So each stream opened, each DATA frame sent, and the bytes of DATA in both directions earn credit. The
    credit is computed only when the budget is empty, from totals that exist anyway: ordinary traffic pays nothing for it.

    Attributes:
        control: The budget for control frames.
    """

    # fmt: off
    __slots__ = (
        "_counted", "_faults", "_frames_per_data", "_frames_per_stream", "_inflow", "_resets", "_sender", "_table", "control",
    )
    # fmt: on

    def __init__(self, limits: H2Limits, table: StreamTable, sender: Sender, inflow: Inflow, now_s: float) -> None:
        self._table = table
        self._sender = sender
        self._inflow = inflow
        self._frames_per_stream = limits.control_per_stream
        self._frames_per_data = limits.control_per_data_frame
        self.control = Budget(limits.control_burst, limits.control_per_s, now_s)
        self._resets = Budget(limits.reset_burst, limits.reset_per_s, now_s)
        self._faults = Budget(limits.fault_burst, limits.fault_per_s, now_s)
        #: The credit given so far.
        self._counted = 0.0

    def spend(self, kind: Flood, now_s: float) -> bool:
        """Takes one from a budget; False: the peer has none left."""
        budget = self._budget(kind)
        if budget.spend(now_s):
            return True
        if kind is not Flood.CONTROL:
            return False
        earned = self._earned()
        budget.earn(earned - self._counted)
        self._counted = earned
        return budget.spend(now_s)

    def refill(self, kind: Flood) -> None:
        """Gives a budget its whole burst again."""
        self._budget(kind).refill()

    def _budget(self, kind: Flood) -> Budget:
        # No dictionary: it would hash the name of the member, and each connection would have one.
        if kind is Flood.CONTROL:
            return self.control
        return self._resets if kind is Flood.RESETS else self._faults

    def _earned(self) -> float:
        """Control frames that all traffic of the connection entitles to."""
        sender, table = self._sender, self._table
        exchanged_bytes = sender.sent_bytes + self._inflow.received_bytes
        return table.opened * self._frames_per_stream + sender.data_frames * self._frames_per_data + exchanged_bytes / _BYTES_PER_FRAME


#: `Inbound.expected` when any frame may come.
ANY: Final = -1
#: Payload of the PING behind a GOAWAY: its acknowledgement shows that the peer has read the GOAWAY.
DRAIN_PING: Final = b"draining"


class Inbound:
    """The state that the frame handlers share. Confined to: one connection.

    Attributes:
        control: The budget for control frames, see `Budget.left`.
        events: Events of the present `receive`.
        now_s: The time of the present `receive`.
        expected: The type of the only frame that may come next, or `ANY`.
        is_refusing: Whether new streams are refused.
        is_lingering: Whether they are, and the peer may not know it yet.
    """

    __slots__ = (
        "_guard",
        "_has_flooded",
        "_last_served",
        "_output",
        "_table",
        "control",
        "events",
        "expected",
        "is_lingering",
        "is_refusing",
        "now_s",
    )

    def __init__(self, guard: FloodGuard, output: Output, table: StreamTable, now_s: float) -> None:
        self._guard = guard
        self.control = guard.control
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
        """Takes one from a budget. When a budget is empty for the first time, new streams are refused and the open ones go on.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM, a budget is empty for the second time.
        """
        if self._guard.spend(flood, self.now_s):
            return
        self.flooded(flood, f"too many {what}")
        self._guard.refill(flood)

    def flooded(self, flood: Flood, text: str) -> None:
        """Refuses new streams and lets the open ones go on; `text` is the reason.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM, it is the second time.
        """
        if self._has_flooded:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)
        self._has_flooded = True
        # NO_ERROR, and the reason as text: several clients drop their open streams at once for any other code.
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
        """Reports the bytes that were written to a receive buffer since the last report."""
        if stream.unreported_bytes or ends:
            self.events.append(DataWritten(stream.id, stream.unreported_bytes, ends))
            stream.unreported_bytes = 0

    def refuse_at_once(self, code: ErrorCode, debug: bytes) -> None:
        """Refuses new streams before the peer knows it; the connection lasts until the peer knows and the open streams have ended."""
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
        """Accepts a frame for a stream that is not open if it may have crossed with the stream's end.

        Raises:
            ConnectionFault: the stream was never opened, or the peer must know that it is closed.
        """
        outcome = NEXT[self._table.state_of(stream_id)][step]
        if outcome is not Next.IGNORED:
            code = ErrorCode.STREAM_CLOSED if outcome is Next.LONG_CLOSED else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFault(code, f"{step.name.removeprefix('RECEIVE_')} for stream {stream_id}, which is not open")
