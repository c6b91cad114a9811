"""A server that stops does not wait for clients without close_notify, and aborts no connection with bytes on their way."""

import asyncio

import pytest
import uvloop

from stoker.server.core.limits import Limits
from stoker.server.grpc_server import grpc_server
from stoker.server.net.listeners import ListenOptions
from stoker.server.net.settings import PemFiles
from stoker.server.net.tls.alerts import wait_closed
from stoker.server.net.tls.key_ring import H2, HTTP_1, KeyRing
from stoker.server.protocols.services import Services
from stoker.server.web.http_server import http_server
from tests.fakes.certificates import Authority
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.tls_socket import silent_client

#: Longer than a test may take: a server that waited for its clients would not end in time.
GRACE_S = 3600.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_clients_without_close_notify_do_not_delay_a_stop(kind, server_pair, authority: Authority):
    async def main() -> None:
        ring = KeyRing(kind, PemFiles(cert=server_pair.cert, key=server_pair.key), H2 if kind == "grpc" else HTTP_1)
        front = grpc_server if kind == "grpc" else http_server
        served = front(Services(FakeEngine(simple()), Limits()), "127.0.0.1", 0, listeners=ListenOptions(ring=ring))
        port = await served.start()
        greeting = PREFACE if kind == "grpc" else b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
        client = await asyncio.to_thread(silent_client, port, authority.cert, ring.protocol, greeting)
        with client:
            await served.stop(GRACE_S)

    uvloop.run(main())


class Leaving:
    """A closed transport, with this number of bytes left to write at each check."""

    def __init__(self, *left: int, is_closing: bool = True) -> None:
        self._left = list(left)
        self._is_closing = is_closing
        self.is_aborted = False

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    def abort(self) -> None:
        self.is_aborted = True


def test_only_connections_closed_and_written_for_a_whole_period_are_aborted():
    kinds = {"written": Leaving(0), "just written": Leaving(9, 9, 0), "unread": Leaving(9), "in work": Leaving(0, is_closing=False)}
    looks = iter([False, False, False, True])

    async def gone(timeout_s: float) -> bool:
        return next(looks)

    assert asyncio.run(wait_closed(gone, kinds.values, GRACE_S))  # type: ignore[arg-type]
    assert [name for name, each in kinds.items() if each.is_aborted] == ["written"]
