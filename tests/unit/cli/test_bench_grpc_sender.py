"""The gRPC sender against grpc.aio, and against bytes of a test's own where a server must misbehave."""

import asyncio
import contextlib
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import hpack
import pytest

from stoker.cli.bench.grpc_sender import GrpcSender
from stoker.cli.bench.loops import ClosedLoop, Samples
from stoker.cli.bench.sender import RequestFailed
from stoker_client.dialect import Call
from stoker_client.settings import TlsConfig, make_connection
from tests.fakes.certificates import OPENSSL, Authority

PATH = "/inference.GRPCInferenceService/ModelInfer"
Handler = Callable[[bytes, Any], Awaitable[bytes]]


async def echo(request: bytes, _context: Any) -> bytes:
    return request[::-1]


def sender_to(port: int, message: bytes, **settings: Any) -> GrpcSender:
    """A sender of `message` over plain TCP."""
    return sender_at(f"grpc://127.0.0.1:{port}", message, **settings)


def sender_at(
    url: str,
    message: bytes,
    *,
    channels: int = 1,
    headers: dict[str, str] | None = None,
    timeout_s: float = 20.0,
    tls: TlsConfig | None = None,
) -> GrpcSender:
    """A sender of `message`, whose result is the response's bytes."""
    connection = make_connection(url, "grpc", tls=tls, api_key=None, headers=headers, max_message_bytes=2**31 - 1)
    reply = SimpleNamespace(FromString=bytes)
    request = SimpleNamespace(path=PATH, message=SimpleNamespace(SerializeToString=lambda: message), reply=reply)
    call: Call[Any] = Call(request, lambda parsed: parsed, is_read=False)
    return GrpcSender(connection, call, timeout_s, channels)


