"""The server connection against the `h2` library as a client."""

import h2.errors
import h2.events
import h2.settings
import pytest

from stoker.server.net.http2.events import (
    DataReceived,
    KeptFields,
    PeerLeaving,
    PingAcked,
    PingReceived,
    RequestStarted,
    StreamReset,
    TrailersReceived,
)
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.net.http2.headers import encode_block
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_exchange import REQUEST, Exchange
from tests.fakes.h2_raw import ACK, END_HEADERS, END_STREAM, GOAWAY, PING, RST_STREAM, RawPeer, cut, expect, frame, request, u32

HEAD = encode_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = encode_block([(b"grpc-status", b"0"), (b"grpc-message", b"")])
SMALL_WINDOW = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 7}


def test_request_and_response_pass_unchanged():
    exchange = Exchange()
    exchange.client.send_headers(1, REQUEST)
    exchange.client.send_data(1, b"question", end_stream=True)
    exchange.settle()
    assert exchange.events == [
        RequestStarted(1, KeptFields(tuple((name.encode(), value.encode()) for name, value in REQUEST)), False),
        DataReceived(1, b"question", True),
    ]
    assert exchange.server.send_response(1, HEAD, b"answer", TRAILERS) == 0
    assert exchange.server.open_streams == 0
    exchange.settle()
    (response,) = exchange.seen(1, h2.events.ResponseReceived)
    assert response.headers == [(":status", "200"), ("content-type", "application/grpc")]
    assert exchange.bodies[1] == b"answer"
    (trailers,) = exchange.seen(1, h2.events.TrailersReceived)
    assert trailers.headers == [("grpc-status", "0"), ("grpc-message", "")]
    assert exchange.seen(1, h2.events.StreamEnded)


def test_settings_are_acknowledged_both_ways():
    exchange = Exchange()
    assert exchange.server.awaits_settings_ack
    assert not exchange.server.is_ready
    exchange.settle()
    assert not exchange.server.awaits_settings_ack
    assert exchange.server.is_ready
    assert exchange.seen(None, h2.events.SettingsAcknowledged)


def test_repeated_header_block_returns_the_same_object():
    exchange = Exchange()
    for stream_id in (1, 3, 5):
        exchange.client.send_headers(stream_id, REQUEST, end_stream=True)
    exchange.settle()
    first, second, third = exchange.events_of(RequestStarted)
    assert first.headers == second.headers
    assert second.headers is third.headers


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 3, 1000, 1 << 20])
def test_large_bodies_pass_both_ways(piece):
    exchange = Exchange(H2Limits(stream_window_bytes=50_000, connection_window_bytes=70_000))
    body = bytes(range(251)) * (300 if piece < 1000 else 3000)
    exchange.client.send_headers(1, REQUEST)
    exchange.settle(most_bytes=piece)
    sent = 0
    while sent < len(body):
        size = min(exchange.client.local_flow_control_window(1), exchange.client.max_outbound_frame_size, len(body) - sent)
        exchange.client.send_data(1, body[sent : sent + size], end_stream=sent + size == len(body))
        sent += size
        exchange.settle(most_bytes=piece)
    assert exchange.body_received(1) == body
    exchange.server.send_headers(1, HEAD)
    waiting = exchange.server.send_data(1, body)
    exchange.server.send_headers(1, TRAILERS, end_stream=True)
    assert waiting == (len(body) if len(body) > 16384 else 0)
    exchange.settle(most_bytes=piece)
    assert exchange.bodies[1] == body
    assert exchange.seen(1, h2.events.StreamEnded)
    assert exchange.server.open_streams == 0


