"""Each rule of RFC 9113 that a client can break, and its error code."""

import pytest

from stoker.server.net.http2.events import DataReceived, KeptFields, RequestStarted, StreamReset
from stoker.server.net.http2.frames import ErrorCode
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
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    RawPeer,
    block,
    expect,
    frame,
    request,
    setting,
    u32,
)

P, F, W, S = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.STREAM_CLOSED
H, C = ErrorCode.COMPRESSION_ERROR, ErrorCode.ENHANCE_YOUR_CALM
OPEN = request(1)
MOST = (1 << 31) - 1

CONNECTION_RULES = {
    # 4.1, 4.2: frames
    "4.2 frame above MAX_FRAME_SIZE": (F, OPEN + frame(DATA, 0, 1, bytes(16_385))),
    "4.2 only the header of a frame above MAX_FRAME_SIZE": (F, b"\xff\xff\xff\0\0\0\0\0\1"),
    # 4.3, 6.10: header blocks
    "4.3 undecodable block": (H, frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")),
    "4.3 undecodable trailers": (H, OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x80")),
    "6.2 another frame within a block": (P, request(1, 0) + frame(PING, 0, 0, bytes(8))),
    "6.2 another stream's CONTINUATION within a block": (P, request(1, 0) + frame(CONTINUATION, END_HEADERS, 3)),
    "6.2 unknown frame within a block": (P, request(1, 0) + frame(0xAB, 0, 1)),
    "6.10 CONTINUATION behind a whole block": (P, OPEN + frame(CONTINUATION, END_HEADERS, 1)),
    "6.10 CONTINUATION behind CONTINUATION that ended": (
        P,
        request(1, 0) + frame(CONTINUATION, END_HEADERS, 1) + frame(CONTINUATION, END_HEADERS, 1),
    ),
    "6.10 CONTINUATION for stream 0": (P, frame(CONTINUATION, END_HEADERS, 0)),
    # 5.1.1: ids
    "5.1.1 even stream id": (P, request(2)),
    "5.1.1 HEADERS for stream 0": (P, request(0)),
    "5.1.1 lower stream id": (P, request(5) + request(3)),
    # 6.1 DATA
    "6.1 DATA for stream 0": (P, frame(DATA, 0, 0, b"x")),
    "6.1 DATA for an idle stream": (P, frame(DATA, 0, 1, b"x")),
    "6.1 padding as long as the payload": (P, OPEN + frame(DATA, PADDED, 1, b"\4abc")),
    "6.1 padded without a padding length": (F, OPEN + frame(DATA, PADDED, 1)),
    "6.1 DATA for a closed stream": (S, OPEN + frame(RST_STREAM, 0, 1, u32(0)) + frame(DATA, 0, 1, b"x")),
    # 6.2 HEADERS
    "6.2 padding longer than the payload": (P, frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + block())),
    "6.2 padded without a padding length": (F, frame(HEADERS, END_HEADERS | PADDED, 1)),
    "6.2 priority fields cut": (F, frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0\0")),
    # 6.3 PRIORITY
    "6.3 PRIORITY for stream 0": (P, frame(PRIORITY, 0, 0, bytes(5))),
    "6.3 PRIORITY of four bytes": (F, frame(PRIORITY, 0, 1, bytes(4))),
    "6.3 PRIORITY of six bytes": (F, frame(PRIORITY, 0, 1, bytes(6))),
    # 6.4 RST_STREAM
    "6.4 RST_STREAM for stream 0": (P, frame(RST_STREAM, 0, 0, u32(0))),
    "6.4 RST_STREAM for an idle stream": (P, frame(RST_STREAM, 0, 1, u32(0))),
    "6.4 RST_STREAM of three bytes": (F, OPEN + frame(RST_STREAM, 0, 1, bytes(3))),
    "6.4 RST_STREAM of five bytes": (F, OPEN + frame(RST_STREAM, 0, 1, bytes(5))),
    # 6.5 SETTINGS
    "6.5 SETTINGS for a stream": (P, frame(SETTINGS, 0, 1)),
    "6.5 ACK with a payload": (F, frame(SETTINGS, ACK, 0, setting(1, 1))),
    "6.5 half an entry": (F, frame(SETTINGS, 0, 0, b"\0\1\0")),
    "6.5.2 ENABLE_PUSH of 2": (P, frame(SETTINGS, 0, 0, setting(2, 2))),
    "6.5.2 INITIAL_WINDOW_SIZE above 2^31-1": (W, frame(SETTINGS, 0, 0, setting(4, 1 << 31))),
    "6.5.2 MAX_FRAME_SIZE below 16384": (P, frame(SETTINGS, 0, 0, setting(5, 16_383))),
    "6.5.2 MAX_FRAME_SIZE above 2^24-1": (P, frame(SETTINGS, 0, 0, setting(5, 1 << 24))),
    "6.6 PUSH_PROMISE": (P, OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, u32(2) + block())),
    # 6.7 PING
    "6.7 PING for a stream": (P, frame(PING, 0, 1, bytes(8))),
    "6.7 PING of seven bytes": (F, frame(PING, 0, 0, bytes(7))),
    "6.7 PING of nine bytes": (F, frame(PING, 0, 0, bytes(9))),
    # 6.8 GOAWAY
    "6.8 GOAWAY for a stream": (P, frame(GOAWAY, 0, 1, u32(0, 0))),
    "6.8 GOAWAY of seven bytes": (F, frame(GOAWAY, 0, 0, bytes(7))),
    "6.8 GOAWAY with too much to say": (F, frame(GOAWAY, 0, 0, u32(0, 0) + bytes(5000))),
    # 6.9 WINDOW_UPDATE
    "6.9 WINDOW_UPDATE by 0": (P, frame(WINDOW_UPDATE, 0, 0, u32(0))),
    "6.9 WINDOW_UPDATE for an idle stream": (P, frame(WINDOW_UPDATE, 0, 1, u32(1))),
    "6.9 WINDOW_UPDATE of three bytes": (F, frame(WINDOW_UPDATE, 0, 0, bytes(3))),
    "6.9.1 connection window above 2^31-1": (W, frame(WINDOW_UPDATE, 0, 0, u32(MOST))),
    "6.9.1 DATA beyond the connection's window": (
        W,
        b"".join(request(sid) + frame(DATA, 0, sid, bytes(16_000)) * 2 for sid in (1, 3, 5)),
    ),
    "6.9.2 INITIAL_WINDOW_SIZE takes a stream above 2^31-1": (
        W,
        OPEN + frame(WINDOW_UPDATE, 0, 1, u32(1 << 20)) + frame(SETTINGS, 0, 0, setting(4, MOST)),
    ),
}
STREAM_RULES = {
    "5.1 DATA behind the end": (S, request(1, END_HEADERS | END_STREAM) + frame(DATA, 0, 1, b"x")),
    "5.1 HEADERS behind the end": (S, request(1, END_HEADERS | END_STREAM) + request(1)),
    "6.9 WINDOW_UPDATE by 0 for a stream": (P, OPEN + frame(WINDOW_UPDATE, 0, 1, u32(0))),
    "6.9.1 stream window above 2^31-1": (W, OPEN + frame(WINDOW_UPDATE, 0, 1, u32(MOST))),
    "6.9.1 DATA beyond the stream's window": (W, OPEN + frame(DATA, 0, 1, bytes(16_000)) * 3),
    "8.1 second HEADERS that does not end": (P, OPEN + frame(HEADERS, END_HEADERS, 1, block([(b"x", b"1")]))),
    "8.1 pseudo-header field in trailers": (P, OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b":path", b"/")]))),
    "8.1 upper case in trailers": (P, OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"X", b"1")]))),
    "8.1.1 body shorter than its content-length": (
        P,
        request(1, END_HEADERS, (*REQUEST, (b"content-length", b"5"))) + frame(DATA, END_STREAM, 1, b"four"),
    ),
    "8.1.1 body longer than its content-length": (
        P,
        request(1, END_HEADERS, (*REQUEST, (b"content-length", b"3"))) + frame(DATA, 0, 1, b"four"),
    ),
    "8.1.1 trailers before the content-length is reached": (
        P,
        request(1, END_HEADERS, (*REQUEST, (b"content-length", b"3")))
        + frame(DATA, 0, 1, b"tw")
        + frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"x", b"1")])),
    ),
    "too many trailers": (C, OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"x", b"1")] * 101))),
}
TIGHT = H2Limits(frame_bytes=16_384, stream_window_bytes=40_000, connection_window_bytes=65_535 + 16_384)


