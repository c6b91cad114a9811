"""Which requests are malformed (RFC 9113, sections 8.2 and 8.3), and which are too large."""

import pytest

from stoker.server.core.limits import Limits
from stoker.server.net.http2.events import HeadersTooLarge, KeptFields, RequestStarted
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_raw import END_HEADERS, END_STREAM, REQUEST, RST_STREAM, RawPeer, request, u32

METHOD, SCHEME, PATH, AUTHORITY, CONTENT = REQUEST
MALFORMED = {
    "no method": (SCHEME, PATH),
    "empty method": ((b":method", b""), SCHEME, PATH),
    "no scheme": (METHOD, PATH),
    "no path": (METHOD, SCHEME),
    "empty path": (METHOD, SCHEME, (b":path", b"")),
    "nothing at all": (),
    "method twice": (METHOD, METHOD, SCHEME, PATH),
    "path twice, behind a field": (METHOD, SCHEME, PATH, CONTENT, PATH),
    "pseudo-header field behind others": (METHOD, SCHEME, CONTENT, PATH),
    "pseudo-header field of answers": (*REQUEST[:4], (b":status", b"200")),
    "unknown pseudo-header field": (*REQUEST[:4], (b":protocol", b"websocket")),
    "bare colon": (*REQUEST[:4], (b":", b"x")),
    "upper case": (*REQUEST, (b"X-Name", b"1")),
    "empty name": (*REQUEST, (b"", b"1")),
    "blank in a name": (*REQUEST, (b"x name", b"1")),
    "colon in a name": (*REQUEST, (b"x:name", b"1")),
    "NUL in a name": (*REQUEST, (b"x\0", b"1")),
    "control character in a name": (*REQUEST, (b"x\x7f", b"1")),
    "non-ASCII name": (*REQUEST, ("naïve".encode(), b"1")),
    "line feed in a value": (*REQUEST, (b"x", b"1\nx-other: 2")),
    "carriage return in a value": (*REQUEST, (b"x", b"1\r")),
    "NUL in a value": (*REQUEST, (b"x", b"\0")),
    "blank before a value": (*REQUEST, (b"x", b" 1")),
    "tab behind a value": (*REQUEST, (b"x", b"1\t")),
    "line feed in the path": (METHOD, SCHEME, (b":path", b"/\n"), AUTHORITY),
    "connection": (*REQUEST, (b"connection", b"close")),
    "keep-alive": (*REQUEST, (b"keep-alive", b"1")),
    "proxy-connection": (*REQUEST, (b"proxy-connection", b"close")),
    "transfer-encoding": (*REQUEST, (b"transfer-encoding", b"chunked")),
    "upgrade": (*REQUEST, (b"upgrade", b"h2c")),
    "te other than trailers": (*REQUEST, (b"te", b"gzip")),
    "host that differs": (*REQUEST, (b"host", b"elsewhere")),
    "two hosts": (METHOD, SCHEME, PATH, (b"host", b"a"), (b"host", b"b")),
    "content-length that is no number": (*REQUEST, (b"content-length", b"+5")),
    "content-length without digits": (*REQUEST, (b"content-length", b"")),
    "content-length beyond reason": (*REQUEST, (b"content-length", b"9" * 19)),
    "two content-lengths": (*REQUEST, (b"content-length", b"5"), (b"content-length", b"6")),
    "CONNECT with a path": ((b":method", b"CONNECT"), AUTHORITY, PATH),
    "CONNECT without authority": ((b":method", b"CONNECT"),),
}
VALID = {
    "plain": REQUEST,
    "te: trailers": (*REQUEST, (b"te", b"trailers")),
    "host instead of authority": (METHOD, SCHEME, PATH, (b"host", b"localhost")),
    "host in other case": (*REQUEST, (b"host", b"LocalHost")),
    "content-length twice the same": (*REQUEST, (b"content-length", b"5"), (b"content-length", b"5")),
    "empty value": (*REQUEST, (b"x", b"")),
    "bytes above ASCII in a value": (*REQUEST, (b"x", "zürich".encode())),
    "field twice": (*REQUEST, (b"x", b"1"), (b"x", b"1")),
    "CONNECT": ((b":method", b"CONNECT"), AUTHORITY),
    "asterisk": ((b":method", b"OPTIONS"), SCHEME, (b":path", b"*")),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_request_is_a_stream_error(case):
    peer = RawPeer()
    # Twice: what is remembered of the first must not let the second pass.
    for stream_id in (1, 3):
        assert peer.send(request(stream_id, fields=MALFORMED[case])) == []
        (reset,) = peer.output()
        assert (reset.kind, reset.stream_id, reset.payload) == (RST_STREAM, stream_id, u32(ErrorCode.PROTOCOL_ERROR))
    started = peer.start(request(5))
    assert started == RequestStarted(5, KeptFields(REQUEST), False)


@pytest.mark.parametrize("case", VALID)
def test_valid_request_is_reported_as_sent(case):
    peer = RawPeer()
    for stream_id in (1, 3):
        assert peer.send(request(stream_id, fields=VALID[case])) == [RequestStarted(stream_id, KeptFields(VALID[case]), False)]


def test_content_length_without_a_body_is_a_stream_error():
    peer = RawPeer()
    fields = (*REQUEST, (b"content-length", b"1"))
    assert peer.send(request(1, END_HEADERS | END_STREAM, fields)) == []
    assert peer.output()[0].payload == u32(ErrorCode.PROTOCOL_ERROR)
    started = peer.start(request(3, END_HEADERS | END_STREAM, (*REQUEST, (b"content-length", b"0"))))
    assert started.end_stream


def test_remembered_field_does_not_allow_a_pseudo_header_field_behind_it():
    peer = RawPeer()
    peer.send(request(1))
    assert peer.send(request(3, fields=(METHOD, CONTENT, SCHEME, PATH))) == []
    assert peer.output()[0].payload == u32(ErrorCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("extra", [[(b"x", b"v" * 16_384)], [(b"x", b"1")] * 96])
def test_oversized_headers_are_reported_and_can_be_responded_to(extra):
    peer = RawPeer()
    fields = (*REQUEST, *extra)
    size_bytes = sum(len(name) + len(value) + 32 for name, value in fields)
    assert peer.send(request(1, END_HEADERS | END_STREAM, fields)) == [HeadersTooLarge(1, size_bytes, len(fields), True)]
    assert peer.server.is_open(1)
    assert peer.send(request(3, fields=fields[:-1])) == [RequestStarted(3, KeptFields(fields[:-1]), False)]


def test_invalid_limits_are_refused_by_name():
    with pytest.raises(ValueError, match="frame_bytes must be 16384 to"):
        H2Limits(frame_bytes=100)
    with pytest.raises(ValueError, match="connection_window_bytes must be 65535"):
        H2Limits(connection_window_bytes=1000)
    with pytest.raises(ValueError, match="stream_window_bytes must be at most 2147483647"):
        H2Limits(stream_window_bytes=1 << 31)
    with pytest.raises(ValueError, match="reset_burst must be positive, got 0"):
        H2Limits(reset_burst=0)
    with pytest.raises(ValueError, match="header_block_bytes must be at least header_list_bytes, 16384, got 100"):
        H2Limits(header_block_bytes=100)
    assert H2Limits.of(Limits(grpc_metadata_bytes=1000)).header_block_bytes == 2000
    assert H2Limits.of(Limits()) == H2Limits()
    assert H2Limits(header_table_bytes=0).header_table_bytes == 0
