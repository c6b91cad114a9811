"""Events that the server reports while it serves: one `VersionRecorder` for each loaded version, one `ServerRecorder` for all.

Protocols only, so that scheduling and lifecycle depend on the words and tests can listen in; `metrics.py` implements them.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

from stoker.server.core.state import VersionState


class GoawayReason(enum.Enum):
    """The value is the label of `stoker_grpc_goaways_total`."""

    #: The server is shutting down.
    SHUTDOWN = "shutdown"
    #: The connection is older than `--grpc-max-connection-age`.
    AGE = "connection_age"
    #: It had no call for `--grpc-max-connection-idle`.
    IDLE = "connection_idle"
    #: It was the one without a call for the longest time when the port was full.
    FULL = "connections_full"
    #: Its client sent more of something than its traffic accounts for; see `stoker.server.net.http2.events.Flood`.
    CONTROL_FLOOD = "control_flood"
    RESET_FLOOD = "reset_flood"
    FAULT_FLOOD = "fault_flood"
    HEADERS = "oversized_metadata"
    #: Its client pinged too often; gRPC's `too_many_pings`.
    PINGS = "too_many_pings"
    #: A flood went on, or its client exceeded a bound that no client needs to reach (ENHANCE_YOUR_CALM).
    EXCESS = "excess"
    #: Its client broke a rule of HTTP/2.
    PROTOCOL = "protocol_error"


class FailureReason(enum.Enum):
    """Why a request failed, as `nv_inference_request_failure` labels it."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class VersionRecorder(Protocol):
    """Counts for one model version. Durations in nanoseconds.

    Attributes:
        queue_depth: Requests that wait now; each scheduler of the version adds its own and takes them off.
    """

    queue_depth: int

    def executed(self, rows: Sequence[int], *, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """A batch ran; `rows` has an element for each execution of the instance (several if requests were retried apart)."""

    def succeeded(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """The requests of one batch completed: rows and times of each, and the times of their batch."""

    def failed(self, reason: FailureReason, *, request_ns: int) -> None:
        """A request got an error."""

    def ejected(self, count: int) -> None:
        """`count` instances are ejected now, because their last batches failed. Called on every change."""


class ServerRecorder(Protocol):
    """Counts and states for the whole server."""

    def version(self, name: str, version: int, tags: Mapping[str, str]) -> VersionRecorder:
        """The recorder of a version; the same one again after a reload, so that counters never fall."""

    def state(self, name: str, version: int, state: VersionState) -> None:
        """A version changed state."""

    def loaded(self, name: str, version: int, *, seconds: float) -> None:
        """A load ended well."""

    def warmed(self, name: str, version: int, *, duration_ns: int) -> None:
        """The warm-up of a load ended well."""

    def load_failed(self, name: str, version: int | None) -> None:
        """A load or reload failed."""

    def reload_failed(self, name: str, version: int, is_failed: bool) -> None:
        """Whether the last reload of a version that serves failed. Called on every change."""

    def forget(self, name: str, version: int) -> None:
        """A version is gone from the repository: its series end."""
