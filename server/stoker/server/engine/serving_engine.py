"""`ServingEngine`: admits each request and runs it on a borrowed servable. Every call of a frontend passes through this module."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ServingError, Unavailable
from stoker.server.config.report import Finding
from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.model_config import ListedModel, LoadOverrides
from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight, Via
from stoker.server.core.state import IndexEntry, ModelDescription, ModelStatistics, ServerDescription
from stoker.server.engine.response_stream import responses_of
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.lifecycle.servable import Servable
from stoker.server.observability.access_log import AccessLog
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.recorder import FailureReason, GoawayReason
from stoker.server.observability.settings import AccessLogSettings
from stoker.server.observability.tracer import Tracer
from stoker.server.scheduling.pending import outcome_of
from stoker.server.tuning.read_batching import Reads

log = logging.getLogger("stoker.engine")

#: The supported protocol extensions, by Triton's names.
EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
)


class ServingEngine:
    """The engine of a running server. Confined to: the event loop."""

    def __init__(
        self,
        manager: ModelManager,
        metrics: Metrics,
        clock: Clock,
        *,
        name: str,
        version: str,
        max_bytes_in_flight: int,
        max_request_bytes: int = 1 << 62,
        max_waiting_requests: int = 32,
        stalled_bytes_per_s: float = 1024,
        tracer: Tracer | None = None,
        access: AccessLog | None = None,
        reads: Reads | None = None,
    ) -> None:
        """Makes an engine over the servables of `manager`.

        Args:
            manager: Resolves models.
            metrics: Counts.
            clock: The time.
            name: The server's name, as clients see it.
            version: The server's version.
            max_bytes_in_flight: Bound on the bytes of all requests in flight.
            max_request_bytes: Bound on the bytes of one request.
            max_waiting_requests: Requests that may wait for bytes of others; see `AdmissionQueue`.
            stalled_bytes_per_s: Rate below which an upload is evicted if a request waits; likewise.
            tracer: Traces requests; None: no tracing.
            access: The access log; None: there is none.
            reads: The reads of the frontends, which the models' timers defer to; None: no reads.
        """
        self.reads = reads or Reads()
        self._manager = manager
        self._metrics = metrics
        self._clock = clock
        self._tracer = tracer or Tracer(None, clock.now_ns)
        self._access = access or AccessLog(AccessLogSettings(), clock.now_ns)
        self._description = ServerDescription(name, version, EXTENSIONS)
        self.budget = ByteBudget(
            max_bytes_in_flight, clock.now_ns, most_request_bytes=max_request_bytes, most_waiting=max_waiting_requests,
            stalled_bytes_per_s=stalled_bytes_per_s,
        )  # fmt: skip
        #: Accepted requests without a response.
        self.requests_in_flight = 0
        self._is_delaying = False
        self._is_stopping = False
        self._idle = asyncio.Event()
        # Bound methods as attributes: each runs for every request, the clock several times.
        self.now_ns: Callable[[], int] = clock.now_ns
        #: See `Engine.resolve`.
        self.resolve: Callable[[str, int | None], Servable] = manager.resolve
        self._count_ended = self._ended

    @property
    def bytes_in_flight(self) -> int:
        """Bytes reserved in the budget."""
        return self.budget.held_bytes

    def begin_delay(self) -> None:
        """Sets ready to false; requests are still served."""
        self._is_delaying = True

    def begin_shutdown(self) -> None:
        """Sets ready to false. Accepted requests still complete; new ones are rejected."""
        self._is_stopping = True
        self._notice_idle()

    async def drained(self, timeout_s: float) -> float:
        """Waits until no request is in flight, at most `timeout_s` seconds; returns the time left of that. REQUIRES: `begin_shutdown`."""
        started_ns = self._clock.now_ns()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        if self.requests_in_flight:
            log.warning("the exit timeout is over: the requests left fail as unavailable", extra={"requests": self.requests_in_flight})
            self._manager.abandon("the server is shutting down, and the time to respond is over")
        return max(0.0, timeout_s - (self._clock.now_ns() - started_ns) / 1e9)

    def is_live(self) -> bool:
        return not self._is_stopping

    def is_ready(self) -> bool:
        return not (self._is_stopping or self._is_delaying) and self._manager.is_ready()

    def is_model_ready(self, name: str, version: int | None) -> bool:
        return not self._is_stopping and self._manager.is_model_ready(name, version)

    def server(self) -> ServerDescription:
        return self._description

    def describe(self, name: str, version: int | None) -> ModelDescription:
        servable = self._manager.resolve(name, version)
        return ModelDescription(servable.config, servable.version, tuple(self._manager.ready_versions(name)))

    def labels(self, name: str, version: int | None, output: str) -> Sequence[str]:
        return self._manager.resolve(name, version).labels.get(output, ())

    def findings(self, name: str, version: int | None) -> Sequence[Finding]:
        return self._manager.resolve(name, version).findings

    def labelled_version(self, name: str, label: str) -> int | None:
        return self._manager.labelled_version(name, label)

    def submit(self, request: InferRequest, done: Done) -> InFlight:
        try:
            if self._is_stopping:
                raise Unavailable("the server is shutting down")
            # `Any`: compiled code would check a declared class, and an engine may run other servables.
            servable: Any = request.servable
            if self._access.is_on:
                done = self._access.watched(request, done)
            if self._tracer.is_on:
                done = self._tracer.traced(request, servable.version, done)
            flight: InFlight = servable.scheduler.submit(request, done, self._count_ended)
        except ServingError as error:
            self._access.rejected(request, error)
            raise
        self.requests_in_flight += 1
        return flight

    async def infer(self, request: InferRequest) -> InferResponse:
        return await outcome_of(self.submit, request)

    def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        return responses_of(request, self.submit, self._metrics, self._clock)

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        return self._manager.index(ready_only)

    async def load(self, name: str, overrides: LoadOverrides) -> None:
        self._reject_while_stopping()
        await self._manager.load(name, overrides)

    async def refresh(self, name: str) -> None:
        self._reject_while_stopping()
        await self._manager.refresh(name)

    async def replace_models(self, models: Sequence[ListedModel]) -> None:
        self._reject_while_stopping()
        await self._manager.replace_models(models, is_trusted=False)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        self._reject_while_stopping()
        await self._manager.unload(name, unload_dependents=unload_dependents)

    def statistics(self, name: str | None, version: int | None) -> list[ModelStatistics]:
        if name is None:
            return [self._metrics.statistics(key, each) for key, each in self._manager.served()]
        servable = self._manager.resolve(name, version)
        versions = self._manager.ready_versions(name) if version is None else [servable.version]
        return [self._metrics.statistics(servable.key, each) for each in versions]

    def metrics_text(self) -> bytes:
        return self._metrics.render()

    def serving_metrics_text(self) -> bytes:
        return self._metrics.render_serving()

    def count_rejected(self, name: str, version: int | None, error: ServingError, via: Via) -> None:
        self._access.unread(via, name, version, error)
        try:
            servable = self._manager.resolve(name, version)
        except ServingError:
            return
        recorder = self._metrics.version(servable.key, servable.version, servable.config.metric_tags)
        recorder.failed(FailureReason.OTHER, request_ns=0)

    def note_failed(self, via: Via, error: ServingError, model: str = "", version: int | None = None) -> None:
        self._access.log_response(via, error, model, version)

    def note_goaway(self, reason: GoawayReason) -> None:
        self._metrics.note_goaway(reason)

    def _ended(self) -> None:
        self.requests_in_flight -= 1
        if self._is_stopping:
            self._notice_idle()

    def _notice_idle(self) -> None:
        if self._is_stopping and not self.requests_in_flight:
            self._idle.set()

    def _reject_while_stopping(self) -> None:
        if self._is_stopping:
            raise Unavailable("the server is shutting down")
