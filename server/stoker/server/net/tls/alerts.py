"""What TLS tells a client whose handshake fails, sent before the connection is closed.

OpenSSL puts an alert into its output, such as "certificate required", but asyncio and uvloop drop the connection with whatever is there,
and the client sees an end without a reason. Here the alert travels with the error, and goes out by a second handle on the connection.
"""

import contextlib
import socket
import ssl
from typing import Final

_ALERT: Final = "alert"
#: What OpenSSL calls the first bytes of a plain HTTP/1 request, and nginx's answer to it.
_HTTP_REASON: Final = "HTTP_REQUEST"
_HTTP_TEXT: Final = b"The plain HTTP request was sent to HTTPS port\n"
_HTTP_RESPONSE: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_HTTP_TEXT),
    _HTTP_TEXT,
)


class AlertingContext(ssl.SSLContext):
    """A context whose handshakes, where they fail, give their alert to the error: see `send_alert`."""

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
        outgoing: What it has to send.
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
    """Sends what a failed handshake has for the client; nothing, where `error` is not of TLS. `sock` does not block.

    A client that speaks plain HTTP cannot read an alert: it gets a plain answer.
    """
    is_http = isinstance(error, ssl.SSLError) and error.reason == _HTTP_REASON
    alert = _HTTP_RESPONSE if is_http else vars(error).get(_ALERT, b"")
    if alert:
        # A client that does not hear it is as well off as before.
        with contextlib.suppress(OSError):
            sock.send(alert)
