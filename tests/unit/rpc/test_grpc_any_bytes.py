"""With any bytes, a gRPC connection raises nothing, sends whole frames, and holds nothing after its end."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.server.core.limits import Limits
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.method import Kind, method_table
from stoker.server.rpc.settings import GrpcSettings
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import method
from tests.fakes.h2_raw import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, block, cut, frame
from tests.fakes.h2_reads import MemoryTransport, read

FIELDS = ((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"))
PATHS = (b"/a.B/Inline", b"/a.B/Task", b"/a.B/Bidi", b"/a.B/None")
STREAMS = st.sampled_from((1, 3, 5, 7))
BODIES = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda flag, data: bytes([flag]) + len(data).to_bytes(4, "big") + data, st.integers(0, 2), st.binary(max_size=30)),
)
MORE = st.sampled_from(((), ((b"grpc-timeout", b"1n"),), ((b"grpc-timeout", b"9S"),), ((b"grpc-encoding", b"gzip"),), ((b"x-bin", b"!"),)))
FRAMES = st.one_of(
    st.builds(
        lambda path, more, flags, stream: frame(
            HEADERS, flags, stream, block((FIELDS[0], FIELDS[1], (b":path", path), *FIELDS[2:], *more))
        ),
        st.sampled_from(PATHS),
        MORE,
        st.sampled_from((END_HEADERS, END_HEADERS | END_STREAM)),
        STREAMS,
    ),
    st.builds(lambda body, end, stream: frame(DATA, END_STREAM * end, stream, body), BODIES, st.booleans(), STREAMS),
    st.builds(frame, st.integers(2, 10), st.integers(0, 255), st.sampled_from((0, 1, 3, 5)), st.binary(max_size=20)),
    st.binary(max_size=30),
)


async def echo(data: bytes, call) -> bytes:
    return data


async def late_echo(data: bytes, call) -> bytes:
    await asyncio.sleep(0)
    return data


async def echoes(call) -> None:
    while (data := await call.receive()) is not None:
        await call.send(data)


METHODS = method_table(
    [
        method("/a.B/Inline", late_echo, starts_inline=True),
        method("/a.B/Task", echo),
        method("/a.B/Bidi", echoes, Kind.BIDI),
    ]
)


async def converse(pieces: list[bytes]) -> MemoryTransport:
    loop, engine, transport = asyncio.get_running_loop(), FakeEngine(simple()), MemoryTransport()
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    front = ConnectionContext(METHODS, engine, Limits(), GrpcSettings(), loop)
    connection = GrpcProtocol(front)
    connection.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        if transport.is_closed:
            break
        read(connection, piece)
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    transport.is_closed = True
    connection.connection_lost(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (engine.reserved_bytes, front.calls, len(front.connections)) == (0, 0, 0)
    assert failures == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return transport


def test_valid_frames_get_responses():
    body = b"\0\0\0\0\3abc"
    frames = [
        frame(HEADERS, END_HEADERS, 2 * n + 1, block((*FIELDS[:2], (b":path", path), *FIELDS[2:])))
        + frame(DATA, END_STREAM, 2 * n + 1, body)
        for n, path in enumerate(PATHS)
    ]
    transport = asyncio.run(converse([PREFACE + frame(SETTINGS) + b"".join(frames)]))
    found = cut(bytes(transport.written))
    assert {each.stream_id for each in found if each.kind == DATA and each.payload == body} == {1, 3, 5}
    assert {each.stream_id for each in found if each.kind == HEADERS and each.flags & END_STREAM} == {1, 3, 5, 7}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(frames=st.lists(FRAMES, max_size=12), cuts=st.lists(st.integers(0, 1500), max_size=8))
def test_any_frames_in_any_pieces_have_a_defined_outcome(frames: list[bytes], cuts: list[int]):
    data = PREFACE + frame(SETTINGS) + b"".join(frames)
    edges = [0, *sorted(min(cut_at, len(data)) for cut_at in cuts), len(data)]
    transport = asyncio.run(converse([data[start:stop] for start, stop in itertools.pairwise(edges)]))
    cut(bytes(transport.written))


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=300), has_preface=st.booleans())
def test_any_bytes_have_a_defined_outcome(data: bytes, has_preface: bool):
    transport = asyncio.run(converse([PREFACE + frame(SETTINGS) + data if has_preface else data]))
    cut(bytes(transport.written))
