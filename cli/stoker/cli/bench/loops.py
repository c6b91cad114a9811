"""Two ways to load a server: so many requests in flight at any time (closed), or so many a second whatever becomes of them (open).

A closed loop waits with its next request until the last one is answered, and so measures a slow server too rarely. An open loop has a time
at which each request is due; latency counts from that time, also where the request could not be sent until later. That is what users of a
service feel when it falls behind.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from stoker.cli.bench.sample import RequestFailed, Samples, Trip

NS_PER_S = 1_000_000_000
#: Timers of the event loop are a millisecond coarse: it is woken that much earlier and turns until the request is due.
_EARLY_NS = 1_500_000
#: Requests of an open loop that may be unanswered; more wait, and their latency counts on.
MOST_IN_FLIGHT = 4096
#: A load whose requests fail at once is not to spin.
_PAUSE_AFTER_FAILURE_S = 0.01

ClockNs = Callable[[], int]


class Sender(Protocol):
    """Sends the load's one request. Confined to: the event loop."""

    async def send(self) -> Trip:
        """Sends it once, and returns when it is answered; raises `RequestFailed`."""


class Load(Protocol):
    """Something that runs until it is cancelled."""

    async def run(self) -> None:
        """Sends requests and notes what becomes of them."""


class ClosedLoop:
    """`concurrency` requests in flight at any time."""

    def __init__(self, sender: Sender, samples: Samples, clock_ns: ClockNs, *, concurrency: int) -> None:
        self._sender = sender
        self._samples = samples
        self._clock_ns = clock_ns
        self._concurrency = concurrency

    async def run(self) -> None:
        """See `Load`."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
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
        poisson: Whether the gaps between them are those of independent users (exponential, the same in every run); else all alike.
        sleep: Waits so many seconds; for tests.
    """

    def __init__(
        self,
        sender: Sender,
        samples: Samples,
        clock_ns: ClockNs,
        *,
        rate_per_s: float,
        poisson: bool = False,
        most_in_flight: int = MOST_IN_FLIGHT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sender = sender
        self._samples = samples
        self._clock_ns = clock_ns
        self._gap_ns = NS_PER_S / rate_per_s
        self._random = random.Random(0) if poisson else None  # noqa: S311 - no secret: arrival times, the same in every run
        self._room = asyncio.Semaphore(most_in_flight)
        self._sleep = sleep

    async def run(self) -> None:
        """See `Load`."""
        due_ns = float(self._clock_ns())
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait_until(due_ns)
                await self._room.acquire()
                group.create_task(self._one(round(due_ns)))
                due_ns += self._gap_ns if self._random is None else self._random.expovariate(1 / self._gap_ns)

    async def _wait_until(self, due_ns: float) -> None:
        left_ns = due_ns - self._clock_ns()
        while True:
            # Also where it is late: the answers need their turn.
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
            self._room.release()