def test_response_waits_for_tiny_windows_and_is_reported_as_drained():
    exchange = Exchange(settings=SMALL_WINDOW, auto_consume=False)
    exchange.client.send_headers(1, REQUEST, end_stream=True)
    exchange.settle()
    assert exchange.server.send_response(1, HEAD, b"0123456789abcdef", TRAILERS) == 16
    exchange.settle()
    assert exchange.bodies[1] == b"0123456"
    assert not exchange.server.has_output
    assert exchange.server.take_drained() == []
    exchange.client.increment_flow_control_window(7, 1)
    exchange.settle()
    assert exchange.bodies[1] == b"0123456789abcd"
    exchange.client.increment_flow_control_window(7, 1)
    exchange.settle()
    assert exchange.bodies[1] == b"0123456789abcdef"
    assert exchange.server.take_drained() == [1]
    assert exchange.server.take_drained() == []
    assert exchange.seen(1, h2.events.StreamEnded)


def test_larger_initial_window_sends_waiting_data():
    exchange = Exchange(settings=SMALL_WINDOW, auto_consume=False)
    exchange.client.send_headers(1, REQUEST, end_stream=True)
    exchange.settle()
    exchange.server.send_response(1, HEAD, b"0123456789abcdef", TRAILERS)
    exchange.settle()
    exchange.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 3})
    exchange.settle()
    exchange.client.increment_flow_control_window(4, 1)
    exchange.settle()
    assert exchange.bodies[1] == b"0123456"
    exchange.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100})
    exchange.settle()
    assert exchange.bodies[1] == b"0123456789abcdef"


def test_small_receive_window_holds_the_client_until_bytes_are_consumed():
    exchange = Exchange(H2Limits(stream_window_bytes=10), auto_consume=False)
    exchange.settle()
    exchange.client.send_headers(1, REQUEST)
    exchange.client.send_data(1, b"0123456789")
    exchange.settle()
    assert exchange.client.local_flow_control_window(1) == 0
    exchange.server.consumed(1, 4)
    exchange.settle()
    assert exchange.client.local_flow_control_window(1) == 0
    exchange.server.consumed(1, 1)
    exchange.settle()
    assert exchange.client.local_flow_control_window(1) == 5


def test_closed_stream_returns_its_window_to_the_connection():
    exchange = Exchange(auto_consume=False)
    exchange.settle()
    whole = exchange.client.outbound_flow_control_window
    stream_id = 1
    for _ in range(20):
        exchange.client.send_headers(stream_id, REQUEST)
        for _ in range(4):
            exchange.client.send_data(stream_id, bytes(400_000))
        exchange.client.end_stream(stream_id)
        exchange.settle()
        exchange.server.send_response(stream_id, HEAD, b"", TRAILERS)
        exchange.settle()
        stream_id += 2
    assert exchange.client.outbound_flow_control_window >= whole // 2


def test_waiting_streams_take_turns():
    exchange = Exchange(H2Limits(output_bytes=64 * 1024, sent_frame_bytes=16 * 1024))
    for stream_id in (1, 3):
        exchange.client.send_headers(stream_id, REQUEST, end_stream=True)
    exchange.client.increment_flow_control_window(1 << 24)
    for stream_id in (1, 3):
        exchange.client.increment_flow_control_window(1 << 24, stream_id)
    exchange.settle()
    exchange.server.send_response(1, HEAD, bytes(1 << 20), TRAILERS)
    exchange.server.send_response(3, HEAD, bytes(100_000), TRAILERS)
    order = []
    while exchange.server.has_output:
        size = sum(map(len, exchange.server.data_to_send()))
        assert size < 100_000
        order += exchange.server.take_drained()
    assert order == [3, 1]


def test_trailers_cancellation_and_pings_of_the_client_are_events():
    exchange = Exchange()
    exchange.client.send_headers(1, REQUEST)
    exchange.client.send_headers(1, [("x-sum", "1")], end_stream=True)
    exchange.client.send_headers(3, REQUEST)
    exchange.client.reset_stream(3, h2.errors.ErrorCodes.CANCEL)
    exchange.client.ping(b"01234567")
    exchange.settle()
    assert exchange.events[1:] == [
        TrailersReceived(1, ((b"x-sum", b"1"),)),
        RequestStarted(3, expect(RequestStarted, exchange.events[2]).fields, False),
        StreamReset(3, h2.errors.ErrorCodes.CANCEL, False),
        PingReceived(b"01234567"),
    ]
    assert exchange.seen(None, h2.events.PingAckReceived)
    exchange.server.send_response(3, HEAD, b"too late", TRAILERS)
    exchange.server.ping(b"abcdefgh")
    exchange.settle()
    assert exchange.events[-1] == PingAcked(b"abcdefgh")
    assert exchange.bodies[3] == b""


