"""Calls on the native transport, as a handmade client sees them."""

import asyncio
import gzip
import random
import zlib
from typing import Any

import pytest

from stoker.backends.api.errors import InvalidRequest, Overloaded
from stoker.server.core.limits import Limits
from stoker.server.rpc.method import Kind
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import binary, connected, method, run, serving

PATH = "/a.B/Echo"


async def echo(data: bytes, call) -> bytes:
    return data


async def waiting_echo(data: bytes, call) -> bytes:
    await asyncio.sleep(0)
    return data


async def stream_echo(call) -> None:
    while (data := await call.receive()) is not None:
        await call.send(data)


@pytest.mark.parametrize("starts_inline", [True, False])
@pytest.mark.parametrize("handle", [echo, waiting_echo])
@pytest.mark.parametrize("size", [0, 5, 20_000, 3_000_000])
def test_message_is_returned_unchanged(handle, starts_inline: bool, size: int):
    async def scenario() -> None:
        async with serving(method(PATH, handle, starts_inline=starts_inline)) as (_, port), connected(port) as peer:
            message = bytes(range(256)) * (size // 256) + bytes(size % 256)
            stream_id = peer.begin()
            await peer.send_all(stream_id, b"\0" + size.to_bytes(4, "big") + message)
            response = await peer.ended(stream_id)
            assert response.headers == {":status": "200", "content-type": "application/grpc"}
            assert response.messages == [message]
            assert response.trailers == {"grpc-status": "0"}

    run(scenario)


def test_request_in_single_bytes_is_the_same():
    async def scenario() -> None:
        async with serving(method(PATH, echo, starts_inline=True)) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            for byte in b"\0\0\0\0\3abc":
                peer.connection.send_data(stream_id, bytes([byte]))
                peer.flush()
                await asyncio.sleep(0)
            peer.connection.end_stream(stream_id)
            peer.flush()
            response = await peer.ended(stream_id)
            assert (response.messages, response.status) == ([b"abc"], ("0", ""))

    run(scenario)


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"", "12", "the method takes exactly one message"),
        (b"\0\0\0\0\1a\0\0\0\0\1b", "12", "the method takes exactly one message"),
        (b"\0\0\0\0\5abc", "13", "the request ends inside a message"),
        (b"\0\0\0", "13", "the request ends inside a message"),
        (b"\7\0\0\0\1a", "13", "a message begins with the compressed-flag 7; 0 and 1 are known"),
        (b"\1\0\0\0\1a", "13", "a message is flagged as compressed, but the call has no grpc-encoding"),
        (b"\0\0\1\0\1", "8", "a message of 65537 bytes to /a.B/Echo exceeds the limit of 65536 bytes"),
    ],
)
@pytest.mark.parametrize("kind", [Kind.UNARY, Kind.SERVER_STREAM])
def test_requests_without_exactly_one_message_are_refused(kind: Kind, body: bytes, code: str, text: str):
    async def receive_one(call) -> None:
        await call.send(await call.receive())

    async def scenario() -> None:
        handle = echo if kind is Kind.UNARY else receive_one
        async with serving(method(PATH, handle, kind, most_bytes=65_536)) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            peer.connection.send_data(stream_id, body, end_stream=True)
            peer.flush()
            assert (await peer.ended(stream_id)).status == (code, text)
            assert (await peer.call(b"next")).messages == [b"next"]

    run(scenario)


def test_oversized_message_is_refused_before_it_is_sent():
    async def scenario() -> None:
        async with serving(method(PATH, echo, most_bytes=100)) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            peer.connection.send_data(stream_id, b"\0\0\0\0\x65")
            peer.flush()
            response = await peer.ended(stream_id)
            assert response.status[0] == "8"
            # The rest is not wanted.
            await peer.until(lambda: response.reset_code is not None)
            assert response.reset_code == 0

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"method": "PUT"}, "405"), ({"content_type": "application/json"}, "415"), ({"content_type": ""}, "415")],
)
def test_request_that_is_not_grpc_gets_an_http_response(fields: dict[str, Any], status: str):
    async def scenario() -> None:
        async with serving(method(PATH, echo)) as (_, port), connected(port) as peer:
            response = await peer.call(**fields)
            assert (response.headers[":status"], response.body) == (status, b"")
            assert "grpc-status" not in response.headers

    run(scenario)


