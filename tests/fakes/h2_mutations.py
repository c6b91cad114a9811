"""Valid client conversations and mutations of them: input for tests that search for undefined outcomes."""

import random
import struct

from hpack import Encoder

from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.events import (
    ConnectionEnded,
    DataReceived,
    DataWritten,
    Event,
    HeadersTooLarge,
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
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    cut,
    frame,
    setting,
    u32,
)

HEAD = encode_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = encode_block([(b"grpc-status", b"0")])
#: Small, so that short conversations reach the bounds too.
LIMITS = H2Limits(
    concurrent_streams=4,
    header_list_bytes=600,
    header_count=12,
    header_block_bytes=2000,
    continuation_frames=3,
    stream_window_bytes=3000,
    connection_window_bytes=65_535,
    frame_bytes=16_384,
    sent_frame_bytes=700,
    output_bytes=2000,
    stream_queue_bytes=1 << 20,
    control_frames_waiting=20,
    control_burst=30,
    control_per_s=1.0,
    settings_count=4,
    reset_burst=10,
    reset_per_s=1.0,
    fault_burst=5,
    fault_per_s=1.0,
    closed_streams=3,
)
#: Receive buffers for `result_in_place`: longer than any body, or soon full.
_ROOMS_BYTES = (100_000, 40_000, 1, 700, 65_536)


def conversation(random_numbers: random.Random) -> list[bytes]:
    """Frames of a client that keeps the rules, the preface first."""
    encoder = Encoder()
    frames = [PREFACE, frame(SETTINGS, 0, 0, setting(4, random_numbers.choice([0, 10, 65_535, 1 << 20]))), frame(SETTINGS, ACK)]
    stream_id = 1
    for _ in range(random_numbers.randrange(1, 9)):
        frames += _request(random_numbers, encoder, stream_id)
        frames += random_numbers.sample(
            [
                frame(WINDOW_UPDATE, 0, 0, u32(random_numbers.randrange(1, 1 << 16))),
                frame(WINDOW_UPDATE, 0, stream_id, u32(random_numbers.randrange(1, 1 << 16))),
                frame(PING, 0, 0, random_numbers.randbytes(8)),
                frame(PING, ACK, 0, b"draining"),
                frame(PRIORITY, 0, stream_id, bytes(5)),
                frame(RST_STREAM, 0, stream_id, u32(ErrorCode.CANCEL)),
                frame(SETTINGS, 0, 0, setting(4, random_numbers.randrange(1 << 17)) + setting(1, random_numbers.choice([0, 4096]))),
                frame(0xF0, 0, 0, random_numbers.randbytes(20)),
                frame(GOAWAY, 0, 0, u32(0, 0) + b"bye"),
            ],
            random_numbers.randrange(3),
        )
        stream_id += random_numbers.choice([2, 2, 2, 4])
    return frames


def _request(random_numbers: random.Random, encoder: Encoder, stream_id: int) -> list[bytes]:
    fields = [*REQUEST, *((b"x-%d" % number, random_numbers.randbytes(6).hex().encode()) for number in range(random_numbers.randrange(4)))]
    if random_numbers.random() < 0.05:
        # More than is decoded.
        fields.append((b"x-big", random_numbers.randbytes(1 << random_numbers.randrange(9, 12)).hex().encode()))
    block = encoder.encode(fields, huffman=random_numbers.random() < 0.5)
    middle = random_numbers.randrange(len(block) + 1) if random_numbers.random() < 0.3 else len(block)
    frames = [frame(HEADERS, END_HEADERS if middle == len(block) else 0, stream_id, block[:middle])]
    if middle < len(block):
        frames.append(frame(CONTINUATION, END_HEADERS, stream_id, block[middle:]))
    for _ in range(random_numbers.randrange(4)):
        body = random_numbers.randbytes(random_numbers.randrange(900))
        if random_numbers.random() < 0.3:
            frames.append(frame(DATA, PADDED, stream_id, bytes((3,)) + body + bytes(3)))
        else:
            frames.append(frame(DATA, 0, stream_id, body))
    if random_numbers.random() < 0.2:
        frames.append(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, encoder.encode([(b"x-sum", b"1")])))
    elif random_numbers.random() < 0.9:
        frames.append(frame(DATA, END_STREAM, stream_id, b"end"))
    return frames


