"""The events that a running server reports: a `VersionRecorder` for each loaded version, and one `ServerRecorder` for the server.

Only protocols, so that scheduling and lifecycle do not depend on `metrics.py`, which implements them, and tests can replace it.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

from stoker.server.core.state import VersionState


class GoawayReason(enum.Enum):
    """The reason of a GOAWAY; the value is the label of `stoker_grpc_goaways_total`."""

    #: The server is shutting down.
    SHUTDOWN = "shutdown"
    #: The connection has reached `--grpc-max-connection-age`.
    AGE = "connection_age"
    #: The connection had no call for `--grpc-max-connection-idle`.
    IDLE = "connection_idle"
    #: The port was full, and the connection had been without a call for the longest time.
    FULL = "connections_full"
    #: The client sent more of something than its traffic accounts for; see `stoker.server.net.http2.events.Flood`.
    CONTROL_FLOOD = "control_flood"
    RESET_FLOOD = "reset_flood"
    FAULT_FLOOD = "fault_flood"
    HEADERS = "oversized_metadata"
    #: The client sent too many pings; gRPC's `too_many_pings`.
    PINGS = "too_many_pings"
    #: A flood continued, or the client exceeded a bound that no ordinary client reaches (ENHANCE_YOUR_CALM).
    EXCESS = "excess"
    #: The client violated HTTP/2.
    PROTOCOL = "protocol_error"


class FailureReason(enum.Enum):
    """The reason of a failed request; the value is the label of `nv_inference_request_failure`."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class VersionRecorder(Protocol):
    """Receives the events of one model version. Durations in nanoseconds.

    Attributes:
        queue_depth: Number of waiting requests; each scheduler of the version adds and subtracts its own.
    """

    queue_depth: int

    def executed(self, rows: Sequence[int], *, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """A batch ran; `rows` has an element for each execution of the instance (several if requests were run again separately)."""

    def succeeded(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """The requests of one batch completed: rows and times of each, and the times of their batch."""

    def succeeded_apart(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], compute_ns: Sequence[tuple[int, int, int]]
    ) -> None:
        """As `succeeded`, of requests that each ran alone: `compute_ns` has the input, infer and output time of each."""

    def failed(self, reason: FailureReason, *, request_ns: int) -> None:
        """A request got an error."""

    def first_response_buckets(self, bounds_ns: Sequence[int] | None) -> None:
        """Sets the upper bounds of the buckets of the times to the first response; None: Triton's. Called on every load."""

    def padded(self, *, useful: int, computed: int) -> None:
        """A request completed whose padded inputs have `useful` elements of its own, and `computed` elements in all."""

    def uses_cache(self, is_cached: bool) -> None:
        """Reports whether the version has a response cache. Called on every load."""

    def cache_hit(self, *, request_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """A request completed without an execution: by a stored response, or by the result of an equal request."""

    def cache_missed(self, *, lookup_ns: int) -> None:
        """A request ran because there was no stored response; `lookup_ns` includes the time to store its response."""

    def ejected(self, count: int) -> None:
        """The number of ejected instances is now `count`. Called on every change."""

    def worker_died(self) -> None:
        """A worker process has ended while it was needed, or could not be started again."""


class ServerRecorder(Protocol):
    """Receives the events and states of the whole server."""

    def version(self, name: str, version: int, tags: Mapping[str, str]) -> VersionRecorder:
        """The recorder of a version; the same one after a reload, so that counters never decrease."""

    def state(self, name: str, version: int, state: VersionState) -> None:
        """A version changed its state."""

    def loaded(self, name: str, version: int, *, seconds: float) -> None:
        """A load succeeded."""

    def warmed(self, name: str, version: int, *, duration_ns: int) -> None:
        """The warm-up of a load succeeded."""

    def load_failed(self, name: str, version: int | None) -> None:
        """A load or reload failed."""

    def reload_failed(self, name: str, version: int, is_failed: bool) -> None:
        """Reports whether the last reload of a serving version failed. Called on every change."""

    def forget(self, name: str, version: int) -> None:
        """A version is no longer in the repository: its series end."""
