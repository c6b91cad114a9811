"""`RequestTracepoints`: when requests arrived and when they completed, to find the time lost between."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from stoker.backends.api.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTracepoint:
    """One request that has ended.

    Attributes:
        request: Its number, counted from 1 in the order in which requests came.
        begin_ns: When it came, on the clock of the simulated system.
        end_ns: When its outputs were written, or when it failed.
        error: Why it failed; empty if it did not.
    """

    request: int
    begin_ns: int
    end_ns: int
    error: str = ""


class RequestTracepoints:
    """The latest tracepoints. Any thread may use it."""

    def __init__(self, clock: Clock, capacity: int, *, is_on: bool) -> None:
        """Nothing yet.

        Args:
            clock: What times are read from.
            capacity: How many are kept; 0: all.
            is_on: Whether any are recorded.
        """
        self._clock = clock
        self._is_on = is_on
        self._kept: deque[RequestTracepoint] = deque(maxlen=capacity or None)
        self._lock = threading.Lock()
        self._requests = 0

    def begin(self) -> Callable[[BaseException | None], None] | None:
        """Records the arrival of a request; the caller calls the result at its end. None: nothing is recorded."""
        if not self._is_on:
            return None
        with self._lock:
            self._requests += 1
            return partial(self._record, self._requests, self._clock.now_ns())

    def all(self) -> tuple[RequestTracepoint, ...]:
        """In the order in which the requests ended."""
        with self._lock:
            return tuple(self._kept)

    def _record(self, request: int, begin_ns: int, error: BaseException | None) -> None:
        tracepoint = RequestTracepoint(
            request=request, begin_ns=begin_ns, end_ns=self._clock.now_ns(), error="" if error is None else str(error)
        )
        with self._lock:
            self._kept.append(tracepoint)
