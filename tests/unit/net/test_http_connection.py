"""Raw bytes against the connection: its bounds, and its ends. Time advances by calls of `sweep` with later times."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker.server.core.limits import Limits
from stoker.server.net.connection_gate import ConnectionGate
from stoker.server.net.http1.asgi import CLIENT_GONE
from stoker.server.net.http1.listener import HttpListener
from stoker.server.net.listeners import PortInUse
from stoker.server.protocols.exchange import send_response
from stoker.server.web.plain import is_reserved_path

LIMITS = Limits(header_bytes=2000, header_count=20, url_bytes=500, chunk_count=50)


class Peer:
    """A client at byte level; `send` adds the Host header that every request needs."""

    def __init__(self, listener: HttpListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.listener = listener
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nHost: a\r\n"))

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> tuple[int, bytes]:
        """Status and the whole response, read to the end of the connection's present response."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split()[1]), head + await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        return await self.reader.read() == b""

    def later(self, seconds: float) -> None:
        self.listener.sweep(asyncio.get_running_loop().time() + seconds)


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send_response(send, 200, b"%s %d" % (scope["path"].encode(), size), [])


async def read_nothing(scope: Any, receive: Any, send: Any) -> None:
    await send_response(send, 200, b"done", [])


@asynccontextmanager
async def served(app: Any = read_all, limits: Limits = LIMITS) -> AsyncIterator[Peer]:
    listener = HttpListener(app, limits, "127.0.0.1", 0, is_reserved=is_reserved_path)
    port = await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Peer(listener, reader, writer)
    finally:
        writer.close()
        await listener.stop(1)


def talk(scenario: Callable[[Peer], Awaitable[None]], app: Any = read_all, limits: Limits = LIMITS) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), served(app, limits) as peer:
            await scenario(peer)

    asyncio.run(main())


def test_requests_of_one_connection_get_responses_in_order():
    async def scenario(peer: Peer) -> None:
        peer.send(b"GET /a HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        assert (await peer.response())[1].endswith(b"/a 0")
        assert (await peer.response())[1].endswith(b"/b 3")

    talk(scenario)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 600 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 21 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 2500 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000, 431),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nA\r\n" * 51, 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nabcde\r\n0\r\n\r\n", 400),
        (b"CONNECT host:1 HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
    ],
)
def test_invalid_or_oversized_request_is_refused_and_ends_the_connection(data: bytes, status: int):
    async def scenario(peer: Peer) -> None:
        peer.send(data)
        got, response = await peer.response()
        assert got == status
        assert b'{"error":' in response
        assert await peer.is_closed()

    talk(scenario)


def test_refused_client_that_does_not_hang_up_is_aborted():
    async def scenario(peer: Peer) -> None:
        peer.send(b"nonsense\r\n\r\n")
        assert (await peer.response())[0] == 400
        (connection,) = peer.listener.connections
        peer.later(1.9)
        assert not connection.transport.is_closing()
        peer.later(2.5)
        assert connection.transport.is_closing()

    talk(scenario)


def test_endless_header_is_refused():
    async def scenario(peer: Peer) -> None:
        peer.send(b"GET / HTTP/1.1\r\nA: ")
        for _ in range(8):
            peer.send(b"b" * 1000)
            await peer.writer.drain()
        assert (await peer.response())[0] == 431

    talk(scenario)


def test_body_of_many_chunks_below_the_limit_is_accepted():
    async def scenario(peer: Peer) -> None:
        peer.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nA\r\n" * 49 + b"0\r\n\r\n")
        assert (await peer.response())[1].endswith(b"/ 49")

    talk(scenario)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nA: b\r\n"])
def test_header_timeout_ends_the_connection(sent: bytes):
    async def scenario(peer: Peer) -> None:
        peer.send(b"GET /first HTTP/1.1\r\n\r\n")
        await peer.response()
        peer.send(sent or b"\r\n")
        # Another exchange with the server makes sure that what was sent has arrived.
        other = await asyncio.open_connection(*peer.writer.get_extra_info("peername"))
        other[1].write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await other[0].read()
        other[1].close()
        peer.later(4.9)
        peer.later(5.5)
        assert (await peer.response())[0] == 408
        assert await peer.is_closed()

    talk(scenario)


def test_new_connection_without_a_request_is_ended():
    async def scenario(peer: Peer) -> None:
        peer.send(b"G")
        while not peer.listener.connections:  # noqa: ASYNC110 - the connection is accepted in its own time
            await asyncio.sleep(0)
        peer.later(5.5)
        assert (await peer.response())[0] == 408

    talk(scenario)


def test_idle_timeout_within_a_body_ends_the_request():
    async def scenario(peer: Peer) -> None:
        peer.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
        await peer.reader.readuntil(b"100 Continue\r\n\r\n")
        peer.later(9.9)
        peer.later(10.5)
        status, response = await peer.response()
        assert status == 408
        assert b"no further byte of the body within 10 s" in response

    talk(scenario)


def test_slow_body_is_refused_by_its_rate():
    limits = Limits(body_idle_timeout_s=0.001, body_bytes_per_s=1 << 30)

    async def scenario(peer: Peer) -> None:
        peer.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
        await peer.reader.readuntil(b"100 Continue\r\n\r\n")
        peer.later(1)
        assert (await peer.response())[0] == 408

    talk(scenario, limits=limits)


