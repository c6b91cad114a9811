"""The states of a stream and what each frame does to it: RFC 9113, section 5.1, as a table.

A server that never pushes has no reserved streams. IDLE and CLOSED streams are not kept as objects; their rows are used all the same.
"""

import enum
from typing import Final


class Next(enum.IntEnum):
    """The state of a stream, or what a frame that does not fit its state amounts to."""

    IDLE = 0
    OPEN = 1
    #: We have ended our side; the peer may still send.
    HALF_CLOSED_LOCAL = 2
    #: The peer has ended its side; we may still send.
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4

    #: The frame is late, not wrong: dropped.
    IGNORED = 5
    #: Stream error PROTOCOL_ERROR.
    MALFORMED = 6
    #: Stream error STREAM_CLOSED.
    STREAM_ERROR = 7
    #: Connection error PROTOCOL_ERROR.
    NEVER_OPENED = 8
    #: Connection error STREAM_CLOSED.
    LONG_CLOSED = 9
    #: The application broke the rule: `MisuseError`.
    MISUSE = 10


class Step(enum.IntEnum):
    """What happens to a stream."""

    RECEIVE_HEADERS = 0
    RECEIVE_HEADERS_END = 1
    RECEIVE_DATA = 2
    RECEIVE_DATA_END = 3
    RECEIVE_RST_STREAM = 4
    RECEIVE_WINDOW_UPDATE = 5
    SEND_HEADERS = 6
    SEND_HEADERS_END = 7
    SEND_DATA = 8
    SEND_DATA_END = 9
    SEND_RST_STREAM = 10


_N: Final = Next
#: Outcome by state and step: `NEXT[state][step]`, the columns in the order of `Step`.
NEXT: Final[tuple[tuple[Next, ...], ...]] = (
    # IDLE. HEADERS opens it; nothing else may come before (PRIORITY, which is ignored everywhere, has no column).
    (
        *(_N.OPEN, _N.HALF_CLOSED_REMOTE),
        *(_N.NEVER_OPENED, _N.NEVER_OPENED, _N.NEVER_OPENED, _N.NEVER_OPENED),
        *(_N.MISUSE, _N.MISUSE, _N.MISUSE, _N.MISUSE, _N.MISUSE),
    ),
    # OPEN. A second HEADERS is trailers, which must end the stream (section 8.1).
    (
        *(_N.MALFORMED, _N.HALF_CLOSED_REMOTE, _N.OPEN, _N.HALF_CLOSED_REMOTE),
        *(_N.CLOSED, _N.OPEN),
        *(_N.OPEN, _N.HALF_CLOSED_LOCAL, _N.OPEN, _N.HALF_CLOSED_LOCAL, _N.CLOSED),
    ),
    # HALF_CLOSED_LOCAL
    (
        *(_N.MALFORMED, _N.CLOSED, _N.HALF_CLOSED_LOCAL, _N.CLOSED),
        *(_N.CLOSED, _N.HALF_CLOSED_LOCAL),
        *(_N.MISUSE, _N.MISUSE, _N.MISUSE, _N.MISUSE, _N.CLOSED),
    ),
    # HALF_CLOSED_REMOTE
    (
        *(_N.STREAM_ERROR, _N.STREAM_ERROR, _N.STREAM_ERROR, _N.STREAM_ERROR),
        *(_N.CLOSED, _N.HALF_CLOSED_REMOTE),
        *(_N.HALF_CLOSED_REMOTE, _N.CLOSED, _N.HALF_CLOSED_REMOTE, _N.CLOSED, _N.CLOSED),
    ),
    # CLOSED. What comes late for a stream that we have reset is dropped before this row is asked. RST_STREAM and WINDOW_UPDATE may have
    # crossed with our end of the stream. The application may not know yet that the peer has reset the stream.
    (
        *(_N.LONG_CLOSED, _N.LONG_CLOSED, _N.LONG_CLOSED, _N.LONG_CLOSED),
        *(_N.IGNORED, _N.IGNORED),
        *(_N.IGNORED, _N.IGNORED, _N.IGNORED, _N.IGNORED, _N.IGNORED),
    ),
)
