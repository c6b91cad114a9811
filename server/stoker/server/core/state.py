"""State, statistics and description of a model version. Plain data."""

import enum
from dataclasses import dataclass, field

from stoker.server.core.model_config import ModelConfig


class VersionState(enum.Enum):
    """The states of one version: NEW -> LOADING -> READY -> DRAINING -> UNLOADED, or LOADING -> FAILED."""

    NEW = "NEW"
    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    UNLOADED = "UNLOADED"
    FAILED = "FAILED"

    @property
    def triton_name(self) -> str:
        """The state's name in Triton's repository index."""
        return _TRITON[self]


_TRITON = {
    VersionState.NEW: "LOADING",
    VersionState.LOADING: "LOADING",
    VersionState.READY: "READY",
    VersionState.DRAINING: "UNLOADING",
    VersionState.UNLOADED: "UNAVAILABLE",
    VersionState.FAILED: "UNAVAILABLE",
}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the repository index.

    Attributes:
        name: Model name.
        version: Version number; None where the model was never loaded or has no readable version.
        state: None as for `version`.
        reason: Why the version is not READY, or why its last reload failed while the version still serves; empty otherwise.
        backend: The backend's name; empty where unknown.
        key: The model's key, where it is not its name; see `core/model_key.py`.
    """

    name: str
    version: int | None
    state: VersionState | None
    reason: str = ""
    backend: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Duration:
    """A number of events and their total time in nanoseconds."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchSizeStatistics:
    """Executions of one batch size (rows)."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics:
    """Responses of a decoupled model at one position, over all requests.

    Attributes:
        compute_infer, compute_output: Time to compute the responses.
        success, fail: Responses with outputs, and errors instead of responses.
        empty_response: Final responses without outputs.
        cancel: Responses of requests that the client had cancelled.
    """

    compute_infer: Duration
    compute_output: Duration
    success: Duration
    fail: Duration
    empty_response: Duration
    cancel: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """Response to ModelStatistics for one version.

    Attributes:
        last_inference_ms: Wall time of the last request, milliseconds since the epoch; 0 = never.
        inference_count: Rows completed (a request of batch n counts n).
        execution_count: Executions of the model.
        success, fail: Whole requests, end to end.
        queue, compute_input, compute_infer, compute_output: Per request: `count` rises by one for each, `ns` by the time its batch took.
            Requests that the response cache completed count in `queue` only.
        cache_hit: Requests that completed by the response cache, and the times of their lookups.
        cache_miss: Requests that ran although the version has a response cache, and the times to look up and to store their responses.
        responses: By position, where the model is decoupled.
        batches: By batch size, ascending; `count` here is executions.
    """

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: tuple[BatchSizeStatistics, ...] = ()
    responses: tuple[ResponseStatistics, ...] = ()
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A READY version, as clients see it.

    Attributes:
        config: Its completed configuration; `config.signature` is what requests are validated against.
        version: The version described.
        ready_versions: All versions of the model that are READY, ascending.
    """

    config: ModelConfig
    version: int
    ready_versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The server's name, version and protocol extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]
