"""What one request of a load became, and how samples are kept while it runs."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple


class Trip(NamedTuple):
    """One request's own times, nanoseconds.

    Attributes:
        send_ns: Until the client's libraries had taken it.
        receive_ns: From the answer's last byte to its being read.
    """

    send_ns: int
    receive_ns: int


class RequestFailed(Exception):
    """One request of the load was not answered well; `str()` says how."""


@dataclass(slots=True)
class Samples:
    """Every ended request since the load began, in the order of their ends. Confined to: the event loop.

    Attributes:
        ended_ns: When each good answer came.
        latency_ns: From when it was due (open loop) or sent (closed loop).
        send_ns, receive_ns: See `Trip`.
        lag_ns: How long after it was due each was sent; zeros in a closed loop.
        failed_ns: When each failed one ended.
        failures: How often each text came; at most `MOST_TEXTS` different ones are kept.
    """

    ended_ns: "array[int]" = field(default_factory=lambda: array("q"))
    latency_ns: "array[int]" = field(default_factory=lambda: array("q"))
    send_ns: "array[int]" = field(default_factory=lambda: array("q"))
    receive_ns: "array[int]" = field(default_factory=lambda: array("q"))
    lag_ns: "array[int]" = field(default_factory=lambda: array("q"))
    failed_ns: "array[int]" = field(default_factory=lambda: array("q"))
    failures: dict[str, int] = field(default_factory=dict)

    def add(self, ended_ns: int, latency_ns: int, trip: Trip, lag_ns: int) -> None:
        """Notes a good answer."""
        self.ended_ns.append(ended_ns)
        self.latency_ns.append(latency_ns)
        self.send_ns.append(trip.send_ns)
        self.receive_ns.append(trip.receive_ns)
        self.lag_ns.append(lag_ns)

    def add_failure(self, ended_ns: int, text: str) -> None:
        """Notes a request that failed."""
        self.failed_ns.append(ended_ns)
        if text in self.failures or len(self.failures) < MOST_TEXTS:
            self.failures[text] = self.failures.get(text, 0) + 1

    @property
    def count(self) -> int:
        """Requests that have ended, well or not."""
        return len(self.ended_ns) + len(self.failed_ns)


MOST_TEXTS = 20