def test_unread_response_ends_the_connection():
    finished = asyncio.Event()

    async def send_much(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not scope.get(CLIENT_GONE):
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        except asyncio.CancelledError:
            finished.set()

    async def scenario(peer: Peer) -> None:
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        await peer.reader.readuntil(b"\r\n\r\n")
        (connection,) = peer.listener.connections
        while not connection.flow.write_paused:  # noqa: ASYNC110
            await asyncio.sleep(0)
        peer.later(0)
        peer.later(10.5)
        await finished.wait()

    talk(scenario, send_much)


def test_work_is_cancelled_when_the_client_leaves():
    started, gone = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert scope[CLIENT_GONE]
            gone.set()

    async def scenario(peer: Peer) -> None:
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        await started.wait()
        peer.writer.transport.abort()
        await gone.wait()

    talk(scenario, wait_for_ever)


def test_requests_that_wait_their_turn_end_with_the_connection(caplog: pytest.LogCaptureFixture):
    begun: list[str] = []
    started, gone = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert scope[CLIENT_GONE]
            gone.set()

    async def scenario(peer: Peer) -> None:
        peer.send(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
        await started.wait()
        await peer.listener.stop(0.001)
        assert gone.is_set()

    talk(scenario, wait_for_ever)
    assert begun == ["/a"]
    assert [record.name for record in caplog.records] == ["stoker.server.net.http1.listener"]


def test_invalid_bytes_behind_a_request_are_refused_after_its_response():
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await go.wait()
        await send_response(send, 200, b"slow", [])

    async def scenario(peer: Peer) -> None:
        peer.send(b"GET /a HTTP/1.1\r\n\r\n")
        await started.wait()
        peer.send(b"nonsense\r\n\r\n")
        go.set()
        assert (await peer.response())[1].endswith(b"slow")
        assert (await peer.response())[0] == 400
        assert await peer.is_closed()

    talk(scenario, slow)


def test_endless_body_behind_its_response_is_refused():
    async def scenario(peer: Peer) -> None:
        peer.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await peer.response())[0] == 200
        peer.send(b"7d0\r\n" + bytes(2000))
        assert await peer.is_closed()

    talk(scenario, read_nothing, Limits(http_body_bytes=1000))


def test_response_before_100_continue_ends_the_connection():
    async def scenario(peer: Peer) -> None:
        peer.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 20\r\n\r\n")
        assert (await peer.response())[0] == 200
        # The client takes it for a no; what it sends now is not the body, and there is no second answer.
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await peer.is_closed()

    talk(scenario, read_nothing)


def test_upgrade_request_gets_an_http_1_response():
    async def scenario(peer: Peer) -> None:
        peer.send(b"GET /a HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n")
        assert (await peer.response())[1].endswith(b"/a 0")

    talk(scenario)


def test_stop_waits_for_requests_in_work():
    async def main() -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            started.set()
            await go.wait()
            await send_response(send, 200, bytes(1 << 20), [])

        async with asyncio.timeout(20), served(slow) as peer:
            peer.send(b"GET / HTTP/1.1\r\n\r\n")
            await started.wait()
            stopping = asyncio.create_task(peer.listener.stop(10))
            await asyncio.sleep(0)
            go.set()
            assert (await peer.response())[0] == 200
            assert await peer.is_closed()
            await stopping

    asyncio.run(main())


def test_stop_aborts_requests_that_outlive_the_grace_period(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        started = asyncio.Event()

        async def endless(scope: Any, receive: Any, send: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert scope[CLIENT_GONE]

        async with asyncio.timeout(20), served(endless) as peer:
            peer.send(b"GET / HTTP/1.1\r\n\r\n")
            await started.wait()
            await peer.listener.stop(0.01)

    asyncio.run(main())
    assert "cutting off 1 HTTP requests" in caplog.text


def test_port_in_use_is_named():
    async def main() -> None:
        first = HttpListener(read_all, LIMITS, "127.0.0.1", 0)
        port = await first.start()
        with pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 is in use"):
            await HttpListener(read_all, LIMITS, "127.0.0.1", port).start()
        await first.stop(0)

    asyncio.run(main())


def test_address_of_another_host_is_named():
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1 port 0"):
        asyncio.run(HttpListener(read_all, LIMITS, "192.0.2.1", 0).start())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413),
    ],
)
def test_headers_of_an_unreadable_body_end_the_connection(data: bytes, status: int):
    async def scenario(peer: Peer) -> None:
        peer.send_raw(data)
        assert (await peer.response())[0] == status
        assert await peer.is_closed()

    talk(scenario)


def test_connections_above_the_limit_are_refused_with_one_warning(caplog: pytest.LogCaptureFixture):
    go = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await read_all(scope, receive, send)

    async def scenario(peer: Peer) -> None:
        peer.send(b"GET /a HTTP/1.1\r\n\r\n")
        while not peer.listener.connections or not peer.listener.connections[0].is_in_work:  # noqa: ASYNC110 - it arrives in its own time
            await asyncio.sleep(0)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*peer.writer.get_extra_info("peername"))
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
        go.set()
        assert (await peer.response())[1].endswith(b"/a 0")

    talk(scenario, wait, limits=Limits(http_connections=1))
    assert [record.message for record in caplog.records] == ["refusing HTTP connections: 1 are open"]


def test_connection_limit_leaves_a_quarter_of_the_file_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1024))
    assert ConnectionGate(1024, "HTTP").most == 192
    assert ConnectionGate(10, "HTTP").most == 10


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_limits_are_finite_and_positive(value: float):
    with pytest.raises(ValueError, match="limit header_timeout_s must be positive and finite"):
        Limits(header_timeout_s=value)
