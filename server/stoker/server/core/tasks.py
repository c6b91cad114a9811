"""Work in threads and tasks: blocking calls off the event loop, shielded tasks, niceness, and the awaitable form of a callback.

`in_daemon_thread` does not use the loop's default executor. The executor joins its threads at exit, so a load that hangs in a driver would
block the shutdown. The executor also has few threads, so a slow load would delay the decoding of requests.

`ShieldedTasks` bounds the time that a client waits for work.
"""

import asyncio
import logging
import os
import platform
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar

from stoker.backends.api.errors import DeadlineExceeded, ServingError

T = TypeVar("T")

log = logging.getLogger("stoker.execution")

#: Name prefix of the threads that may still run when the process ends.
NAME_PREFIX = "stoker-"


def in_daemon_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Runs `work` in a new daemon thread; the future has its result or what it raised. To be called on the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is the future's to tell
            _set_result(loop, _fail, future, error)
        else:
            _set_result(loop, _succeed, future, result)

    threading.Thread(target=run, name=f"{NAME_PREFIX}{name}", daemon=True).start()
    return future


def any_left() -> bool:
    """Whether a thread started here still runs: then the interpreter must not be finalized."""
    return any(thread.name.startswith(NAME_PREFIX) for thread in threading.enumerate())


def _set_result(loop: asyncio.AbstractEventLoop, tell: Callable[..., None], future: "asyncio.Future[T]", what: object) -> None:
    try:
        loop.call_soon_threadsafe(tell, future, what)
    except RuntimeError:  # the loop closed first: the process ends, and nothing awaits the result
        return


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


P = ParamSpec("P")


async def run_off_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`function(*args, **kwargs)` in a thread; a cancelled caller still waits for its end.

    The bytes that the caller has reserved for the work therefore stay reserved until its memory is free.
    """
    claim = threading.Lock()

    def run() -> T:
        if not claim.acquire(blocking=False):
            raise asyncio.CancelledError
        return function(*args, **kwargs)

    work = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # Either the thread has the claim, or the work never begins. `work.cancel()` alone returns True while the thread runs.
        if claim.acquire(blocking=False):
            work.cancel()
        else:
            await asyncio.wait([work])
        raise
    finally:
        # The error may refer to this frame: a cycle that would keep the arguments in memory until the next garbage collection.
        del work


class ShieldedTasks:
    """Tasks that continue when their callers are cancelled. Confined to: the event loop."""

    def __init__(self, what: str, log: logging.Logger, limit_s: float) -> None:
        """`what` names the work in messages and in the log line of a defect in `log`; clients wait for the work at most `limit_s`
        seconds.
        """
        self._what = what
        self._limit_s = limit_s
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work` and returns its result; cancelling the caller does not end the work.

        Raises:
            DeadlineExceeded: the work has not ended within the limit; it continues. And whatever `work` raises.
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        ended, _ = await asyncio.wait({task}, timeout=self._limit_s)
        if not ended:
            raise DeadlineExceeded(
                f"{self._what} has not ended within {self._limit_s:g} s (--limit control_timeout_s); it goes on,"
                " and the repository index shows its outcome"
            )
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        # Read the result here, because a cancelled caller does not. Errors caused by a client are logged elsewhere; a defect is logged
        # here.
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ServingError):
            self._log.error("%s failed unexpectedly", self._what, exc_info=error)


async def in_time(work: Awaitable[T], timeout_s: float) -> T:
    """The result of `work`, for compiled code, which must not use `async with`.

    Raises:
        TimeoutError: `work` took longer than `timeout_s`; it was cancelled.
    """
    async with asyncio.timeout(timeout_s):
        return await work


class Waiter(Generic[T]):
    """Called once with a response, or with what went wrong; awaited once. Confined to: the event loop.

    A future keeps its error, the error refers to the frames that raised it, and they refer to the future: a cycle that keeps a request in
    memory until the next garbage collection. This class drops its reference to the result.
    """

    __slots__ = ("_outcome", "_woken")

    def __init__(self) -> None:
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcome: T | Exception | None = None

    def __call__(self, outcome: T | Exception) -> None:
        if not self._woken.done():
            self._outcome = outcome
            self._woken.set_result(None)

    async def outcome(self) -> T:
        """The response.

        Raises:
            Exception: the error that the callback received, if it received one.
        """
        await self._woken
        outcome, self._outcome = self._outcome, None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            assert outcome is not None
            return outcome
        finally:
            del outcome


#: The largest nice value.
MOST_NICE = 19


def raise_niceness(steps: int) -> None:
    """Raises the nice value of the calling thread, and of the threads that it starts later, by `steps`, at most to `MOST_NICE`.

    This needs no privilege. Only Linux has a nice value for each thread; other systems are left unchanged.
    """
    if not steps or platform.system() != "Linux":
        return
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, min(MOST_NICE, os.getpriority(os.PRIO_PROCESS, thread) + steps))
    except OSError as error:  # a sandbox forbids it; the model runs without it
        log.warning("nice is without effect here: %s", error.strerror)
