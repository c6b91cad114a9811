"""HTTP/2 frames as bytes (RFC 9113, sections 4, 6, 7 and 11.2): headers, types, flags, settings, error codes, and what breaks a rule."""

import enum
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
_pack_header: Final = FRAME_HEADER.pack
_pack_u32: Final = Struct(">I").pack
_pack_setting: Final = Struct(">HI").pack
_pack_goaway: Final = Struct(">II").pack

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


class ErrorCode(enum.IntEnum):
    """Why a stream was reset or a connection ended."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):
    """The peer broke a rule so that the connection is unusable (RFC 9113, section 5.4.1). Not raised outside this package."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class OversizedBlock(ConnectionFault):
    """A header block exceeds its limit. It was not decoded to its end, so that no later block can be decoded."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.ENHANCE_YOUR_CALM, text)


class StreamFault(Exception):
    """The peer broke a rule of only one stream (RFC 9113, section 5.4.2). Not raised outside this package."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code
        self.text = text


class MisuseError(Exception):
    """The application made a call that HTTP/2 does not allow, such as data behind its own end of a stream: a bug of the application."""


_ENTRY: Final = Struct(">HI")


def read_settings(payload: bytes) -> dict[int, int]:
    """The last value of each setting; unknown ones are among them.

    Raises:
        ConnectionFault: a value is out of its range, or the payload is no list of settings.
    """
    if len(payload) % _ENTRY.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    values: dict[int, int] = {}
    for identifier, value in _ENTRY.iter_unpack(payload):
        if identifier == SETTING_ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}, not 0 or 1")
        if identifier == SETTING_INITIAL_WINDOW_SIZE and value > MOST_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}, at most {MOST_WINDOW_BYTES} is allowed")
        if identifier == SETTING_MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value <= MOST_FRAME_BYTES:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}, {DEFAULT_FRAME_BYTES} to {MOST_FRAME_BYTES} is allowed"
            )
        values[identifier] = value
    return values
