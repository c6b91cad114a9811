"""Closed and open load loops, driven by callbacks so that a tiny request costs the generator little.

Closed: `concurrency` callers, each sending its next request when its last is answered. It finds capacity. The window opens at the first
answer after the warm-up and closes at an answer that completes a whole round (a multiple of `concurrency` answers): a server that answers
in batches is not credited with half a batch.

Open: requests are due at a fixed rate whatever the server does. Latency counts from when a request was *due*, not from when it left: a
stall is charged to every request that it delayed (no coordinated omission). A request without an answer at the end of the drain is
counted as unfinished, with the time it has waited so far as its latency.

Both are bounded in requests and in time, take their time from `clock_ns`, and know nothing of sockets or asyncio.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

NS_PER_S = 1_000_000_000
#: Failures in a row, without one success, after which a loop gives up: the server is gone.
GIVE_UP_AFTER = 200

Done = Callable[[bool], None]
ClockNs = Callable[[], int]


class Sender(Protocol):
    """Sends one prepared request again and again."""

    def send(self, done: Done) -> None:
        """Sends it; later (never from within this call) calls `done(answered well)` exactly once."""


@dataclass(slots=True)
class LoadCounters:
    """What one window saw.

    Attributes:
        latencies_ns: One for each good answer in the window; open loop: also for unfinished requests, as far as they got.
        completed: Good answers in the window.
        errors: Bad answers in the window.
        unfinished: Requests of the window without an answer when waiting ended.
        opened_ns, closed_ns: The window's edges.
        send_lags_ns: Open loop: how much later than due each request really left.
        gave_up: The loop ended early because nothing was answered well any more.
    """

    latencies_ns: list[int] = field(default_factory=list)
    completed: int = 0
    errors: int = 0
    unfinished: int = 0
    opened_ns: int = 0
    closed_ns: int = 0
    send_lags_ns: list[int] = field(default_factory=list)
    gave_up: bool = False

    @property
    def elapsed_s(self) -> float:
        """Length of the window, seconds."""
        return (self.closed_ns - self.opened_ns) / NS_PER_S


class ClosedLoop:
    """`concurrency` callers in lockstep with their answers.

    Args:
        sender: What sends.
        concurrency: Requests in flight.
        warmup_s, duration_s: Seconds before the window, and the least length of the window.
        max_requests: The window closes at this many answers at the latest.
        clock_ns: Monotonic time.
        on_edge: Called as the window opens and as it closes.
        on_end: Called once, when the last answer is in.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        concurrency: int,
        warmup_s: float,
        duration_s: float,
        max_requests: int,
        clock_ns: ClockNs,
        on_edge: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self.counters = LoadCounters()
        self._sender = sender
        self._concurrency = concurrency
        self._warmup_ns = round(warmup_s * NS_PER_S)
        self._duration_ns = round(duration_s * NS_PER_S)
        self._max_requests = max_requests
        self._clock_ns = clock_ns
        self._on_edge = on_edge
        self._on_end = on_end
        self._opens_ns = 0
        self._in_flight = 0
        self._failures = 0
        self._is_open = False
        self._is_over = False

    def start(self) -> None:
        """Sends the first round."""
        self._opens_ns = self._clock_ns() + self._warmup_ns
        for _ in range(self._concurrency):
            self._send()

    def stop(self) -> None:
        """Closes the window now and sends nothing more: the bound in time."""
        if not self._is_over:
            self.counters.unfinished = self._in_flight
            self._close(self._clock_ns())
            if not self._in_flight:
                self._on_end()

    def _send(self) -> None:
        self._in_flight += 1
        self._sender.send(partial(self._completed, self._clock_ns()))

    def _completed(self, sent_ns: int, is_good: bool) -> None:
        now_ns = self._clock_ns()
        self._in_flight -= 1
        if not self._is_over:
            self._observe(sent_ns, now_ns, is_good)
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_over:
            self._send()
        elif not self._in_flight:
            self._on_end()

    def _observe(self, sent_ns: int, now_ns: int, is_good: bool) -> None:
        self._failures = 0 if is_good else self._failures + 1
        if self._is_open:
            self._count(sent_ns, now_ns, is_good)
        elif now_ns >= self._opens_ns:
            self._is_open = True
            self.counters.opened_ns = now_ns
            self._on_edge()
        if self._failures >= GIVE_UP_AFTER and not self._is_over:
            self.counters.gave_up = True
            self._close(now_ns)

    def _count(self, sent_ns: int, now_ns: int, is_good: bool) -> None:
        counters = self.counters
        if is_good:
            counters.latencies_ns.append(now_ns - sent_ns)
            counters.completed += 1
        else:
            counters.errors += 1
        completions = counters.completed + counters.errors
        is_long_enough = now_ns - counters.opened_ns >= self._duration_ns
        if (is_long_enough and completions % self._concurrency == 0) or completions >= self._max_requests:
            self._close(now_ns)

    def _close(self, now_ns: int) -> None:
        self._is_over = True
        if not self._is_open:
            self.counters.opened_ns = now_ns
        self.counters.closed_ns = now_ns
        if self._is_open:
            self._on_edge()


