"""What TensorFlow Serving's clients are answered for an error: gRPC codes, and the HTTP numbers that its REST interface makes of them."""

from typing import Final

from stoker.backends.api.errors import Conflict, InvalidRequest, Overloaded, QueueTimeout, ServingError
from stoker.server.rpc.grpc_codes import ABORTED, FAILED_PRECONDITION, UNAVAILABLE
from stoker.server.rpc.status import Status, status_of


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
