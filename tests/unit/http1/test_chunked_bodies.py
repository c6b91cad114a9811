"""Chunked bodies by themselves, beside llhttp's reading of the same bytes."""

from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.core.limits import Limits
from stoker.server.net.http1.body import ChunkedBody
from stoker.server.net.http1.response import Rejection

LIMITS = Limits(chunk_count=50, header_bytes=300)


def unframed(wire: bytes, cuts: list[int], limits: Limits = LIMITS) -> tuple[bytes, int, bool]:
    """The data, how much of `wire` was read, and whether the end was among it."""
    body, into, read = ChunkedBody(limits), bytearray(), 0
    edges = [0, *sorted(cuts), len(wire)]
    for begin, end in pairwise(edges):
        at = 0
        piece = wire[begin:end]
        while at < len(piece) and not body.is_complete:
            at = body.feed(piece, at, into)
        read += at
        if body.is_complete:
            break
    assert body.size_bytes == len(into)
    return bytes(into), read, body.is_complete


class _Recorder:
    def __init__(self) -> None:
        self.data = b""
        self.is_complete = False

    def on_body(self, body: bytes) -> None:
        self.data += body

    def on_message_complete(self) -> None:
        self.is_complete = True


def llhttp(wire: bytes) -> tuple[bytes, bool]:
    recorder = _Recorder()
    httptools.HttpRequestParser(recorder).feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + wire)
    return recorder.data, recorder.is_complete


def framed(chunks: list[bytes], form: str, extension: bytes, trailers: bytes) -> bytes:
    return (
        b"".join(form.encode() % len(chunk) + extension + b"\r\n" + chunk + b"\r\n" for chunk in chunks if chunk)
        + b"0\r\n"
        + trailers
        + b"\r\n"
    )


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=20),
    st.sampled_from(["%x", "%X", "%04x"]),
    st.sampled_from([b"", b";a=b", b";a"]),
    st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC:\r\n"]),
    st.lists(st.integers(0, 400), max_size=30),
    st.binary(max_size=10),
)
def test_reads_of_any_size_return_the_data_and_the_end(
    chunks: list[bytes], form: str, extension: bytes, trailers: bytes, cuts: list[int], behind: bytes
):
    wire = framed(chunks, form, extension, trailers)
    data, read, is_complete = unframed(wire + behind, [cut for cut in cuts if cut <= len(wire)])
    assert (data, read, is_complete) == (b"".join(chunks), len(wire), True)
    assert llhttp(wire) == (data, True)


@pytest.mark.parametrize(
    "wire",
    [
        b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"+5\r\nabcde\r\n0\r\n\r\n",
        b"-5\r\nabcde\r\n0\r\n\r\n",
        b" 5\r\nabcde\r\n0\r\n\r\n",
        b"5 \r\nabcde\r\n0\r\n\r\n",
        b"5\nabcde\n0\n\n",
        b"5\r\nabcde0\r\n\r\n",
        b"5\r\nabcdef\r\n0\r\n\r\n",
        b"5\r\nabcde\n0\r\n\r\n",
        b"\r\nabcde\r\n0\r\n\r\n",
        b"5\r\nabcde\r\nGET / HTTP/1.1\r\n\r\n",
        b"0\r\nGET / HTTP/1.1\r\n\r\n",
        b"0\r\nA : b\r\n\r\n",
        b"0\r\n A: b\r\n\r\n",
        b"FFFFFFFFF\r\n",
        b"000000005\r\nabcde\r\n0\r\n\r\n",
        b"5;a\0b\r\nabcde\r\n0\r\n\r\n",
        b"5_\r\n",
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_ambiguous_chunks_are_refused(wire: bytes, step: int):
    with pytest.raises(Rejection) as refused:
        unframed(wire, list(range(step, len(wire), step)))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"1\r\nA\r\n" * 51, 413),
        (b"5;" + b"a" * 300 + b"\r\n", 431),
        (b"5;" + b"a" * 300, 431),
        (b"0\r\n" + b"A: b\r\n" * 51, 431),
        (b"0\r\nA: " + b"b" * 300, 431),
    ],
)
def test_chunks_lines_and_trailers_are_bounded(wire: bytes, status: int):
    with pytest.raises(Rejection) as refused:
        unframed(wire, [])
    assert refused.value.status == status


def test_many_short_chunks_are_read_in_several_turns():
    body, into = ChunkedBody(Limits()), bytearray()
    wire = b"1\r\nA\r\n" * 5000
    at = body.feed(wire, 0, into)
    assert 0 < at < len(wire)
    assert len(into) <= 1024
