"""Hostile floods: each peer is refused new streams, then gets GOAWAY, soon, and with bounded memory.

Open streams go on until then, and frames that ordinary clients owe for their calls are no flood.
"""

import tracemalloc

import pytest
from hpack import Encoder

from stoker.server.net.http2.events import ConnectionEnded, DataReceived, Flood, FloodRejected, HeadersTooLarge, StreamReset
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.net.http2.headers import encode_block
from stoker.server.net.http2.limits import H2Limits
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


#: Frames by their number, and how many of them a peer may send at once.
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


def refused(peer):
    """The events of refused new streams."""
    return [event for event in peer.events if isinstance(event, FloodRejected)]


def flood(peer, make, most):
    """Sends frames until the server refuses new streams; how many it took."""
    for number in range(most):
        if refused(peer):
            return number
        peer.send(make(number))
    raise AssertionError("the flood goes on")


@pytest.mark.parametrize("name", FLOODS)
def test_new_streams_are_refused_when_a_flood_exceeds_its_burst(name):
    make, burst = FLOODS[name]
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    # One stream is begun: it entitles to `control_per_stream` control frames.
    assert burst - 3 <= flood(peer, make, 3 * burst) <= burst + LIMITS.control_per_stream + 2
    goaway = next(sent for sent in peer.output() if sent.kind == GOAWAY)
    code, text = int.from_bytes(goaway.payload[4:8], "big"), goaway.payload[8:]
    assert (code, text.decode()) == (ErrorCode.NO_ERROR, refused(peer)[0].text)
    assert peer.end() is None


@pytest.mark.parametrize("name", FLOODS)
def test_open_stream_ends_as_usual_while_new_ones_are_refused(name):
    make, burst = FLOODS[name]
    peer = RawPeer(LIMITS)
    peer.send(request(1), request(3))
    flood(peer, lambda number: make(number + 1), 3 * burst)
    goaway = next(sent for sent in peer.output() if sent.kind == GOAWAY)
    assert int.from_bytes(goaway.payload[:4], "big") >= 3
    new_id = 10_001
    peer.send(request(new_id))
    assert (RST_STREAM, u32(ErrorCode.REFUSED_STREAM)) in [(sent.kind, sent.payload) for sent in peer.output() if sent.stream_id == new_id]
    peer.send(frame(DATA, END_STREAM, 3, b"rest"))
    assert peer.last(DataReceived).data == b"rest"
    peer.server.send_response(3, HEAD, b"answer", TRAILERS)
    assert [sent.kind for sent in peer.output() if sent.stream_id == 3] == [HEADERS, DATA, HEADERS]


@pytest.mark.parametrize("name", FLOODS)
def test_continued_flood_ends_the_connection(name):
    make, burst = FLOODS[name]
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    sent = flood(peer, make, 3 * burst)
    # Behind the first GOAWAY, what opens streams is charged for their being refused.
    most = max(burst, LIMITS.reset_burst) + 2
    more = 0
    while (code := peer.end()) is None:
        assert more <= most, "the flood goes on"
        peer.send(make(sent + more))
        more += 1
    assert code == CALM


def test_connection_lasts_until_a_refused_peer_has_read_the_last_stream_id():
    peer = RawPeer(LIMITS)
    flood(peer, FLOODS["PING"][0], 100)
    assert peer.server.open_streams == 0
    assert not peer.server.is_finished
    ping = next(sent for sent in peer.output() if sent.kind == PING and not sent.flags)
    peer.send(frame(PING, ACK, 0, ping.payload))
    assert peer.server.is_finished


def test_refused_peer_that_never_acknowledges_is_closed_by_finish_drain():
    peer = RawPeer(LIMITS)
    flood(peer, FLOODS["PING"][0], 100)
    peer.server.finish_drain()
    assert peer.server.is_finished


def test_flood_of_a_second_kind_ends_the_connection():
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    flood(peer, FLOODS["PRIORITY"][0], 100)
    for number in range(60):
        peer.send(cancelled(number))
    assert peer.end() == CALM


def test_event_names_the_kind_of_flood():
    for name, kind in (("PING", Flood.CONTROL), ("rapid reset", Flood.RESETS), ("malformed requests", Flood.FAULTS)):
        peer = RawPeer(LIMITS)
        flood(peer, FLOODS[name][0], 100)
        assert refused(peer)[0].flood is kind


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
def test_continuation_flood_ends_the_connection(payload):
    peer = RawPeer()
    peer.send(request(1, 0))
    sent = 0
    while peer.end() is None:
        assert sent <= 17
        peer.send(frame(CONTINUATION, 0, 1, payload))
        sent += 1
    assert peer.last(ConnectionEnded).error_code == CALM


