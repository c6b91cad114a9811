"""The peer's SETTINGS, checked (RFC 9113, section 6.5.2)."""

from struct import Struct
from typing import Final

from stoker.server.net.http2.error_codes import ErrorCode
from stoker.server.net.http2.faults import ConnectionFault
from stoker.server.net.http2.frames import (
    DEFAULT_FRAME_BYTES,
    MOST_FRAME_BYTES,
    MOST_WINDOW_BYTES,
    SETTING_ENABLE_PUSH,
    SETTING_INITIAL_WINDOW_SIZE,
    SETTING_MAX_FRAME_SIZE,
)

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