@pytest.mark.parametrize(
    ("path", "fields", "code", "text"),
    [
        ("/a.B/Nope", {}, "12", "unknown method 'Nope' of the service a.B"),
        ("/x.Y/Z", {}, "12", "unknown service 'x.Y'"),
        (PATH, {"grpc_timeout": "soon"}, "13", "grpc-timeout 'soon' is malformed: expected at most 8 digits and one of H M S m u n"),
        (PATH, {"grpc_encoding": "br"}, "12", "grpc-encoding 'br' is not supported; identity, gzip and deflate are"),
    ],
)
def test_malformed_and_unknown_calls_get_a_trailers_only_response(path: str, fields: dict[str, Any], code: str, text: str):
    async def scenario() -> None:
        async with serving(method(PATH, echo)) as (_, port), connected(port) as peer:
            response = await peer.call(path=path, **fields)
            assert (response.status, response.trailers) == ((code, text), {})
            if code == "12":
                assert response.headers["grpc-accept-encoding"] == "identity,gzip,deflate"
            stream_id = peer.begin(path, end=False, **fields)
            peer.flush()
            # A client that sends nothing more hears of it as well.
            assert (await peer.ended(stream_id)).status == (code, text)

    run(scenario)


@pytest.mark.parametrize(("name", "module"), [("gzip", gzip), ("deflate", zlib)])
def test_compression_works_in_both_directions(name: str, module):
    async def scenario() -> None:
        async with (
            serving(method(PATH, echo), method("/a.B/Stream", stream_echo, Kind.BIDI)) as (_, port),
            connected(port) as peer,
        ):
            for path in (PATH, "/a.B/Stream"):
                for size in (10, 5000, 2_000_000):
                    stream_id = peer.begin(path, grpc_encoding=name)
                    peer.send(stream_id, module.compress(bytes(size)), flag=1, end=True)
                    peer.flush()
                    response = await peer.ended(stream_id)
                    assert response.status == ("0", "")
                    assert response.headers["grpc-encoding"] == name if size > 10 or path != PATH else True
                    flag = response.body[0]
                    assert flag == (size > 10)
                    (message,) = response.messages
                    assert (module.decompress(message) if flag else message) == bytes(size)

    run(scenario)


def test_compression_bomb_is_refused_by_its_decompressed_size():
    async def scenario() -> None:
        engine = FakeEngine(simple(), budget_bytes=8 << 20)
        async with (
            serving(method(PATH, echo, most_bytes=1 << 24), method("/a.B/Small", echo, most_bytes=1 << 20), engine=engine) as (_, port),
            connected(port) as peer,
        ):
            bomb = gzip.compress(bytes(32 << 20))
            for path, code, text in (("/a.B/Small", "8", "exceeds the limit of 1048576 bytes"), (PATH, "14", "no room for")):
                stream_id = peer.begin(path, grpc_encoding="gzip")
                await peer.send_all(stream_id, b"\1" + len(bomb).to_bytes(4, "big") + bomb)
                status = (await peer.ended(stream_id)).status
                assert status[0] == code
                assert text in status[1]
            assert engine.peak_bytes <= 8 << 20

    run(scenario)


@pytest.mark.parametrize(("path", "kind"), [(PATH, Kind.UNARY), ("/a.B/Stream", Kind.BIDI)])
def test_compressed_message_is_bounded_by_a_separate_limit(path: str, kind: Kind):
    handler = echo if kind is Kind.UNARY else stream_echo

    async def scenario() -> None:
        engine, limits = FakeEngine(simple()), Limits(grpc_inflated_bytes=1 << 20)
        async with serving(method(path, handler, kind), engine=engine, limits=limits) as (_, port), connected(port) as peer:
            for size, expected in ((1 << 20, "0"), ((1 << 20) + 1, "8")):
                stream_id = peer.begin(path, grpc_encoding="gzip")
                peer.send(stream_id, gzip.compress(bytes(size)), flag=1, end=True)
                peer.flush()
                code, text = (await peer.ended(stream_id)).status
                assert code == expected
            assert text == "a message exceeds the limit of 1048576 bytes once decompressed"

    run(scenario)


def test_compressed_message_is_counted_during_decompression():
    async def scenario() -> None:
        packed = zlib.compress(random.Random(3).randbytes(1 << 20))
        engine = FakeEngine(simple(), budget_bytes=(1 << 20) + (1 << 19))
        async with serving(method(PATH, echo), engine=engine) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH, grpc_encoding="deflate")
            await peer.send_all(stream_id, b"\1" + len(packed).to_bytes(4, "big") + packed)
            code, text = (await peer.ended(stream_id)).status
            # What came, and half of what is in it.
            assert (code, "no room for" in text) == ("14", True)

    run(scenario)