def meddled(random_numbers: random.Random, frames: list[bytes]) -> bytes:
    """The frames with some dropped, repeated, exchanged, retyped, cut or scribbled over."""
    frames = list(frames)
    for _ in range(random_numbers.randrange(4)):
        place = random_numbers.randrange(1, len(frames)) if len(frames) > 1 else 0
        taken = bytearray(frames[place])
        action = random_numbers.randrange(8)
        if action == 0:
            del frames[place]
            if not frames:
                return b""
        elif action == 1:
            frames.insert(place, bytes(taken) * random_numbers.choice([1, 1, 40]))
        elif action == 2:
            frames[place - 1], frames[place] = frames[place], frames[place - 1]
        elif action == 3 and len(taken) >= 9:
            taken[3] = random_numbers.randrange(12)
            frames[place] = bytes(taken)
        elif action == 4 and len(taken) >= 9:
            taken[4] ^= 1 << random_numbers.randrange(8)
            frames[place] = bytes(taken)
        elif action == 5 and len(taken) >= 9:
            struct.pack_into(">I", taken, 5, random_numbers.choice([0, 1, 2, 3, 5, 7, (1 << 31) - 1, random_numbers.getrandbits(32)]))
            frames[place] = bytes(taken)
        elif action == 6:
            frames[place] = bytes(taken[: random_numbers.randrange(max(1, len(taken)))])
        elif taken:
            taken[random_numbers.randrange(len(taken))] = random_numbers.getrandbits(8)
            frames[place] = bytes(taken)
    return b"".join(frames)


def serve(data: bytes, sizes: list[int], random_numbers: random.Random) -> list[Event]:
    """Gives `data` in reads of the sizes, in turn, to a connection whose application answers as it likes.

    Raises:
        AssertionError: what came of it is not among the defined outcomes.
    """
    server = ServerConnection(LIMITS, 0.0)
    seen_events: list[Event] = []
    streams: dict[int, bool] = {}
    output = b""
    position = reads = 0
    while position < len(data):
        size = sizes[reads % len(sizes)]
        reads += 1
        for event in server.receive(data[position : position + size], reads / 1000):
            assert not (seen_events and isinstance(seen_events[-1], ConnectionEnded)), "events behind the end of the connection"
            seen_events.append(event)
            _check_order(event, streams)
            _act(server, event, random_numbers)
        if random_numbers.random() < 0.7:
            output += b"".join(server.data_to_send())
        server.take_drained()
        position += size
    while server.has_output:
        output += b"".join(server.data_to_send())
    _check_end(server, seen_events, cut(output))
    return seen_events


def meaning(events: list[Event]) -> list[Event]:
    """Events with neighbouring data of a stream put together."""
    joined: list[Event] = []
    for event in events:
        if isinstance(event, DataReceived):
            earlier = joined[-1] if joined else None
            if isinstance(earlier, DataReceived) and earlier.stream_id == event.stream_id and not earlier.end_stream:
                joined[-1] = DataReceived(event.stream_id, bytes(earlier.data) + bytes(event.data), event.end_stream)
            else:
                joined.append(DataReceived(event.stream_id, bytes(event.data), event.end_stream))
        else:
            joined.append(event)
    return joined


def result(data: bytes, sizes: list[int]) -> tuple[list[Event], list[Frame], int]:
    """The events, frames and open streams of a connection whose application never responds."""
    server = ServerConnection(LIMITS, 0.0)
    events: list[Event] = []
    position = turn = 0
    while position < len(data):
        events += server.receive(data[position : position + sizes[turn % len(sizes)]], 0.0)
        position += sizes[turn % len(sizes)]
        turn += 1
    return meaning(events), cut(b"".join(server.data_to_send())), server.open_streams