async def served(handler: Handler, message: bytes, calls: int, **settings: Any) -> tuple[list[str], Any]:
    """The errors of `calls` calls made at once ("" for a good one), and the first response."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=[*unlimited, ("grpc.max_concurrent_streams", 5)])
    method = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sender = sender_to(port, message, **settings)
    try:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(error_of(sender) for _ in range(calls))), sender.result
    finally:
        await sender.close()
        await server.stop(None)


async def error_of(sender: GrpcSender) -> str:
    try:
        trip = await sender.send()
    except RequestFailed as error:
        return str(error)
    assert min(trip) >= 0
    return ""


def test_calls_get_their_responses():
    assert asyncio.run(served(echo, b"abc", 3)) == ([""] * 3, b"cba")


def test_messages_larger_than_every_window_arrive_whole():
    message = bytes(range(256)) * 4096 * 3
    assert asyncio.run(served(echo, message, 4)) == ([""] * 4, message[::-1])


def test_calls_beyond_the_stream_limit_wait_for_a_stream():
    assert asyncio.run(served(echo, b"x", 40, channels=2)) == ([""] * 40, b"x")


def test_error_has_the_name_of_its_status_and_the_text_of_the_server():
    async def refuse(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no room for größer")
        return b""

    assert asyncio.run(served(refuse, b"x", 2)) == (["UNAVAILABLE: no room for größer"] * 2, None)


def test_unknown_method_is_an_error_of_every_call():
    async def run() -> list[str]:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        sender = sender_to(port, b"x")
        try:
            return [await error_of(sender) for _ in range(3)]
        finally:
            await sender.close()
            await server.stop(None)

    assert asyncio.run(run()) == ["UNIMPLEMENTED: Method not found!"] * 3


def test_every_call_has_the_headers_and_the_deadline():
    seen: list[tuple[str, bool]] = []

    async def look(request: bytes, context: Any) -> bytes:
        seen.append((dict(context.invocation_metadata()).get("key", ""), context.time_remaining() < 20))
        return request

    assert asyncio.run(served(look, b"x", 3, headers={"key": "secret" * 40}))[0] == [""] * 3
    assert seen == [("secret" * 40, True)] * 3


def test_call_without_a_response_fails_at_its_deadline_and_is_cancelled():
    cancelled = []

    async def wait(_request: bytes, context: Any) -> bytes:
        context.add_done_callback(lambda context: cancelled.append(True))
        await asyncio.sleep(60)
        return b""

    assert asyncio.run(served(wait, b"x", 1, timeout_s=0.2))[0][0].startswith("DEADLINE_EXCEEDED")
    assert cancelled


def test_missing_server_is_unavailable():
    async def run() -> str:
        listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        listener.close()
        await listener.wait_closed()
        return await error_of(sender_to(port, b"x"))

    assert asyncio.run(run()).startswith("UNAVAILABLE: ")


async def served_at(address: str, url: str, credentials: grpc.ServerCredentials | None, tls: TlsConfig | None) -> list[str]:
    """The errors of two calls to a server at `address`."""
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method}),))
    port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    await server.start()
    sender = sender_at(url.format(port=port), b"x", tls=tls)
    try:
        async with asyncio.timeout(60):
            return [await error_of(sender) for _ in range(2)]
    finally:
        await sender.close()
        await server.stop(None)


def test_calls_reach_a_unix_domain_socket(tmp_path: Path):
    assert asyncio.run(served_at(f"unix:{tmp_path}/s", f"grpc+unix://{tmp_path}/s", None, None)) == ["", ""]


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def test_tls_checks_the_server_by_its_name_and_presents_the_clients_certificate(tmp_path: Path):
    authority = Authority(tmp_path / "ca")
    server, client = authority.sign("server", names="DNS:cards.example"), authority.sign("client")
    credentials = grpc.ssl_server_credentials([(server.key.read_bytes(), server.cert.read_bytes())], authority.cert.read_bytes(), True)

    def run(**settings: Any) -> list[str]:
        return asyncio.run(served_at("127.0.0.1:0", "grpcs://127.0.0.1:{port}", credentials, TlsConfig(authority.cert, **settings)))

    good = {"cert": client.cert, "key": client.key, "server_name": "cards.example"}
    assert run(**good) == ["", ""]
    assert all(each.startswith("UNAVAILABLE: ") for each in run(**good | {"server_name": "other.example"}))
    assert all(each.startswith("UNAVAILABLE: ") for each in run(server_name="cards.example"))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


SETTINGS = frame(4, 0, 0)
HEAD = hpack.Encoder().encode([(":status", "200"), ("content-type", "application/grpc")], huffman=False)
TRAILERS = b"\x00\x0bgrpc-status\x010"
MESSAGE = b"\0\0\0\0\x02ok"


def response(stream: int) -> bytes:
    return frame(1, 4, stream, HEAD) + frame(0, 0, stream, MESSAGE) + frame(1, 5, stream, TRAILERS)


async def scripted(*scripts: bytes, calls: int) -> tuple[list[str], int]:
    """The errors of calls made one after the other, of a server that sends one script for each DATA frame of a client's message.

    An empty script closes the connection. Also returns how many connections there were.
    """
    left, connections = list(scripts), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(SETTINGS)
        try:
            await reader.readexactly(24)
            while left:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == 0:
                    if not (script := left.pop(0)):
                        break
                    writer.write(script)
        except asyncio.IncompleteReadError:
            pass  # the sender has closed the connection
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sender = sender_to(server.sockets[0].getsockname()[1], b"x")
    try:
        async with asyncio.timeout(20):
            return [await error_of(sender) for _ in range(calls)], connections
    finally:
        await sender.close()
        server.close()
        for _ in range(5):
            await asyncio.sleep(0)


def test_header_block_may_come_in_continuation_frames_with_padding_and_priority():
    head = frame(1, 0x28, 1, b"\x02" + bytes(5) + HEAD[:1] + bytes(2)) + frame(9, 4, 1, HEAD[1:])
    data = frame(0, 8, 1, b"\x03" + MESSAGE + bytes(3))
    assert asyncio.run(scripted(head + data + frame(1, 5, 1, TRAILERS), response(3), calls=2)) == (["", ""], 1)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (frame(3, 0, 1, struct.pack(">I", 2)), "code 2"),
        (frame(1, 4, 1, HEAD) + frame(1, 5, 1, TRAILERS), "0 bytes are not one message"),
        (frame(1, 5, 1, hpack.Encoder().encode([(":status", "404")])), "HTTP status 404"),
        (frame(1, 4, 1, HEAD) + frame(0, 1, 1, MESSAGE), "HTTP status 200"),
    ],
)
def test_response_that_is_not_grpc_is_an_error_and_the_next_call_runs(script: bytes, text: str):
    (first, second), connections = asyncio.run(scripted(script, response(3), calls=2))
    assert text in first
    assert (second, connections) == ("", 1)


def test_refused_stream_is_sent_again():
    assert asyncio.run(scripted(refuse_stream(1), response(3), calls=1)) == ([""], 1)


def goaway(last: int) -> bytes:
    return frame(7, 0, 0, struct.pack(">II", last, 0))


def refuse_stream(stream: int) -> bytes:
    return frame(3, 0, stream, struct.pack(">I", 7))


def streams_allowed(count: int) -> bytes:
    return frame(4, 0, 0, struct.pack(">HI", 3, count))


class CountingServer:
    """Counts connections and streams, and answers each stream with `answer`.

    A new connection gets `first` at once, and `second` once the client has its settings. From the 41st connection or stream on the server
    behaves well, so that a client that retries without bound ends as well.
    """

    def __init__(self, answer: Callable[[int], bytes], first: bytes = SETTINGS, second: bytes = b"") -> None:
        self.connections = self.streams = 0
        self._answer, self._first, self._second = answer, first, second

    async def errors(self, *, calls: int, at_once: int = 1) -> list[str]:
        """The errors that a closed loop of `calls` calls records; good responses have none."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        sender, samples = sender_to(server.sockets[0].getsockname()[1], b"x"), Samples()
        try:
            async with asyncio.timeout(20):
                await ClosedLoop(sender, samples, time.perf_counter_ns, concurrency=at_once, requests=calls).run()
            assert samples.count == calls
            return samples.failed_texts
        finally:
            await sender.close()
            server.close()
            for _ in range(5):
                await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        is_good = self.connections > 40
        writer.write(SETTINGS if is_good else self._first)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(24)
            second = b"" if is_good else self._second
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3:5] == b"\x04\x01":
                    writer.write(second)
                elif head[3] == 1:
                    self.streams += 1
                    stream = int.from_bytes(head[5:], "big")
                    writer.write(response(stream) if is_good or self.streams > 40 else self._answer(stream))
        writer.close()


