"""Closed and open loops that send requests, and the samples of the requests.

A closed loop keeps a number of requests in flight; it sends a request when another one completes, and so sends fewer requests to a slow
server. An open loop sends at a rate: each request has a due time. Its latency counts from that time, even if the request was sent later,
which is the latency that users of an overloaded service see.
"""

import asyncio
import itertools
import random
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from stoker.cli.bench.sender import RequestFailed, Sender, Trip


@dataclass(slots=True)
class Samples:
    """Every ended request since the load began, in order of the end times. Confined to: the event loop.

    Attributes:
        ended_ns: End times of the successful requests, nanoseconds.
        latency_ns: Latencies from the due time (open loop) or the send time (closed loop), nanoseconds.
        send_ns, receive_ns: See `Trip`.
        lag_ns: Delays between due time and send time, nanoseconds; zeros in a closed loop.
        failed_ns: End times of the failed requests, nanoseconds.
        failed_texts: Reasons of the failed requests; beyond `MOST_TEXTS` different ones, `OTHER_ERRORS`.
    """

    ended_ns: "array[int]" = field(default_factory=lambda: array("q"))
    latency_ns: "array[int]" = field(default_factory=lambda: array("q"))
    send_ns: "array[int]" = field(default_factory=lambda: array("q"))
    receive_ns: "array[int]" = field(default_factory=lambda: array("q"))
    lag_ns: "array[int]" = field(default_factory=lambda: array("q"))
    failed_ns: "array[int]" = field(default_factory=lambda: array("q"))
    failed_texts: list[str] = field(default_factory=list)
    _texts: dict[str, str] = field(default_factory=dict)

    def add(self, ended_ns: int, latency_ns: int, trip: Trip, lag_ns: int) -> None:
        """Adds a successful request."""
        self.ended_ns.append(ended_ns)
        self.latency_ns.append(latency_ns)
        self.send_ns.append(trip.send_ns)
        self.receive_ns.append(trip.receive_ns)
        self.lag_ns.append(lag_ns)

    def add_failure(self, ended_ns: int, text: str) -> None:
        """Adds a failed request."""
        self.failed_ns.append(ended_ns)
        if len(self._texts) < MOST_TEXTS:
            self._texts.setdefault(text, text)
        self.failed_texts.append(self._texts.get(text, OTHER_ERRORS))  # one string object for equal texts

    @property
    def count(self) -> int:
        """The number of ended requests, successful and failed."""
        return len(self.ended_ns) + len(self.failed_ns)


MOST_TEXTS, OTHER_ERRORS = 20, "other errors"


NS_PER_S = 1_000_000_000
#: Timers of the event loop have a resolution of a millisecond: the loop is woken that much earlier and polls until the request is due.
_EARLY_NS = 1_500_000
#: Bound on the requests in flight of an open loop; further ones wait, and the wait counts as latency.
MOST_IN_FLIGHT = 4096
#: Pause after a failure, so that a load whose requests fail at once does not spin.
_PAUSE_AFTER_FAILURE_S = 0.01

ClockNs = Callable[[], int]


class Load(Protocol):
    """A load that runs until it has sent its requests, or is cancelled."""

    async def run(self) -> None:
        """Sends requests and records their results; returns after the last response."""


class ClosedLoop:
    """`concurrency` requests in flight at any time.

    Args:
        requests: Number of requests to send; None: until the load is cancelled.
    """

    def __init__(self, sender: Sender, samples: Samples, clock_ns: ClockNs, *, concurrency: int, requests: int | None = None) -> None:
        self._sender = sender
        self._samples = samples
        self._clock_ns = clock_ns
        self._concurrency = concurrency
        self._turns = _turns(requests)

    async def run(self) -> None:
        """See `Load`."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    async def _work(self) -> None:
        for _ in self._turns:
            begun_ns = self._clock_ns()
            try:
                trip = await self._sender.send()
            except RequestFailed as error:
                self._samples.add_failure(self._clock_ns(), str(error))
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            else:
                ended_ns = self._clock_ns()
                self._samples.add(ended_ns, ended_ns - begun_ns, trip, 0)


class OpenLoop:
    """Requests due at `rate_per_s`.

    Args:
        requests: Number of requests to send; None: until the load is cancelled.
        poisson: Whether the gaps are exponentially distributed, with a fixed seed; else they are equal.
        sleep: Sleeps for seconds; for tests.
    """

    def __init__(
        self,
        sender: Sender,
        samples: Samples,
        clock_ns: ClockNs,
        *,
        rate_per_s: float,
        requests: int | None = None,
        poisson: bool = False,
        most_in_flight: int = MOST_IN_FLIGHT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sender = sender
        self._samples = samples
        self._clock_ns = clock_ns
        self._turns = _turns(requests)
        self._gap_ns = NS_PER_S / rate_per_s
        self._random = random.Random(0) if poisson else None  # noqa: S311 - no secret: arrival times, the same in every run
        self._in_flight = asyncio.Semaphore(most_in_flight)
        self._sleep = sleep

    async def run(self) -> None:
        """See `Load`."""
        due_ns = float(self._clock_ns())
        async with asyncio.TaskGroup() as group:
            for _ in self._turns:
                await self._wait_until(due_ns)
                await self._in_flight.acquire()
                group.create_task(self._one(round(due_ns)))
                due_ns += self._gap_ns if self._random is None else self._random.expovariate(1 / self._gap_ns)

    async def _wait_until(self, due_ns: float) -> None:
        left_ns = due_ns - self._clock_ns()
        while True:
            # Yield even when late: the responses must be handled.
            await self._sleep(max(0.0, (left_ns - _EARLY_NS) / NS_PER_S))
            left_ns = due_ns - self._clock_ns()
            if left_ns <= 0:
                return

    async def _one(self, due_ns: int) -> None:
        lag_ns = self._clock_ns() - due_ns
        try:
            trip = await self._sender.send()
        except RequestFailed as error:
            self._samples.add_failure(self._clock_ns(), str(error))
        else:
            ended_ns = self._clock_ns()
            self._samples.add(ended_ns, ended_ns - due_ns, trip, lag_ns)
        finally:
            self._in_flight.release()


def _turns(requests: int | None) -> Iterator[int]:
    """Yields one number for each request; shared by all callers of a loop."""
    return itertools.count() if requests is None else iter(range(requests))