def result_in_place(data: bytes, sizes: list[int]) -> tuple[list[Event], list[Frame], int]:
    """As `result`, where the application sets a receive buffer on nearly every stream, and reads are zero-copy where possible.

    Each read buffer is overwritten before the next read. Receive buffers must hold only bytes that an event reported.
    """
    server = ServerConnection(LIMITS, 0.0)
    events: list[Event] = []
    scratch = bytearray(min(max(sizes), len(data)))
    rooms: dict[int, bytearray] = {}
    filled: dict[int, int] = {}
    position = turn = 0
    while position < len(data):
        size = min(sizes[turn % len(sizes)], len(data) - position)
        turn += 1
        receive_buffer = server.receive_buffer()
        if receive_buffer is None:
            view = memoryview(scratch)[:size]
            view[:] = data[position : position + size]
            seen_events = server.receive(view, 0.0)
            view[:] = bytes(size)
        else:
            size = min(size, len(receive_buffer))
            receive_buffer[:size] = data[position : position + size]
            seen_events = server.receive_zero_copy(receive_buffer[:size], 0.0)
        position += size
        if turn % 3 == 0 or position == len(data):
            seen_events += server.report_written(0.0)
        for event in seen_events:
            if isinstance(event, DataWritten):
                assert event.size_bytes or event.end_stream
                begin = filled[event.stream_id]
                filled[event.stream_id] = end = begin + event.size_bytes
                assert end <= len(rooms[event.stream_id])
                events.append(DataReceived(event.stream_id, bytes(rooms[event.stream_id][begin:end]), event.end_stream))
            else:
                events.append(event)
        for event in seen_events:
            stream_id = getattr(event, "stream_id", 0)
            if isinstance(event, RequestStarted | DataReceived) and (stream_id not in rooms or filled[stream_id] == len(rooms[stream_id])):
                # Some are large enough for zero-copy reads; others are full within a frame.
                rooms[stream_id] = bytearray(_ROOMS_BYTES[(stream_id + len(events)) % len(_ROOMS_BYTES)])
                filled[stream_id] = 0
                server.set_receive_buffer(stream_id, memoryview(rooms[stream_id]))
    return meaning(events), cut(b"".join(server.data_to_send())), server.open_streams


def by_stream(events: list[Event]) -> dict[int, list[Event]]:
    """Events in their order on each stream, those of the connection as of stream 0. The core reports zero-copy bytes in steps."""
    found: dict[int, list[Event]] = {}
    for event in events:
        found.setdefault(getattr(event, "stream_id", 0), []).append(event)
    return {stream_id: meaning(each) for stream_id, each in found.items()}


def _check_order(event: Event, streams: dict[int, bool]) -> None:
    """`streams`: those with an event, and whether more of the request may arrive."""
    match event:
        case RequestStarted(stream_id, _, end_stream) | HeadersTooLarge(stream_id, _, _, end_stream):
            assert stream_id & 1
            assert all(stream_id > earlier for earlier in streams)
            streams[stream_id] = not end_stream
        case DataReceived(stream_id, data, end_stream):
            assert streams[stream_id], "data behind the end"
            assert len(data) or end_stream
            streams[stream_id] = not end_stream
        case TrailersReceived(stream_id, _):
            assert streams[stream_id], "trailers behind the end"
            streams[stream_id] = False
        case StreamReset(stream_id):
            assert stream_id in streams, "reset of a stream without an event"
            streams[stream_id] = False
        case PingReceived() | PingAcked() | PeerLeaving() | ConnectionEnded():
            pass


def _act(server: ServerConnection, event: Event, random_numbers: random.Random) -> None:
    """Does what an application might do; the answers are complete, since the state of streams is the connection's to know."""
    stream_id = getattr(event, "stream_id", 0)
    if isinstance(event, DataReceived) and random_numbers.random() < 0.7:
        server.consumed(stream_id, len(event.data))
    if stream_id and server.is_open(stream_id):
        choice = random_numbers.random()
        if choice < 0.2:
            server.send_response(stream_id, HEAD, bytes(random_numbers.randrange(5000)), TRAILERS)
        elif choice < 0.25:
            server.reset_stream(stream_id, ErrorCode.INTERNAL_ERROR)
        elif choice < 0.27:
            server.drain()


def _check_end(server: ServerConnection, seen_events: list[Event], sent: list[Frame]) -> None:
    end = next((event for event in seen_events if isinstance(event, ConnectionEnded)), None)
    last = [each for each in sent if each.kind == GOAWAY]
    if end is None:
        assert server.open_streams <= LIMITS.concurrent_streams
        assert all(int.from_bytes(each.payload[4:8], "big") == ErrorCode.NO_ERROR for each in last)
    else:
        assert end.error_code in set(ErrorCode) - {ErrorCode.NO_ERROR, ErrorCode.INTERNAL_ERROR}
        assert sent[-1].kind == GOAWAY
        assert int.from_bytes(sent[-1].payload[4:8], "big") == end.error_code
        assert server.open_streams == 0
        assert server.is_finished
