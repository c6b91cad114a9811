"""Work for a thread, so that the event loop answers others meanwhile."""

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_off_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`function(*args, **kwargs)` in a thread; a cancelled caller still waits for its end.

    So whatever room the caller has reserved for the work covers it until its memory is free again.
    """
    work = asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # What has not begun never will.
        if not work.cancel():
            await asyncio.wait([work])
        raise
    finally:
        # The error it may hold leads back to this frame: a cycle that would keep the arguments in memory until the next collection.
        del work