def test_graceful_end_serves_open_streams_and_refuses_later_ones():
    peer = RawPeer()
    peer.send(request(1, END_STREAM | END_HEADERS))
    peer.server.drain()
    peer.server.drain()
    first, ping = peer.output()
    assert (first.kind, first.payload) == (GOAWAY, u32((1 << 31) - 1, 0))
    # The client opens a stream before it has heard of it.
    peer.send(request(3, END_STREAM | END_HEADERS), frame(PING, ACK, 0, ping.payload), request(5, END_STREAM | END_HEADERS))
    last, refusal = peer.output()
    assert (last.kind, last.payload) == (GOAWAY, u32(3, 0))
    assert (refusal.kind, refusal.stream_id, refusal.payload) == (RST_STREAM, 5, u32(ErrorCode.REFUSED_STREAM))
    assert [expect(RequestStarted, event).stream_id for event in peer.events] == [1, 3]
    peer.server.send_response(1, HEAD, b"", TRAILERS)
    assert not peer.server.is_finished
    peer.server.send_response(3, HEAD, b"", TRAILERS)
    assert peer.server.is_finished


def test_goaway_never_names_a_later_last_stream_than_before():
    peer = RawPeer()
    peer.send(request(1))
    peer.server.finish_drain()
    peer.send(request(3), request(5), frame(PING, 0, 1, b"in the way"))
    assert [sent.payload[:4] for sent in peer.output() if sent.kind == GOAWAY] == [u32(1), u32(1)]


def test_finish_drain_ends_a_graceful_end_at_once():
    peer = RawPeer()
    peer.server.drain()
    peer.server.finish_drain()
    peer.server.finish_drain()
    assert [(sent.kind, sent.payload[:8]) for sent in peer.output()] == [
        (GOAWAY, u32((1 << 31) - 1, 0)),
        (PING, b"draining"),
        (GOAWAY, u32(0, 0)),
    ]
    assert peer.server.is_finished


def test_client_that_sends_goaway_is_served_to_the_end():
    exchange = Exchange()
    exchange.settle()
    exchange.client.send_headers(1, REQUEST, end_stream=True)
    exchange.client.close_connection(additional_data=b"bye")
    exchange.events += exchange.server.receive(exchange.client.data_to_send(), 0.0)
    assert exchange.events[-1] == PeerLeaving(0, b"bye")
    exchange.server.send_response(1, HEAD, b"answer", TRAILERS)
    assert [sent.stream_id for sent in cut(b"".join(exchange.server.data_to_send()))] == [1, 1, 1]
    assert not exchange.server.is_finished


def test_smaller_header_table_of_the_client_is_acknowledged_in_the_next_block():
    exchange = Exchange(settings={h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
    for stream_id in (1, 3):
        exchange.client.send_headers(stream_id, REQUEST, end_stream=True)
        exchange.settle()
        exchange.server.send_response(stream_id, HEAD, b"answer", TRAILERS)
        exchange.settle()
        assert exchange.bodies[stream_id] == b"answer"
        assert exchange.seen(stream_id, h2.events.StreamEnded)


def test_long_header_blocks_are_continued():
    exchange = Exchange()
    exchange.client.send_headers(1, REQUEST, end_stream=True)
    exchange.settle()
    block = encode_block([(b":status", b"200"), *((b"x-%d" % number, b"v" * 400) for number in range(100))])
    exchange.server.send_headers(1, block)
    exchange.server.send_data(1, b"", end_stream=True)
    exchange.settle()
    (response,) = exchange.seen(1, h2.events.ResponseReceived)
    assert len(response.headers) == 101
    assert exchange.seen(1, h2.events.StreamEnded)