class OpenLoop:
    """Requests due at a fixed rate. `tick` is called as time passes (at least once an interval).

    Args:
        sender: What sends.
        rate_per_s: Requests due a second.
        warmup_s, duration_s: Seconds of requests before the window, and in it.
        max_requests: Bound on the requests of the window.
        max_in_flight: Requests that may be unanswered; those due beyond it leave later, their latency counting on.
        clock_ns, on_edge, on_end: As in `ClosedLoop`.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        rate_per_s: float,
        warmup_s: float,
        duration_s: float,
        max_requests: int,
        max_in_flight: int,
        clock_ns: ClockNs,
        on_edge: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self.counters = LoadCounters()
        self._sender = sender
        self._interval_ns = NS_PER_S / rate_per_s
        self._warmup_requests = round(warmup_s * rate_per_s)
        self._requests = self._warmup_requests + min(max_requests, max(1, round(duration_s * rate_per_s)))
        self._max_in_flight = max_in_flight
        self._clock_ns = clock_ns
        self._on_edge = on_edge
        self._on_end = on_end
        self._start_ns = 0
        self._sent = 0
        self._failures = 0
        self._waiting: dict[int, int] = {}
        self._is_over = False

    def start(self) -> None:
        """The first request is due now."""
        self._start_ns = self._clock_ns()
        self.tick()

    def tick(self) -> None:
        """Sends what is due."""
        now_ns = self._clock_ns()
        due = min(self._requests, int((now_ns - self._start_ns) / self._interval_ns) + 1)
        while self._sent < due and len(self._waiting) < self._max_in_flight and not self._is_over:
            self._send(self._sent)

    def stop(self) -> None:
        """Ends waiting: requests without an answer, or never sent for want of one, are unfinished."""
        if self._is_over:
            return
        now_ns = self._clock_ns()
        due = min(self._requests, int((now_ns - self._start_ns) / self._interval_ns) + 1)
        for number in (*self._waiting, *range(self._sent, due)):
            if number >= self._warmup_requests:
                self.counters.latencies_ns.append(now_ns - self._due_ns(number))
                self.counters.unfinished += 1
        self._end(now_ns)

    def _send(self, number: int) -> None:
        now_ns = self._clock_ns()
        due_ns = self._due_ns(number)
        if number == self._warmup_requests:
            self.counters.opened_ns = due_ns
            self._on_edge()
        if number >= self._warmup_requests:
            self.counters.send_lags_ns.append(now_ns - due_ns)
        self._sent += 1
        self._waiting[number] = due_ns
        self._sender.send(partial(self._completed, number))

    def _completed(self, number: int, is_good: bool) -> None:
        if self._is_over:
            return
        now_ns = self._clock_ns()
        due_ns = self._waiting.pop(number)
        self._failures = 0 if is_good else self._failures + 1
        if number >= self._warmup_requests:
            if is_good:
                self.counters.latencies_ns.append(now_ns - due_ns)
                self.counters.completed += 1
            else:
                self.counters.errors += 1
        if self._failures >= GIVE_UP_AFTER:
            self.counters.gave_up = True
            self.stop()
        elif self._sent == self._requests and not self._waiting:
            self._end(now_ns)
        else:
            self.tick()

    def _due_ns(self, number: int) -> int:
        return self._start_ns + round(number * self._interval_ns)

    def _end(self, now_ns: int) -> None:
        self._is_over = True
        if self.counters.opened_ns == 0:
            self.counters.opened_ns = now_ns
        self.counters.closed_ns = now_ns
        self._on_edge()
        self._on_end()
