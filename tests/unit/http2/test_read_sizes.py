"""The division of a conversation into reads changes none of its events."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.net.http2.events import DataReceived, RequestStarted
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_mutations import conversation, meddled, result, serve
from tests.fakes.h2_raw import DATA, END_STREAM, HEADERS, PADDED, RawPeer, expect, frame, request


@given(seed=st.integers(0, 1 << 32), sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5), is_meddled=st.booleans())
def test_reads_of_any_size_give_the_same_events(seed, sizes, is_meddled):
    random_numbers = random.Random(seed)
    frames = conversation(random_numbers)
    data = meddled(random_numbers, frames) if is_meddled else b"".join(frames)
    assert result(data, sizes) == result(data, [max(1, len(data))])


@pytest.mark.parametrize("seed", range(40))
def test_single_bytes_give_the_same_events(seed):
    random_numbers = random.Random(seed)
    frames = conversation(random_numbers)
    data = meddled(random_numbers, frames) if seed % 2 else b"".join(frames)
    assert result(data, [1]) == result(data, [max(1, len(data))])


def test_data_is_reported_before_its_frame_is_complete():
    peer = RawPeer()
    body = bytes(range(256)) * 400
    data = frame(DATA, PADDED | END_STREAM, 1, b"\7" + body + bytes(7))
    peer.send(request(1), data[:50_000])
    (_, first) = peer.events
    assert first == DataReceived(1, body[: 50_000 - 10], False)
    peer.send(data[50_000:-3])
    assert peer.events[-1] == DataReceived(1, body[50_000 - 10 :], True)
    assert peer.send(data[-3:], frame(HEADERS, 5, 3, b"")) == []
    assert peer.end() is None


def test_frame_of_padding_alone_ends_a_request_before_it_is_complete():
    peer = RawPeer()
    data = frame(DATA, PADDED | END_STREAM, 1, b"\xff" + bytes(255))
    peer.send(request(1), data[:9])
    assert len(peer.events) == 1
    peer.send(data[9:10])
    assert peer.events[-1] == DataReceived(1, b"", True)
    assert peer.start(data[10:], request(3)).stream_id == 3


def test_frame_of_an_unknown_type_may_arrive_in_views_of_a_buffer():
    peer = RawPeer()
    data = frame(0xAA, 0, 0, bytes(100)) + request(1)
    assert peer.server.receive(memoryview(data[:50]), 0.0) == []
    (event,) = peer.server.receive(memoryview(data[50:]), 0.0)
    assert isinstance(event, RequestStarted)


def test_large_parts_are_views_of_the_read_and_small_ones_are_copies():
    peer = RawPeer()
    peer.send(request(1), frame(DATA, 0, 1, bytes(500)), frame(DATA, 0, 1, bytes(100_000)), frame(DATA, 0, 1, bytes(2000)))
    _, *parts = peer.events
    assert [type(expect(DataReceived, part).data) for part in parts] == [bytes, memoryview, bytes]


def test_remainder_of_an_invalid_frame_is_skipped():
    peer = RawPeer(H2Limits(stream_window_bytes=70_000))
    peer.send(request(1))
    data = frame(DATA, 0, 1, bytes(70_001))
    peer.send(data[:1000])
    assert not peer.server.open_streams
    peer.send(data[1000:], request(3))
    assert [type(event).__name__ for event in peer.events] == ["RequestStarted", "StreamReset", "RequestStarted"]


def test_response_within_a_frame_ends_the_stream_with_the_frame():
    peer = RawPeer()
    data = frame(DATA, END_STREAM, 1, bytes(50_000))
    peer.send(request(1), data[:1000])
    peer.server.send_headers(1, b"\x88", end_stream=True)
    assert peer.server.open_streams == 1
    peer.send(data[1000:])
    assert peer.server.open_streams == 0
    assert peer.last(DataReceived).end_stream


@pytest.mark.parametrize("seed", range(20))
def test_valid_conversations_are_served(seed):
    random_numbers = random.Random(seed)
    serve(b"".join(conversation(random_numbers)), [random_numbers.randrange(1, 2000)], random_numbers)
