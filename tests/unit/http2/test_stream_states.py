"""Every state of a stream against every frame, from outside: RFC 9113, section 5.1."""

import itertools
from collections.abc import Sequence

import pytest

from stoker.server.net.http2.events import DataReceived, StreamReset, TrailersReceived
from stoker.server.net.http2.frames import ErrorCode, MisuseError
from stoker.server.net.http2.headers import encode_block
from stoker.server.net.http2.streams import NEXT, Next, Step
from tests.fakes.h2_raw import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    RawPeer,
    block,
    frame,
    request,
    u32,
)

HEAD = encode_block([(b":status", b"200")])
TRAILERS = encode_block([(b"grpc-status", b"0")])
FIELDS = block([(b"x-after", b"1")])
#: The stream under test; the one before it is used, and closed, by every connection.
ID = 3


def in_state(state: str) -> RawPeer:
    """A connection whose stream 3 is in this state."""
    peer = RawPeer()
    peer.send(request(1, END_HEADERS | END_STREAM))
    peer.server.send_response(1, HEAD, b"", TRAILERS)
    peer.server.data_to_send()
    if state == "idle":
        return peer
    has_ended = state in ("half-closed (remote)", "closed by both ends")
    peer.send(request(ID, END_HEADERS | (END_STREAM if has_ended else 0)))
    if state in ("half-closed (local)", "closed by both ends"):
        peer.server.send_response(ID, HEAD, b"", TRAILERS)
    elif state == "reset by us":
        peer.server.reset_stream(ID, ErrorCode.NO_ERROR)
    elif state == "reset by the peer":
        peer.send(frame(RST_STREAM, 0, ID, u32(ErrorCode.CANCEL)))
    elif state == "skipped":
        peer = RawPeer()
        peer.send(request(1, END_HEADERS), request(ID + 2, END_HEADERS))
    peer.server.data_to_send()
    peer.events.clear()
    return peer


SENT = {
    "HEADERS": frame(HEADERS, END_HEADERS, ID, FIELDS),
    "HEADERS that end": frame(HEADERS, END_HEADERS | END_STREAM, ID, FIELDS),
    "a request": request(ID, END_HEADERS | END_STREAM),
    "DATA": frame(DATA, 0, ID, b"data"),
    "DATA that end": frame(DATA, END_STREAM, ID, b"data"),
    "RST_STREAM": frame(RST_STREAM, 0, ID, u32(ErrorCode.CANCEL)),
    "WINDOW_UPDATE": frame(WINDOW_UPDATE, 0, ID, u32(1)),
    "PRIORITY": frame(PRIORITY, 0, ID, u32(0) + b"\x10"),
}
P, S = ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED
#: The outcome of a frame: None: no event; an error code: of the stream; (code,): of the connection; else the events.
DATA_REPORTED = [DataReceived(ID, b"data", False)]
LAST_DATA_REPORTED = [DataReceived(ID, b"data", True)]
RESET_REPORTED = [StreamReset(ID, ErrorCode.CANCEL, False)]
TRAILERS_REPORTED = [TrailersReceived(ID, ((b"x-after", b"1"),))]
ACTIVE = [P, TRAILERS_REPORTED, P, DATA_REPORTED, LAST_DATA_REPORTED, RESET_REPORTED, None, None]
LATE = [None, None, None, None, None, None, None, None]
CLOSED = [(S,), (S,), (S,), (S,), (S,), None, None, None]
OUTCOMES: dict[str, Sequence[object]] = {
    "idle": [P, P, "opens", (P,), (P,), (P,), (P,), None],
    "open": [P, TRAILERS_REPORTED, "trailers", DATA_REPORTED, LAST_DATA_REPORTED, RESET_REPORTED, None, None],
    "half-closed (local)": [P, TRAILERS_REPORTED, "trailers", DATA_REPORTED, LAST_DATA_REPORTED, RESET_REPORTED, None, None],
    "half-closed (remote)": [S, S, S, S, S, RESET_REPORTED, None, None],
    "reset by us": LATE,
    "reset by the peer": CLOSED,
    "closed by both ends": CLOSED,
    "skipped": [(P,), (P,), (P,), (P,), (P,), (P,), (P,), None],
}
CASES = [
    pytest.param(state, name, outcome, id=f"{state}-{name}")
    for state, outcomes in OUTCOMES.items()
    for name, outcome in zip(SENT, outcomes, strict=True)
]


