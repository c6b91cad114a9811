"""TLS alerts that asyncio does not send or wait for: those of failed handshakes, and close_notify at the end.

OpenSSL puts an alert such as "certificate required" into its output. asyncio and uvloop close the connection without sending it, so that
the client sees an end without a reason. `AlertingContext` adds the alert to the error, and `send_alert` sends it on a duplicate of the
socket. At the end of a connection both sides send close_notify, and many clients send theirs only when they need the connection again:
`wait_closed` bounds that wait.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

_ALERT: Final = "alert"
#: What OpenSSL calls the first bytes of a plain HTTP/1 request, and nginx's response to it.
_HTTP_REASON: Final = "HTTP_REQUEST"
_HTTP_TEXT: Final = b"The plain HTTP request was sent to HTTPS port\n"
_HTTP_RESPONSE: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_HTTP_TEXT),
    _HTTP_TEXT,
)


class AlertingContext(ssl.SSLContext):
    """A context whose failed handshakes add their alert to the error: see `send_alert`."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _AlertingObject)
        made.outgoing = outgoing
        return made


class _AlertingObject(ssl.SSLObject):
    """TLS of one connection.

    Attributes:
        outgoing: The bytes it has to send.
    """

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            vars(error)[_ALERT] = self.outgoing.read()
            raise


AlertingContext.sslobject_class = _AlertingObject


def send_alert(sock: socket.socket, error: OSError) -> None:
    """Sends the alert of a failed handshake; nothing if `error` is not of TLS. `sock` does not block.

    A client that speaks plain HTTP cannot read an alert: it gets a plain response.
    """
    is_http = isinstance(error, ssl.SSLError) and error.reason == _HTTP_REASON
    alert = _HTTP_RESPONSE if is_http else vars(error).get(_ALERT, b"")
    if alert:
        # The alert is optional: the connection ends in any case.
        with contextlib.suppress(OSError):
            sock.send(alert)


#: Seconds that a closed connection waits for the client's close_notify while its last bytes are on their way: asyncio's default.
CLOSE_NOTIFY_TIMEOUT_S: Final = 30.0
#: Seconds at the end of the server, once all bytes were handed to TLS.
_FINAL_CLOSE_NOTIFY_TIMEOUT_S: Final = 0.5


async def wait_closed(
    gone: Callable[[float], Awaitable[bool]], transports: Callable[[], Iterable[asyncio.Transport]], grace_s: float
) -> bool:
    """Waits until all connections are gone, or `grace_s` is over; returns whether they are gone.

    Closed connections with nothing left to write are aborted after half a second: their clients do not send close_notify.

    Args:
        gone: Waits so many seconds at most; returns whether all are gone.
        transports: The transports of the open connections.
        grace_s: Seconds for connections that still have to write or to work.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + grace_s
    leaving: set[asyncio.Transport] = set()
    while (left_s := ends_s - loop.time()) > 0:
        if await gone(min(left_s, _FINAL_CLOSE_NOTIFY_TIMEOUT_S)):
            return True
        before, leaving = leaving, {each for each in transports() if each.is_closing() and not each.get_write_buffer_size()}
        # The last bytes may still be in the socket's own buffer, which TLS does not report: one more period for them.
        for transport in before & leaving:
            transport.abort()
    return await gone(0)
