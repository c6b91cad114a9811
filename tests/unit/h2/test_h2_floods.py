"""Peers that want to wear the server out: each ends in GOAWAY, soon, and with bounded memory."""

import pytest
from hpack import Encoder

from server.frontends.h2.error_codes import ErrorCode
from server.frontends.h2.events import HeadersTooLarge, StreamReset
from server.frontends.h2.header_blocks import encode_block
from server.frontends.h2.limits import H2Limits
from tests.fakes.h2_raw import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawPeer,
    block,
    frame,
    request,
    setting,
    u32,
)

HEAD = encode_block([(b":status", b"200")])
TRAILERS = encode_block([(b"grpc-status", b"0")])
CALM = ErrorCode.ENHANCE_YOUR_CALM
LIMITS = H2Limits(control_burst=50, control_per_s=10.0, reset_burst=40, reset_per_s=10.0, fault_burst=20, fault_per_s=10.0)


def cancelled(number):
    return request(3 + 2 * number) + frame(RST_STREAM, 0, 3 + 2 * number, u32(ErrorCode.CANCEL))


def broken_by_window(number):
    """The peer has us reset its streams, which a count of its own resets would not see."""
    return request(3 + 2 * number) + frame(WINDOW_UPDATE, 0, 3 + 2 * number, u32((1 << 31) - 1))


def broken_by_data_behind_the_end(number):
    return request(3 + 2 * number, END_HEADERS | END_STREAM) + frame(DATA, 0, 3 + 2 * number, b"x")


def malformed(number):
    return request(3 + 2 * number, fields=REQUEST[1:])


def too_large(number):
    return request(3 + 2 * number, fields=[*REQUEST, (b"x", b"v" * 20_000)])


#: Frames by their number, and how many of them a peer may send at once at least, and at most.
FLOODS = {
    "rapid reset": (cancelled, 40),
    "resets of streams that are closed": (lambda number: frame(RST_STREAM, 0, 1, u32(0)), 40),
    "resets provoked by window overflow": (broken_by_window, 20),
    "resets provoked by data behind the end": (broken_by_data_behind_the_end, 20),
    "malformed requests": (malformed, 20),
    "too large requests": (too_large, 20),
    "PING": (lambda number: frame(PING, 0, 0, bytes(8)), 50),
    "PING ACK": (lambda number: frame(PING, ACK, 0, bytes(8)), 50),
    "SETTINGS": (lambda number: frame(SETTINGS, 0, 0, setting(4, number)), 50),
    "SETTINGS ACK": (lambda number: frame(SETTINGS, ACK), 50),
    "PRIORITY": (lambda number: frame(PRIORITY, 0, 1 + number, bytes(5)), 50),
    "GOAWAY": (lambda number: frame(GOAWAY, 0, 0, u32(0, 0)), 50),
    "unknown frames": (lambda number: frame(0xEE, 0, 0, bytes(number)), 50),
    "empty DATA": (lambda number: frame(DATA, 0, 1), 50),
    "DATA of nothing but padding": (lambda number: frame(DATA, PADDED, 1, b"\x10" + bytes(16)), 50),
    "WINDOW_UPDATE": (lambda number: frame(WINDOW_UPDATE, 0, 0, u32(1)), 50),
    "WINDOW_UPDATE of a stream": (lambda number: frame(WINDOW_UPDATE, 0, 1, u32(1)), 50),
}


@pytest.mark.parametrize("name", FLOODS)
def test_flood_is_borne_up_to_its_burst_and_then_ends_the_connection(name):
    make, burst = FLOODS[name]
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    sent = 0
    while peer.end() is None:
        assert sent < 3 * burst, "the flood goes on"
        peer.send(make(sent))
        sent += 1
    assert burst - 3 <= sent <= burst + 2


@pytest.mark.parametrize("name", FLOODS)
def test_same_frames_at_a_slow_rate_are_no_flood(name):
    make, burst = FLOODS[name]
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    for number in range(4 * burst):
        peer.send(make(number), now_s=number / 8)
        peer.server.data_to_send()
    assert peer.end() is None


def test_rapid_reset_of_ten_thousand_streams_ends_early_at_the_default_limits():
    peer = RawPeer()
    peer.send(b"".join(cancelled(number) for number in range(10_000)))
    assert peer.end() == CALM
    assert len(peer.events) < 4100


def test_refused_requests_are_bounded():
    peer = RawPeer(H2Limits(concurrent_streams=1, reset_burst=40))
    peer.send(b"".join(request(stream_id) for stream_id in range(1, 201, 2)))
    assert peer.end() == CALM


@pytest.mark.parametrize("payload", [b"", b"x" * 10])
def test_continuation_flood(payload):
    peer = RawPeer()
    peer.send(request(1, 0))
    sent = 0
    while peer.end() is None:
        assert sent <= 17
        peer.send(frame(CONTINUATION, 0, 1, payload))
        sent += 1
    assert peer.events[-1].error_code == CALM


