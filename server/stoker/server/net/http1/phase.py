"""`Phase`: the step of its present request that an HTTP connection is in; `HttpConnectionStatistics`: what the connection holds."""

import enum
from typing import NamedTuple


class Phase(enum.Enum):
    """The step of its present request that a connection is in."""

    #: Nothing has arrived since the last response.
    IDLE = 0
    #: A head is arriving.
    HEAD = 1
    #: A body is arriving.
    BODY = 2
    #: The whole request has arrived; its response is not written.
    SENDING_RESPONSE = 3
    #: A body waits for space in the byte budget; nothing is read.
    WAITING = 4
    #: The server sends nothing more, and drops all bytes until the client hangs up.
    REJECTED = 5


class HttpConnectionStatistics(NamedTuple):
    """The sizes of what one connection holds.

    Attributes:
        ahead_bytes: Bytes read from the socket that wait for earlier responses.
        has_ended: Whether the client has ended its sending side.
        unflushed_responses: Responses that count against the byte budget until the client takes them.
    """

    ahead_bytes: int
    has_ended: bool
    unflushed_responses: int
