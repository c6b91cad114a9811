"""Responses: order, turns, bounds, and copies."""

import weakref

import pytest

from stoker.server.core.build_kind import BUILD
from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.events import DataReceived
from stoker.server.net.http2.frames import ErrorCode, MisuseError
from stoker.server.net.http2.headers import encode_block
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_raw import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawPeer,
    cut,
    frame,
    request,
    setting,
    u32,
)

HEAD = encode_block([(b":status", b"200")])
TRAILERS = encode_block([(b"grpc-status", b"0")])
WIDE = frame(WINDOW_UPDATE, 0, 0, u32((1 << 31) - 1 - 65_535)) + frame(SETTINGS, 0, 0, setting(4, (1 << 31) - 1))


def asked(*, limits=None, end=END_STREAM, wide=True):
    """A connection with a request on stream 1, and windows that nothing fills."""
    peer = RawPeer(limits)
    peer.send(WIDE if wide else b"", request(1, END_HEADERS | end))
    peer.server.data_to_send()
    return peer


def test_settings_are_the_first_frame_and_contain_the_limits():
    server = ServerConnection(H2Limits(concurrent_streams=7, stream_window_bytes=100_000, connection_window_bytes=200_000), 0.0)
    settings, update = cut(b"".join(server.data_to_send()))
    entries = {
        int.from_bytes(settings.payload[at : at + 2], "big"): int.from_bytes(settings.payload[at + 2 : at + 6], "big")
        for at in range(0, 30, 6)
    }
    assert entries == {1: 4096, 3: 7, 4: 100_000, 5: 1 << 20, 6: 16_384}
    assert (update.kind, update.stream_id, update.payload) == (WINDOW_UPDATE, 0, u32(200_000 - 65_535))
    assert cut(b"".join(ServerConnection(H2Limits(connection_window_bytes=65_535), 0.0).data_to_send()))[1:] == []


def test_large_data_is_sent_by_reference():
    peer = asked()
    data = bytearray(3 << 20)
    peer.server.send_headers(1, HEAD)
    peer.server.send_data(1, data, end_stream=True)
    sent = []
    while peer.server.has_output:
        sent += peer.server.data_to_send()
    views = [piece for piece in sent if isinstance(piece, memoryview)]
    assert sum(map(len, views)) == len(data)
    assert all(view.obj is data for view in views)


@pytest.mark.parametrize("shape", [bytes(50_000), bytearray(50_000), memoryview(bytes(50_000)), memoryview(bytes(50_000)).cast("I")])
def test_any_buffer_can_be_sent(shape):
    peer = asked()
    peer.server.send_headers(1, HEAD)
    assert peer.server.send_data(1, shape, end_stream=True) == 50_000
    assert peer.server.send_data(3, shape) == 0
    frames = peer.output()
    assert sum(len(sent.payload) for sent in frames if sent.kind == DATA) == 50_000
    assert [sent.flags & END_STREAM for sent in frames if sent.kind == DATA] == [0, 0, 0, 1]
    assert peer.server.open_streams == 0


def test_sent_frames_respect_the_frame_sizes_of_both_sides():
    peer = asked(limits=H2Limits(sent_frame_bytes=50_000))
    peer.send(frame(SETTINGS, 0, 0, setting(5, 100_000)))
    peer.server.data_to_send()
    peer.server.send_response(1, HEAD, bytes(120_000), TRAILERS)
    assert [len(sent.payload) for sent in peer.output() if sent.kind == DATA] == [50_000, 50_000, 20_000]


def test_output_is_bounded_and_small_responses_pass_large_ones():
    peer = asked(limits=H2Limits(output_bytes=100_000))
    peer.server.send_response(1, HEAD, bytes(10 << 20), TRAILERS)
    first = peer.output()
    assert 100_000 <= sum(len(sent.payload) for sent in first) < 120_000
    peer.send(request(3, END_HEADERS | END_STREAM))
    peer.server.send_response(3, HEAD, b"small", TRAILERS)
    second = peer.output()
    assert [sent.kind for sent in second if sent.stream_id == 3] == [HEADERS, DATA, HEADERS]
    while peer.server.has_output:
        peer.server.data_to_send()
    assert peer.server.take_drained() == [1]
    assert peer.server.open_streams == 0