def test_header_block_that_never_ends_is_bounded_in_bytes():
    peer = RawPeer()
    peer.send(request(1, 0))
    tracemalloc.start()
    try:
        for _ in range(16):
            peer.send(frame(CONTINUATION, 0, 1, bytes(32_768)))
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert peer.end() is None
    peer.send(frame(CONTINUATION, 0, 1, bytes(32_768)))
    assert peer.end() == CALM


BIG = (*REQUEST, *((b"x-%d" % number, b"v" * 5000) for number in range(12)))


def in_frames(stream_id, fields, flags=0):
    """A request whose header block needs several frames."""
    data = block(fields)
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    last = len(parts) - 1
    return frame(HEADERS, flags, stream_id, parts[0]) + b"".join(
        frame(CONTINUATION, END_HEADERS if number == last else 0, stream_id, part) for number, part in enumerate(parts) if number
    )


def test_call_with_oversized_metadata_ends_no_other_call():
    """A proxy forwards the requests of many users: one bad request must not end those of others on the connection."""
    peer = RawPeer()
    peer.send(request(1), in_frames(3, BIG), request(5, fields=[*REQUEST, (b"y", b"z" * 40)]))
    assert [event.flood for event in refused(peer)] == [Flood.HEADERS]
    output = peer.output()
    resets = {sent.stream_id: int.from_bytes(sent.payload, "big") for sent in output if sent.kind == RST_STREAM}
    # Its client hears RESOURCE_EXHAUSTED, and does not try again; the one behind it does, on another connection.
    assert resets == {3: ErrorCode.ENHANCE_YOUR_CALM, 5: ErrorCode.REFUSED_STREAM}
    (goaway,) = [sent for sent in output if sent.kind == GOAWAY]
    assert goaway.payload[:8] == u32(3, ErrorCode.NO_ERROR)
    peer.send(frame(DATA, END_STREAM, 1, b"rest"))
    peer.server.send_response(1, HEAD, b"answer", TRAILERS)
    assert [sent.kind for sent in peer.output() if sent.stream_id == 1] == [HEADERS, DATA, HEADERS]
    assert peer.end() is None


def test_trailers_behind_an_undecoded_block_end_their_stream():
    peer = RawPeer()
    peer.send(request(1), in_frames(3, BIG))
    peer.output()
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(((b"x-sum", b"1"),))))
    assert isinstance(peer.events[-1], StreamReset)
    assert peer.end() is None


def test_oversized_trailers_end_their_stream():
    peer = RawPeer()
    peer.send(request(1), request(3), in_frames(1, BIG, END_STREAM))
    assert [event.flood for event in refused(peer)] == [Flood.HEADERS]
    assert [event.stream_id for event in peer.events if isinstance(event, StreamReset)] == [1]
    assert peer.server.is_open(3)


def test_header_blocks_behind_an_undecoded_block_are_bounded():
    peer = RawPeer(LIMITS)
    peer.send(in_frames(1, BIG))
    peer.send(b"".join(request(stream_id) for stream_id in range(3, 203, 2)))
    assert peer.end() == CALM


def test_header_block_above_the_limit_is_refused_by_its_length():
    peer = RawPeer()
    peer.send(frame(HEADERS, END_HEADERS, 1, bytes(100_000))[:9])
    assert peer.end() == CALM


def test_settings_with_a_thousand_entries_end_the_connection():
    peer = RawPeer()
    peer.send(frame(SETTINGS, 0, 0, setting(4, 1) * 1000)[:9])
    assert peer.end() == CALM


def test_peer_that_causes_replies_and_does_not_read_them_ends_the_connection():
    peer = RawPeer(H2Limits(control_burst=100_000, control_frames_waiting=100))
    peer.send(frame(PING, 0, 0, bytes(8)) * 100)
    assert peer.end() is None
    assert len(peer.output()) == 100
    peer.send(frame(PING, 0, 0, bytes(8)) * 101)
    assert peer.end() == CALM


@pytest.mark.parametrize("response", ["trailers alone", "reset by the server", "reset by the client"])
def test_control_frames_of_calls_that_fail_are_no_flood(response):
    """grpc-core sends WINDOW_UPDATE for every call, whether DATA comes for it or not; grpc-go pings when it has received something."""
    peer = RawPeer(H2Limits(control_burst=50, control_per_s=10.0))
    for stream_id in range(1, 3001, 2):
        peer.send(request(stream_id), frame(WINDOW_UPDATE, 0, stream_id, u32(5)), frame(DATA, END_STREAM, stream_id, b"x"))
        if response == "trailers alone":
            peer.server.send_headers(stream_id, TRAILERS, end_stream=True)
        elif response == "reset by the server":
            peer.server.reset_stream(stream_id, ErrorCode.CANCEL)
        else:
            peer.send(frame(RST_STREAM, 0, stream_id, u32(ErrorCode.CANCEL)))
        peer.send(frame(WINDOW_UPDATE, 0, 0, u32(5)), frame(PING, 0, 0, bytes(8)))
        peer.server.data_to_send()
    assert not refused(peer)
    assert peer.end() is None


