"""Blocking work in a thread of its own that cannot keep the process from ending.

The loop's default executor joins its threads at exit: a load that hangs in a driver would hang the shutdown with it. And its few threads
serve everybody, so that a slow load would hold up the decoding of a request.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Threads of this prefix may be left behind at the end of the process.
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
    """Whether a thread of ours still runs: then the interpreter must not be taken down around it."""
    return any(thread.name.startswith(NAME_PREFIX) for thread in threading.enumerate())


def _set_result(loop: asyncio.AbstractEventLoop, tell: Callable[..., None], future: "asyncio.Future[T]", what: object) -> None:
    try:
        loop.call_soon_threadsafe(tell, future, what)
    except RuntimeError:  # the loop closed first: the process is going down and nobody waits any more
        return


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
