"""A broken rule between zero-copy frames has the same error and costs the same windows as without receive buffers."""

from collections import Counter

import pytest

from stoker.server.net.http2.events import ConnectionEnded, DataReceived, DataWritten, StreamReset
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_raw import DATA, END_HEADERS, END_STREAM, HEADERS, REQUEST, RST_STREAM, RawPeer, block, frame, request, u32

LIMITS = H2Limits(stream_window_bytes=80_000, connection_window_bytes=100_000, frame_bytes=16_384, control_burst=10, control_per_s=1.0)
FULL = [frame(DATA, 0, 1, bytes(16_000))]
TRAILERS = frame(HEADERS, END_HEADERS | END_STREAM, 1, block(((b"x-sum", b"1"),)))
RESET = frame(RST_STREAM, 0, 1, u32(8))


def outcome(wire: list[bytes], fields: tuple[tuple[bytes, bytes], ...], *, is_placed: bool) -> dict[str, object]:
    """The outcome of two requests whose DATA arrives in one read: errors, reported bytes by stream, and the windows."""
    peer = RawPeer(LIMITS)
    peer.send(request(1, fields=fields), request(3))
    if is_placed:
        for stream_id in (1, 3):
            peer.server.set_receive_buffer(stream_id, memoryview(bytearray(200_000)))
    events = peer.send(*wire)
    events += peer.server.report_written(0.0)
    reported: Counter[int] = Counter()
    for event in events:
        if isinstance(event, DataWritten):
            reported[event.stream_id] += event.size_bytes
        elif isinstance(event, DataReceived):
            reported[event.stream_id] += len(event.data)
    return {
        "resets": [(event.stream_id, event.error_code) for event in events if isinstance(event, StreamReset)],
        "end": [event.error_code for event in events if isinstance(event, ConnectionEnded)],
        "reported": reported,
        "window": peer.server.statistics().receive_window_bytes,
        "windows": peer.server.statistics().streams,
    }


@pytest.mark.parametrize(
    ("wire", "resets", "ends"),
    [
        pytest.param([*FULL, frame(DATA, 0, 1, bytes(16_385))], [], [ErrorCode.FRAME_SIZE_ERROR], id="a frame too long"),
        pytest.param([frame(DATA, 0, 1, bytes(9)), frame(DATA, 0, 1)] * 40, [], [ErrorCode.ENHANCE_YOUR_CALM], id="empty frames"),
        pytest.param(
            [*FULL * 4, frame(DATA, 0, 1, bytes(9_000)), frame(DATA, 0, 1, bytes(7_001))],
            [(1, ErrorCode.FLOW_CONTROL_ERROR)],
            [],
            id="more than the stream's window",
        ),
        pytest.param(
            [*FULL * 4, frame(DATA, 0, 3, bytes(16_000)), frame(DATA, 0, 3, bytes(16_000)), frame(DATA, 0, 3, bytes(4_001))],
            [],
            [ErrorCode.FLOW_CONTROL_ERROR],
            id="more than the connection's window",
        ),
        pytest.param([*FULL, TRAILERS, *FULL], [(1, ErrorCode.STREAM_CLOSED)], [], id="behind trailers"),
        pytest.param([*FULL, RESET, frame(DATA, 0, 3, bytes(9)), *FULL], [(1, 8)], [ErrorCode.STREAM_CLOSED], id="behind a reset"),
        pytest.param([*FULL, frame(DATA, 0, 9, bytes(9)), *FULL], [], [ErrorCode.PROTOCOL_ERROR], id="of a stream never opened"),
        pytest.param([*FULL, frame(DATA, 0, 0, bytes(9)), *FULL], [], [ErrorCode.PROTOCOL_ERROR], id="of the connection"),
        # RFC 9113, section 4.1: the bit before the stream's number means nothing.
        pytest.param([*FULL, frame(DATA, 0, 1 << 31 | 1, bytes(9)), *FULL], [], [], id="with the reserved bit, which breaks none"),
    ],
)
def test_broken_rule_between_zero_copy_frames_has_the_same_outcome(wire: list[bytes], resets: list[tuple[int, int]], ends: list[int]):
    placed = outcome(wire, REQUEST, is_placed=True)
    assert (placed["resets"], placed["end"]) == (resets, ends)
    assert placed == outcome(wire, REQUEST, is_placed=False)


@pytest.mark.parametrize(("length", "resets"), [(36_000, []), (35_999, [(1, ErrorCode.PROTOCOL_ERROR)])])
def test_body_in_a_receive_buffer_must_have_its_content_length(length: int, resets: list[tuple[int, int]]):
    fields = (*REQUEST, (b"content-length", str(length).encode()))
    wire = [*FULL * 2, frame(DATA, 0, 1, bytes(4_000)), frame(DATA, END_STREAM, 1)]
    placed = outcome(wire, fields, is_placed=True)
    assert placed["resets"] == resets
    assert placed == outcome(wire, fields, is_placed=False)


def test_full_receive_buffer_is_reported_at_once():
    peer = RawPeer()
    peer.send(request(1))
    peer.server.set_receive_buffer(1, memoryview(bytearray(16_000)))
    assert peer.send(frame(DATA, 0, 1, bytes(9_000)), frame(DATA, 0, 1, bytes(7_000))) == [DataWritten(1, 16_000, False)]
