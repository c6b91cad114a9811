"""`Engine`: all that a protocol sees of the server. Plain data in, plain data out, errors from `stoker.backends.api.errors`.

Everything here is called on the server's one event loop. Cancelling the task that awaits `infer` takes the request back: queued work
is dropped before compute, and nothing else is touched.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from stoker.backends.api.errors import ServingError
from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.model_config import ListedModel, LoadOverrides
from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight, Servable, Via
from stoker.server.core.state import IndexEntry, ModelDescription, ModelStatistics, ServerDescription
from stoker.server.observability.recorder import GoawayReason
from stoker.server.tuning.read_batching import Reads


class Engine(Protocol):
    """The server, as the protocols and `web` see it."""

    @property
    def budget(self) -> ByteBudget:
        """The bytes that all requests being served hold together."""

    @property
    def reads(self) -> Reads:
        """The reads of all connections, which run single-sender batches at their end."""

    def is_live(self) -> bool:
        """Whether the process serves at all; False once it is shutting down."""

    def is_ready(self) -> bool:
        """Whether every desired model has a READY version (strict) or the start-up is over (not strict).

        False while shutting down, and in the delay before it.
        """

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """Whether that version (None: any) is READY; False also for an unknown model."""

    def server(self) -> ServerDescription:
        """Name, version and extensions."""

    def describe(self, name: str, version: int | None) -> ModelDescription:
        """The READY version that a request for (`name`, `version`) would reach.

        Raises:
            UnknownModel: no such model. NotFound: no such version. Unavailable: known, but not READY.
        """

    def resolve(self, name: str, version: int | None) -> Servable:
        """The READY version that a request for (`name`, `version`) runs on; resolved once, when the whole request has arrived.

        Raises:
            As `describe`.
        """

    def labels(self, name: str, version: int | None, output: str) -> Sequence[str]:
        """Class labels of an output, in order; empty where the config names no label file.

        Raises:
            As `describe`.
        """

    def submit(self, request: InferRequest, done: Done) -> InFlight:
        """Runs one request on `request.servable`; `done` gets its one response or error later, never before this returns.

        The form for protocols that respond without a task for each request. Who needs the response no more cancels what this returns.

        Raises:
            ServingError: rejected at once (Overloaded, Unavailable, DeadlineExceeded); `done` is not called then.
        """

    def labelled_version(self, name: str, label: str) -> int | None:
        """The version of a model that the operator calls `label`; None: there is no such label."""

    async def infer(self, request: InferRequest) -> InferResponse:
        """As `submit`, to be awaited.

        Raises:
            ServingError: Overloaded, Unavailable, DeadlineExceeded, BackendFailed, ...; each accepted request gets exactly one response.
        """

    def count_rejected(self, name: str, version: int | None, error: ServingError, via: Via) -> None:
        """Notes a request that failed by `error` before `infer` saw it (decoding, validation); the access log has it, and statistics,
        but for a model not served.
        """

    def note_failed(self, via: Via, error: ServingError, model: str = "", version: int | None = None) -> None:
        """Notes in the access log that an inference request failed with `error`. Frontends report every failure; none is noted twice."""

    def note_goaway(self, reason: GoawayReason) -> None:
        """Counts a gRPC connection that was sent GOAWAY."""

    def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Runs one request whose model may return any number of responses; an ordinary model returns one.

        Raises:
            As `infer`.
        """

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        """The contents of the repository, by name and version. A model of which no version was loaded has one entry."""

    async def load(self, name: str, overrides: LoadOverrides) -> None:
        """Loads or reloads a model; returns when its desired versions are READY and no new request reaches an old one.

        Raises:
            Unavailable: the control mode does not allow it. ModelLoadError and others: why it failed; what served goes on serving.
        """

    async def refresh(self, name: str) -> None:
        """Serves of a model, under polling, what the repository holds of it now, without waiting for the next poll. What has failed before
        is tried again; a model that is not in the repository is unloaded.

        Raises:
            Unavailable: the repository is not polled. ModelLoadError and others: why it failed; what served goes on serving.
        """

    async def replace_models(self, models: Sequence[ListedModel]) -> None:
        """Takes `models` in place of the list of models that is served; returns when what is new of them serves.

        Raises:
            Forbidden: a folder is not allowed. Unavailable: the server follows no list. InvalidRequest: a name.
            ModelLoadError: a model does not load, or a label belongs to a version that does not serve; the rest of the list counts.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Takes a model out of service; returns once no new request reaches it.

        Raises:
            As `load`.
        """

    def statistics(self, name: str | None, version: int | None) -> list[ModelStatistics]:
        """Statistics of one version, of all READY versions of a model, or (name None) of all models.

        Raises:
            As `describe`.
        """

    def metrics_text(self) -> bytes:
        """The Prometheus text exposition of every metric."""

    def serving_metrics_text(self) -> bytes:
        """The same figures under TensorFlow Serving's names."""

    def now_ns(self) -> int:
        """The server's monotonic clock: the scale of `received_ns` and `deadline_ns`."""
