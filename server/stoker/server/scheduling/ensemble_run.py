"""`EnsembleRun`: one request of an ensemble in progress. Its steps are submitted as their inputs come.

The first step that fails fails the request and cancels its other steps.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import orjson

from stoker.backends.api.errors import ErrorCode, Internal, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature
from stoker.server.core.completion import Completion
from stoker.server.core.request import Array, Done, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.observability.recorder import FailureReason
from stoker.server.scheduling.ensemble_plan import EnsemblePlan, PlannedStep, StepNote

log = logging.getLogger("stoker.scheduling")

#: The parameter of a request that asks for the times of the steps, and the parameter of the response that has them.
STEP_TIMES: Final = "stoker_step_times"
_REJECTIONS: Final = frozenset({ErrorCode.OVERLOADED, ErrorCode.DEADLINE})


class RunOwner(Protocol):
    """The scheduler of an ensemble, as its requests use it.

    Attributes:
        name, version, signature: Of the ensemble.
        runs: The requests in flight, which remove themselves.
        on_idle: To be called after the last of them.
    """

    name: str
    version: int
    signature: ModelSignature
    runs: set[Completion[InferResponse]]
    on_idle: Callable[[], None] | None

    def count_succeeded(self, request: InferRequest, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Counts a request with a response; the times are the sums of those of its steps, nanoseconds."""

    def count_failed(self, request: InferRequest, reason: FailureReason) -> None:
        """Counts a request without a response."""


class StepRun(StepNote):
    """One step of one request. It is also the note that receives its times. Confined to: the event loop.

    Attributes:
        step: The step.
        flight: The step's handle; None: it is not submitted, or it has ended.
        has_ended: Whether it has its result.
    """

    __slots__ = ("_run", "flight", "has_ended", "step")

    def __init__(self, run: "EnsembleRun", step: PlannedStep) -> None:
        # Not by `super`, which would be two calls more for every step.
        self.is_logged = self.is_part = False
        self.queue_ns = None
        self.compute_ns = None
        self.input_ns = 0
        self.output_ns = 0
        self.trace = None
        self.flight: InFlight | None = None
        self.has_ended = False
        self.step = step
        self._run = run

    def responded(self, result: EngineResult) -> None:
        """Takes the step's result: submits the steps that have waited for it, or ends the request."""
        self.flight = None
        self.has_ended = True
        run, step = self._run, self.step
        if run.is_over:
            return
        if self.trace is not None:
            end_trace(self, result)
        if isinstance(result, ServingError):
            run.fail(step, result)
            return
        outputs = result.outputs
        try:
            tensors = run.tensors
            for name, tensor in step.outputs:
                array = outputs.get(name)
                if array is not None:
                    tensors[tensor] = array
            run.steps_left -= 1
            left = run.left
            for follower in step.followers:
                left[follower.index] -= 1
                if not left[follower.index]:
                    try:
                        run.submit(follower)
                    except ServingError as error:
                        run.fail(follower, error)
                        return
            if not run.steps_left:
                run.finish()
        except Exception:  # a defect: the request must get a response
            log.exception("ensemble '%s' failed unexpectedly at step '%s'", run.model, step.name)
            run.fail(step, Internal("internal error: see the server's log"))


