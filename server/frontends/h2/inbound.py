"""What the handlers of frames share: what to tell, what must come next, the budgets, and how a stream ends for a fault."""

from typing import Final

from server.frontends.h2 import frames
from server.frontends.h2.budgets import Budget
from server.frontends.h2.error_codes import ErrorCode
from server.frontends.h2.events import DataPlaced, Event, StreamReset
from server.frontends.h2.faults import ConnectionFault, StreamFault
from server.frontends.h2.frames import SETTINGS
from server.frontends.h2.limits import H2Limits
from server.frontends.h2.output import Output
from server.frontends.h2.stream_states import NEXT, Next, Step
from server.frontends.h2.streams import Stream, StreamTable

#: `Inbound.expected` when any frame may come.
ANY: Final = -1


class Inbound:
    """Confined to: one connection.

    Attributes:
        events: For the application.
        now_s: The time of what is being received.
        expected: The type of the only frame that may come next, or `ANY`.
        is_refusing: New streams are refused.
        control: Budget of SETTINGS, PING, PRIORITY, GOAWAY, unknown and empty frames.
        updates: Budget of WINDOW_UPDATE.
        resets: Budget of streams that are given up or refused.
        faults: Budget of broken rules.
    """

    __slots__ = (
        "_last_served",
        "_output",
        "_table",
        "control",
        "events",
        "expected",
        "faults",
        "is_refusing",
        "now_s",
        "resets",
        "updates",
    )

    def __init__(self, limits: H2Limits, output: Output, table: StreamTable, now_s: float) -> None:
        self._output = output
        self._table = table
        self.events: list[Event] = []
        self.now_s = now_s
        self.expected = SETTINGS
        self.is_refusing = False
        self._last_served = 0
        self.control = Budget(limits.control_burst, limits.control_per_s, now_s)
        self.updates = Budget(limits.control_burst, limits.control_per_s, now_s)
        self.resets = Budget(limits.reset_burst, limits.reset_per_s, now_s)
        self.faults = Budget(limits.fault_burst, limits.fault_per_s, now_s)

    def charge(self, budget: Budget, what: str) -> None:
        """Takes one from a budget.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM, there is none left.
        """
        if not budget.spend(self.now_s):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")

    def fault(self, fault: StreamFault) -> None:
        """Resets a stream whose peer broke a rule."""
        self.charge(self.faults, "frames that break rules")
        self.reset(fault.stream_id, fault.code)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Resets a stream, known to the application or not."""
        self._output.reply(frames.rst_stream(stream_id, code))
        self._table.remember_reset(stream_id)
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self.tell_placed(stream)
            self._table.close(stream)
            self.events.append(StreamReset(stream_id, code, True))

    def tell_placed(self, stream: Stream, *, ends: bool = False) -> None:
        """Tells what of a body was put to its place since it was last told."""
        if stream.untold_bytes or ends:
            self.events.append(DataPlaced(stream.id, stream.untold_bytes, ends))
            stream.untold_bytes = 0

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
