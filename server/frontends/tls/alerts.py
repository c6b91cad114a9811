"""What TLS tells a client whose handshake fails, sent before the connection is closed.

OpenSSL puts an alert into its output, such as "certificate required", but asyncio and uvloop drop the connection with whatever is there,
and the client sees an end without a reason. Here the alert travels with the error, and goes out by a second handle on the connection.
"""

import contextlib
import socket
import ssl
from typing import Final

_ALERT: Final = "alert"


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
    """Sends what a failed handshake has for the client; nothing, where `error` is not of TLS. `sock` does not block."""
    alert = vars(error).get(_ALERT, b"")
    if alert:
        # A client that does not hear it is as well off as before.
        with contextlib.suppress(OSError):
            sock.send(alert)