def test_small_responses_do_not_starve_a_large_one_of_the_connection_window():
    peer = RawPeer()
    peer.send(frame(SETTINGS, 0, 0, setting(4, (1 << 31) - 1)), request(1, END_HEADERS | END_STREAM))
    peer.server.send_response(1, HEAD, bytes(100_000), TRAILERS)
    peer.output()
    for stream_id in range(3, 43, 2):
        peer.send(request(stream_id, END_HEADERS | END_STREAM))
        peer.server.send_response(stream_id, HEAD, bytes(10_000), TRAILERS)
        peer.send(frame(WINDOW_UPDATE, 0, 0, u32(10_000)))
        peer.server.data_to_send()
    assert 1 in peer.server.take_drained()


def test_pieces_of_a_response_are_sent_in_order_by_reference_within_the_windows():
    peer = asked(wide=False, limits=H2Limits(stream_queue_bytes=1000))
    view = memoryview(bytearray(b"x" * 70_000))
    pieces: list[bytes | memoryview] = [b"head", bytes(range(256)) * 400, b"", b"between", view]
    whole = b"".join(pieces)
    peer.server.send_headers(1, HEAD)
    assert peer.server.send_pieces(1, pieces) == len(whole) - len(b"head")
    peer.server.send_headers(1, TRAILERS, end_stream=True)
    sent, views = b"", []
    while len(sent) < len(whole):
        written = peer.server.data_to_send()
        views += [each for each in written if isinstance(each, memoryview)]
        frames = [each for each in cut(b"".join(written)) if each.kind == DATA]
        assert 0 < sum(len(each.payload) for each in frames) <= 65_535
        sent += b"".join(each.payload for each in frames)
        peer.send(frame(WINDOW_UPDATE, 0, 1, u32(30_000)), frame(WINDOW_UPDATE, 0, 0, u32(30_000)))
    assert sent == whole
    assert {id(each.obj) for each in views} <= {id(pieces[1]), id(pieces[3]), id(view.obj)}
    assert peer.server.open_streams == 0
    # The stream is gone.
    assert peer.server.send_pieces(1, pieces) == 0


def test_slow_reader_costs_only_the_data_given_by_the_application():
    peer = asked(wide=False, limits=H2Limits(stream_queue_bytes=1000))
    peer.server.send_headers(1, HEAD)
    assert peer.server.send_data(1, bytes(65_535 + 1001)) == 66_536
    peer.server.data_to_send()
    assert not peer.server.has_output
    assert peer.server.waiting_bytes == 1001
    with pytest.raises(MisuseError, match="1001 bytes wait already"):
        peer.server.send_data(1, b"more")
    peer.send(frame(WINDOW_UPDATE, 0, 1, u32(100)), frame(WINDOW_UPDATE, 0, 0, u32(100)))
    peer.server.data_to_send()
    assert peer.server.take_drained() == []
    assert peer.server.send_data(1, b"more") == 905
    peer.send(frame(RST_STREAM, 0, 1, u32(ErrorCode.CANCEL)))
    assert peer.server.waiting_bytes == 0
    assert not peer.server.has_output


def test_streams_reset_while_they_wait_leave_the_queue():
    peer = asked(wide=False)
    peer.server.send_response(1, HEAD, bytes(65_536), TRAILERS)
    peer.server.data_to_send()
    for number in range(1000):
        stream_id = 3 + 2 * number
        peer.send(request(stream_id, END_HEADERS | END_STREAM), now_s=number)
        assert peer.server.send_response(stream_id, HEAD, bytes(10), TRAILERS) == 10
        peer.send(frame(RST_STREAM, 0, stream_id, u32(ErrorCode.CANCEL)), now_s=number)
        peer.server.data_to_send()
        assert peer.server.statistics().queued_streams < 70
    assert peer.server.open_streams == 1


