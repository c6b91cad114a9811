"""When a failed call may be sent again, and after how long: no I/O, no clock of its own.

A call is sent again only if that cannot make the server compute twice: nothing left this process, the server said it rejected (a
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
    """Bounds on sending a call again; `RetryPolicy(max_attempts=1)` never does.

    Attributes:
        max_attempts: Times a call is sent at most, the first included.
        first_backoff_s: Upper end of the first wait; each further one is up to twice as long.
        max_backoff_s: Longest wait. A server that asks for a longer one gets no retry: the error is raised.
        budget: Retries the client may spend in a row; every completed call gives a tenth of one back.
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
    """Where a synchronous client takes time and chance from; tests bring their own."""

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
        """Takes one retry; False if none is left."""
        with self._lock:
            if self._left < self._RETRY:
                return False
            self._left -= self._RETRY
            return True

    def refund(self) -> None:
        """A call was completed: gives a part of a retry back."""
        with self._lock:
            self._left = min(self._size, self._left + self._REFUND)


def may_resend(error: StokerError, *, is_read: bool) -> bool:
    """Whether sending the call again cannot make the server compute twice."""
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
        """Starts an attempt; returns the seconds left for it, None where the call has no limit.

        Raises:
            DeadlineExceeded: none are left.
        """
        self._sent += 1
        if self._ends_at_s is None:
            return None
        left_s = self._ends_at_s - self._timing.now_s()
        if left_s <= 0:
            raise DeadlineExceeded(f"the call's {self._timeout_s:g} s ran out")
        return left_s

    def succeeded(self) -> None:
        """The attempt got a response."""
        self._budget.refund()

    def wait_after(self, error: StokerError) -> float:
        """How long to wait, in seconds, before the next attempt.

        Raises:
            StokerError: `error` itself, where the call must not be sent again.
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
    """The result of `send`. It gets the seconds left (None: no limit), and is called again as `attempts` allows.

    Raises:
        StokerError: that of the last attempt.
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
