"""`EnsembleScheduler`: runs the steps of an ensemble for each request, each step as soon as its inputs are there.

A step is an ordinary request to the scheduler of its model, so that steps of different requests share batches, and queue policies,
sequences and ejection hold for them. Arrays pass from step to step as they are: no copy, no wire format. There is no task and no future.

Requests are admitted at the entry: above the bound on requests in flight they are rejected as by a full queue.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import DeadlineExceeded, InvalidRequest, Overloaded, ServingError, Unavailable, Unsupported
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.streaming import DECOUPLED_ONLY
from stoker.server.core.completion import Completion
from stoker.server.core.ensemble import Ensemble, EnsembleStep
from stoker.server.core.request import Done, InferRequest, InferResponse
from stoker.server.core.timers import Timers
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.cached import CachedScheduler
from stoker.server.scheduling.ensemble_plan import EnsemblePlan, Resolve
from stoker.server.scheduling.ensemble_run import STEP_TIMES, EnsembleRun, ignore
from stoker.server.scheduling.ensemble_stream import MOST_RESPONSES, StreamRun
from stoker.server.scheduling.pending import outcome_of

#: Plans that an ensemble keeps, one for each selection of outputs that clients ask for.
_KEPT_PLANS: Final = 64


class EnsembleScheduler:
    """The requests of one loaded version of an ensemble. Confined to: the event loop.

    Attributes:
        on_idle: Called whenever the last request in flight has completed.
        name, version, signature: Of the ensemble.
        runs: The requests in flight.
    """

    def __init__(
        self,
        name: str,
        version: int,
        signature: ModelSignature,
        ensemble: Ensemble,
        step_signatures: Sequence[ModelSignature],
        resolve: Resolve,
        *,
        clock: Clock,
        timers: Timers,
        recorder: VersionRecorder,
        max_queue_size: int,
    ) -> None:
        """Makes a scheduler.

        Args:
            name: The ensemble's name.
            version: Its version.
            signature: Its signature.
            ensemble: The steps.
            step_signatures: The signatures of their models; the ensemble was checked against them.
            resolve: Finds the version that a step runs on, for each request.
            clock: The time.
            timers: Timers on the same scale.
            recorder: Counts the requests of the ensemble.
            max_queue_size: Requests in flight, unless the ensemble sets a lower bound.
        """
        self.on_idle: Callable[[], None] | None = None
        self.name = name
        self.version = version
        self.signature = signature
        self._ensemble = ensemble
        self._step_signatures = tuple(step_signatures)
        self._resolve = resolve
        self._now_ns = clock.now_ns
        self._timers = timers
        self._recorder = recorder
        #: Requests with a response that are not counted yet.
        self._counted_rows: list[int] = []
        self._counted_request_ns: list[int] = []
        self._counted_compute_ns: list[tuple[int, int, int]] = []
        bound = ensemble.max_inflight_requests
        # Triton's bound holds for each request at each step, where requests collect only behind a decoupled one.
        self._most = max_queue_size if signature.is_decoupled or not bound else min(bound, max_queue_size)
        self._most_responses = bound or MOST_RESPONSES
        self._plans: dict[tuple[str, ...], EnsemblePlan] = {}
        self.runs: set[Completion[InferResponse]] = set()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Accepted requests that are not complete."""
        return len(self.runs)

    @property
    def outage(self) -> str:
        """Why the ensemble cannot run a request now: the first of its steps that cannot; empty: it can."""
        for name, step in zip(self._ensemble.step_names, self._ensemble.steps, strict=True):
            servable = self._servable(step)
            if servable is not None and (why := servable.scheduler.outage):
                return f"step '{name}': {why}"
        return ""

    @property
    def is_lost(self) -> bool:
        """Whether a step is lost; see `Scheduler.is_lost`."""
        servables = [self._servable(step) for step in self._ensemble.steps]
        return any(servable is not None and servable.scheduler.is_lost for servable in servables)

    def step_servables(self) -> tuple[object, ...]:
        """The versions that the steps run on now, including those of ensembles among them."""
        found: list[object] = []
        for step in self._ensemble.steps:
            servable = self._servable(step)
            found.append(servable)
            if servable is not None:
                inner = servable.scheduler.inner if isinstance(servable.scheduler, CachedScheduler) else servable.scheduler
                if isinstance(inner, EnsembleScheduler):
                    found += inner.step_servables()
        return tuple(found)

    def _servable(self, step: EnsembleStep) -> Any:
        """The version that a step runs on now; None: its model does not serve."""
        try:
            return self._resolve(step.key, step.version)
        except ServingError:
            return None

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> EnsembleRun | StreamRun:
        """Accepts one validated request; `done` receives its single response later.

        `ended` is called once, after the response or when the request is cancelled.

        Raises:
            Overloaded: too many requests are in flight. Unavailable: the version is being unloaded, or the model of a step does not serve.
                DeadlineExceeded: the deadline has passed. InvalidRequest: a parameter is wrong. Unsupported: the ensemble is
                decoupled, and the client takes one response only. And as the schedulers of the first steps.
        """
        now_ns = self._now_ns()
        if not request.received_ns:
            request.received_ns = now_ns
        try:
            if self._is_closed:
                raise Unavailable(f"model '{self.name}' version {self.version} is being unloaded")
            if request.deadline_ns is not None and request.deadline_ns <= now_ns:
                raise DeadlineExceeded("the request's deadline had passed when it arrived")
            if len(self.runs) >= self._most:
                raise Overloaded(
                    f"Exceeds maximum queue size: {self._most} request(s) of the ensemble '{self.name}' are in flight already",
                    retry_after_s=1.0,
                )
            if request.parameters:
                check_parameters(request)
            if self.signature.is_decoupled and request.responses is None:
                raise Unsupported(DECOUPLED_ONLY)
            plan = self._plans.get(request.output_names)
            if plan is None:
                plan = self._make_plan(request.output_names)
            run: EnsembleRun | StreamRun
            if self.signature.is_decoupled:
                run = StreamRun(self, plan, request, done, ended or ignore, self._most_responses)
            else:
                run = EnsembleRun(self, plan, request, done, ended or ignore)
            self.runs.add(run)
            try:
                run.begin()
            except BaseException:
                run.is_over = True
                self.runs.discard(run)
                raise
        except ServingError:
            self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - request.received_ns)
            raise
        return run

    async def infer(self, request: InferRequest) -> InferResponse:
        """Submits a request and awaits its response; cancelling the caller cancels the request.

        Raises:
            ServingError: as `submit`; or a step failed.
        """
        return await outcome_of(self.submit, request)

    def abandon(self, why: str) -> None:
        """Fails every request in flight with UNAVAILABLE and the text `why`."""
        for run in list(self.runs):
            if isinstance(run, (EnsembleRun, StreamRun)):
                run.abandon(why)

    async def close(self) -> None:
        """Rejects new requests, and fails those in flight with UNAVAILABLE."""
        self._is_closed = True
        self.abandon(f"model '{self.name}' version {self.version} was unloaded")

    def count_succeeded(self, request: InferRequest, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Counts a request with a response. As in Triton, its compute times are the sums of those of its steps, and it has no queue."""
        if (access := request.access) is not None:
            access.queue_ns = queue_ns
            access.compute_ns = input_ns + infer_ns + output_ns
            access.input_ns = input_ns
            access.output_ns = output_ns
        if not self._counted_rows:
            # Together with the other requests whose last steps have ended in the same batch, which takes half the time.
            self._timers.call_soon(self._count)
        self._counted_rows.append(request.rows)
        self._counted_request_ns.append(self._now_ns() - request.received_ns)
        self._counted_compute_ns.append((input_ns, infer_ns, output_ns))

    def _count(self) -> None:
        rows, compute_ns = self._counted_rows, self._counted_compute_ns
        request_ns = self._counted_request_ns
        self._counted_rows, self._counted_request_ns, self._counted_compute_ns = [], [], []
        input_ns = infer_ns = output_ns = 0
        for each in compute_ns:
            input_ns += each[0]
            infer_ns += each[1]
            output_ns += each[2]
        self._recorder.executed(rows, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
        self._recorder.succeeded_apart(rows=rows, request_ns=request_ns, queue_ns=[0] * len(rows), compute_ns=compute_ns)

    def count_failed(self, request: InferRequest, reason: FailureReason) -> None:
        """Counts a request without a response."""
        self._recorder.failed(reason, request_ns=self._now_ns() - request.received_ns)

    def _make_plan(self, output_names: tuple[str, ...]) -> EnsemblePlan:
        if len(self._plans) >= _KEPT_PLANS:
            self._plans.clear()
        plan = self._plans[output_names] = EnsemblePlan(self._ensemble, self._step_signatures, output_names, self._resolve)
        return plan


class StepIdentity:
    """The identity of an ensemble for the response cache: another one after each reload of a model that it runs.

    Confined to: the event loop.
    """

    __slots__ = ("_fresh", "_identity", "_seen", "_servables")

    def __init__(self, servables: Callable[[], tuple[object, ...]], fresh: Callable[[], bytes]) -> None:
        """`servables` returns what the steps run on now, `fresh` a new identity."""
        self._servables = servables
        self._fresh = fresh
        self._seen: tuple[object, ...] = ()
        self._identity = fresh()

    def __call__(self) -> bytes:
        """The identity now."""
        servables = self._servables()
        # By identity: the references keep the objects, so that no other one has the same.
        if len(servables) != len(self._seen) or any(one is not other for one, other in zip(servables, self._seen, strict=True)):
            self._seen = servables
            self._identity = self._fresh()
        return self._identity


def check_parameters(request: InferRequest) -> None:
    """Checks the parameters that an ensemble reads.

    Raises:
        InvalidRequest: a value has a wrong type.
    """
    if not isinstance(request.parameters.get(STEP_TIMES, False), bool):
        raise InvalidRequest(f"parameter '{STEP_TIMES}' must be a boolean")
