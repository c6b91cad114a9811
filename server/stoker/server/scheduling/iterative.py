"""`IterativeScheduler`: runs each request as a sequence of its own, which the model may execute several times (Triton: iterative sequences,
which give continuous batching).

A request takes a slot of the sequence batcher until its last execution. Each execution, a step, is a request of the inner scheduler: the
steps of different requests share batches, and a new request joins them as soon as a slot is free. After a step with the outcome
`Rescheduled`, the next one is queued with the states that the step has left. All other outcomes end the request. In all counts, it is one
request.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import InvalidRequest, ServingError, Unavailable, Unsupported
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.api.response_parameters import parameters_of, with_parameters
from stoker.backends.api.streaming import DECOUPLED_ONLY
from stoker.server.core.request import AccessNote, Done, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.core.sequence import Array, ControlKind, SequenceBatching, SequenceMark
from stoker.server.core.timers import Timers
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.open_sequence import Member, OpenSequence
from stoker.server.scheduling.outcomes import failure_reason
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.sequence_tensors import next_states
from stoker.server.scheduling.sequences import SequenceScheduler, named

#: Responses of a request that its client has not read, above which its next step waits.
MOST_UNREAD: Final = 16
#: The largest id that the server gives to a sequence, unless the model's control input holds less.
_MOST_ID: Final = (1 << 64) - 1


class StepResponses:
    """Takes the responses of all steps of a decoupled request: keeps the states, and passes the other outputs on to the client. `put` is
    called in the model's thread, all else on the event loop.

    Attributes:
        outputs: The last outputs for states, by name.
        resume: Called once when the client has read enough; None: the request does not wait.
    """

    __slots__ = ("_is_closed", "_names", "_permits", "_post", "_sink", "_unread", "outputs", "resume")

    def __init__(self, sink: Any, batching: SequenceBatching, post: Callable[..., object]) -> None:
        """Passes on to the `feed` of `sink`; `post` makes a call on the event loop."""
        self._sink = sink
        self._names = frozenset(state.output.name for state in batching.states)
        self._post = post
        self._unread = 0
        # A step begins with fewer than `MOST_UNREAD` unread responses, and may add as many.
        self._permits = threading.Semaphore(2 * MOST_UNREAD)
        self._is_closed = False
        self.outputs: dict[str, Array] = {}
        self.resume: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the client must read before the next step."""
        return self._unread >= MOST_UNREAD

    def put(self, outputs: Mapping[str, Array]) -> bool:
        """See `ResponseSink`."""
        self._permits.acquire()
        if self._is_closed:
            # For other threads in a `put`.
            self._permits.release()
            return False
        try:
            self._post(self.feed, outputs, self._permits.release)
        except RuntimeError:  # the loop closed first: the process ends
            return False
        return True

    def feed(self, outputs: Mapping[str, Array], taken: Callable[[], None]) -> None:
        """Passes on one response. See `ResponseStream.feed`."""
        for name in self._names:
            if name in outputs:
                self.outputs[name] = outputs[name]
        passed = {name: array for name, array in outputs.items() if name not in self._names}
        if outputs and not passed:
            taken()
            return
        self._unread += 1

        def read() -> None:
            self._unread -= 1
            taken()
            resume = self.resume
            if resume is not None and not self.is_full:
                self.resume = None
                resume()

        self._sink.feed(with_parameters(passed, parameters_of(outputs) or {}), read)

    def close(self) -> None:
        """The request is over: a `put` that waits, and each later one, returns False."""
        self._is_closed = True
        self._permits.release()


