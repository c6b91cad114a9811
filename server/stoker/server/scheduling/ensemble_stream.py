"""`StreamRun`: one request of an ensemble with a decoupled step. Each response of that step flows on through the steps behind it, and each
response of the last steps is one of the ensemble.

A `Frame` has the tensors of one response. The first frame runs the steps before the decoupled step, then the decoupled step; each of its
responses makes a frame of the next level. Responses keep their order. The frames of one decoupled step are bounded: above the bound the
model waits, until the client's connection has taken a response.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from stoker.backends.api.backend import Arrays
from stoker.backends.api.errors import Internal, ServingError, Unavailable
from stoker.server.core.completion import Completion
from stoker.server.core.request import Array, Done, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.observability.recorder import FailureReason
from stoker.server.scheduling.ensemble_plan import EnsemblePlan, Level, PlannedStep, StepNote
from stoker.server.scheduling.ensemble_run import RunOwner, end_trace, ignore, named, reason_of

log = logging.getLogger("stoker.scheduling")

#: Responses of a decoupled step that may be on their way through the steps behind it, unless the ensemble sets `max_inflight_requests`.
MOST_RESPONSES: Final = 16


class StepResponses:
    """Receives the responses of a decoupled step. `put` is called in the model's thread, all else on the event loop."""

    def __init__(self, frame: "Frame", most: int) -> None:
        """`frame` receives the responses, at most `most` at a time."""
        self._frame = frame
        self._loop = asyncio.get_running_loop()
        self._permits = threading.Semaphore(most)
        self._is_closed = False

    def put(self, outputs: Arrays) -> bool:
        """Passes one response on; waits while the bound is reached. Returns False if the request is over."""
        self._permits.acquire()
        if self._is_closed:
            return False
        try:
            self._loop.call_soon_threadsafe(self._frame.received, outputs, self._permits.release)
        except RuntimeError:  # the loop closed first: the process ends
            return False
        return True

    def feed(self, outputs: Arrays, taken: Callable[[], None]) -> None:
        """Passes one response on of a process or an ensemble, which keeps the bound itself; `taken` is called when it is through."""
        self._frame.received(outputs, taken)

    def close(self) -> None:
        """Ends the step's responses: a `put` that waits returns False."""
        self._is_closed = True
        self._permits.release()


class Frame:
    """The steps of one level for one response of the decoupled step before. Confined to: the event loop.

    Attributes:
        tensors: The tensors so far.
        taken: Called when everything that follows from the frame is through.
        parent: The frame whose decoupled step has made it; None: it is the request's own.
        children: The frames of the responses of its decoupled step that are not through, in their order.
    """

    # fmt: off
    __slots__ = (
        "_has_response", "_is_streaming", "_left", "_level", "_run", "_steps_left", "children", "depth", "parent", "taken", "tensors",
    )
    # fmt: on

    def __init__(self, run: "StreamRun", parent: "Frame | None", tensors: dict[str, Array], taken: Callable[[], object]) -> None:
        self.tensors = tensors
        self.taken = taken
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: deque[Frame] = deque()
        self._run = run
        self._level: Level = run.plan.levels[self.depth]
        self._left = dict(self._level.waits)
        self._steps_left = len(self._left)
        self._is_streaming = False
        self._has_response = False

    def begin(self) -> None:
        """Submits the first steps.

        Raises:
            ServingError: one of them was rejected.
        """
        if not self._steps_left:
            self._steps_ended()
        for step in self._level.first:
            self._run.submit(self, step)

    def step_ended(self, step: PlannedStep, outputs: Arrays) -> None:
        """Takes the outputs of a step.

        Raises:
            ServingError: a step behind it was rejected.
        """
        if step is self._level.decoupled:
            self._is_streaming = False
            self._end_if_through()
            return
        for name, tensor in step.outputs:
            if (array := outputs.get(name)) is not None:
                self.tensors[tensor] = array
        for follower in step.followers:
            if follower.index in self._left:
                self._left[follower.index] -= 1
                if not self._left[follower.index]:
                    self._run.submit(self, follower)
        self._steps_left -= 1
        if not self._steps_left:
            self._steps_ended()

    def received(self, outputs: Arrays, taken: Callable[[], object]) -> None:
        """Takes one response of the decoupled step."""
        if self._run.is_over:
            taken()
            return
        tensors = dict(self.tensors)
        decoupled = self._level.decoupled
        assert decoupled is not None
        for name, tensor in decoupled.outputs:
            if (array := outputs.get(name)) is not None:
                tensors[tensor] = array
        child = Frame(self._run, self, tensors, taken)
        self.children.append(child)
        self._run.attempt(child.begin)

    def _steps_ended(self) -> None:
        decoupled = self._level.decoupled
        if decoupled is None:
            self._has_response = True
            if self._is_first():
                self.send()
            return
        self._is_streaming = True
        self._run.submit(self, decoupled)

    def _is_first(self) -> bool:
        """Whether no earlier response is on its way."""
        frame = self
        while frame.parent is not None:
            if frame.parent.children[0] is not frame:
                return False
            frame = frame.parent
        return True

    def send(self) -> None:
        """Sends what has waited for the frame to become the first one."""
        if self._has_response:
            self._has_response = False
            self._run.send(self)
        elif self.children:
            self.children[0].send()

    def through(self) -> None:
        """The response of the frame was taken, or all that follows from it."""
        self.taken()
        parent = self.parent
        if parent is None:
            self._run.finish()
            return
        if self._run.is_over:
            return
        parent.children.remove(self)
        if parent.children and parent.children[0]._is_first():
            parent.children[0].send()
        parent._end_if_through()

    def _end_if_through(self) -> None:
        if not (self._is_streaming or self.children):
            self.through()