@pytest.mark.parametrize("rule", CONNECTION_RULES)
def test_broken_connection_rule_ends_the_connection_with_its_code(rule):
    code, data = CONNECTION_RULES[rule]
    peer = RawPeer(TIGHT)
    peer.send(data)
    assert peer.end() == code
    assert peer.send(request(99)) == []
    assert not peer.server.has_output


@pytest.mark.parametrize("rule", STREAM_RULES)
def test_broken_stream_rule_resets_the_stream_with_its_code(rule):
    code, data = STREAM_RULES[rule]
    peer = RawPeer(TIGHT)
    peer.send(data)
    assert peer.events[-1] == StreamReset(1, code, True)
    sent = [(sent.kind, sent.stream_id, sent.payload) for sent in peer.output() if sent[:3] != (WINDOW_UPDATE, 0, 0)]
    assert sent == [(RST_STREAM, 1, u32(code))]
    assert peer.server.open_streams == 0
    # Others are served as before, and the connection's window is whole again.
    for stream_id in (3, 5, 7, 9):
        events = peer.send(request(stream_id), *[frame(DATA, 0, stream_id, bytes(16_000))] * 2)
        assert [type(event).__name__ for event in events] == ["RequestStarted", "DataReceived", "DataReceived"]
        peer.server.reset_stream(stream_id, ErrorCode.NO_ERROR)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE[:-1] + b"\0",
        PREFACE + frame(PING, 0, 0, bytes(8)),
        PREFACE + request(1),
        PREFACE + frame(SETTINGS, ACK),
        PREFACE + frame(0xAB),
    ],
)
def test_connection_begins_with_the_preface_and_settings(start):
    peer = RawPeer(handshake=b"")
    assert not peer.server.is_ready
    peer.send(start)
    assert peer.end() == P
    assert not peer.server.is_ready


