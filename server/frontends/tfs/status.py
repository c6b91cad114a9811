"""What TensorFlow Serving's clients are answered for an error: gRPC codes, and the HTTP numbers that its REST interface makes of them."""

from typing import Final

from backends.api.errors import Conflict, InvalidRequest, Overloaded, QueueTimeout, ServingError
from server.frontends.grpc_codes import ABORTED, FAILED_PRECONDITION, UNAVAILABLE
from server.frontends.status import Status, status_of


class FailedPrecondition(InvalidRequest):
    """Well-formed, but not for this model as it is: a signature it has not, a label on a version that is not loaded."""


#: Where TensorFlow Serving promises another number than the taxonomy: a full queue is UNAVAILABLE there.
OVERRIDES: Final[dict[type, Status]] = {
    FailedPrecondition: Status(400, FAILED_PRECONDITION),
    Overloaded: Status(503, UNAVAILABLE),
    QueueTimeout: Status(503, UNAVAILABLE),
    Conflict: Status(409, ABORTED),
}


def tfs_status(error: ServingError) -> Status:
    """The status of `error` on TensorFlow Serving's protocol."""
    return status_of(error, OVERRIDES)