def test_header_block_that_never_ends_is_bounded_in_bytes():
    peer = RawPeer()
    peer.send(request(1, 0))
    peer.send(frame(CONTINUATION, 0, 1, bytes(16_384)), frame(CONTINUATION, 0, 1, bytes(16_384)))
    assert peer.end() == CALM


def test_header_block_above_the_bound_is_refused_by_its_length():
    peer = RawPeer()
    peer.send(frame(HEADERS, END_HEADERS, 1, bytes(100_000))[:9])
    assert peer.end() == CALM


def test_settings_with_a_thousand_entries():
    peer = RawPeer()
    peer.send(frame(SETTINGS, 0, 0, setting(4, 1) * 1000)[:9])
    assert peer.end() == CALM


def test_peer_that_provokes_answers_and_does_not_read_them():
    peer = RawPeer(H2Limits(control_burst=100_000, control_frames_waiting=100))
    peer.send(frame(PING, 0, 0, bytes(8)) * 100)
    assert peer.end() is None
    assert len(peer.output()) == 100
    peer.send(frame(PING, 0, 0, bytes(8)) * 101)
    assert peer.end() == CALM


def test_window_updates_for_answers_are_no_flood():
    peer = RawPeer(LIMITS)
    stream_id = 1
    for _ in range(1000):
        peer.send(request(stream_id, END_HEADERS | END_STREAM))
        peer.server.send_headers(stream_id, HEAD)
        peer.server.send_data(stream_id, b"answer")
        peer.send(frame(WINDOW_UPDATE, 0, 0, u32(6)), frame(WINDOW_UPDATE, 0, stream_id, u32(6)))
        peer.server.send_headers(stream_id, TRAILERS, end_stream=True)
        stream_id += 2
        peer.server.data_to_send()
    assert peer.end() is None


def test_answer_drawn_out_byte_by_byte_ends_the_connection():
    """CVE-2019-9511: a tiny window, opened a byte at a time, makes a frame of every byte."""
    peer = RawPeer(LIMITS)
    peer.send(frame(SETTINGS, 0, 0, setting(4, 0)), request(1, END_HEADERS | END_STREAM))
    assert peer.server.send_answer(1, HEAD, bytes(10_000), TRAILERS) == 10_000
    frames = 0
    while not peer.server.is_finished:
        peer.server.data_to_send()
        peer.send(frame(WINDOW_UPDATE, 0, 1, u32(1)))
        frames += 1
        assert frames < 100
    assert peer.end() == CALM


def test_streams_that_are_reset_here_may_get_what_was_on_its_way_but_not_more():
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    peer.server.reset_stream(1, ErrorCode.CANCEL)
    for _ in range(200):
        peer.send(frame(DATA, 0, 1, bytes(16_384)) * 4)
        peer.server.data_to_send()
    assert peer.end() is None
    peer.send(frame(DATA, 0, 1, b"x") * 100)
    assert peer.end() == CALM


def test_trailers_of_a_stream_reset_here_still_feed_the_decoder():
    peer = RawPeer()
    encoder = Encoder()
    peer.send(frame(HEADERS, END_HEADERS, 1, encoder.encode(REQUEST)))
    peer.server.reset_stream(1, ErrorCode.CANCEL)
    trailers = ((b"x-sum", b"1"),)
    assert peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, encoder.encode(trailers))) == []
    (started,) = peer.send(frame(HEADERS, END_HEADERS, 3, encoder.encode((*REQUEST, *trailers))))
    assert started.headers == (*REQUEST, *trailers)


def test_only_so_many_closed_streams_are_remembered():
    peer = RawPeer(H2Limits(closed_streams=5))
    for stream_id in range(1, 21, 2):
        peer.send(request(stream_id))
        peer.server.reset_stream(stream_id, ErrorCode.CANCEL)
    assert peer.send(frame(DATA, 0, 19, b"late"), frame(DATA, 0, 11, b"late")) == []
    peer.send(frame(DATA, 0, 9, b"too late"))
    assert peer.end() == ErrorCode.STREAM_CLOSED


def test_too_large_requests_are_told_until_they_become_a_flood():
    peer = RawPeer(LIMITS)
    entry = Encoder().encode([(b"x", b"v" * 3900)], huffman=False)
    assert peer.send(frame(HEADERS, END_HEADERS, 1, entry)) == []
    big = block() + b"\xbe" * 5
    for number in range(10):
        (event,) = peer.send(frame(HEADERS, END_HEADERS, 3 + 2 * number, big))
        assert type(event) is HeadersTooLarge
        peer.server.send_headers(event.stream_id, HEAD, end_stream=True)
        peer.server.abandon_request(event.stream_id)
    assert peer.server.open_streams == 0
    assert not [event for event in peer.events if isinstance(event, StreamReset)]


def test_frame_in_single_bytes_is_not_held_as_objects():
    peer = RawPeer()
    data = frame(HEADERS, END_HEADERS, 1, bytes(20_000))
    for position in range(len(data) - 1):
        peer.send(data[position : position + 1])
        assert len(peer.server._reader._parts) <= 66
    assert peer.events == []
    peer.send(data[-1:])
    assert peer.end() == CALM
