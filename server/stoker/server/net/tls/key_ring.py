"""`KeyRing`: the certificate of new connections, which is reloaded when its files change."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from stoker.backends.api.clock import SystemClock
from stoker.server.net.settings import PemFiles, SslConfigFile
from stoker.server.net.tls.material import TlsError, TlsMaterial, make_context, read_material

H2: Final = "h2"
HTTP_1: Final = "http/1.1"
#: A certificate that ends so soon causes a warning.
_SOON: Final = timedelta(days=7)
_log = logging.getLogger("stoker.tls")


class KeyRing:
    """Confined to: the event loop; `material` may be read by any thread.

    Attributes:
        material: Certificate, key and authority of new connections.
        context: The `SSLContext` of the same.
        protocol: The protocol of these connections, by its name in ALPN.
    """

    material: TlsMaterial
    context: ssl.SSLContext

    def __init__(self, port: str, source: PemFiles | SslConfigFile, protocol: str) -> None:
        """Reads the files. Blocks.

        Args:
            port: The name of the port in the log, such as `gRPC`.
            source: The files.
            protocol: The protocol, by its name in ALPN.

        Raises:
            TlsError: the files cannot be used.
        """
        self.protocol = protocol
        self._port = port
        self._source = source
        self._clock = SystemClock()
        self._last_error = ""
        self._use(read_material(source, self._now()))

    @property
    def requires_client_certificate(self) -> bool:
        """Whether a client must show a certificate."""
        return self.material.client_ca is not None

    async def follow(self, period_s: float, *, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reads the files every `period_s` until cancelled. Invalid contents are logged, once for each error, and not used.

        The contents are compared, not the times: the files may be written, moved or linked into place.
        """
        while True:
            await wait(period_s)
            try:
                material = await asyncio.to_thread(read_material, self._source, self._now())
                if material != self.material:
                    self._check_unchanged(material)
                    self._use(material)
                    _log.info("the %s port has a new certificate, valid until %s", self._port, _day(material))
                self._warn_if_expiring()
                self._last_error = ""
            except TlsError as error:
                self._log_error(str(error))

    def _check_unchanged(self, material: TlsMaterial) -> None:
        """Only an SSLConfig can change this, and an edited certificate must not open a port to clients without one."""
        if (material.client_ca is None) is self.requires_client_certificate:
            raise TlsError("whether clients must show a certificate cannot change while the server runs")

    def _use(self, material: TlsMaterial) -> None:
        self.context = make_context(material, self.protocol)
        self.material = material
        self._has_warned = False
        self._warn_if_expiring()

    def _warn_if_expiring(self) -> None:
        if not self._has_warned and self.material.not_after() - self._now() < _SOON:
            self._has_warned = True
            _log.warning("the %s port's certificate is valid only until %s", self._port, _day(self.material))

    def _log_error(self, text: str) -> None:
        if text != self._last_error:
            _log.error("%s (the %s port goes on with the certificate that it has)", text, self._port)
        self._last_error = text

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)


def _day(material: TlsMaterial) -> str:
    return f"{material.not_after():%Y-%m-%d %H:%M:%S} UTC"