@pytest.mark.parametrize(("state", "name", "outcome"), CASES)
def test_each_frame_has_its_outcome_in_each_state(state, name, outcome):
    peer = in_state(state)
    was_open = peer.server.open_streams
    peer.events.clear()
    events = peer.send(SENT[name])
    if isinstance(outcome, tuple):
        assert peer.end() == outcome[0]
    elif isinstance(outcome, ErrorCode):
        is_known = state != "idle"
        assert events == ([StreamReset(ID, outcome, True)] if is_known else [])
        (reset,) = peer.output()
        assert (reset.kind, reset.stream_id, reset.payload) == (RST_STREAM, ID, u32(outcome))
        assert peer.end() is None
    elif outcome == "opens":
        assert [type(event).__name__ for event in events] == ["RequestStarted"]
        assert peer.server.open_streams == was_open + 1
    elif outcome == "trailers":
        # Pseudo-header fields, which trailers may not have.
        assert events == [StreamReset(ID, P, True)]
    else:
        assert events == (outcome or [])
        assert peer.output() == []
        assert peer.end() is None


@pytest.mark.parametrize("ending", ["DATA that end", "HEADERS that end"])
def test_stream_closes_after_both_ends_in_either_order(ending):
    peer = in_state("half-closed (local)")
    assert peer.server.open_streams == 1
    peer.send(SENT[ending])
    assert peer.server.open_streams == 0
    peer = in_state("open")
    peer.send(SENT[ending])
    assert peer.server.open_streams == 1
    assert peer.server.is_open(ID)
    peer.server.send_response(ID, HEAD, b"x", TRAILERS)
    assert peer.server.open_streams == 0
    assert not peer.server.is_open(ID)


def answer_twice(peer):
    peer.server.send_response(ID, HEAD, b"", TRAILERS)
    peer.server.send_response(ID, HEAD, b"", TRAILERS)


def data_first(peer):
    peer.server.send_data(ID, b"data")


def data_behind_the_end(peer):
    peer.server.send_headers(ID, HEAD, end_stream=True)
    peer.server.send_data(ID, b"data")


def headers_twice(peer):
    peer.server.send_headers(ID, HEAD)
    peer.server.send_headers(ID, HEAD)


def headers_behind_the_end_that_waits(peer):
    peer.server.send_headers(ID, HEAD)
    peer.server.send_data(ID, bytes(100_000), end_stream=True)
    peer.server.send_headers(ID, TRAILERS, end_stream=True)


@pytest.mark.parametrize("misuse", [answer_twice, data_first, data_behind_the_end, headers_twice, headers_behind_the_end_that_waits])
def test_misuse_raises_an_error(misuse):
    peer = in_state("open")
    with pytest.raises(MisuseError, match="stream 3"):
        misuse(peer)


@pytest.mark.parametrize("state", ["idle", "reset by us", "reset by the peer", "closed by both ends"])
def test_responses_to_closed_streams_are_dropped(state):
    peer = in_state(state)
    peer.server.data_to_send()
    peer.server.send_headers(ID, HEAD)
    assert peer.server.send_data(ID, b"data", end_stream=True) == 0
    assert peer.server.send_response(ID, HEAD, b"data", TRAILERS) == 0
    peer.server.reset_stream(ID, ErrorCode.CANCEL)
    peer.server.consumed(ID, 10)
    assert peer.output() == []


def test_table_is_complete_and_never_returns_to_an_earlier_state():
    order = [Next.IDLE, Next.OPEN, Next.HALF_CLOSED_LOCAL, Next.HALF_CLOSED_REMOTE, Next.CLOSED]
    assert len(NEXT) == len(order)
    assert all(len(row) == len(Step) for row in NEXT)
    leads_to = {
        Next.IDLE: {Next.OPEN, Next.HALF_CLOSED_REMOTE},
        Next.OPEN: {Next.OPEN, Next.HALF_CLOSED_LOCAL, Next.HALF_CLOSED_REMOTE, Next.CLOSED},
        Next.HALF_CLOSED_LOCAL: {Next.HALF_CLOSED_LOCAL, Next.CLOSED},
        Next.HALF_CLOSED_REMOTE: {Next.HALF_CLOSED_REMOTE, Next.CLOSED},
        Next.CLOSED: set(),
    }
    for state, row in itertools.zip_longest(order, NEXT):
        assert {after for after in row if after <= Next.CLOSED} == leads_to[state]
