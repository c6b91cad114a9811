"""The load generator's clients against real servers in this process: grpc.aio for HTTP/2, raw sockets for what must go wrong."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from benchmarks.load_grpc import GrpcSender, frame, header_blocks
from benchmarks.load_http import HttpSender

SERVICE = "inference.GRPCInferenceService"
Answer = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


async def echo(request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
    return request[::-1]


async def refuse(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "no")
    return b""


async def call_grpc(handler: Answer, message: bytes, calls: int, connections: int = 1) -> tuple[list[bool], bytes]:
    """Answers of `calls` calls made at once, and the last good message."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=[*unlimited, ("grpc.max_concurrent_streams", 5)])
    method = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sender = GrpcSender("127.0.0.1", port, message, connections)
    await sender.connect()
    try:
        return await asyncio.wait_for(collect(sender, calls), 30), sender.reply
    finally:
        sender.close()
        await server.stop(None)


async def collect(sender: GrpcSender | HttpSender, calls: int) -> list[bool]:
    found: list[bool] = []
    everything = asyncio.Event()

    def done(is_good: bool) -> None:
        found.append(is_good)
        if len(found) == calls:
            everything.set()

    for _ in range(calls):
        sender.send(done)
    await everything.wait()
    return found


def test_grpc_calls_return_the_response_message() -> None:
    assert asyncio.run(call_grpc(echo, b"abc", 3)) == ([True] * 3, b"cba")


def test_grpc_messages_larger_than_every_window_arrive_whole() -> None:
    message = bytes(range(256)) * 4096 * 3
    assert asyncio.run(call_grpc(echo, message, 4)) == ([True] * 4, message[::-1])


def test_grpc_calls_beyond_the_stream_limit_wait_their_turn() -> None:
    assert asyncio.run(call_grpc(echo, b"x", 40, connections=2)) == ([True] * 40, b"x")


def test_grpc_refusals_are_failed_responses() -> None:
    assert asyncio.run(call_grpc(refuse, b"x", 2)) == ([False] * 2, b"")


def test_grpc_headers_are_indexed_after_the_first_call() -> None:
    first, later = header_blocks("/a/B", "h:1")
    assert b"/a/B" in first
    assert later == b"\x83\x86\xc2\xc1\xc0\xbf\xbe"


def test_http2_frames_start_with_length_kind_flags_and_stream() -> None:
    assert frame(6, 1, 5, b"12345678") == b"\x00\x00\x08\x06\x01\x00\x00\x00\x05" + b"12345678"


async def call_http(chunks: list[bytes], calls: int, connections: int = 1, closes: bool = False) -> tuple[list[bool], bytes]:
    """Answers of a server that writes `chunks` for each request it reads."""
    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        current = asyncio.current_task()
        assert current is not None
        handlers.add(current)
        while await reader.readuntil(b"\n\n") == b"ask\n\n":
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(0)
            if closes:
                break
        writer.close()

    def serve_quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def guarded() -> None:
            try:
                await serve(reader, writer)
            except asyncio.IncompleteReadError:
                writer.close()

        handlers.add(asyncio.ensure_future(guarded()))

    server = await asyncio.start_server(serve_quietly, "127.0.0.1", 0)
    sender = HttpSender("127.0.0.1", server.sockets[0].getsockname()[1], b"ask\n\n", ready=1, most=connections)
    await sender.connect()
    try:
        return await asyncio.wait_for(collect(sender, calls), 30), sender.reply
    finally:
        sender.close()
        server.close()
        await asyncio.gather(*(each for each in handlers if each is not asyncio.current_task()), return_exceptions=True)


@pytest.mark.parametrize(
    "chunks",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"],
        [b"HTTP/1.1 200 OK\r\nconte", b"nt-length: 4\r\nx: y\r\n\r", b"\nbo", b"dy"],
    ],
)
def test_http_responses_may_arrive_in_pieces(chunks: list[bytes]) -> None:
    assert asyncio.run(call_http(chunks, 5, connections=2)) == ([True] * 5, b"".join(chunks))


def test_http_errors_are_failed_responses() -> None:
    assert asyncio.run(call_http([b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"], 2))[0] == [False] * 2


def test_truncated_http_responses_are_failed_responses() -> None:
    answers, _ = asyncio.run(call_http([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"], 3, closes=True))
    assert answers == [False] * 3


def test_http_connections_closed_by_the_server_are_replaced() -> None:
    answers, _ = asyncio.run(call_http([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"], 3, closes=True))
    assert True in answers
    assert len(answers) == 3


def test_http_requests_fail_after_the_listener_has_closed() -> None:
    async def run() -> list[bool]:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        sender = HttpSender("127.0.0.1", server.sockets[0].getsockname()[1], b"ask\n\n", ready=0, most=2)
        server.close()
        return await asyncio.wait_for(collect(sender, 3), 30)

    assert asyncio.run(run()) == [False] * 3


def test_http_data_on_an_idle_connection_closes_it_and_is_no_response() -> None:
    async def run() -> list[bool]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 408 Too Slow\r\nContent-Length: 0\r\n\r\n")
            await reader.read()  # until the client closes
            writer.close()
            has_left.set()

        has_left = asyncio.Event()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        sender = HttpSender("127.0.0.1", server.sockets[0].getsockname()[1], b"ask\n\n", ready=1, most=1)
        await sender.connect()
        await asyncio.wait_for(has_left.wait(), 30)
        server.close()
        return [sender.reply == b""]

    assert asyncio.run(run()) == [True]