class EnsembleRun(Completion[InferResponse]):
    """The completion of one accepted request. Confined to: the event loop.

    INVARIANT: at most one result reaches the caller; when it does, no step runs.

    Attributes:
        request: The request.
        ended: Called once when the request is over.
        tensors: The tensors so far.
        left: How many steps each step still waits for.
        steps_left: The number of steps without a result.
    """

    __slots__ = ("_owner", "_plan", "_steps", "ended", "left", "request", "steps_left", "tensors")

    def __init__(self, owner: RunOwner, plan: EnsemblePlan, request: InferRequest, done: Done, ended: Callable[[], None]) -> None:
        """`done` receives the result."""
        self._callback = done
        self._result = None
        self.is_over = False
        self.request = request
        self.ended = ended
        self.tensors: dict[str, Array] = dict(request.inputs)
        self.left = plan.waits.copy()
        self.steps_left = len(plan.steps)
        self._owner = owner
        self._plan = plan
        self._steps: list[StepRun] = []

    def begin(self) -> None:
        """Submits the first steps.

        Raises:
            ServingError: one of them was rejected; the others are cancelled.
        """
        for step in self._plan.first:
            if self.is_over:
                return
            try:
                self.submit(step)
            except ServingError as error:
                self._cancel_steps()
                raise named(self._owner.name, step, error) from None

    def submit(self, step: PlannedStep) -> None:
        """Submits a step whose inputs are there.

        Raises:
            ServingError: as `PlannedStep.submit`.
        """
        run = StepRun(self, step)
        self._steps.append(run)
        flight = step.submit(self.request, self.tensors, run, run.responded)
        # The handle of a step that has ended is not kept: it refers to the request.
        if not run.has_ended:
            run.flight = flight

    @property
    def model(self) -> str:
        """The ensemble's name."""
        return self._owner.name

    def finish(self) -> None:
        """Ends the request with its response."""
        owner, request, steps = self._owner, self.request, self._steps
        queue_ns = compute_ns = input_ns = output_ns = 0
        for run in steps:
            # A step whose response was cached has no times.
            if run.compute_ns is not None:
                compute_ns += run.compute_ns
                input_ns += run.input_ns
                output_ns += run.output_ns
                queue_ns += run.queue_ns or 0
        owner.count_succeeded(request, queue_ns, input_ns, compute_ns - input_ns - output_ns, output_ns)
        outputs: dict[str, Array] = {}
        tensors = self.tensors
        for name in request.output_names:
            array = tensors.get(name)
            if array is not None:
                outputs[name] = array
        response = InferResponse(owner.name, owner.version, request.request_id, outputs, owner.signature)
        if request.parameters and request.parameters.get(STEP_TIMES):
            response.parameters = {STEP_TIMES: step_times(steps)}
        self._deliver(response)

    def fail(self, step: PlannedStep, error: ServingError) -> None:
        """Ends the request with the error of a step, and cancels the other steps."""
        self._cancel_steps()
        self._owner.count_failed(self.request, reason_of(error))
        self._deliver(named(self._owner.name, step, error))

    def abandon(self, why: str) -> None:
        """Fails the request with UNAVAILABLE and the text `why`."""
        if self.is_over:
            return
        self._cancel_steps()
        self._owner.count_failed(self.request, FailureReason.OTHER)
        self._deliver(Unavailable(why))

    def _deliver(self, result: EngineResult) -> None:
        self.is_over = True
        callback, self._callback = self._callback, None
        try:
            if callback is not None:
                callback(result)
        except Exception:  # a defect of one frontend; the other requests must still get their responses
            log.exception("the result callback of a request raised")
        self._end()

    def _withdraw(self) -> None:
        self.request.is_cancelled = True
        self._cancel_steps()
        self._owner.count_failed(self.request, FailureReason.CANCELED)
        self._end()

    def _cancel_steps(self) -> None:
        steps, self._steps = self._steps, []
        for run in steps:
            flight, run.flight = run.flight, None
            if flight is not None:
                flight.cancel()

    def _end(self) -> None:
        # The steps refer to the request and it to them: a cycle would keep the tensors until the next garbage collection.
        self._steps = []
        self.tensors = {}
        self.ended()
        self.ended = ignore
        owner = self._owner
        owner.runs.discard(self)
        if not owner.runs and owner.on_idle is not None:
            owner.on_idle()


def reason_of(error: ServingError) -> FailureReason:
    """How a failed request is counted."""
    if error.code in _REJECTIONS:
        return FailureReason.REJECTED
    return FailureReason.BACKEND if error.code is ErrorCode.BACKEND_FAILED else FailureReason.OTHER


def step_times(runs: Sequence[StepRun]) -> str:
    """The times of the steps that have run as compact JSON: `{"resize":{"queue_us":12,"compute_us":340}}`."""
    times = {run.step.name: {"queue_us": (run.queue_ns or 0) // 1_000, "compute_us": (run.compute_ns or 0) // 1_000} for run in runs}
    return orjson.dumps(times).decode()


def named(ensemble: str, step: PlannedStep, error: ServingError) -> ServingError:
    """`error` of a step with the ensemble and the step's model in front."""
    said = type(error)(f"in ensemble '{ensemble}', step '{step.name}': {error.message}", retry_after_s=error.retry_after_s)
    said.__cause__ = error.__cause__
    return said


def end_trace(run: StepNote, result: EngineResult) -> None:
    """Ends the trace of a step. REQUIRES: it is traced."""
    trace = run.trace
    assert trace is not None
    if isinstance(result, InferResponse):
        trace.end(result.outputs, result.signature.outputs)
    else:
        trace.end(None, ())
    run.trace = None


def ignore() -> None:
    """The default callback."""
