"""Clients that close their sending side: they get their responses unless they have left. On both event loops."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from stoker.server.core.limits import Limits
from stoker.server.net.http1.asgi import CLIENT_GONE
from stoker.server.net.http1.listener import HttpListener
from stoker.server.net.listeners import ListenOptions
from stoker.server.protocols.exchange import send_response
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from tests.fakes.fake_engine import FakeEngine
from tests.unit.http1.test_direct_path import echo_engine, json_body, post

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
INFER = post(json_body(1, 2))
OTHER = b"POST /other HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
Run = Callable[[Any], Any]


class Server:
    """A listener whose requests wait for `go`, on a TCP port, an encrypted one, or a Unix-domain socket."""

    def __init__(self, **options: Any) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.cancelled = asyncio.Event()
        self.engine: FakeEngine = echo_engine()
        self.engine.models["echo"].before = self._wait
        infer = HttpInfer(self.engine, Limits())
        self.listener = HttpListener(self._other, Limits(), "127.0.0.1", 0, direct=InferRoutes(infer), **options)

    async def _wait(self, _request: Any) -> None:
        self.begun.release()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _other(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._wait(None)
        except asyncio.CancelledError:
            assert scope[CLIENT_GONE]
            raise
        await send_response(send, 200, b"other", [])


def serve(run: Run, scenario: Callable[[Server, int], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        server = Server(**options)
        port = await server.listener.start()
        try:
            async with asyncio.timeout(30):
                await scenario(server, port)
                while server.listener.connections:  # noqa: ASYNC110 - they end in their own time
                    await asyncio.sleep(0)
            assert server.listener.half_closed_clients == 0
        finally:
            await server.listener.stop(0)
        assert server.engine.reserved_bytes == 0

    run(main())


async def rest(reader: asyncio.StreamReader) -> bytes:
    return (await reader.read()).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")


@LOOPS
@pytest.mark.parametrize("request_bytes", [INFER, OTHER], ids=["infer", "other"])
def test_half_closed_client_gets_its_response(run: Run, request_bytes: bytes):
    async def scenario(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        await server.begun.acquire()
        writer.write_eof()
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        server.go.set()
        response = await reader.read()
        assert response.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close\r\n" in response
        writer.close()

    serve(run, scenario)


@LOOPS
def test_half_close_in_the_same_read_as_the_request_gets_a_response(run: Run):
    async def scenario(server: Server, port: int) -> None:
        server.go.set()
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(INFER)
            writer.write_eof()
            assert b"HTTP/1.1 200 OK\r\n" in await reader.read()
            writer.close()

    serve(run, scenario)


@LOOPS
@pytest.mark.parametrize("request_bytes", [INFER, OTHER], ids=["infer", "other"])
def test_request_is_cancelled_when_its_client_closes_the_socket(run: Run, request_bytes: bytes):
    async def scenario(server: Server, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        await server.begun.acquire()
        writer.close()
        if request_bytes is INFER:
            await server.engine.cancellation.wait()
        await server.cancelled.wait()

    serve(run, scenario)


@LOOPS
def test_request_is_cancelled_when_a_half_closed_client_leaves(run: Run):
    async def scenario(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(INFER)
        await server.begun.acquire()
        writer.write_eof()
        while not [each for each in server.listener.connections if each.statistics().has_ended]:  # noqa: ASYNC110 - it arrives in its own time
            await asyncio.sleep(0)
        assert not server.cancelled.is_set()
        # With bytes unread, the kernel resets the connection.
        writer.transport.abort()
        await server.cancelled.wait()
        del reader

    serve(run, scenario)


@LOOPS
def test_all_requests_before_a_half_close_get_responses(run: Run):
    async def scenario(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(INFER + OTHER + INFER)
        await server.begun.acquire()
        writer.write_eof()
        server.go.set()
        responses = await rest(reader)
        assert responses.count(b"HTTP/1.1 200 OK\r\n") == 3
        assert responses.count(b"connection: close\r\n") == 1
        writer.close()

    serve(run, scenario)


@LOOPS
@pytest.mark.parametrize("tail", [b"GET /half HTTP/1.1\r\nHo", INFER[:-1], b"\r\n"], ids=["head", "body", "blank"])
def test_half_close_within_a_request_ends_the_connection(run: Run, tail: bytes):
    async def scenario(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(INFER + tail)
        await server.begun.acquire()
        writer.write_eof()
        server.go.set()
        assert (await rest(reader)).count(b"HTTP/1.1 200 OK\r\n") == 1
        writer.close()

    serve(run, scenario)


@LOOPS
def test_half_closed_http_1_0_client_over_tcp_counts_as_gone(run: Run):
    async def scenario(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(INFER.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await server.begun.acquire()
        writer.write_eof()
        await server.cancelled.wait()
        assert await reader.read() == b""
        writer.close()

    serve(run, scenario)


@LOOPS
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_unix_socket_distinguishes_half_close_and_close(run: Run, version: bytes, tmp_path: Path):
    path = tmp_path / "http"

    async def scenario(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        _, other = await asyncio.open_unix_connection(path)
        for each in (writer, other):
            each.write(INFER.replace(b"HTTP/1.1", version))
            await server.begun.acquire()
        writer.write_eof()
        other.close()
        await server.cancelled.wait()
        server.go.set()
        # No probe is sent.
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()

    serve(run, scenario, listeners=ListenOptions(socket_path=path, has_port=False))
