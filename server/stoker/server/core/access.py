"""What an access log is told of one request. Times in nanoseconds."""

import enum


class Via(enum.StrEnum):
    """By which protocol, and over which transport, a request came."""

    KSERVE_GRPC = "kserve-grpc"
    KSERVE_HTTP = "kserve-http"
    GENERATE = "generate-http"
    TFS_GRPC = "tfs-grpc"
    TFS_HTTP = "tfs-http"
    ADLIK_GRPC = "adlik-grpc"
    ADLIK_HTTP = "adlik-http"


class AccessNote:
    """Filled in by the scheduler for the requests that will be logged; the others have none. Confined to: the event loop.

    Attributes:
        is_logged: Its line is written.
        queue_ns: How long the request waited; None: it never left the queue.
        compute_ns: The time of the batch that it was in: inputs, model, outputs.
    """

    __slots__ = ("compute_ns", "is_logged", "queue_ns")

    def __init__(self) -> None:
        self.is_logged = False
        self.queue_ns: int | None = None
        self.compute_ns: int | None = None
