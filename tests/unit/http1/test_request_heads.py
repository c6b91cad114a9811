"""Request heads alone: refusals with their status, and independence of the read sizes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.core.limits import Limits
from stoker.server.net.http1.head import BLANK_LINE, HeadParser, RequestHead
from stoker.server.net.http1.response import Rejection
from tests.fakes.fields import facts

LIMITS = Limits(header_bytes=2000, header_count=20, url_bytes=500, http_body_bytes=10_000)
HOST = b"Host: a\r\n"


def read(block: bytes, cuts: tuple[int, ...] = ()) -> RequestHead:
    parser = HeadParser(LIMITS)
    edges = [0, *sorted(cuts), len(block)]
    for begin, end in pairwise(edges):
        parser.feed(block[begin:end])
    return parser.head()


def head(line: bytes, *fields: bytes, host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def test_head_is_parsed_into_its_fields():
    said = read(head(b"POST /v2/a%20b?x=1 HTTP/1.1", b"Content-Length: 12", b"X-Y: Z", b"Expect: 100-continue"))
    assert (said.method, said.target, said.path, said.raw_path, said.query) == ("POST", b"/v2/a%20b?x=1", "/v2/a b", b"/v2/a%20b", b"x=1")
    assert (said.version, said.length, said.keep_alive, said.expects_continue) == ("1.1", 12, True, True)
    assert said.headers == ((b"host", b"a"), (b"content-length", b"12"), (b"x-y", b"Z"), (b"expect", b"100-continue"))


def test_blanks_around_a_value_are_not_part_of_it():
    said = read(head(b"POST / HTTP/1.1", b"A: \t b c \t ", b"Expect: 100-continue ", b"Content-Length: 5 ", b"D:  "))
    assert said.headers[1:] == ((b"a", b"b c"), (b"expect", b"100-continue"), (b"content-length", b"5"), (b"d", b""))
    assert (said.length, said.expects_continue) == (5, True)


@pytest.mark.parametrize(
    ("block", "length", "keep_alive"),
    [
        (head(b"GET / HTTP/1.1"), 0, True),
        (head(b"GET / HTTP/1.1", b"Connection: close"), 0, False),
        (head(b"GET / HTTP/1.0"), 0, False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 0, False),
        (head(b"POST / HTTP/1.1", b"Transfer-Encoding: Chunked"), None, True),
        (head(b"POST / HTTP/1.1", b"Content-Length: 00012"), 12, True),
        (head(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 3"), 3, True),
    ],
)
def test_framing_and_persistence_follow_from_the_head(block: bytes, length: int | None, keep_alive: bool):
    said = read(block)
    assert said.length == length
    assert said.keep_alive is keep_alive


REJECTED = [
    # Where a message ends must be said once, and plainly.
    (head(b"POST / HTTP/1.1", b"Content-Length: 3", b"Transfer-Encoding: chunked"), 400),
    (head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked", b"Content-Length: 3"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 4"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 3"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: 3, 3"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: +3"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: -3"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: 0x3"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: "), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: 99999999999999999999999"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: 10001"), 413),
    (head(b"POST / HTTP/1.1", b"Transfer-Encoding: xchunked"), 400),
    (head(b"POST / HTTP/1.1", b"Transfer-Encoding: gzip, chunked"), 501),
    (head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    (head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked, identity"), 400),
    (head(b"POST / HTTP/1.1", b"Transfer-Encoding:"), 400),
    (head(b"POST / HTTP/1.0", b"Transfer-Encoding: chunked"), 400),
    (head(b"POST / HTTP/1.1", b"Transfer-Encoding : chunked"), 400),
    # Lines.
    (head(b"GET / HTTP/1.1", b"A: b\r\n c"), 400),
    (head(b"GET / HTTP/1.1", b" A: b"), 400),
    (head(b"GET / HTTP/1.1", b"A: b\nB: c"), 400),
    (head(b"GET / HTTP/1.1", b"A: b\rc"), 400),
    (head(b"GET / HTTP/1.1", b"A"), 400),
    (head(b"GET / HTTP/1.1", b": b"), 400),
    (head(b"GET / HTTP/1.1", b"A: b\0c"), 400),
    (b"GET / HTTP/1.1\nHost: a\n\r\n\r\n", 400),
    # The request line.
    (head(b"get / HTTP/1.1"), 400),
    (head(b"GET /a b HTTP/1.1"), 400),
    (head(b"GET /\xff HTTP/1.1"), 400),
    (head(b"GET / HTTP/1.2"), 400),
    (head(b"GET / HTTP/2.0"), 505),
    (b"GET /\r\n\r\n", 505),
    (b"PRI * HTTP/2.0\r\n\r\n", 400),
    (head(b"CONNECT a:1 HTTP/1.1"), 400),
    # The host.
    (head(b"GET / HTTP/1.1", host=b""), 400),
    (head(b"GET / HTTP/1.1", b"Host: b"), 400),
    # How the body is read.
    (head(b"POST / HTTP/1.1", b"Inference-Header-Content-Length: 5", b"Inference-Header-Content-Length: 5"), 400),
    (head(b"POST / HTTP/1.1", b"Inference-Header-Content-Length: 5", b"INFERENCE-header-content-length: 6"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Encoding: gzip", b"Content-Encoding: identity"), 400),
    (head(b"POST / HTTP/1.1", b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
    (head(b"POST / HTTP/1.1", b"Content-Length: 5", b"Content-Length: 5"), 400),
    # Bounds.
    (head(b"GET /" + b"x" * 500 + b" HTTP/1.1"), 414),
    (head(b"GET /" + b"x" * 5000 + b" HTTP/1.1"), 414),
    (head(b"GET / HTTP/1.1", *[b"A: b"] * 20), 431),
    (head(b"GET / HTTP/1.1", b"A: " + b"b" * 2000), 431),
    (head(b"GET / HTTP/1.1", b"A: " + b"b" * 5000), 431),
]


@pytest.mark.parametrize(("block", "status"), REJECTED)
def test_ambiguous_or_invalid_head_is_refused(block: bytes, status: int):
    with pytest.raises(Rejection) as refused:
        read(block)
    assert refused.value.status == status
    assert b"connection: close\r\n" in refused.value.to_bytes()


READ_HEADERS = [
    b"Content-Length",
    b"Transfer-Encoding",
    b"Host",
    b"Expect",
    b"Connection",
    b"Inference-Header-Content-Length",
    b"Accept-Encoding",
]
ODD_VALUES = [b"", b"x" * 65_536, b"\xff\xfe", b"a\0b", b"9" * 100]


@pytest.mark.parametrize("value", ODD_VALUES, ids=["empty", "64 KiB", "not ASCII", "NUL", "huge"])
@pytest.mark.parametrize("name", READ_HEADERS)
def test_any_header_value_ends_in_a_head_or_a_refusal(name: bytes, value: bytes):
    block = head(b"POST / HTTP/1.1", name + b": " + value, host=b"" if name == b"Host" else HOST)
    status = 0
    try:
        assert read(block).length == 0
    except Rejection as refusal:
        status = refusal.status.value
    assert status in (0, 400, 413, 431, 501)


@given(st.data())
def test_head_in_pieces_parses_as_the_whole(data: st.DataObject):
    block = head(b"POST /v2/models/m/infer HTTP/1.1", b"Content-Length: 12", b"Content-Type: a/b", b"X: y")
    cuts = tuple(data.draw(st.lists(st.integers(0, len(block)), max_size=10)))
    assert facts(read(block, cuts)) == facts(read(block))
    assert block.endswith(BLANK_LINE)
