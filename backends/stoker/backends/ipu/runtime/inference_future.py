"""`InferenceFuture`: the response to one accepted request."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.api.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTracepoint:
    """One request that has ended.

    Attributes:
        request: Its number, counted from 1 in the order in which requests came.
        begin_ns: Time of its arrival, on the clock of the simulated system.
        end_ns: Time at which its outputs were written, or it failed.
        error: Text of its error; empty if it succeeded.
    """

    request: int
    begin_ns: int
    end_ns: int
    error: str = ""


class RequestTracepoints:
    """The latest tracepoints. Any thread may use it."""

    def __init__(self, clock: Clock, capacity: int, *, is_on: bool) -> None:
        """Starts without tracepoints.

        Args:
            clock: The clock of the times.
            capacity: Number of tracepoints to keep; 0: all.
            is_on: Whether tracepoints are recorded.
        """
        self._clock = clock
        self._is_on = is_on
        self._kept: deque[RequestTracepoint] = deque(maxlen=capacity or None)
        self._lock = threading.Lock()
        self._requests = 0

    def begin(self) -> Callable[[BaseException | None], None] | None:
        """Records the arrival of a request; returns the callback for its end. None: nothing is recorded."""
        if not self._is_on:
            return None
        with self._lock:
            self._requests += 1
            return partial(self._record, self._requests, self._clock.now_ns())

    def all(self) -> tuple[RequestTracepoint, ...]:
        """Returns the tracepoints in the order in which the requests ended."""
        with self._lock:
            return tuple(self._kept)

    def _record(self, request: int, begin_ns: int, error: BaseException | None) -> None:
        tracepoint = RequestTracepoint(
            request=request, begin_ns=begin_ns, end_ns=self._clock.now_ns(), error="" if error is None else str(error)
        )
        with self._lock:
            self._kept.append(tracepoint)


Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]


class Waiters:
    """Counts the threads that wait for outputs. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    @property
    def is_anyone_waiting(self) -> bool:
        """Whether any thread waits."""
        return self._count > 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1


class InferenceFuture(Future[Outputs]):
    """A `concurrent.futures.Future` with the outputs by name; `wait` is the vendor's word for `result`.

    It is completed on a thread of the device: callbacks added to it should return soon. It cannot be cancelled.
    """

    def __init__(self, waiters: Waiters, on_end: Callable[[BaseException | None], None] | None = None) -> None:
        """A future that counts its waiting threads in `waiters` and calls `on_end` at its end, before any other callback."""
        super().__init__()
        self._present = waiters
        self._on_end = on_end
        self.set_running_or_notify_cancel()

    def set_result(self, result: Outputs) -> None:
        if self._on_end is not None:
            self._on_end(None)
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        if self._on_end is not None:
            self._on_end(exception)
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> Outputs:
        """Waits for the outputs and returns them.

        Raises:
            TimeoutError: not within `timeout` seconds; the request goes on.
            IpuRuntimeError: the request failed.
        """
        if self.done():
            return super().result(0)
        with self._present:
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the end of the request and returns its error; None if it succeeded.

        Raises:
            TimeoutError: not within `timeout` seconds.
        """
        if self.done():
            return super().exception(0)
        with self._present:
            return super().exception(timeout)

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns once the outputs are written; raises what `result` raises."""
        self.result(timeout_s)


class PendingOutputs:
    """The missing parts of one request's outputs: counts them until the future can be completed. Any thread may use it."""

    def __init__(self, future: InferenceFuture, outputs: Outputs, parts: int, copies: Sequence[tuple[Array, Array]] = ()) -> None:
        """Creates the record for a response of `parts` parts.

        Args:
            future: Completed with the last part: only then nothing uses the request's memory any more.
            outputs: What it is completed with.
            parts: How often `end_part` is called.
            copies: Pairs of arrays; once all parts are written, each second one gets the values of the first.
        """
        self.future = future
        self._outputs = outputs
        self._copies = copies
        self._lock = threading.Lock()
        self._missing = parts
        self._error: Exception | None = None

    def end_part(self, error: Exception | None) -> None:
        """Records that one part was written or failed. The request fails with the first error of its parts."""
        with self._lock:
            self._error = self._error or error
            self._missing -= 1
            if self._missing:
                return
        if self._error is not None:
            self.future.set_exception(self._error)
            return
        for source, target in self._copies:
            np.copyto(target, source)
        self.future.set_result(self._outputs)