class IterativeMember(Member):
    """An accepted request. Confined to: the event loop.

    Attributes:
        steps: Executions that have ended.
        note: The times of the running step.
        responses: Takes the responses of a decoupled model; None: the model is not decoupled.
        enqueued_ns: When the first step was queued, nanoseconds.
        queue_ns, input_ns, infer_ns, output_ns: The times of the steps that have ended, summed.
    """

    __slots__ = ("enqueued_ns", "infer_ns", "input_ns", "note", "output_ns", "queue_ns", "responses", "steps")

    def __init__(
        self,
        sequence: OpenSequence,
        request: InferRequest,
        mark: SequenceMark,
        now_ns: int,
        done: Done,
        ended: Callable[[], None],
        withdraw: "Callable[[Member], None]",
    ) -> None:
        super().__init__(sequence, request, mark, now_ns, done, ended, withdraw)
        self.steps = 0
        self.note = AccessNote(is_part=True)
        self.responses: StepResponses | None = None
        self.enqueued_ns = now_ns
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0

    def add_times(self) -> None:
        """Adds the times of the step that has ended."""
        note = self.note
        self.queue_ns += note.queue_ns or 0
        self.input_ns += note.input_ns
        self.output_ns += note.output_ns
        self.infer_ns += (note.compute_ns or 0) - note.input_ns - note.output_ns