def test_metadata_reaches_the_method_and_trailers_the_client():
    async def tell(data: bytes, call) -> bytes:
        call.add_trailer("seen", call.metadata["x-one"])
        call.add_trailer("seen-bin", call.binary_metadata["x-two-bin"][::-1])
        if data == b"fail":
            raise InvalidRequest("what \u00e9 100%\n")
        return data

    async def scenario() -> None:
        async with serving(method(PATH, tell)) as (_, port), connected(port) as peer:
            metadata = [("x-one", "1"), ("x-two-bin", binary(b"\0\1\2"))]
            response = await peer.call(metadata=metadata)
            assert response.trailers == {"grpc-status": "0", "seen": "1", "seen-bin": binary(b"\2\1\0")}
            response = await peer.call(b"fail", metadata=metadata)
            assert response.trailers == {}
            assert response.headers["seen"] == "1"
            assert response.status == ("3", "what %C3%A9 100%25%0A")

    run(scenario)


def test_overload_has_a_retry_delay():
    async def busy(data: bytes, call) -> bytes:
        raise Overloaded("full", retry_after_s=4.2)

    async def scenario() -> None:
        async with serving(method(PATH, busy)) as (_, port), connected(port) as peer:
            headers = (await peer.call()).headers
            assert (headers["grpc-status"], headers["retry-after"]) == ("14", "5")
            assert headers["grpc-status-details-bin"]

    run(scenario)


@pytest.mark.parametrize("starts_inline", [True, False])
def test_exception_in_a_method_is_internal_and_the_connection_continues(starts_inline: bool, caplog: pytest.LogCaptureFixture):
    async def broken(data: bytes, call) -> bytes:
        if data == b"late":
            await asyncio.sleep(0)
        raise RuntimeError("secret")

    async def scenario() -> None:
        async with (
            serving(method(PATH, broken, starts_inline=starts_inline), method("/a.B/Fine", echo)) as (_, port),
            connected(port) as peer,
        ):
            for message in (b"now", b"late"):
                assert (await peer.call(message)).status == ("13", "internal error: see the server's log")
            assert (await peer.call(path="/a.B/Fine")).status == ("0", "")

    run(scenario)
    assert caplog.text.count("RuntimeError: secret") == 2


def test_streams_of_every_kind_work():
    async def count(call) -> None:
        total = 0
        while (data := await call.receive()) is not None:
            total += len(data)
        await call.send(str(total).encode())

    async def repeat(call) -> None:
        data = await call.receive()
        assert await call.receive() is None
        for _ in range(3):
            await call.send(data)

    async def nothing(call) -> None:
        call.add_trailer("note", "empty")

    async def scenario() -> None:
        methods = (
            method("/a.B/Bidi", stream_echo, Kind.BIDI),
            method("/a.B/Up", count, Kind.CLIENT_STREAM),
            method("/a.B/Down", repeat, Kind.SERVER_STREAM),
            method("/a.B/None", nothing, Kind.BIDI),
        )
        async with serving(*methods) as (_, port), connected(port) as peer:
            stream_id = peer.begin("/a.B/Bidi")
            for message in (b"one", b"", b"three"):
                peer.send(stream_id, message)
                peer.flush()
                await peer.until(lambda wanted=message: peer.responses[stream_id].messages[-1:] == [wanted])
            peer.connection.end_stream(stream_id)
            peer.flush()
            response = await peer.ended(stream_id)
            assert (response.messages, response.status) == ([b"one", b"", b"three"], ("0", ""))
            stream_id = peer.begin("/a.B/Up")
            peer.send(stream_id, b"abc", b"", b"de", end=True)
            peer.flush()
            assert (await peer.ended(stream_id)).messages == [b"5"]
            assert (await peer.call(b"x", "/a.B/Down")).messages == [b"x", b"x", b"x"]
            stream_id = peer.begin("/a.B/None", end=True)
            peer.flush()
            response = await peer.ended(stream_id)
            assert (response.body, response.status, response.headers["note"]) == (b"", ("0", ""), "empty")

    run(scenario)


def test_method_that_ends_before_its_client_resets_the_request():
    async def first(call) -> None:
        await call.send(await call.receive() or b"")

    async def scenario() -> None:
        async with serving(method(PATH, first, Kind.BIDI)) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            peer.send(stream_id, b"one", b"two")
            peer.flush()
            response = await peer.ended(stream_id)
            await peer.until(lambda: response.reset_code is not None)
            assert (response.messages, response.status, response.reset_code) == ([b"one"], ("0", ""), 0)

    run(scenario)


def test_metadata_over_the_limit_is_refused_and_the_connection_continues():
    async def scenario() -> None:
        async with serving(method(PATH, echo), limits=Limits(grpc_metadata_bytes=2000)) as (_, port), connected(port) as peer:
            response = await peer.call(metadata=[(f"x{index}", "y" * 30) for index in range(40)])
            assert response.status[0] == "8"
            assert "2000 bytes in" in response.status[1]
            assert (await peer.call()).status == ("0", "")

    run(scenario)
