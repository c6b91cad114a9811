"""Handling of an encrypted port before a protocol gets the connection, on asyncio's loop and on uvloop."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import uvloop

from stoker.server.core.limits import Limits
from stoker.server.grpc_server import grpc_server
from stoker.server.net.listeners import Listeners, ListenOptions
from stoker.server.net.settings import PemFiles
from stoker.server.net.tls.key_ring import H2, HTTP_1, KeyRing
from stoker.server.protocols.services import Services
from tests.fakes.certificates import Authority
from tests.fakes.fake_engine import FakeEngine, simple

LIMITS = Limits(tls_handshake_timeout_s=0.2, tls_handshakes=2)
Scenario = Callable[[int, KeyRing], Awaitable[None]]


class Echo(asyncio.Protocol):
    """Returns its input with `>` before it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop is no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b">" + data)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request, server_pair, authority: Authority):
    def run_with(scenario: Scenario, limits: Limits = LIMITS, *, is_mutual: bool = False) -> None:
        async def main() -> None:
            ring = KeyRing(
                "HTTP", PemFiles(cert=server_pair.cert, key=server_pair.key, client_ca=authority.cert if is_mutual else None), HTTP_1
            )
            listeners = Listeners(limits, "127.0.0.1", 0, ListenOptions(ring=ring))
            port = await listeners.open(Echo)
            try:
                async with asyncio.timeout(20):
                    await scenario(port, ring)
            finally:
                listeners.close()

        if request.param == "uvloop":
            uvloop.run(main())
        else:
            asyncio.run(main())

    return run_with


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.cert)


async def plain(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


async def hears_the_end(sock: socket.socket) -> None:
    """Returns when the server has closed; the test's time limit bounds the wait."""
    try:
        while await asyncio.get_running_loop().sock_recv(sock, 4096):
            pass
    except ConnectionError:
        pass
    finally:
        sock.close()


async def exchange(port: int, context: ssl.SSLContext, text: bytes = b"hello") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        writer.write(text)
        return await reader.readexactly(len(text) + 1)
    finally:
        writer.close()
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])


def test_bytes_sent_right_after_the_handshake_arrive(run, authority: Authority):
    async def scenario(port: int, ring: KeyRing) -> None:
        assert await asyncio.gather(*(exchange(port, trusting(authority), b"%04d" % each) for each in range(2))) == [b">0000", b">0001"]

    run(scenario, Limits())


@pytest.mark.slow
def test_stalled_handshake_is_closed_at_its_timeout_and_logged(run, caplog):
    async def scenario(port: int, ring: KeyRing) -> None:
        sock = await plain(port)
        await asyncio.get_running_loop().sock_sendall(sock, b"\x16\x03\x01\x02\x00\x01")
        await hears_the_end(sock)

    run(scenario)
    assert "a TLS handshake with 127.0.0.1 failed: it took too long" in caplog.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", "the client speaks plain HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "the client does not speak TLS"),
    ],
)
def test_plain_text_on_a_tls_port_is_closed_at_once(run, text, reason, caplog):
    async def scenario(port: int, ring: KeyRing) -> None:
        sock = await plain(port)
        await asyncio.get_running_loop().sock_sendall(sock, text)
        await hears_the_end(sock)

    run(scenario, Limits(tls_handshake_timeout_s=3600))
    assert reason in caplog.text


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
def test_plain_http_request_on_a_tls_port_gets_a_plain_response(run, method: bytes):
    async def scenario(port: int, ring: KeyRing) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(method + b" /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert body == b"The plain HTTP request was sent to HTTPS port\n"
        writer.close()
        await writer.wait_closed()

    run(scenario, Limits())


def test_oldest_handshake_is_cancelled_when_there_are_too_many(run, authority: Authority):
    async def scenario(port: int, ring: KeyRing) -> None:
        stalled = [await plain(port) for _ in range(2)]
        # The kernel hands connections out in their order.
        assert await exchange(port, trusting(authority)) == b">hello"
        await hears_the_end(stalled[0])
        stalled[1].close()

    run(scenario, Limits(tls_handshake_timeout_s=3600, tls_handshakes=2))


async def hears_nothing(port: int, context: ssl.SSLContext) -> None:
    # In TLS 1.3, a client's handshake is over before the server has seen its certificate.
    reader, _ = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    assert await reader.read() == b""


@pytest.mark.parametrize(
    ("version", "alert"),
    [(ssl.TLSVersion.TLSv1_3, "ALERT_CERTIFICATE_REQUIRED"), (ssl.TLSVersion.TLSv1_2, "ALERT_HANDSHAKE_FAILURE")],
)
def test_rejected_client_gets_an_alert_with_the_reason(run, authority: Authority, version: ssl.TLSVersion, alert: str):
    async def scenario(port: int, ring: KeyRing) -> None:
        context = trusting(authority)
        context.maximum_version = version
        with pytest.raises(ssl.SSLError) as refused:
            await hears_nothing(port, context)
        assert alert in str(refused.value.reason)

    run(scenario, Limits(), is_mutual=True)


def test_client_without_a_certificate_is_rejected_by_mutual_tls(run, authority: Authority, caplog):
    async def scenario(port: int, ring: KeyRing) -> None:
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await exchange(port, trusting(authority))
        context = trusting(authority)
        context.load_cert_chain(*authority.sign("client"))
        assert await exchange(port, context) == b">hello"

    run(scenario, Limits(), is_mutual=True)
    assert "the client showed no certificate" in caplog.text


@pytest.mark.parametrize(("offered", "is_served"), [(["h2"], True), (["h2", "http/1.1"], True), (["http/1.1"], False), ([], False)])
def test_alpn_selects_h2_on_the_grpc_port(offered, is_served, server_pair, authority: Authority):
    async def main() -> None:
        ring = KeyRing("gRPC", PemFiles(cert=server_pair.cert, key=server_pair.key), H2)
        served = grpc_server(Services(FakeEngine(simple()), Limits()), "127.0.0.1", 0, listeners=ListenOptions(ring=ring))
        port = await served.start()
        context = trusting(authority)
        if offered:
            context.set_alpn_protocols(offered)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        try:
            # The server speaks first: its SETTINGS.
            heard = await reader.read(9)
        except ConnectionError:
            heard = b""
        assert (heard[3:4] == b"\x04") is is_served
        writer.transport.abort()
        await served.stop(1)

    uvloop.run(main())


def test_old_tls_is_refused(run, authority: Authority):
    async def scenario(port: int, ring: KeyRing) -> None:
        context = trusting(authority)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(ssl.SSLError, match=r"(?i)alert.protocol.version"):
            await exchange(port, context)

    run(scenario, Limits())


def test_warnings_of_failed_handshakes_are_rate_limited(run, caplog):
    async def scenario(port: int, ring: KeyRing) -> None:
        for _ in range(5):
            sock = await plain(port)
            await asyncio.get_running_loop().sock_sendall(sock, b"GET / HTTP/1.1\r\n\r\n")
            await hears_the_end(sock)

    with caplog.at_level(logging.WARNING, "stoker.tls"):
        run(scenario, Limits())
    assert caplog.text.count("a TLS handshake") == 1
