"""Frames as bytes: their header, types, flags and settings (RFC 9113, sections 4, 6 and 11.2)."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
DEFAULT_FRAME_BYTES: Final = 16_384
MOST_FRAME_BYTES: Final = (1 << 24) - 1
DEFAULT_WINDOW_BYTES: Final = 65_535
MOST_WINDOW_BYTES: Final = (1 << 31) - 1
DEFAULT_TABLE_BYTES: Final = 4096
MOST_STREAM_ID: Final = (1 << 31) - 1

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

FLAG_ACK: Final = 0x1
FLAG_END_STREAM: Final = 0x1
FLAG_END_HEADERS: Final = 0x4
FLAG_PADDED: Final = 0x8
FLAG_PRIORITY: Final = 0x20

SETTING_HEADER_TABLE_SIZE: Final = 0x1
SETTING_ENABLE_PUSH: Final = 0x2
SETTING_MAX_CONCURRENT_STREAMS: Final = 0x3
SETTING_INITIAL_WINDOW_SIZE: Final = 0x4
SETTING_MAX_FRAME_SIZE: Final = 0x5
SETTING_MAX_HEADER_LIST_SIZE: Final = 0x6

#: (length << 8 | type, flags, reserved bit | stream id)
FRAME_HEADER: Final = Struct(">IBI")
_pack_header = FRAME_HEADER.pack
_pack_u32 = Struct(">I").pack
_pack_setting = Struct(">HI").pack
_pack_goaway = Struct(">II").pack

SETTINGS_ACK: Final = _pack_header(SETTINGS, FLAG_ACK, 0)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return _pack_header(len(payload) << 8 | kind, flags, stream_id) + payload


def settings_frame(entries: Iterable[tuple[int, int]]) -> bytes:
    """SETTINGS of (identifier, value)."""
    return frame(SETTINGS, 0, 0, b"".join(_pack_setting(identifier, value) for identifier, value in entries))


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _pack_u32(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, _pack_u32(code))


def goaway(last_stream_id: int, code: int, debug: bytes) -> bytes:
    """GOAWAY."""
    return frame(GOAWAY, 0, 0, _pack_goaway(last_stream_id, code) + debug)
