"""The end of encrypted connections: TLS says goodbye both ways, and many clients do not answer before they need the connection again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

#: How long a closed connection waits for the client's part of the farewell, while its last bytes are on their way, seconds: asyncio's own.
CLOSE_NOTIFY_TIMEOUT_S: Final = 30.0
#: How long at the end of the server, where all bytes were handed over, seconds.
_FINAL_CLOSE_NOTIFY_TIMEOUT_S: Final = 0.5


async def wait_closed(
    gone: Callable[[float], Awaitable[bool]], transports: Callable[[], Iterable[asyncio.Transport]], grace_s: float
) -> bool:
    """Waits until all connections are gone, or `grace_s` is over; whether they are.

    Those that are closed, with nothing left to write, are not waited for longer than a moment.

    Args:
        gone: Waits so many seconds at most; whether all are gone.
        transports: Those of the connections that are open.
        grace_s: How long they may take that still have to write or to work, in seconds.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + grace_s
    leaving: set[asyncio.Transport] = set()
    while (left_s := ends_s - loop.time()) > 0:
        if await gone(min(left_s, _FINAL_CLOSE_NOTIFY_TIMEOUT_S)):
            return True
        before, leaving = leaving, {each for each in transports() if each.is_closing() and not each.get_write_buffer_size()}
        # Their last bytes may be on their way below TLS, which does not tell: they have a moment for that.
        for transport in before & leaving:
            transport.abort()
    return await gone(0)
