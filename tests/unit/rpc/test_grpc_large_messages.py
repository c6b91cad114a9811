"""Large messages on a gRPC connection: received to their place, given on as views, counted as all others."""

import asyncio
import dataclasses
import itertools
import random
import sys
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.server.core.completion import Completion
from stoker.server.core.limits import Limits
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.http2.responses import TOO_SLOW
from stoker.server.rpc.http2.zero_copy_reader import ZeroCopyReader
from stoker.server.rpc.method import Kind, Result, method_table
from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import method
from tests.fakes.h2_raw import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    cut,
    frame,
    setting,
    u32,
)
from tests.fakes.h2_reads import MemoryTransport, read

FIELDS = ((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"))
HELLO = PREFACE + frame(SETTINGS, 0, 0, setting(4, 1 << 24)) + frame(WINDOW_UPDATE, 0, 0, u32(1 << 24))


class Taker:
    """The methods `/a.B/Large`, which accepts views, and `/a.B/Plain`, which does not; both return their message."""

    def __init__(self) -> None:
        self.kinds: list[type] = []

    def start(self, data: bytes | memoryview, call: object) -> Completion[Result]:
        self.kinds.append(type(data))
        assert isinstance(data, bytes) or data.readonly
        completion = Completion[Result]()
        completion.complete(bytes(data))
        return completion

    async def stream(self, call: Any) -> None:
        while (data := await call.receive()) is not None:
            self.kinds.append(type(data))
            await call.send(bytes(data))

    def methods(self) -> Any:
        plain = dataclasses.replace(method("/a.B/Plain", self.start), start=self.start)
        large = dataclasses.replace(plain, path="/a.B/Large", lead_bytes=lambda size_bytes: size_bytes % 77)
        stream = dataclasses.replace(method("/a.B/Stream", self.stream, Kind.BIDI), lead_bytes=large.lead_bytes)
        return method_table([large, plain, stream])


def opening(stream_id: int, path: bytes = b"/a.B/Large", *more: tuple[bytes, bytes]) -> bytes:
    return frame(HEADERS, END_HEADERS, stream_id, block((*FIELDS[:2], (b":path", path), *FIELDS[2:], *more)))


def framed(message: bytes, stream_id: int, frame_bytes: int = 16_384, *, flag: int = 0, ends: bool = True) -> list[bytes]:
    body = bytes((flag,)) + len(message).to_bytes(4, "big") + message
    starts = range(0, len(body), frame_bytes)
    return [frame(DATA, END_STREAM * (ends and at == starts[-1]), stream_id, body[at : at + frame_bytes]) for at in starts]


def check_windows(connection: GrpcProtocol) -> None:
    """Every byte of window is returned once, on its stream and on the connection."""
    # Unreported bytes in the receive buffer are given back at the next sweep at the latest.
    connection.sweep(asyncio.get_running_loop().time())
    core, limits = connection.core, connection.context.h2_limits
    if not core.is_finished:
        statistics = core.statistics()
        assert statistics.receive_window_bytes + statistics.pending_update_bytes == limits.connection_window_bytes
        for stream in statistics.streams.values():
            assert (stream.unconsumed_bytes, stream.receive_window_bytes + stream.pending_update_bytes) == (0, limits.stream_window_bytes)


async def conversation(taker: Taker, wire: bytes, most: int, budget_bytes: int = 1 << 30) -> dict[int, bytes]:
    """By stream, its response message; of a refused call, its header block."""
    engine, transport = FakeEngine(simple()), MemoryTransport()
    engine.limit_budget(budget_bytes)
    front = ConnectionContext(taker.methods(), engine, Limits(), GrpcSettings(), asyncio.get_running_loop())
    connection = GrpcProtocol(front)
    connection.connection_made(transport)  # type: ignore[arg-type]
    read(connection, wire, most)
    for _ in range(10):
        await asyncio.sleep(0)
    assert front.calls or not engine.reserved_bytes
    check_windows(connection)
    transport.is_closed = True
    connection.connection_lost(None)
    assert (engine.reserved_bytes, front.calls, len(front.connections)) == (0, 0, 0)
    found: dict[int, bytes] = {}
    for each in cut(bytes(transport.written)):
        if each.kind == DATA:
            found[each.stream_id] = found.get(each.stream_id, b"") + each.payload
        elif each.kind == HEADERS and each.flags & END_STREAM and each.stream_id not in found:
            found[each.stream_id] = each.payload
    return found


@pytest.mark.slow
@given(
    seed=st.integers(0, 1 << 32),
    most=st.sampled_from((1 << 20, 65_536, 7000)),
    frame_bytes=st.sampled_from((16_384, 100_000)),
)
def test_large_messages_of_any_mix_arrive_unchanged(seed: int, most: int, frame_bytes: int):
    random_numbers = random.Random(seed)
    messages = {stream_id: random_numbers.randbytes(random_numbers.randrange(65_000, 400_000)) for stream_id in (1, 3, 5, 7)}
    queues = {stream_id: framed(message, stream_id, frame_bytes) for stream_id, message in messages.items()}
    order = [stream_id for stream_id, frames in queues.items() for _ in frames]
    random_numbers.shuffle(order)
    wire = HELLO + b"".join(opening(stream_id, b"/a.B/Plain" if stream_id == 7 else b"/a.B/Large") for stream_id in messages)
    wire += b"".join(queues[stream_id].pop(0) for stream_id in order)
    taker = Taker()
    found = asyncio.run(conversation(taker, wire, most))
    assert {stream_id: answer[5:] for stream_id, answer in found.items()} == messages


@pytest.mark.parametrize("most", [1 << 20, 20_000])
def test_large_message_is_a_view_and_a_small_or_compressed_one_is_not(most: int):
    taker = Taker()
    large = bytes(range(256)) * 1000
    wire = HELLO + opening(1) + b"".join(framed(large, 1)) + opening(3) + b"".join(framed(b"small", 3))
    wire += opening(5, b"/a.B/Plain") + b"".join(framed(large, 5))
    found = asyncio.run(conversation(taker, wire, most))
    assert {stream_id: answer[5:] for stream_id, answer in found.items()} == {1: large, 3: b"small", 5: large}
    assert taker.kinds == [memoryview, bytes, bytes]


@pytest.mark.parametrize(
    ("tail", "status"),
    [
        ([*framed(bytes(200_000), 1, ends=False)[:-1], frame(DATA, END_STREAM, 1)], b"13"),
        ([*framed(bytes(200_000), 1, ends=False), frame(DATA, END_STREAM, 1, b"\0\0\0\0\1x")], b"12"),
        ([*framed(bytes(200_000), 1, ends=False), frame(DATA, END_STREAM, 1, b"\0\0")], b"13"),
    ],
)
def test_wrong_end_of_a_large_message_gets_the_status_of_the_fault(tail: list[bytes], status: bytes):
    found = asyncio.run(conversation(Taker(), HELLO + opening(1) + b"".join(tail), 1 << 20))
    assert status in found[1]


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("most", [1 << 20, 20_000])
def test_second_large_message_is_refused_as_soon_as_its_length_has_arrived(ends: bool, most: int):
    taker = Taker()
    wire = HELLO + opening(1) + b"".join(framed(bytes(200_000), 1, ends=False)) + b"".join(framed(b"x" * 200_000, 1, ends=ends))
    # It would be counted with the first one's room: it must not get any.
    found = asyncio.run(conversation(taker, wire, most))
    assert b"12" in found[1]
    assert b"exactly one message" in found[1]
    assert taker.kinds == []


def pieces_of(random_numbers: random.Random, stream_id: int) -> list[bytes]:
    """Frames of a body of one or two messages, as any client might send them or not: padded, empty, cut short, ended late or never."""
    body = b"".join(
        bytes((flag,)) + size.to_bytes(4, "big") + random_numbers.randbytes(size)
        for flag, size in [(random_numbers.choice((0, 0, 0, 0, 1, 2)), random_numbers.choice((0, 9, 65_530, 65_536, 150_000)))]
        * random_numbers.choice((1, 1, 1, 2))
    )
    body = body[: len(body) - random_numbers.choice((0, 0, 0, 1, 40_000))] + bytes(random_numbers.choice((0, 0, 0, 1, 6)))
    made, at = [], 0
    while at < len(body):
        piece = body[at : at + random_numbers.choice((1, 6, 5000, 16_384, 16_384, 40_000, 100_000))]
        at += len(piece)
        padding = random_numbers.choice((None, None, 0, 200))
        if padding is None:
            made.append(frame(DATA, 0, stream_id, piece))
        else:
            made.append(frame(DATA, PADDED, stream_id, bytes((padding,)) + piece + bytes(padding)))
        if random_numbers.random() < 0.1:
            made.append(frame(DATA, 0, stream_id))
    end = random_numbers.randrange(8)
    if end < 3:
        made.append(frame(DATA, END_STREAM, stream_id))
    elif end < 6 and made:
        made[-1] = made[-1][:4] + bytes((made[-1][4] | END_STREAM,)) + made[-1][5:]
    elif end == 6:
        made.insert(random_numbers.randrange(len(made) + 1), frame(RST_STREAM, 0, stream_id, u32(8)))
        made = made[: made.index(frame(RST_STREAM, 0, stream_id, u32(8))) + 1]
    return made


@given(seed=st.integers(0, 1 << 32), most=st.sampled_from((1 << 20, 65_536, 16_393, 7000)))
def test_method_that_takes_views_gets_the_same_bodies(seed: int, most: int):
    answers = []
    for path in (b"/a.B/Large", b"/a.B/Plain"):
        random_numbers = random.Random(seed)
        queues = {stream_id: pieces_of(random_numbers, stream_id) for stream_id in (1, 3, 5)}
        order = [stream_id for stream_id, frames in queues.items() for _ in frames]
        random_numbers.shuffle(order)
        wire = HELLO + b"".join(opening(stream_id, path) for stream_id in queues)
        # Whether one that is given up is refused first is up to the reads that it comes in.
        kept = [stream_id for stream_id, frames in queues.items() if not frames or frames[-1][3] != RST_STREAM]
        wire += b"".join(queues[stream_id].pop(0) for stream_id in order)
        found = asyncio.run(conversation(Taker(), wire, most if path == b"/a.B/Large" else 1 << 20))
        answers.append({stream_id: found.get(stream_id, b"").replace(path, b"") for stream_id in kept})
    assert answers[0] == answers[1]


def test_ended_call_releases_its_memory_after_an_empty_read():
    async def scenario() -> None:
        engine, transport = FakeEngine(simple()), MemoryTransport()
        front = ConnectionContext(Taker().methods(), engine, Limits(), GrpcSettings(), asyncio.get_running_loop())
        connection = GrpcProtocol(front)
        connection.connection_made(transport)  # type: ignore[arg-type]
        (message,) = framed(bytes(200_000), 1, 1 << 20)
        read(connection, HELLO + opening(1) + message[:100_000])
        # As of a TLS record that is not whole: room was asked for, and nothing came.
        receive_buffer = connection.receive_buffer()
        (call,) = connection.calls.receiving.values()
        assert len(receive_buffer) > 90_000
        block = weakref.ref(receive_buffer.obj)
        del receive_buffer
        call.reject(TOO_SLOW)
        del call
        used = sys.getrefcount(block())
        connection.sweep(asyncio.get_running_loop().time())
        left = sys.getrefcount(block())
        assert left == used - 1
        assert engine.reserved_bytes == 0
        # The remaining bytes are discarded, and the next request is served.
        read(connection, message[100_000:] + opening(3) + framed(b"next", 3)[0])
        check_windows(connection)
        sent = cut(bytes(transport.written))
        assert [each.payload for each in sent if each.kind == DATA] == [b"\0\0\0\0\4next"]
        transport.is_closed = True
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_connection_reads_without_a_copy_while_large_messages_arrive():
    async def scenario() -> None:
        engine, transport = FakeEngine(simple()), MemoryTransport()
        front = ConnectionContext(Taker().methods(), engine, Limits(), GrpcSettings(), asyncio.get_running_loop())
        connection = GrpcProtocol(front)
        connection.connection_made(transport)  # type: ignore[arg-type]
        read(connection, HELLO)
        ids = itertools.count(1, 2)

        def send(size: int) -> None:
            stream_id = next(ids)
            read(connection, opening(stream_id) + b"".join(framed(bytes(size), stream_id)))

        def is_in_place() -> bool:
            return isinstance(transport.get_protocol(), ZeroCopyReader)

        for _ in range(3):
            for _ in range(100):
                send(60_000)
                assert not is_in_place()
            send(200_000)
            for _ in range(40):
                send(10)
                assert is_in_place()
            send(200_000)
            for _ in range(60):
                send(10)
                assert is_in_place()
            for _ in range(5):
                send(10)
            assert not is_in_place()
        connection.connection_lost(None)
        transport.is_closed = True

    asyncio.run(scenario())


def test_large_message_of_a_cancelled_call_leaves_nothing():
    frames = framed(bytes(200_000), 1)
    wire = HELLO + opening(1) + b"".join(frames[:8]) + frame(RST_STREAM, 0, 1, u32(8))
    assert asyncio.run(conversation(Taker(), wire + opening(3) + b"".join(framed(b"next", 3)), 1 << 20)) == {3: b"\0\0\0\0\4next"}


def test_large_messages_above_the_budget_together_all_get_their_response():
    taker = Taker()
    wire = HELLO + b"".join(opening(stream_id) for stream_id in (1, 3, 5))
    streams = [framed(bytes(600_000), stream_id) for stream_id in (1, 3, 5)]
    wire += b"".join(each for frames in zip(*streams, strict=True) for each in frames)
    found = asyncio.run(conversation(taker, wire, 1 << 20, 1_500_000))
    # The third waits until one of the others has ended.
    assert (len(found), [response for response in found.values() if b"no room" in response]) == (3, [])
    assert taker.kinds == [memoryview] * 3


@given(
    seed=st.integers(0, 1 << 32),
    most=st.sampled_from((1 << 20, 65_536, 16_393, 7000)),
    frame_bytes=st.sampled_from((16_384, 100_000)),
    has_other=st.booleans(),
)
@settings(max_examples=30)
def test_large_messages_of_a_stream_are_views_and_arrive_unchanged(seed: int, most: int, frame_bytes: int, has_other: bool):
    random_numbers = random.Random(seed)
    messages = [random_numbers.randbytes(random_numbers.choice((0, 10, 70_000, 200_000, 300_000))) for _ in range(5)]
    body = b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages)
    starts = range(0, len(body), frame_bytes)
    frames = [frame(DATA, END_STREAM * (at == starts[-1]), 1, body[at : at + frame_bytes]) for at in starts]
    other = framed(random_numbers.randbytes(150_000), 3, frame_bytes) if has_other else []
    order = [frames] * len(frames) + [other] * len(other)
    random_numbers.shuffle(order)
    wire = HELLO + opening(1, b"/a.B/Stream") + (opening(3) if has_other else b"") + b"".join(each.pop(0) for each in order)
    taker = Taker()
    found = asyncio.run(conversation(taker, wire, most))
    assert found[1] == body
    assert set(taker.kinds) == {memoryview if len(each) > 65_536 else bytes for each in messages} | ({memoryview} if has_other else set())


@pytest.mark.parametrize("first_bytes", [0, 16_393, 100_000])
def test_large_message_takes_two_reads_after_the_first_on_its_connection(first_bytes: int):
    """The beginning of a message in one read, and the rest of it with all frame headers in another, wherever an earlier read ended."""
    message = bytes(range(256)) * 2352

    async def scenario() -> int:
        connection = GrpcProtocol(
            ConnectionContext(Taker().methods(), FakeEngine(simple()), Limits(), GrpcSettings(), asyncio.get_running_loop())
        )
        transport = MemoryTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        read(connection, HELLO + opening(1) + b"".join(framed(message, 1)))
        transport.written.clear()
        wire = opening(3) + b"".join(framed(message, 3))
        beginning = len(opening(3)) + 16_393
        reads = read(connection, wire[:beginning]) if first_bytes else 0
        for part in (wire[beginning : beginning + first_bytes], wire[beginning + first_bytes :]) if first_bytes else (wire,):
            reads += read(connection, part)
        assert b"".join(each.payload for each in cut(bytes(transport.written)) if each.kind == DATA)[5:] == message
        transport.is_closed = True
        connection.connection_lost(None)
        return reads

    assert asyncio.run(scenario()) == (3 if first_bytes else 2)