REFUSED = "UNAVAILABLE: the server refused the call and its retry: "


@pytest.mark.parametrize(
    ("answer", "reason", "connections"),
    [(refuse_stream, "REFUSED_STREAM", 1), (lambda stream: goaway(0), "GOAWAY with code 0", 12)],
    ids=["refused stream", "goaway"],
)
def test_refused_call_is_sent_twice_and_counts_as_failed(answer: Callable[[int], bytes], reason: str, connections: int):
    server = CountingServer(answer)
    assert asyncio.run(server.errors(calls=6)) == [REFUSED + reason] * 6
    assert (server.streams, server.connections) == (12, connections)


@pytest.mark.parametrize(
    ("first", "second"),
    [(SETTINGS + goaway(0), b""), (streams_allowed(0), goaway(0))],
    ids=["before the call", "while the call waits for a stream"],
)
def test_call_opens_at_most_two_connections_that_end_unused(first: bytes, second: bytes):
    server = CountingServer(response, first, second)
    assert asyncio.run(server.errors(calls=3)) == [REFUSED + "a new connection ended before its first call"] * 3
    assert (server.streams, server.connections) == (0, 6)


def test_calls_that_wait_for_a_stream_outlast_connections_of_one_call_each():
    server = CountingServer(lambda stream: goaway(stream) + response(stream), streams_allowed(1))
    assert asyncio.run(server.errors(calls=10, at_once=10)) == []
    assert (server.streams, server.connections) == (10, 10)


def test_after_goaway_the_next_call_opens_a_connection():
    assert asyncio.run(scripted(goaway(1) + response(1), response(1), calls=2)) == (["", ""], 2)


def test_lost_connection_fails_its_call_and_the_next_call_opens_another():
    (first, second), connections = asyncio.run(scripted(b"", response(1), calls=2))
    assert first == "UNAVAILABLE: the server closed the connection"
    assert (second, connections) == ("", 2)


@pytest.mark.parametrize("script", [frame(1, 4, 1, b"\xff\xff\xff\x7f"), frame(4, 0, 0, b"\0\1"), frame(1, 0x0C, 1)])
def test_malformed_frame_fails_the_call_and_the_next_call_opens_a_connection(script: bytes):
    (first, second), connections = asyncio.run(scripted(script, response(1), calls=2))
    assert first.startswith("UNAVAILABLE: the server sent a malformed HTTP/2 frame: ")
    assert (second, connections) == ("", 2)


def test_server_without_http2_is_named():
    async def run() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(24)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        sender = sender_to(server.sockets[0].getsockname()[1], b"x")
        try:
            return await error_of(sender)
        finally:
            await sender.close()
            server.close()

    assert asyncio.run(run()) == "UNAVAILABLE: the server does not speak HTTP/2"
