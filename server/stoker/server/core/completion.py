"""`Completion`: the single end of a request (one result, or a cancellation), and the completion of work done by a coroutine."""

import asyncio
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

from stoker.backends.api.errors import Cancelled
from stoker.backends.api.native import mypyc_attr
from stoker.server.core.tasks import Waiter

T = TypeVar("T")
_log = logging.getLogger("stoker.engine")


@mypyc_attr(allow_interpreted_subclasses=True)
class Completion(Generic[T]):
    """One request in progress. Confined to: the event loop.

    INVARIANT: of all calls of `complete` and `cancel` only the first has an effect, and at most one result reaches the callback. The
    callback is dropped before it runs: a completion that is over holds no reference to the request.

    Attributes:
        is_over: Whether the request has its result or was cancelled.
    """

    __slots__ = ("_callback", "_result", "is_over")

    def __init__(self, callback: Callable[[Any], None] | None = None) -> None:
        """`callback` receives the result; None: `then` sets the callback later."""
        self._callback = callback
        self._result: T | Exception | None = None
        self.is_over = False

    def then(self, callback: Callable[[T | Exception], None]) -> None:
        """Calls `callback` once with the result, immediately if there is one already. REQUIRES: no callback was set before."""
        if not self.is_over:
            self._callback = callback
        elif self._result is not None:
            result, self._result = self._result, None
            callback(result)

    def complete(self, result: T | Exception) -> None:
        """Ends the request with `result`, unless the request is over."""
        if self.is_over:
            return
        self.is_over = True
        callback, self._callback = self._callback, None
        if callback is None:
            self._result = result
        else:
            callback(result)

    def cancel(self) -> None:
        """Cancels the request, unless it is over: no result follows."""
        if not self.is_over:
            self.is_over = True
            self._callback = None
            self._withdraw()

    def _withdraw(self) -> None:
        """Cancels the work that would lead to a result."""

    async def outcome(self) -> T:
        """Awaits the result; cancelling the caller cancels the request.

        Raises:
            Exception: the result, if it is one.
        """
        waiter = Waiter[T]()
        self.then(waiter)
        try:
            return await waiter.outcome()
        except asyncio.CancelledError:
            self.cancel()
            raise


class TaskCompletion(Completion[T]):
    """The completion of a coroutine that runs in a task, or inline if the coroutine never waits.

    If the task is cancelled by anything but `cancel`, the request completes with `Cancelled`.
    """

    __slots__ = ("_has_task_begun", "_task")

    def __init__(self, begin: Callable[[], Awaitable[T]], *, is_inline: bool = False) -> None:
        """Runs the coroutine that `begin` returns.

        Args:
            begin: Makes the coroutine; not called if the request is cancelled before its task has begun.
            is_inline: Runs the coroutine inline up to its first wait, and makes a task only if it waits. REQUIRES: the coroutine needs no
                current task before that (`asyncio.timeout`, task groups).
        """
        super().__init__()
        self._task: asyncio.Task[None] | None = None
        self._has_task_begun = True
        if not is_inline:
            self._task = asyncio.get_running_loop().create_task(self._run(begin))
            return
        try:
            work = cast("Coroutine[Any, Any, T]", begin())
            awaited = work.send(None)
        except StopIteration as done:
            self.complete(done.value)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes the result
            self.complete(error)
        else:
            self._has_task_begun = False
            self._task = asyncio.get_running_loop().create_task(self._continue(work, awaited))

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when no part of the work runs any more, including the threads that it waits for."""
        if self._task is None or self._task.done():
            callback()
        else:
            self._task.add_done_callback(lambda _: callback())

    def _withdraw(self) -> None:
        # A task that is cancelled before its first step would never resume a coroutine that has begun and has cleanup to do. `_continue`
        # checks `is_over` itself.
        if self._task is not None and self._has_task_begun and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self, begin: Callable[[], Awaitable[T]]) -> None:
        try:
            result: T | Exception = await begin()
        except asyncio.CancelledError:
            result = _cancelled()
        except Exception as error:  # noqa: BLE001 - as above
            result = error
        self._settle(result)
        # The error's traceback refers to this frame.
        del result

    async def _continue(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        """Resumes a coroutine that waits for `awaited`."""
        self._has_task_begun = True
        try:
            result: T | Exception = await _continued(work, awaited, is_cancelled=self.is_over)
        except asyncio.CancelledError:
            result = _cancelled()
        except Exception as error:  # noqa: BLE001 - as above
            result = error
        self._settle(result)
        # The error's traceback refers to this frame.
        del result

    def _settle(self, result: T | Exception) -> None:
        """Completes the request. An exception from the callback is logged: it is a defect of the caller, and nothing else awaits this
        task.
        """
        try:
            self.complete(result)
        except Exception:  # noqa: BLE001 - whatever it is, it is a defect
            _log.exception("the result callback of a request raised")


def _cancelled() -> Cancelled:
    return Cancelled("the call was cancelled by the server")


@types.coroutine
def _continued(work: Coroutine[Any, Any, T], awaited: Any, *, is_cancelled: bool) -> Generator[Any, None, T]:
    """Drives a coroutine that has already begun and now waits for `awaited`."""
    error: BaseException | None = asyncio.CancelledError() if is_cancelled else None
    while True:
        if error is None:
            try:
                yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - it is the coroutine's to handle
                error = raised
        try:
            if error is None:
                awaited = work.send(None)
            else:
                discarded, error = error, None
                awaited = work.throw(discarded)
        except StopIteration as done:
            return cast("T", done.value)
