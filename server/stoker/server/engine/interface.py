"""`Engine`: the server's interface for the protocols. Plain data in, plain data out, errors from `stoker.backends.api.errors`.

All methods are called on the server's single event loop. Cancelling the task that awaits `infer` cancels the request: queued work is
dropped before compute, and other requests are not affected.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Protocol

from stoker.backends.api.errors import NotFound, ServingError, Unavailable
from stoker.server.config.report import Finding
from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.model_config import ListedModel, LoadOverrides
from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight, Servable, Via
from stoker.server.core.state import IndexEntry, ModelDescription, ModelStatistics, ServerDescription
from stoker.server.observability.recorder import GoawayReason
from stoker.server.tuning.read_batching import Reads


class Engine(Protocol):
    """The server, as the protocols and the package `web` use it."""

    @property
    def budget(self) -> ByteBudget:
        """The budget for the bytes of all requests in flight."""

    @property
    def reads(self) -> Reads:
        """The reads of all connections, which run single-sender batches at their end."""

    def is_live(self) -> bool:
        """Whether the process serves; False once a shutdown has begun."""

    def is_ready(self) -> bool:
        """Whether every desired model has a READY version (strict), or the initial loads have ended (not strict).

        False during the shutdown, and during the delay before it.
        """

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """Whether that version (None: any) is READY; False also for an unknown model."""

    def server(self) -> ServerDescription:
        """The server's name, version and extensions."""

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
        """The class labels of an output, in order; empty if the configuration names no label file.

        Raises:
            As `describe`.
        """

    def findings(self, name: str, version: int | None) -> Sequence[Finding]:
        """Each value of a version's configuration, and its origin.

        Raises:
            As `describe`.
        """

    def submit(self, request: InferRequest, done: Done) -> InFlight:
        """Runs one request on `request.servable`; `done` receives its single response or error later, never before this method returns.

        For protocols that respond without a task for each request. A caller that no longer needs the response cancels the returned object.

        Raises:
            ServingError: rejected at once (Overloaded, Unavailable, DeadlineExceeded); `done` is not called then.
        """

    def labelled_version(self, name: str, label: str) -> int | None:
        """The version of a model with the operator's label `label`; None: there is no such label."""

    async def infer(self, request: InferRequest) -> InferResponse:
        """Runs one request as `submit` does, and awaits its response.

        Raises:
            ServingError: Overloaded, Unavailable, DeadlineExceeded, BackendFailed, ...; each accepted request gets exactly one response.
        """

    def count_rejected(self, name: str, version: int | None, error: ServingError, via: Via) -> None:
        """Records a request that failed with `error` before `infer` received it (decoding, validation): in the access log, and in the
        statistics if the model is served.
        """

    def note_failed(self, via: Via, error: ServingError, model: str = "", version: int | None = None) -> None:
        """Records in the access log that an inference request failed with `error`. Frontends report every failure; the log has each one
        once.
        """

    def note_goaway(self, reason: GoawayReason) -> None:
        """Counts a gRPC connection to which the server sent GOAWAY."""

    def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Runs one request whose model may return any number of responses; an ordinary model returns one.

        Raises:
            As `infer`.
        """

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        """The repository index, by name and version. A model without a loaded version has one entry."""

    async def load(self, name: str, overrides: LoadOverrides) -> None:
        """Loads or reloads a model; returns when its desired versions are READY and no new request reaches an old one.

        Raises:
            Unavailable: the control mode does not allow it. ModelLoadError and others: the reason of the failure; versions that serve
                continue to serve.
        """

    async def refresh(self, name: str) -> None:
        """Scans one model of a polled repository at once, without waiting for the next poll, and serves its current content. Failed
        versions are loaded again; a model that is not in the repository is unloaded.

        Raises:
            Unavailable: the repository is not polled. ModelLoadError and others: the reason of the failure; versions that serve continue to
                serve.
        """

    async def replace_models(self, models: Sequence[ListedModel]) -> None:
        """Replaces the list of served models by `models`; returns when the new models serve.

        Raises:
            Forbidden: a folder is not allowed. Unavailable: the server does not use a list of models. InvalidRequest: a name is invalid.
            ModelLoadError: a model does not load, or a label belongs to a version that does not serve; the rest of the list takes effect.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unloads a model; returns once no new request reaches it.

        `unload_dependents`: the models of an ensemble's steps too, if they were loaded for ensembles only and no other ensemble needs them.

        Raises:
            As `load`.
        """

    def statistics(self, name: str | None, version: int | None) -> list[ModelStatistics]:
        """Statistics of one version, of all READY versions of a model, or (`name` None) of all models.

        Raises:
            As `describe`.
        """

    def metrics_text(self) -> bytes:
        """All metrics in the Prometheus text format."""

    def serving_metrics_text(self) -> bytes:
        """The metrics under TensorFlow Serving's names."""

    def now_ns(self) -> int:
        """The server's monotonic clock: the scale of `received_ns` and `deadline_ns`."""


def reject_ambiguous(engine: Engine, name: str) -> None:
    """Rejects the name of several models; see `core/model_key.py`.

    Raises:
        InvalidRequest: several models have the name `name`.
    """
    with suppress(NotFound, Unavailable):
        engine.describe(name, None)