def test_abandoned_request_is_reset_behind_its_response():
    peer = asked(wide=False, end=0)
    peer.server.abandon_request(1)
    assert peer.server.send_response(1, HEAD, bytes(70_000), TRAILERS) > 0
    peer.output()
    assert peer.server.open_streams == 1
    peer.send(frame(WINDOW_UPDATE, 0, 1, u32(10_000)), frame(WINDOW_UPDATE, 0, 0, u32(10_000)))
    frames = peer.output()
    assert [sent.kind for sent in frames] == [DATA, HEADERS, RST_STREAM]
    assert frames[-1].payload == u32(ErrorCode.NO_ERROR)
    assert peer.server.open_streams == 0
    assert peer.send(frame(DATA, 0, 1, b"late")) == []


@pytest.mark.parametrize("is_before", [True, False])
def test_abandoned_request_with_a_small_response_is_reset_behind_it(is_before):
    peer = asked(end=0)
    if is_before:
        peer.server.abandon_request(1)
    peer.server.send_response(1, HEAD, b"no", TRAILERS)
    if not is_before:
        peer.server.abandon_request(1)
    assert [sent.kind for sent in peer.output()] == [HEADERS, DATA, HEADERS, RST_STREAM]
    peer.server.abandon_request(1)
    assert peer.output() == []


def test_abandon_has_no_effect_on_a_complete_request():
    peer = asked()
    peer.server.abandon_request(1)
    peer.server.send_response(1, HEAD, b"yes", TRAILERS)
    assert [sent.kind for sent in peer.output()] == [HEADERS, DATA, HEADERS]


def test_empty_last_frame_needs_no_window():
    peer = asked(wide=False)
    peer.send(frame(SETTINGS, 0, 0, setting(4, 0)))
    peer.server.data_to_send()
    peer.server.send_headers(1, HEAD)
    assert peer.server.send_data(1, b"") == 0
    assert peer.server.send_data(1, b"", end_stream=True) == 0
    assert [(sent.kind, sent.flags) for sent in peer.output()] == [(HEADERS, END_HEADERS), (DATA, END_STREAM)]


def test_empty_last_frame_joins_the_waiting_data():
    peer = asked()
    peer.server.send_headers(1, HEAD)
    assert peer.server.send_data(1, bytes(20_000)) == 20_000
    assert peer.server.send_data(1, b"", end_stream=True) == 20_000
    assert [(sent.kind, sent.flags) for sent in peer.output()[1:]] == [(DATA, 0), (DATA, END_STREAM)]


def test_close_sends_the_reason_and_drops_waiting_data():
    peer = asked()
    peer.server.close(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
    peer.server.close(ErrorCode.NO_ERROR)
    (sent,) = peer.output()
    assert sent.payload == u32(1, ErrorCode.ENHANCE_YOUR_CALM) + b"too_many_pings"
    assert peer.server.send_response(1, HEAD, b"", TRAILERS) == 0
    peer.server.drain()
    peer.server.finish_drain()
    assert peer.output() == []
    assert peer.server.is_finished


@pytest.mark.skipif(BUILD == "native", reason="compiled objects have no weak references")
def test_unreferenced_connection_is_freed_without_the_collector():
    peer = asked(wide=False)
    peer.server.send_response(1, HEAD, bytes(100_000), TRAILERS)
    gone = weakref.ref(peer.server)
    del peer
    assert gone() is None


def test_ping_of_other_than_eight_bytes_is_refused():
    with pytest.raises(ValueError, match="8 bytes, not 3"):
        RawPeer().server.ping(b"abc")


def test_consumed_bytes_are_returned_in_large_steps_and_only_once():
    peer = RawPeer(H2Limits(stream_window_bytes=1000))
    peer.send(request(1), frame(DATA, 0, 1, bytes(800)))
    for _ in range(4):
        peer.server.consumed(1, 100)
    assert peer.output() == []
    peer.server.consumed(1, 100)
    assert [(sent.stream_id, sent.payload) for sent in peer.output()] == [(1, u32(500))]
    peer.server.consumed(1, 10_000)
    assert peer.output() == []
    peer.send(frame(DATA, END_STREAM, 1, bytes(700)))
    assert peer.last(DataReceived).end_stream
    peer.server.consumed(1, 10_000)
    assert peer.output() == []