class IterativeScheduler(SequenceScheduler):
    """The iterative sequences of one loaded version. Confined to: the event loop.

    INVARIANT: a request has at most one step in the inner scheduler. Between two steps, it waits in its sequence only while its client has
        too many unread responses.
    """

    def __init__(
        self,
        inner: Scheduler,
        model_name: str,
        signature: ModelSignature,
        batching: SequenceBatching,
        *,
        clock: Clock,
        timers: Timers,
        recorder: VersionRecorder,
        max_queue_size: int,
        post: Callable[..., object],
    ) -> None:
        """As `SequenceScheduler`; `post` makes a call on the event loop, and is called in any thread."""
        super().__init__(
            inner, model_name, signature, batching, clock=clock, timers=timers, recorder=recorder, max_queue_size=max_queue_size
        )
        self._post = post
        self._last_id = 0

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """Submits a request as `Scheduler.submit` does.

        Raises:
            Unsupported: the model is decoupled, and the request takes one response only.
            ServingError: as `SequenceScheduler.submit`. The request needs no sequence id.
        """
        if self._signature.is_decoupled and request.responses is None:
            now_ns = self._clock.now_ns()
            self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - (request.received_ns or now_ns))
            raise Unsupported(DECOUPLED_ONLY)
        return super().submit(request, done, ended)

    def lose_sequences(self) -> None:
        """A worker process has ended, and with it what its model remembers: fails the requests between two steps, unless the server itself
        keeps the states. The worker fails those that it executes. Those that wait for their first step are not affected.
        """
        if self._batching.states:
            return
        for member in list(self._members):
            assert isinstance(member, IterativeMember)
            if member.is_over or not member.steps or member.has_run:
                continue
            flight = member.flight
            if flight is not None:
                member.sequence.running = None
                flight.is_counted = True
                flight.cancel()
            else:
                self._take_out(member)
            self._failed(member, FailureReason.OTHER)
            self._deliver(member, Unavailable(f"the state of the request was lost when the worker process of model '{self._model}' ended"))
            self._reject_followers(member.sequence)

    def _mark_of(self, request: InferRequest) -> SequenceMark:
        mark = request.sequence
        if mark is None or not mark.id:
            return SequenceMark(self._next_id(), is_start=True)
        return SequenceMark(mark.id, is_start=mark.is_start)

    def _next_id(self) -> int | str:
        """An id that no request in progress has, of the type of the model's control input."""
        kinds = [control.datatype for control in self._batching.controls if control.kind is ControlKind.ID]
        is_text = bool(kinds) and kinds[0].is_bytes
        most = _MOST_ID if not kinds or is_text else int(np.iinfo(kinds[0].numpy).max)
        while True:
            self._last_id = self._last_id % most + 1
            sequence_id: int | str = str(self._last_id) if is_text else self._last_id
            if sequence_id not in self._known:
                return sequence_id

    def _member(
        self, sequence: OpenSequence, request: InferRequest, mark: SequenceMark, now_ns: int, done: Done, ended: Callable[[], None]
    ) -> Member:
        member = IterativeMember(sequence, request, mark, now_ns, done, ended, self._withdraw)
        if self._signature.is_decoupled:
            member.responses = StepResponses(request.responses, self._batching, self._post)
        return member

    def _rejected(self, mark: SequenceMark) -> None:
        """Nothing ends: a request in progress keeps its id."""

    def _check(self, request: InferRequest, mark: SequenceMark) -> None:
        if mark.id in self._known:
            raise InvalidRequest(
                f"{named(request)} for sequence {mark.id} to model '{self._model}': a request with this sequence id is in progress, and"
                " each request of an iterative sequence is a sequence of its own"
            )
        super()._check(request, mark)

    def _step(self, member: Member, mark: SequenceMark) -> InferRequest:
        assert isinstance(member, IterativeMember)
        place = SequenceMark(mark.id, is_start=not member.steps)
        inner = super()._step(member, place)
        inner.sequence = place
        inner.responses = member.responses
        inner.trace = None
        member.note = inner.access = AccessNote(is_part=True)
        return inner

    def _finished(self, member: Member, response: EngineResult) -> None:
        assert isinstance(member, IterativeMember)
        sequence = member.sequence
        sequence.running = None
        member.add_times()
        if isinstance(response, InferResponse) and isinstance(response.outputs, Rescheduled):
            if member.is_over:
                self._reject_followers(sequence)
            else:
                self._reschedule(member, response.outputs)
            return
        if not member.is_over:
            self._count(member, response)
        if isinstance(response, InferResponse):
            outputs = {name: response.outputs[name] for name in member.request.output_names if name in response.outputs}
            response = InferResponse(
                response.model_name, response.model_version, response.request_id, outputs, self._signature, response.parameters
            )
        # The callback may submit a request with the same id.
        self._forget(sequence)
        self._deliver(member, response)
        self._reject_followers(sequence)

    def _reschedule(self, member: IterativeMember, states: Mapping[str, Array]) -> None:
        """Queues the next step, or lets it wait for the client."""
        sequence, responses = member.sequence, member.responses
        member.steps += 1
        # It is the time in the queue before the first step.
        member.timeout_ns = None
        member.flight = None
        if responses is not None:
            states = {**responses.outputs, **states}
            responses.outputs.clear()
        sequence.states.update(next_states(self._batching, states))
        sequence.waiting.append(member)
        deadline_ns = member.request.deadline_ns
        if deadline_ns is not None and deadline_ns <= self._clock.now_ns():
            self._expire(member)
        elif responses is not None and responses.is_full:
            if deadline_ns is not None:
                member.expiry = self._timers.call_at(deadline_ns, lambda: self._expire(member))
            responses.resume = lambda: self._resume(member)
        else:
            self._run_next(sequence)

    def _resume(self, member: IterativeMember) -> None:
        """The client has read enough."""
        if not member.is_over and member.flight is None:
            self._run_next(member.sequence)

    def _withdraw(self, member: Member) -> None:
        flight = member.flight
        if flight is not None and member.has_run:
            self._inner.notify_cancelled(flight)
        super()._withdraw(member)

    def _end(self, member: Member) -> None:
        assert isinstance(member, IterativeMember)
        if member.responses is not None:
            member.responses.close()
        super()._end(member)

    def _count(self, member: IterativeMember, response: EngineResult) -> None:
        """Counts the request after its last step. The inner scheduler has counted the failure of a step that did not run."""
        request, now_ns = member.request, self._clock.now_ns()
        if isinstance(response, ServingError) and member.note.compute_ns is None:
            return
        if (note := request.access) is not None:
            note.queue_ns, note.input_ns, note.output_ns = member.queue_ns, member.input_ns, member.output_ns
            note.compute_ns = member.input_ns + member.infer_ns + member.output_ns
        if (trace := request.trace) is not None:
            trace.computed(
                enqueued_ns=member.enqueued_ns, ended_ns=now_ns, input_ns=member.input_ns, infer_ns=member.infer_ns,
                output_ns=member.output_ns,
            )  # fmt: skip
        if isinstance(response, ServingError):
            self._failed(member, failure_reason(response))
            return
        self._recorder.succeeded(
            rows=[request.rows], request_ns=[now_ns - request.received_ns], queue_ns=[member.queue_ns], input_ns=member.input_ns,
            infer_ns=member.infer_ns, output_ns=member.output_ns,
        )  # fmt: skip

    def _failed(self, member: Member, reason: FailureReason) -> None:
        self._recorder.failed(reason, request_ns=self._clock.now_ns() - member.request.received_ns)
