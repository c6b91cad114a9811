"""What TensorFlow Serving's clients are answered for an error: gRPC codes, and the HTTP numbers that its REST interface makes of them."""

from typing import Final

from backends.api.errors import Conflict, InvalidRequest, Overloaded, QueueTimeout, ServingError
from server.frontends.status import Status, status_of

_FAILED_PRECONDITION: Final = 9
_ABORTED: Final = 10
_UNAVAILABLE: Final = 14


class FailedPrecondition(InvalidRequest):
    """Well-formed, but not for this model as it is: a signature it has not, a label on a version that is not loaded."""


#: Where TensorFlow Serving promises another number than the taxonomy: a full queue is UNAVAILABLE there.
OVERRIDES: Final[dict[type, Status]] = {
    FailedPrecondition: Status(400, _FAILED_PRECONDITION),
    Overloaded: Status(503, _UNAVAILABLE),
    QueueTimeout: Status(503, _UNAVAILABLE),
    Conflict: Status(409, _ABORTED),
}


def tfs_status(error: ServingError) -> Status:
    """The status of `error` on TensorFlow Serving's protocol."""
    return status_of(error, OVERRIDES)
