"""`TlsListener`: accepts on an encrypted port; a protocol gets its connection once the handshake is complete.

asyncio's `create_server(ssl=...)` fixes the certificate when a server starts, does not bound handshakes, and reports failed ones neither
to the log nor to the client. Here each connection gets the current certificate, and handshakes are bounded, timed and logged.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from stoker.server.core.limits import Limits
from stoker.server.net.tls.alerts import CLOSE_NOTIFY_TIMEOUT_S, send_alert
from stoker.server.net.tls.key_ring import KeyRing

_BACKLOG: Final = 2048
#: Connections taken in one turn of the loop.
_BURST: Final = 64
#: Pause of accepting when the process may open no more files, in seconds.
_PAUSE_S: Final = 0.5
_LOG_PERIOD_S: Final = 10.0
#: The meaning of OpenSSL's reasons on a server.
_MEANINGS: Final = {
    "HTTP_REQUEST": "the client speaks plain HTTP",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
    "UNSUPPORTED_PROTOCOL": "the client speaks no TLS from 1.2 up",
    "NO_SHARED_CIPHER": "the client knows no cipher that is allowed here",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the server's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client finds the server's certificate expired",
}
_log = logging.getLogger("stoker.tls")


class TlsListener:
    """One encrypted port. Confined to: the event loop."""

    def __init__(self, listener: socket.socket, ring: KeyRing, limits: Limits) -> None:
        """Takes over `listener`, which is bound."""
        self._listener = listener
        self._ring = ring
        self._limits = limits
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._paused: asyncio.TimerHandle | None = None
        self._failed = 0
        self._logged_s: float | None = None

    def open(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Starts to accept; each connection gets a protocol of `make`."""
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accepts no more connections, and drops those whose handshake is not complete."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_BURST):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The listener stays readable: without a pause the loop would do nothing else.
                _log.warning("cannot accept connections now: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._paused = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._listener, self._accept)
                return
            sock.setblocking(False)
            if len(self._tasks) >= self._limits.tls_handshakes:
                # The oldest is cancelled: an honest client's handshake is complete within a few turns of the loop.
                next(iter(self._tasks)).cancel()
            task = self._loop.create_task(self._shake_hands(sock, address))
            self._tasks[task] = None
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]

    async def _shake_hands(self, sock: socket.socket, address: Any) -> None:
        timeout_s = self._limits.tls_handshake_timeout_s
        try:
            # When a handshake has failed, the loop has closed its own handle.
            second = sock.dup()
        except OSError as error:
            sock.close()
            self._log_failure(str(error), address)
            return
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                sock,
                ssl=self._ring.context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=CLOSE_NOTIFY_TIMEOUT_S,
            )
        except (ConnectionResetError, BrokenPipeError):
            # A client that disconnects without an alert is a probe of the port, and no failure.
            return
        except OSError as error:  # TLS's own errors among them
            send_alert(second, error)
            self._log_failure(_reason(error), address)
        finally:
            second.close()

    def _log_failure(self, reason: str, address: Any) -> None:
        """Logs a warning, at most once in ten seconds."""
        now_s = self._loop.time()
        self._failed += 1
        if self._logged_s is None or now_s - self._logged_s >= _LOG_PERIOD_S:
            _log.warning("a TLS handshake with %s failed: %s", address[0], reason, extra={"failed": self._failed})
            self._logged_s, self._failed = now_s, 0


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _MEANINGS.get(error.reason, error.reason.replace("_", " ").lower())
    return "it took too long" if isinstance(error, ConnectionAbortedError) else str(error)
