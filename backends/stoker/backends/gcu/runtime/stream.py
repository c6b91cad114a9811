"""`Stream`: executes work on a card in the order of queueing. Streams do not wait for each other.

A failed work item stops the stream: items queued behind it are skipped, because they would use stale data. The stream executes work again
once a caller has received the failure, from `synchronize` or from a future, and then only items queued after that.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from stoker.backends.gcu.runtime.card import Card, Direction, Lane
from stoker.backends.gcu.runtime.device_buffer import Bytes, DeviceBlock, first_bytes, readable_bytes, writable_bytes
from stoker.backends.gcu.runtime.errors import Status, StatusError, StreamClosed, StreamTimeout
from stoker.backends.gcu.timing import copy_time_s
from stoker.backends.simulated.pacing import NS_PER_S, Pacing

#: A work item. Arguments: the lane, the time at which it was queued, and a function that returns whether the stream is being closed.
Action = Callable[[Lane, int, Callable[[], bool]], None]


@dataclass(frozen=True, slots=True)
class _Work:
    number: int
    generation: int
    action: Action
    buffers: Sequence[DeviceBlock]
    queued_ns: int
    future: "Future[None] | None"
    on_skip: Callable[[], None] | None


class Stream:
    """Any thread may use it. Its thread starts with the first work item and ends with `close`.

    Attributes:
        number: Its unique number in the system of its card.
        card: The card that it works on.
    """

    def __init__(self, number: int, card: Card, check: Callable[[], None], on_close: Callable[["Stream"], None]) -> None:
        """Creates a stream of `card`; `check` raises an error if no more work can be queued.

        Raises:
            StatusError: the card has its maximum number of streams.
        """
        if not card.add_stream(1):
            raise StatusError(
                Status.TIF_VALIUE_OVERFLOW,
                f"card {card.id} has {card.hardware.max_streams} streams already, which is as many as there can be",
            )
        self.number = number
        self.card = card
        self._check = check
        self._on_close = on_close
        self._changed = threading.Condition()
        self._queue: deque[_Work] = deque()
        self._queued = 0
        self._done = 0
        self._error: StatusError | None = None  # that no caller has received yet
        self._reported: StatusError | None = None
        self._reported_through = 0  # the newest work item that was queued when a caller received the failure
        self._is_closing = False
        self._lane = Lane()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closing

    def copy_to_device(self, host: Any, buffer: DeviceBlock, offset: int = 0, size: int | None = None) -> None:
        """Queues a copy of the first `size` bytes of `host` (None: all) to `offset` of `buffer`.

        `host`, a contiguous array or anything with the buffer protocol, must not change until the copy has ended.

        Raises:
            StatusError: the memory cannot be read, the bytes do not fit, or the buffer or the stream cannot be used.
        """
        source = first_bytes(readable_bytes(host), size)
        purpose = f"stream {self.number}, copy to the device"
        buffer.check(self.card, offset, source.nbytes, purpose)

        def copy(lane: Lane, queued_ns: int, _: Callable[[], bool]) -> None:
            copy_in(self.card, source, buffer, offset, lane, queued_ns)

        self.submit(copy, [buffer])

    def copy_to_host(self, buffer: DeviceBlock, host: Any, offset: int = 0, size: int | None = None) -> None:
        """Queues a copy from `offset` of `buffer` into the first `size` bytes of `host` (None: all). The copy is complete after
        `synchronize`.

        Raises:
            StatusError: the memory cannot be written, the buffer has fewer bytes, or the buffer or the stream cannot be used.
        """
        target = first_bytes(writable_bytes(host), size)
        purpose = f"stream {self.number}, copy to the host"
        buffer.check(self.card, offset, target.nbytes, purpose)

        def copy(lane: Lane, queued_ns: int, _: Callable[[], bool]) -> None:
            copy_out(self.card, buffer, target, offset, lane, queued_ns)

        self.submit(copy, [buffer])

    def submit(
        self,
        action: Action,
        buffers: Sequence[DeviceBlock],
        future: "Future[None] | None" = None,
        on_skip: Callable[[], None] | None = None,
    ) -> None:
        """Queues `action`, which uses `buffers`; `future` is completed when the action has ended in modelled time.

        If the action never begins, the stream calls `on_skip` instead.

        Raises:
            StatusError: the stream or its card cannot be used.
        """
        self._check()
        pinned: list[DeviceBlock] = []
        try:
            for buffer in buffers:
                buffer.pin()
                pinned.append(buffer)
            with self._changed:
                if self._is_closing:
                    raise StreamClosed(f"stream {self.number} is destroyed")
                self._thread = self._thread or self._started()
                self._queued += 1
                queued_ns = self.card.pacer.clock.now_ns()
                self._queue.append(_Work(self._queued, self.card.generation, action, tuple(buffers), queued_ns, future, on_skip))
                self._changed.notify_all()
        except BaseException:
            for buffer in pinned:
                buffer.unpin()
            raise

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Waits until all work queued so far has ended in modelled time.

        Args:
            timeout_s: How long to wait, on the card's clock; None: for ever.

        Raises:
            StreamTimeout: the work has not ended in that time. It continues.
            StatusError: the first failure since the last call. The stream can be used again.
        """
        if threading.current_thread() is self._thread:
            raise StatusError(
                Status.TIF_INVALID_PARAM, f"stream {self.number} cannot wait for itself: a future's callback runs on its thread"
            )
        self.card.process.check()
        clock = self.card.pacer.clock
        begun_ns = clock.now_ns()
        until_ns = None if timeout_s is None else begun_ns + round(timeout_s * NS_PER_S)
        try:
            with self._changed:
                target = self._queued
                while self._done < target:
                    if until_ns is not None and clock.now_ns() >= until_ns:
                        raise StreamTimeout(
                            f"stream {self.number} has not done its work in {timeout_s} s; {target - self._done} pieces are left"
                        )
                    clock.wait(self._changed, until_ns)
                error = self._error
                self._tell()
                ready_at_ns = self._lane.ready_at_ns
            if error is not None:
                raise error
            ends_ns = ready_at_ns if until_ns is None else min(ready_at_ns, until_ns)
            self.card.pacer.wait_until(ends_ns, self._changed, lambda: self._is_closing)
            is_paced = self.card.pacer.pacing is not Pacing.NONE
            if is_paced and ends_ns < ready_at_ns and not self._is_closing:
                raise StreamTimeout(f"stream {self.number} has not done its work in {timeout_s} s; its last piece is under way")
        finally:
            self.card.count_wait(clock.now_ns() - begun_ns)

    def acknowledge(self, error: BaseException) -> None:
        """Records that a caller received `error` from a future. If `error` stopped the stream, the stream accepts work again."""
        with self._changed:
            if self._error is error:
                self._tell()

    def _tell(self) -> None:
        if self._error is not None:
            self._reported, self._reported_through, self._error = self._error, self._queued, None

    def close(self) -> None:
        """Ends the stream. Running work ends, or is abandoned if it hangs; work that has not begun fails with `StreamClosed`.

        A second call does nothing.
        """
        if not self.card.process.is_here:
            self._is_closing = True  # its thread and locks belong to another process
            return
        with self._changed:
            is_first = not self._is_closing
            self._is_closing = True
            self._changed.notify_all()
        with self.card.turns.condition:
            self.card.turns.condition.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if is_first:
            self.card.add_stream(-1)
            self._on_close(self)

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name=f"gcu-{self.card.id}-stream-{self.number}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StatusError(
                Status.TIF_ALLOCATE_FAILED, f"stream {self.number}: this host has no thread left to simulate it: {error}"
            ) from error
        return thread

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._is_closing:
                    self._changed.wait()
                if not self._queue:
                    return
                work = self._queue.popleft()
            error = self._reported if work.number <= self._reported_through else None
            is_new = error is None
            if error is None:
                error = self._outcome(work)
            elif work.on_skip is not None:
                work.on_skip()
            for buffer in work.buffers:
                buffer.unpin()
            if is_new and error is not None:
                with self._changed:
                    self._error = self._error or error
            if work.future is not None and error is None:
                work.future.set_result(None)
            elif work.future is not None:
                work.future.set_exception(error)
            with self._changed:
                self._done += 1
                self._changed.notify_all()

    def _reason_to_skip(self, work: _Work) -> StatusError | None:
        if self._error is not None:
            return self._error
        if self._is_closing:
            return StreamClosed(f"stream {self.number} was destroyed before it came to this")
        if work.generation != self.card.generation:
            return StreamClosed(f"stream {self.number}: card {self.card.id} was reset before it came to this")
        return self.card.failure

    def _outcome(self, work: _Work) -> StatusError | None:
        """Executes or skips the work item. Returns its error, or None."""
        skipped_for = self._reason_to_skip(work)
        if skipped_for is not None:
            if work.on_skip is not None:
                work.on_skip()
            return skipped_for
        try:
            work.action(self._lane, work.queued_ns, lambda: self._is_closing)
            if work.future is not None:
                self.card.pacer.wait_until(self._lane.ready_at_ns, self._changed, lambda: self._is_closing)
        except StatusError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a caller that waits must receive any error
            return StatusError(Status.TIF_INTERNAL_ERROR, f"stream {self.number}: {type(error).__name__}: {error}")
        return None


def copy_in(card: Card, source: Bytes, buffer: DeviceBlock, offset: int, lane: Lane, queued_ns: int) -> None:
    """Copies bytes of the host into `buffer` immediately."""
    card.copy(Direction.TO_DEVICE, source.nbytes, copy_time_s(card.hardware, source.nbytes), lane, queued_ns)
    buffer.write(offset, source)


def copy_out(card: Card, buffer: DeviceBlock, target: Bytes, offset: int, lane: Lane, queued_ns: int) -> None:
    """Copies bytes of `buffer` to the host immediately."""
    card.copy(Direction.TO_HOST, target.nbytes, copy_time_s(card.hardware, target.nbytes), lane, queued_ns)
    target[:] = buffer.read(offset, target.nbytes)