def test_two_thousand_cancelled_calls_a_second_are_no_flood():
    peer = RawPeer()
    for number in range(60_000):
        peer.send(cancelled(number), now_s=number / 2000)
        peer.server.data_to_send()
    assert not refused(peer)
    assert peer.end() is None


def test_window_updates_for_small_parts_of_large_responses_are_no_flood():
    """A client may return its window in far smaller parts than the received DATA frames."""
    peer = RawPeer(H2Limits(control_burst=100, control_per_s=10.0))
    peer.send(frame(SETTINGS, 0, 0, setting(5, 1 << 20)), request(1, END_HEADERS | END_STREAM))
    peer.server.send_headers(1, HEAD)
    for _ in range(100):
        peer.server.send_data(1, bytes(60 * 1024))
        peer.server.data_to_send()
        for _ in range(30):
            peer.send(frame(WINDOW_UPDATE, 0, 0, u32(2048)), frame(WINDOW_UPDATE, 0, 1, u32(2048)))
    assert not refused(peer)


def test_control_frames_beside_a_long_upload_are_no_flood():
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    for _ in range(1000):
        peer.send(frame(DATA, 0, 1, bytes(4096)), frame(PING, 0, 0, bytes(8)) * 3)
        peer.server.consumed(1, 4096)
        peer.server.data_to_send()
    assert not refused(peer)


def test_acknowledgements_of_own_pings_are_no_flood():
    peer = RawPeer(LIMITS)
    for _ in range(200):
        peer.server.ping(b"01234567")
        peer.server.data_to_send()
        peer.send(frame(PING, ACK, 0, b"01234567"))
    assert not refused(peer)


def test_window_updates_for_responses_are_no_flood():
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


def test_response_read_byte_by_byte_ends_the_connection():
    """CVE-2019-9511: a tiny window, opened a byte at a time, makes a frame of every byte."""
    peer = RawPeer(LIMITS)
    peer.send(frame(SETTINGS, 0, 0, setting(4, 0)), request(1, END_HEADERS | END_STREAM))
    assert peer.server.send_response(1, HEAD, bytes(10_000), TRAILERS) == 10_000
    frames = 0
    while not peer.server.is_finished:
        peer.server.data_to_send()
        peer.send(frame(WINDOW_UPDATE, 0, 1, u32(1)))
        frames += 1
        assert frames <= 2 * LIMITS.control_burst + LIMITS.control_per_stream + 2
    assert peer.end() == CALM


def test_late_frames_of_reset_streams_are_tolerated_up_to_a_limit():
    peer = RawPeer(LIMITS)
    peer.send(request(1))
    peer.server.reset_stream(1, ErrorCode.CANCEL)
    for _ in range(200):
        peer.send(frame(DATA, 0, 1, bytes(16_384)) * 4)
        peer.server.data_to_send()
    assert not refused(peer)
    peer.send(frame(DATA, 0, 1, b"x") * 100)
    assert refused(peer)
    peer.send(frame(DATA, 0, 1, b"x") * 100)
    assert peer.end() == CALM


def test_trailers_of_a_reset_stream_pass_through_the_decoder():
    peer = RawPeer()
    encoder = Encoder()
    peer.send(frame(HEADERS, END_HEADERS, 1, encoder.encode(REQUEST)))
    peer.server.reset_stream(1, ErrorCode.CANCEL)
    trailers = ((b"x-sum", b"1"),)
    assert peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, encoder.encode(trailers))) == []
    started = peer.start(frame(HEADERS, END_HEADERS, 3, encoder.encode((*REQUEST, *trailers))))
    assert started.headers == (*REQUEST, *trailers)


def test_remembered_reset_streams_are_bounded():
    peer = RawPeer(H2Limits(closed_streams=5))
    for stream_id in range(1, 21, 2):
        peer.send(request(stream_id))
        peer.server.reset_stream(stream_id, ErrorCode.CANCEL)
    assert peer.send(frame(DATA, 0, 19, b"late"), frame(DATA, 0, 11, b"late")) == []
    peer.send(frame(DATA, 0, 9, b"too late"))
    assert peer.end() == ErrorCode.STREAM_CLOSED


def test_oversized_requests_are_reported_until_they_become_a_flood():
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


def test_frame_in_single_bytes_is_kept_in_few_pieces():
    peer = RawPeer()
    data = frame(HEADERS, END_HEADERS, 1, bytes(20_000))
    for position in range(len(data) - 1):
        peer.send(data[position : position + 1])
        assert peer.server.statistics().frame_parts <= 66
    assert peer.events == []
    peer.send(data[-1:])
    assert [event.flood for event in refused(peer)] == [Flood.HEADERS]
