"""Decides when a failed call is sent again, and after which delay: no I/O, and time is a parameter.

A call is sent again only if the server cannot compute it twice: the request did not leave this process, the server rejected it (a
retry-after, or a full queue), or the call only reads. Waits grow exponentially with full jitter and honour the server's retry-after.
A budget shared by all calls of a client keeps retries from multiplying the load on a server that is failing for everyone.
"""

import asyncio
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from stoker_client.errors import ConnectionFailed, DeadlineExceeded, InvalidSetting, Overloaded, StokerError, Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds on retries; `RetryPolicy(max_attempts=1)` disables them.

    Attributes:
        max_attempts: Largest number of attempts, including the first.
        first_backoff_s: Bound on the first delay, seconds; each further one is up to twice as long.
        max_backoff_s: Longest delay, seconds. If the server's retry-after is longer, the error is raised.
        budget: Retries that the client may spend in a row; every completed call returns a tenth of one.
    """

    max_attempts: int = 4
    first_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    budget: float = 20.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise InvalidSetting(f"max_attempts is {self.max_attempts}; expected at least 1")
        if not 0 <= self.first_backoff_s <= self.max_backoff_s:
            raise InvalidSetting(f"first_backoff_s is {self.first_backoff_s}; expected 0 to max_backoff_s ({self.max_backoff_s})")
        if self.budget < 0:
            raise InvalidSetting(f"budget is {self.budget}; expected 0 or more")


def _full_jitter() -> float:
    return random.random()  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The clock and the random numbers of a synchronous client; tests replace them."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = _full_jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTiming:
    """`Timing` for an asynchronous client."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = _full_jitter


class RetryBudget:
    """The retries a client has left. Thread-safe."""

    # Whole tenths of a retry, because ten times 0.1 is not 1.
    _RETRY = 10
    _REFUND = 1

    def __init__(self, size: float) -> None:
        self._size = round(size * self._RETRY)
        self._left = self._size
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Takes one retry; returns False if none is left."""
        with self._lock:
            if self._left < self._RETRY:
                return False
            self._left -= self._RETRY
            return True

    def refund(self) -> None:
        """Returns a part of a retry, after a completed call."""
        with self._lock:
            self._left = min(self._size, self._left + self._REFUND)


def may_resend(error: StokerError, *, is_read: bool) -> bool:
    """Whether the call can be sent again without being computed twice."""
    if isinstance(error, ConnectionFailed):
        return is_read or not error.request_may_have_run
    if isinstance(error, Overloaded):
        return True
    return isinstance(error, Unavailable) and (is_read or error.retry_after_s is not None)


class Attempts:
    """The attempts of one call. Confined to: the thread or task that makes the call."""

    def __init__(
        self, policy: RetryPolicy, budget: RetryBudget, timing: Timing | AsyncTiming, *, is_read: bool, timeout_s: float | None
    ) -> None:
        self._policy = policy
        self._budget = budget
        self._timing = timing
        self._is_read = is_read
        self._timeout_s = timeout_s
        self._ends_at_s = None if timeout_s is None else timing.now_s() + timeout_s
        self._sent = 0

    def begin(self) -> float | None:
        """Starts an attempt; returns the seconds left for it, None if the call has no limit.

        Raises:
            DeadlineExceeded: no time is left.
        """
        self._sent += 1
        if self._ends_at_s is None:
            return None
        left_s = self._ends_at_s - self._timing.now_s()
        if left_s <= 0:
            raise DeadlineExceeded(f"the call's {self._timeout_s:g} s ran out")
        return left_s

    def succeeded(self) -> None:
        """Records that the attempt got a response."""
        self._budget.refund()

    def wait_after(self, error: StokerError) -> float:
        """The delay before the next attempt, seconds.

        Raises:
            StokerError: `error`, if the call must not be sent again.
        """
        if self._sent >= self._policy.max_attempts or not may_resend(error, is_read=self._is_read):
            raise error
        backoff_s = min(self._policy.max_backoff_s, math.ldexp(self._policy.first_backoff_s, self._sent - 1))
        wait_s = self._timing.chance() * backoff_s
        if error.retry_after_s is not None:
            wait_s += error.retry_after_s
        is_too_long = error.retry_after_s is not None and error.retry_after_s > self._policy.max_backoff_s
        is_too_late = self._ends_at_s is not None and self._timing.now_s() + wait_s >= self._ends_at_s
        if is_too_long or is_too_late or not self._budget.take():
            raise error
        return wait_s


def send_with_retries(send: Callable[[float | None], T], attempts: Attempts, timing: Timing) -> T:
    """Returns the result of `send`, which receives the seconds left (None: no limit) and is called again as `attempts` allows.

    Raises:
        StokerError: the error of the last attempt.
    """
    while True:
        try:
            response = send(attempts.begin())
        except StokerError as error:
            wait_s = attempts.wait_after(error)
        else:
            attempts.succeeded()
            return response
        timing.sleep(wait_s)
