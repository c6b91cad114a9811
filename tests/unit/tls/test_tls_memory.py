"""A closed TLS connection frees its buffers at once: reference counts do it, since the garbage collector runs seldom."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop

from stoker.server.core.limits import Limits
from stoker.server.net.http1.listener import HttpListener
from stoker.server.net.listeners import ListenOptions
from stoker.server.net.settings import PemFiles
from stoker.server.net.tls.key_ring import H2, HTTP_1, KeyRing
from stoker.server.rpc.http2.server import H2Server
from tests.fakes.certificates import Authority, Pair
from tests.fakes.fake_engine import FakeEngine, simple
from tests.unit.rpc.test_grpc_large_messages import Taker

CONNECTIONS = 4
TURNS = 500
Serve = Callable[[Pair], AbstractAsyncContextManager[int]]
#: Without a direct route, the request goes to the ASGI application.
HTTP_REQUEST = b"POST /any HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n" + bytes(600_000)
#: The preface and empty SETTINGS.
H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


async def echo_size(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


@asynccontextmanager
async def http_port(pair: Pair) -> AsyncIterator[int]:
    ring = KeyRing("HTTP", PemFiles(cert=pair.cert, key=pair.key), HTTP_1)
    listener = HttpListener(echo_size, Limits(), "127.0.0.1", 0, listeners=ListenOptions(ring=ring))
    try:
        yield await listener.start()
    finally:
        await listener.stop(1)


@asynccontextmanager
async def grpc_port(pair: Pair) -> AsyncIterator[int]:
    ring = KeyRing("grpc", PemFiles(cert=pair.cert, key=pair.key), H2)
    server = H2Server(Taker().methods(), FakeEngine(simple()), Limits(), "127.0.0.1", 0, listeners=ListenOptions(ring=ring))
    try:
        yield await server.start()
    finally:
        await server.stop(1)


def connect(port: int, context: ssl.SSLContext, sent: bytes, expected: bytes, is_clean: bool) -> None:
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20), server_hostname="localhost") as sock:
        sock.sendall(sent)
        received = b""
        while expected not in received:
            received += sock.recv(65_536)
        if is_clean:
            sock.unwrap()


def tls_protocols() -> int:
    return sum(type(each).__name__ == "SSLProtocol" for each in gc.get_objects())


@pytest.mark.parametrize("is_clean", [True, False], ids=["close-notify", "cut"])
@pytest.mark.parametrize(
    ("serve", "alpn", "sent", "expected"),
    [(http_port, "http/1.1", HTTP_REQUEST, b"600000"), (grpc_port, "h2", H2_PREFACE, b"\x00\x00\x00\x04\x01")],
    ids=["http", "grpc"],
)
def test_closed_connections_leave_no_tls_state(
    serve: Serve, alpn: str, sent: bytes, expected: bytes, is_clean: bool, server_pair: Pair, authority: Authority
):
    async def main() -> None:
        context = ssl.create_default_context(cafile=authority.cert)
        context.set_alpn_protocols([alpn])
        async with asyncio.timeout(30), serve(server_pair) as port:
            gc.collect()
            before = tls_protocols()
            gc.disable()
            try:
                for _ in range(CONNECTIONS):
                    await asyncio.to_thread(connect, port, context, sent, expected, is_clean)
                for _ in range(TURNS):
                    # The loop sees the last close in a later turn.
                    if tls_protocols() <= before:
                        break
                    await asyncio.sleep(0.01)
                assert tls_protocols() <= before
            finally:
                gc.enable()

    uvloop.run(main())
