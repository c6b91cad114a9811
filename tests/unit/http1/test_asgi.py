"""An ASGI application on the native HTTP/1.1 connection: its events, and the responses made from its events."""

import asyncio
import http.client
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker.server.core.limits import Limits
from stoker.server.net.http1.asgi import AsgiApp, Message, Receive, ResponseFraming, Scope, Send
from stoker.server.net.http1.listener import HttpListener

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def events(*messages: Message) -> AsgiApp:
    """An application that reads nothing and sends these."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return app


class Client:
    """A raw client of one listener."""

    def __init__(self, listener: HttpListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.listener = listener
        self.reader = reader
        self.writer = writer

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def exchange(self, request: bytes) -> bytes:
        """Everything that follows until the server ends the connection."""
        self.writer.write(request)
        return await self.reader.read()


@asynccontextmanager
async def served(app: AsgiApp) -> AsyncIterator[Client]:
    listener = HttpListener(app, Limits(), "127.0.0.1", 0)
    port = await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(listener, reader, writer)
    finally:
        writer.close()
        await listener.stop(5)


def run(app: AsgiApp, scenario: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(20), served(app) as client:
            return await scenario(client)

    return asyncio.run(main())


def whole(app: AsgiApp, request: bytes = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) -> bytes:
    """The whole response to a request that ends its connection."""
    response: bytes = run(app, lambda client: client.exchange(request))
    return response


def test_scope_describes_request_and_connection():
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await send(START)
        await send(body(b""))

    whole(app, b"POST /a%20b?x=%41 HTTP/1.1\r\nHost: h\r\nX-Y:  z \r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    (scope,) = scopes
    assert (scope["type"], scope["asgi"]["version"], scope["http_version"], scope["method"]) == ("http", "3.0", "1.1", "POST")
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a b", b"/a%20b", b"x=%41")
    assert (scope["scheme"], scope["root_path"]) == ("http", "")
    assert (b"x-y", b"z") in scope["headers"]
    assert scope["client"][0] == scope["server"][0] == "127.0.0.1"
    assert scope["client"][1] != scope["server"][1]


def test_body_arrives_in_events_until_its_end_and_then_disconnect_follows_the_response():
    got: list[tuple[bytes, bool]] = []
    after: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            got.append((message["body"], message["more_body"]))
            if not message["more_body"]:
                break
        await send(START)
        await send(body(b"ok"))
        after.append((await receive())["type"])

    async def scenario(client: Client) -> None:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        while not got:  # noqa: ASYNC110 - the bytes arrive in their own time
            await asyncio.sleep(0)
        client.writer.write(b"2\r\nde\r\n0\r\n\r\n")
        assert b"200 OK" in await client.head()

    run(app, scenario)
    assert b"".join(data for data, _ in got) == b"abcde"
    assert [more for _, more in got] == [True] * (len(got) - 1) + [False]
    assert after == ["http.disconnect"]


def test_receive_behind_the_body_waits_until_the_response_is_complete():
    types: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        assert not waiting.done()
        await send(START)
        await send(body(b"ok"))
        types.append((await waiting)["type"])

    run(app, lambda client: client.exchange(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
    assert types == ["http.disconnect"]


def test_complete_body_without_content_length_gets_one():
    head, _, data = whole(events(START, body(b"abc"))).partition(b"\r\n\r\n")
    assert b"content-length: 3" in head.split(b"\r\n")
    assert b"connection: close" in head.split(b"\r\n")
    assert data == b"abc"


def test_body_in_several_events_is_chunked():
    head, _, data = whole(events(START, body(b"abc", more=True), body(b"", more=True), body(b"de"))).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.split(b"\r\n")
    assert data == b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def test_body_in_several_events_ends_with_the_connection_for_http_1_0():
    head, _, data = whole(events(START, body(b"abc", more=True), body(b"de")), b"GET / HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head.split(b"\r\n")
    assert data == b"abcde"


def test_transfer_encoding_of_the_application_is_ignored():
    start = {**START, "headers": [(b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"3")]}
    head, _, data = whole(events(start, body(b"abc"))).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert data == b"abc"


@pytest.mark.parametrize("declared", [[], [(b"content-length", b"3")]])
def test_response_to_head_has_no_body(declared: list[tuple[bytes, bytes]]):
    response = whole(events({**START, "headers": declared}, body(b"abc")), b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert response.endswith(b"\r\n\r\n")
    assert (b"content-length: 3\r\n" in response) == bool(declared)
    assert b"chunked" not in response


@pytest.mark.parametrize("status", [204, 304])
def test_response_whose_status_allows_no_body_has_none_and_no_length(status: int):
    response = whole(events({"type": "http.response.start", "status": status}, body(b"")))
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-length" not in response
    assert b"transfer-encoding" not in response


def test_connection_serves_the_next_request_after_a_chunked_response():
    async def scenario(client: Client) -> None:
        client.writer.write(GET + GET)
        for _ in range(2):
            assert b"chunked" in await client.head()
            assert await client.reader.readuntil(b"0\r\n\r\n") == b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"

    run(events(START, body(b"a", more=True), body(b"b")), scenario)


def test_application_ends_the_connection_with_connection_close():
    start = {**START, "headers": [(b"connection", b"Keep-Alive, Close")]}
    response = run(events(start, body(b"abc")), lambda client: client.exchange(GET))
    assert b"connection: close\r\n" in response
    assert response.endswith(b"abc")


async def _raises_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("broken")


async def _raises_behind_start(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    raise ValueError("broken")


async def _returns_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    return


@pytest.mark.parametrize(
    "app",
    [
        _raises_at_once,
        _raises_behind_start,
        _returns_at_once,
        events(START),
        events(body(b"abc")),
        events({**START, "headers": [(b"a", b"b\r\nc: d")]}, body(b"")),
        events({**START, "headers": [(b"a b", b"c")]}, body(b"")),
        events({**START, "headers": [(b"content-length", b"2")]}, body(b"abc")),
        events({**START, "headers": [(b"content-length", b"4")]}, body(b"abc")),
    ],
)
def test_application_that_fails_before_a_byte_is_sent_gets_status_500(app: AsgiApp, caplog: pytest.LogCaptureFixture):
    response = run(app, lambda client: client.exchange(GET))
    assert response.startswith(b"HTTP/1.1 500 ")
    assert b"connection: close\r\n" in response
    assert response.endswith(b"\r\n\r\nInternal Server Error")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def _raises_amid_body(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(body(b"abc", more=True))
    raise ValueError("broken")


@pytest.mark.parametrize("app", [_raises_amid_body, events(START, body(b"abc", more=True))])
def test_application_that_fails_within_the_body_ends_the_connection_without_the_last_chunk(app: AsgiApp):
    response = run(app, lambda client: client.exchange(GET))
    assert response.startswith(b"HTTP/1.1 200 ")
    assert response.endswith(b"3\r\nabc\r\n")


def test_application_that_fails_behind_its_response_leaves_the_connection_usable():
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(body(b"abc"))
        with pytest.raises(RuntimeError, match="nothing"):
            await send(body(b"more"))
        raise ValueError("broken")

    async def scenario(client: Client) -> None:
        for _ in range(2):
            client.writer.write(GET)
            await client.head()
            assert await client.reader.readexactly(3) == b"abc"

    run(app, scenario)


def test_receive_sends_100_continue_to_a_client_that_waits_for_it():
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        data = (await receive())["body"]
        await send(START)
        await send(body(data))

    async def scenario(client: Client) -> None:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"abc")
        assert b"200 OK" in await client.head()
        assert await client.reader.readexactly(3) == b"abc"

    run(app, scenario)


def test_response_without_receive_sends_no_100_continue():
    async def scenario(client: Client) -> bytes:
        return await client.exchange(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")

    assert run(events(START, body(b"no")), scenario).startswith(b"HTTP/1.1 200 ")


def test_send_waits_while_the_client_does_not_read_and_continues_when_it_reads():
    sent = 0
    piece, count = bytes(1 << 20), 64

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({**START, "headers": [(b"content-length", b"%d" % (len(piece) * count))]})
        for number in range(count):
            await send(body(piece, more=number < count - 1))
            sent += 1

    async def scenario(client: Client) -> None:
        client.writer.write(GET)
        await client.head()
        (connection,) = client.listener.connections
        while not connection.transport.get_write_buffer_size():  # noqa: ASYNC110 - the bytes leave in their own time
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert sent < count
        await client.reader.readexactly(len(piece) * count)
        assert sent == count

    run(app, scenario)


def test_body_that_the_application_does_not_read_stays_with_the_client():
    go_on = asyncio.Event()
    pieces: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        while True:
            message = await receive()
            pieces.append(len(message["body"]))
            if not message["more_body"]:
                break
        await send(START)
        await send(body(b"ok"))

    async def scenario(client: Client) -> None:
        size = 32 << 20
        client.writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
        client.writer.write(bytes(size))
        for _ in range(1000):
            await asyncio.sleep(0)
        # asyncio's writer holds what neither kernel nor server has taken.
        assert client.writer.transport.get_write_buffer_size() > size // 2
        go_on.set()
        assert b"200 OK" in await client.head()
        assert sum(pieces) == size
        assert max(pieces) < size // 8

    run(app, scenario)


def test_task_of_a_request_is_cancelled_when_its_client_leaves(caplog: pytest.LogCaptureFixture):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await send(START)
            ended.set()

    async def scenario(client: Client) -> None:
        client.writer.write(GET)
        await begun.wait()
        client.writer.transport.abort()
        await ended.wait()

    run(app, scenario)
    assert not caplog.records


def test_body_that_arrives_behind_its_response_is_dropped_and_the_next_request_served():
    async def scenario(client: Client) -> None:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc")
        await client.head()
        assert await client.reader.readexactly(2) == b"ok"
        client.writer.write(b"def" + GET)
        assert b"200 OK" in await client.head()

    run(events(START, body(b"ok")), scenario)


def test_starlette_application_is_hosted_with_streaming_and_background_work():
    applications = pytest.importorskip("starlette.applications")
    responses = pytest.importorskip("starlette.responses")
    routing = pytest.importorskip("starlette.routing")
    background = pytest.importorskip("starlette.background")
    worked: list[str] = []

    async def echo(request: Any) -> Any:
        data = await request.body()
        return responses.JSONResponse({"size": len(data)}, background=background.BackgroundTask(worked.append, "done"))

    async def count(request: Any) -> Any:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"%d;" % number

        return responses.StreamingResponse(pieces())

    app = applications.Starlette(routes=[routing.Route("/echo", echo, methods=["POST"]), routing.Route("/count", count)])

    def ask(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        for method, path, data, status, expected in [
            ("POST", "/echo", b"x" * 200_000, 200, b'{"size":200000}'),
            ("GET", "/count", None, 200, b"0;1;2;"),
            ("GET", "/none", None, 404, b"Not Found"),
        ]:
            connection.request(method, path, data)
            response = connection.getresponse()
            assert (response.status, response.read()) == (status, expected)
        connection.close()

    async def main() -> None:
        listener = HttpListener(app, Limits(), "127.0.0.1", 0)
        port = await listener.start()
        try:
            await asyncio.to_thread(ask, port)
        finally:
            await listener.stop(5)

    asyncio.run(main())
    assert worked == ["done"]


def test_framing_is_sans_io():
    framing = ResponseFraming(START, "GET", "1.1")
    assert not framing.has_begun
    assert framing.body(b"a", is_last=False, keep_alive=True) == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1\r\n",
        b"a",
        b"\r\n",
    ]
    assert framing.body(b"", is_last=True, keep_alive=True) == [b"0\r\n\r\n"]
    assert framing.is_complete
    assert not framing.closes
