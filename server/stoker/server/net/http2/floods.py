"""`FloodGuard`: the budgets of one connection, and the credit that its traffic earns."""

from typing import Final

from stoker.server.net.http2.budgets import Budget, Flood
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.output import Inflow
from stoker.server.net.http2.sender import Sender
from stoker.server.net.http2.streams import StreamTable

#: Bytes of DATA, sent or received, that entitle the peer to one control frame.
_BYTES_PER_FRAME: Final = 1024


class FloodGuard:
    """Confined to: one connection.

    Control frames that come with traffic are no flood: a client sends WINDOW_UPDATE for what it receives and for each of its calls,
    and PING to measure what it receives. So each stream opened, each DATA frame sent, and the bytes of DATA in both directions earn credit.
    It is counted only when the budget is empty, from totals that exist anyway: ordinary traffic pays nothing for it.
    """

    __slots__ = ("_budgets", "_counted", "_frames_per_data", "_frames_per_stream", "_inflow", "_sender", "_table")

    def __init__(self, limits: H2Limits, table: StreamTable, sender: Sender, inflow: Inflow, now_s: float) -> None:
        self._table = table
        self._sender = sender
        self._inflow = inflow
        self._frames_per_stream = limits.control_per_stream
        self._frames_per_data = limits.control_per_data_frame
        self._budgets = {
            Flood.CONTROL: Budget(limits.control_burst, limits.control_per_s, now_s),
            Flood.RESETS: Budget(limits.reset_burst, limits.reset_per_s, now_s),
            Flood.FAULTS: Budget(limits.fault_burst, limits.fault_per_s, now_s),
        }
        #: The credit that was given so far.
        self._counted = 0.0

    def spend(self, kind: Flood, now_s: float) -> bool:
        """Takes one from a budget; False: the peer has none left."""
        budget = self._budgets[kind]
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
        self._budgets[kind].refill()

    def _earned(self) -> float:
        """Control frames that the traffic since the connection's beginning entitles to."""
        sender, table = self._sender, self._table
        exchanged_bytes = sender.sent_bytes + self._inflow.received_bytes
        return table.opened * self._frames_per_stream + sender.data_frames * self._frames_per_data + exchanged_bytes / _BYTES_PER_FRAME
