"""`Phase`, where a connection stands between two of its messages."""

import enum


class Phase(enum.Enum):
    """What happens next on a connection."""

    #: Nothing has come since the last answer.
    IDLE = 0
    #: A head is coming.
    HEAD = 1
    #: A body is coming.
    BODY = 2
    #: The whole request has come; its answer has not been written.
    SENDING_RESPONSE = 3
    #: Nothing more is said: whatever comes is dropped until the client hangs up.
    REFUSED = 4
