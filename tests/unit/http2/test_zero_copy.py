"""Bodies received into the buffers of the application."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.net.http2.events import DataReceived, DataWritten, Event, RequestStarted, StreamReset, TrailersReceived
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_raw import DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, RST_STREAM, RawPeer, block, expect, frame, request, u32

LONG = 200_000
#: After so many reads the rest comes in long ones: single bytes to the end would be half a million.
MOST_SHORT_READS = 4000


def read_all(peer: RawPeer, data: bytes, sizes: list[int], likely_stream_id: int = 0) -> list[Event]:
    """Gives `data` in reads of `sizes`, at last in longer ones, each to where the connection wants it, and written over before the next."""
    scratch = bytearray(1 << 20)
    events: list[Event] = []
    at = number = 0
    while at < len(data):
        size = min(sizes[number % len(sizes)] if number < MOST_SHORT_READS else max(sizes) + 10_000, len(data) - at)
        number += 1
        receive_buffer = peer.server.receive_buffer(likely_stream_id)
        if receive_buffer is None:
            scratch[:size] = data[at : at + size]
            events += peer.server.receive(memoryview(scratch)[:size], 0.0)
            scratch[:size] = bytes(size)
        else:
            size = min(size, len(receive_buffer))
            receive_buffer[:size] = data[at : at + size]
            events += peer.server.receive_zero_copy(receive_buffer[:size], 0.0)
        at += size
    return events


def frames_of(body: bytes, stream_id: int, frame_bytes: int, padding: int) -> list[bytes]:
    cuts = [body[at : at + frame_bytes] for at in range(0, len(body), frame_bytes)]
    if padding:
        return [frame(DATA, PADDED, stream_id, bytes((padding,)) + cut + bytes(padding)) for cut in cuts]
    return [frame(DATA, 0, stream_id, cut) for cut in cuts]


@given(
    seed=st.integers(0, 1 << 32),
    sizes=st.lists(st.integers(1, 90_000), min_size=1, max_size=5),
    frame_bytes=st.sampled_from((16_384, 40_000, 150_000)),
    padding=st.sampled_from((0, 0, 7)),
    likely_stream_id=st.sampled_from((0, 1, 3, 5)),
    spare_bytes=st.sampled_from((0, 100, 70_000)),
)
def test_receive_buffer_gets_all_bytes_for_reads_of_any_size(
    seed: int, sizes: list[int], frame_bytes: int, padding: int, likely_stream_id: int, spare_bytes: int
):
    random_numbers = random.Random(seed)
    bodies = {stream_id: random_numbers.randbytes(random_numbers.randrange(40_000, LONG)) for stream_id in (1, 3, 5)}
    peer = RawPeer()
    peer.send(*(request(stream_id) for stream_id in bodies))
    blocks = {stream_id: bytearray(len(body) + spare_bytes) for stream_id, body in bodies.items()}
    for stream_id in (1, 3):
        # The third stream has no receive buffer: its bytes arrive as events.
        peer.server.set_receive_buffer(stream_id, memoryview(blocks[stream_id]), len(bodies[stream_id]))
    frames = [(stream_id, each) for stream_id, body in bodies.items() for each in frames_of(body, stream_id, frame_bytes, padding)]
    # Those of one stream in their order, and the streams in any.
    order = random_numbers.sample([stream_id for stream_id, _ in frames], len(frames))
    queues = {stream_id: [each for owner, each in frames if owner == stream_id] for stream_id in bodies}
    wire = b"".join(queues[stream_id].pop(0) for stream_id in order)
    wire += b"".join(frame(DATA, END_STREAM, stream_id) for stream_id in bodies)
    events = read_all(peer, wire, sizes, likely_stream_id)
    reported = dict.fromkeys(bodies, 0)
    ended = set()
    received = b""
    for event in events:
        if isinstance(event, DataWritten):
            reported[event.stream_id] += event.size_bytes
        else:
            assert isinstance(event, DataReceived)
            reported[event.stream_id] += len(event.data)
            assert event.stream_id == 5 or not event.data
            received += event.data
        if event.end_stream:
            ended.add(event.stream_id)
    assert reported == {stream_id: len(body) for stream_id, body in bodies.items()}
    assert ended == {1, 3, 5}
    assert {1: bytes(blocks[1][: len(bodies[1])]), 3: bytes(blocks[3][: len(bodies[3])]), 5: received} == bodies


def test_written_bytes_of_several_frames_are_reported_together():
    peer = RawPeer()
    peer.send(request(1))
    peer.server.set_receive_buffer(1, memoryview(bytearray(LONG)))
    assert peer.send(*frames_of(bytes(100_000), 1, 10_000, 0)) == []
    assert peer.send(frame(DATA, 0, 1, bytes(40_000))) == [DataWritten(1, 140_000, False)]
    assert peer.send(frame(DATA, 0, 1, bytes(10))) == []
    assert peer.server.report_written(0.0) == [DataWritten(1, 10, False)]
    assert peer.server.report_written(0.0) == []
    assert peer.send(frame(DATA, END_STREAM, 1, bytes(5))) == [DataWritten(1, 5, True)]


def test_unreported_bytes_are_a_small_part_of_the_windows():
    limits = H2Limits(stream_window_bytes=80_000, connection_window_bytes=100_000)
    peer = RawPeer(limits)
    peer.send(*(request(stream_id) for stream_id in (1, 3, 5)))
    for stream_id in (1, 3, 5):
        peer.server.set_receive_buffer(stream_id, memoryview(bytearray(LONG)))
    assert peer.send(frame(DATA, 0, 1, bytes(19_999))) == []
    assert peer.send(frame(DATA, 0, 1, b"x")) == [DataWritten(1, 20_000, False)]
    # Several streams, each with little, may hold no more of the window that they share.
    assert peer.send(frame(DATA, 0, 3, bytes(15_000)), frame(DATA, 0, 5, bytes(9_999))) == []
    assert peer.send(frame(DATA, 0, 1, b"x")) == [DataWritten(1, 1, False), DataWritten(3, 15_000, False), DataWritten(5, 9_999, False)]


def test_unreported_bytes_of_a_connection_stay_below_a_mebibyte():
    peer = RawPeer()
    ids = range(1, 40, 2)
    peer.send(*(request(stream_id) for stream_id in ids))
    for stream_id in ids:
        peer.server.set_receive_buffer(stream_id, memoryview(bytearray(LONG)))
    reported = sent = 0
    for stream_id in ids:
        events = peer.send(*frames_of(bytes(120_000), stream_id, 15_000, 0))
        sent += 120_000
        reported += sum(event.size_bytes for event in events if isinstance(event, DataWritten))
        assert sent - reported < 1 << 20
    # A report starts the count again: further bytes wait until they are as many.
    assert peer.server.report_written(0.0)
    assert peer.send(frame(DATA, 0, 1, bytes(9_000)), frame(DATA, 0, 3, bytes(9_000))) == []


def test_bytes_behind_a_full_receive_buffer_arrive_as_events():
    peer = RawPeer()
    peer.send(request(1))
    block_of_ten = bytearray(10)
    peer.server.set_receive_buffer(1, memoryview(block_of_ten))
    assert peer.send(frame(DATA, END_STREAM, 1, b"0123456789abc")) == [DataWritten(1, 10, False), DataReceived(1, b"abc", True)]
    assert block_of_ten == b"0123456789"


def test_receive_buffer_does_not_change_flow_control():
    peer = RawPeer(H2Limits(stream_window_bytes=70_000))
    peer.send(request(1))
    peer.server.set_receive_buffer(1, memoryview(bytearray(LONG)))
    peer.send(frame(DATA, 0, 1, bytes(60_000)))
    peer.server.consumed(1, 60_000)
    assert [(each.stream_id, each.payload) for each in peer.output()] == [(1, u32(60_000))]
    assert peer.send(frame(DATA, 0, 1, bytes(70_000))) == [DataWritten(1, 70_000, False)]
    # One byte over the window: as without a room.
    assert [type(each) for each in peer.send(frame(DATA, 0, 1, b"x"))] == [StreamReset]


@pytest.mark.parametrize("how", ["peer", "here", "end"])
def test_closed_stream_has_no_receive_buffer(how: str):
    peer = RawPeer()
    peer.send(request(1))
    block_of_it = bytearray(LONG)
    peer.server.set_receive_buffer(1, memoryview(block_of_it))
    data = frame(DATA, 0, 1, bytes(LONG - 1))
    peer.send(data[:1000])
    receive_buffer = peer.server.receive_buffer()
    assert receive_buffer is not None
    if how == "peer":
        # Between frames only: the rest of this one first.
        peer.send(data[1000:], frame(RST_STREAM, 0, 1, u32(8)))
    elif how == "here":
        peer.server.reset_stream(1, ErrorCode.CANCEL)
        # The transport may have read by then.
        assert peer.server.receive_zero_copy(receive_buffer[:500], 0.0) == []
        assert peer.send(data[1500:], request(3)) == [RequestStarted(3, expect(RequestStarted, peer.events[0]).fields, False)]
    else:
        peer.server.close(ErrorCode.NO_ERROR)
        assert peer.server.receive_zero_copy(receive_buffer[:500], 0.0) == []
    assert peer.server.receive_buffer() is None
    # The connection no longer refers to the block, or it could not be resized.
    receive_buffer.release()
    peer.events.clear()
    del block_of_it[:]


def test_trailers_end_a_request_with_a_receive_buffer():
    peer = RawPeer()
    peer.send(request(1))
    peer.server.set_receive_buffer(1, memoryview(bytearray(LONG)))
    events = peer.send(frame(DATA, 0, 1, bytes(9)), frame(HEADERS, END_HEADERS | END_STREAM, 1, block(((b"x-sum", b"1"),))))
    assert [type(each) for each in events] == [DataWritten, TrailersReceived]