class StreamStep(StepNote):
    """One step of one frame, which is also the note that receives its times. Confined to: the event loop.

    Attributes:
        step, frame: The step, and its frame.
        flight: The step's handle; None: it is not submitted, or it has ended.
        responses: Receives the responses of a decoupled step.
        has_ended: Whether it has its result.
    """

    __slots__ = ("_run", "flight", "frame", "has_ended", "responses", "step")

    def __init__(self, run: "StreamRun", frame: Frame, step: PlannedStep, responses: StepResponses | None) -> None:
        super().__init__()
        self.step = step
        self.frame = frame
        self.flight: InFlight | None = None
        self.responses = responses
        self.has_ended = False
        self._run = run

    def responded(self, result: EngineResult) -> None:
        """Receives the step's result."""
        self._run.step_ended(self, result)


class StreamRun(Completion[InferResponse]):
    """The completion of one accepted request of a decoupled ensemble. Confined to: the event loop.

    Attributes:
        plan: The steps.
        request: The request.
        ended: Called once when the request is over.
    """

    # fmt: off
    __slots__ = (
        "_compute_ns", "_input_ns", "_most", "_output_ns", "_owner", "_queue_ns", "_steps", "ended", "plan", "request",
    )
    # fmt: on

    def __init__(
        self, owner: RunOwner, plan: EnsemblePlan, request: InferRequest, done: Done, ended: Callable[[], None], most: int
    ) -> None:
        """`done` receives the end of the responses, or the error; `most` bounds the responses of each decoupled step on their way."""
        super().__init__(done)
        self.plan = plan
        self.request = request
        self.ended = ended
        self._owner = owner
        self._most = most
        self._steps: set[StreamStep] = set()
        self._queue_ns = self._compute_ns = self._input_ns = self._output_ns = 0

    def begin(self) -> None:
        """Submits the first steps.

        Raises:
            ServingError: one of them was rejected; the others are cancelled.
        """
        try:
            Frame(self, None, dict(self.request.inputs), ignore).begin()
        except ServingError:
            self._cancel_steps()
            raise

    def submit(self, frame: Frame, step: PlannedStep) -> None:
        """Submits a step on the tensors of `frame`.

        Raises:
            ServingError: it was rejected; the error names the step.
        """
        if self.is_over:
            return
        responses = StepResponses(frame, self._most) if step.is_decoupled else None
        run = StreamStep(self, frame, step, responses)
        self._steps.add(run)
        try:
            flight = step.submit(self.request, frame.tensors, run, run.responded, responses)
        except ServingError as error:
            self._steps.discard(run)
            raise named(self._owner.name, step, error) from None
        if not run.has_ended:
            run.flight = flight

    def attempt(self, begin: Callable[[], None]) -> None:
        """Calls `begin`, which submits steps; the request fails if one is rejected."""
        try:
            begin()
        except ServingError as error:
            self._fail(error)
        except Exception:  # a defect: the request must get a response
            log.exception("ensemble '%s' failed unexpectedly", self._owner.name)
            self._fail(Internal("internal error: see the server's log"))

    def step_ended(self, run: StreamStep, result: EngineResult) -> None:
        """Takes the result of a step."""
        run.flight = None
        run.has_ended = True
        self._steps.discard(run)
        if self.is_over:
            return
        if run.trace is not None:
            end_trace(run, result)
        if run.compute_ns is not None:
            self._compute_ns += run.compute_ns
            self._input_ns += run.input_ns
            self._output_ns += run.output_ns
            self._queue_ns += run.queue_ns or 0
        if isinstance(result, ServingError):
            self._fail(named(self._owner.name, run.step, result))
            return
        outputs = result.outputs
        self.attempt(lambda: run.frame.step_ended(run.step, outputs))

    def send(self, frame: Frame) -> None:
        """Passes the response of a frame of the last level on."""
        tensors = frame.tensors
        outputs = {name: tensors[name] for name in self.request.output_names if name in tensors}
        responses: Any = self.request.responses
        responses.feed(outputs, frame.through)

    def finish(self) -> None:
        """Ends the request: every response was taken."""
        if self.is_over:
            return
        owner, request = self._owner, self.request
        infer_ns = self._compute_ns - self._input_ns - self._output_ns
        owner.count_succeeded(request, self._queue_ns, self._input_ns, infer_ns, self._output_ns)
        self._deliver(InferResponse(owner.name, owner.version, request.request_id, {}, owner.signature))

    def abandon(self, why: str) -> None:
        """Fails the request with UNAVAILABLE and the text `why`."""
        if self.is_over:
            return
        self._cancel_steps()
        self._owner.count_failed(self.request, FailureReason.OTHER)
        self._deliver(Unavailable(why))

    def _fail(self, error: ServingError) -> None:
        if self.is_over:
            return
        self._cancel_steps()
        self._owner.count_failed(self.request, reason_of(error))
        self._deliver(error)

    def _deliver(self, result: EngineResult) -> None:
        try:
            self.complete(result)
        except Exception:  # a defect of one frontend; the other requests must still get their responses
            log.exception("the result callback of a request raised")
        self._end()

    def _withdraw(self) -> None:
        self.request.is_cancelled = True
        self._cancel_steps()
        self._owner.count_failed(self.request, FailureReason.CANCELED)
        self._end()

    def _cancel_steps(self) -> None:
        steps, self._steps = self._steps, set()
        for run in steps:
            flight, run.flight = run.flight, None
            if run.responses is not None:
                run.responses.close()
            if flight is not None:
                flight.cancel()

    def _end(self) -> None:
        self.ended()
        self.ended = ignore
        owner = self._owner
        owner.runs.discard(self)
        if not owner.runs and owner.on_idle is not None:
            owner.on_idle()