def test_unknown_frames_and_reserved_bits_are_ignored():
    peer = RawPeer()
    peer.send(
        frame(0xAB, 0xFF, 0, b"payload"),
        frame(0x10, 0, 0, u32(1) + b"u=1"),
        frame(SETTINGS, 0, 0, setting(0xFE03, 1) + setting(3, 0)),
        frame(PRIORITY, 0, 9, bytes(5)),
        frame(PING, 0xFE, 1 << 31, b"reserved"),
        request(1 | 1 << 31, END_HEADERS | END_STREAM | 0xD2 & ~WITH_PRIORITY & ~PADDED),
    )
    assert [type(event).__name__ for event in peer.events] == ["PingReceived", "RequestStarted"]
    assert peer.end() is None


def test_padding_and_priority_fields_are_removed_from_headers():
    peer = RawPeer()
    peer.send(
        frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\5" + u32(1) + b"\x10" + block() + bytes(5)),
        frame(DATA, PADDED, 1, b"\3data" + bytes(3)),
        frame(DATA, PADDED | END_STREAM, 1, b"\0"),
    )
    assert peer.events == [RequestStarted(1, KeptFields(REQUEST), False), DataReceived(1, b"data", False), DataReceived(1, b"", True)]


def test_padding_counts_for_the_windows_and_is_returned_at_once():
    peer = RawPeer(H2Limits(stream_window_bytes=1000))
    peer.send(request(1), frame(DATA, PADDED, 1, b"\xff" + bytes(255)) * 2)
    assert [(sent.kind, sent.stream_id, sent.payload) for sent in peer.output()] == [(WINDOW_UPDATE, 1, u32(512))]


def test_streams_above_the_limit_are_refused_and_can_be_retried():
    peer = RawPeer(H2Limits(concurrent_streams=2))
    peer.send(request(1), request(3), request(5), frame(DATA, END_STREAM, 5, b"late"))
    assert [expect(RequestStarted, event).stream_id for event in peer.events] == [1, 3]
    assert [(sent.kind, sent.stream_id, sent.payload) for sent in peer.output()] == [(RST_STREAM, 5, u32(ErrorCode.REFUSED_STREAM))]
    peer.server.reset_stream(1, ErrorCode.NO_ERROR)
    started = peer.start(request(7))
    assert started.stream_id == 7


def test_smaller_receive_window_binds_the_peer_once_it_has_acknowledged_settings():
    limits = H2Limits(stream_window_bytes=100)
    peer = RawPeer(limits, handshake=PREFACE + frame(SETTINGS))
    peer.send(request(1), frame(DATA, 0, 1, bytes(3000)))
    assert peer.end() is None
    assert peer.server.open_streams == 1
    peer.send(frame(SETTINGS, ACK), request(3), frame(DATA, 0, 3, bytes(101)))
    assert peer.events[-1] == StreamReset(3, W, True)
