"""`SequenceScheduler`: runs the requests of one sequence one after the other, each with the state of the previous one; requests of
different sequences share batches.

It passes every request to a `Scheduler`, with the control inputs that state its place in the sequence and with the states from the previous
request. Rules and texts are Triton's.

A request that a worker has started counts, even if its client has cancelled it: the next request gets its state, and an END ends the
sequence. A request that ends before that (cancelled, expired, rejected) does not change the sequence. A sequence exists only after an
executed START: if the START fails or is not run, the requests behind it are rejected like any other request without START.
"""

import copy
import logging
from collections.abc import Callable
from typing import Final

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import DeadlineExceeded, InvalidRequest, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.core.sequence import ControlKind, SequenceBatching, SequenceMark
from stoker.server.core.timers import Timers
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.open_sequence import Member, OpenSequence
from stoker.server.scheduling.queue import earliest
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.sequence_tensors import control_arrays, first_states, id_array, next_states

log = logging.getLogger("stoker.scheduling")

#: Ids of lost sequences that are remembered.
MOST_LOST_IDS: Final = 4096
_NO_MARK: Final = SequenceMark(0)


class SequenceScheduler:
    """The sequences of one loaded version. Confined to: the event loop.

    INVARIANT: a sequence has at most one request in the inner scheduler; it is in `_known` from its START until that START fails or is not
        run, its END has run, it was idle too long, or another START takes its id. A sequence in `_backlog` has a waiting START, so that the
        backlog is bounded too.

    Attributes:
        on_idle: Called whenever the last request in flight has completed.
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
    ) -> None:
        """Makes a scheduler in front of `inner`, whose signature is `signature` (the one that clients see) extended by `batching`."""
        self.on_idle: Callable[[], None] | None = None
        self._inner = inner
        self._model = model_name
        self._signature = signature
        self._inner_signature = batching.extend(signature)
        self._batching = batching
        self._clock = clock
        self._timers = timers
        self._recorder = recorder
        self._most_waiting = max_queue_size
        self._known: dict[int | str, OpenSequence] = {}
        self._admitted = 0
        self._is_admitting = False
        # In order; a dict, so that a sequence whose requests were all cancelled is removed at once.
        self._backlog: dict[OpenSequence, None] = {}
        self._members: set[Member] = set()
        #: Ids of sequences whose state was lost, for the error of their next requests.
        self._lost_ids: dict[int | str, None] = {}
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Accepted requests that are not complete."""
        return len(self._members)

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """Submits a request as `Scheduler.submit` does.

        Raises:
            InvalidRequest: the request has no sequence id, belongs to no sequence in progress, or has several rows. And as
                `Scheduler.submit`. A rejected START ends the sequence with its id: later requests with the id belong to the rejected START.
        """
        mark = self._mark_of(request)
        now_ns = self._clock.now_ns()
        request.received_ns = request.received_ns or now_ns
        try:
            if self._is_closed:
                raise Unavailable(f"model '{self._model}' is being unloaded")
            if len(self._members) >= self._most_waiting:
                raise Overloaded(f"Exceeds maximum queue size: {self._most_waiting} request(s) wait already", retry_after_s=1.0)
            self._check(request, mark)
        except ServingError:
            self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - request.received_ns)
            self._rejected(mark)
            raise
        sequence = self._begin(mark.id) if mark.is_start else self._known[mark.id]
        member = self._member(sequence, request, mark, now_ns, done, ended or _ignore)
        if sequence.running is None and not sequence.waiting and sequence.is_admitted:
            # A request that the inner scheduler rejects is rejected here.
            try:
                self._run(member)
            except ServingError:
                self._lost(member)
                raise
        else:
            sequence.waiting.append(member)
            ends_ns = earliest(request.deadline_ns, member.timeout_ns)
            if ends_ns is not None:
                member.expiry = self._timers.call_at(ends_ns, lambda: self._expire(member))
        self._members.add(member)
        return member

    @property
    def outage(self) -> str:
        """See `Scheduler.outage`."""
        return self._inner.outage

    @property
    def is_lost(self) -> bool:
        """See `Scheduler.is_lost`."""
        return self._inner.is_lost

    def lose_sequences(self) -> None:
        """A worker process has ended, and with it what its model remembers: ends every sequence in progress, unless the server itself keeps
        the states (config.pbtxt `sequence_batching.state`). Else later requests would continue without what came before.
        """
        if self._batching.states:
            return
        for sequence in list(self._known.values()):
            running = sequence.running
            if not sequence.is_admitted or (running is not None and running.mark.is_start):
                continue
            if len(self._lost_ids) >= MOST_LOST_IDS:
                del self._lost_ids[next(iter(self._lost_ids))]
            self._lost_ids[sequence.id] = None
            if running is None or running.has_run:
                self._reject_waiting(sequence)
            else:
                # It waits in the inner scheduler for the restart.
                sequence.running = None
                sequence.waiting.appendleft(running)
                assert running.flight is not None
                running.flight.is_counted = True
                running.flight.cancel()
                self._reject_waiting(sequence)
            if sequence.running is None:
                self._over(sequence)

    def abandon(self, why: str) -> None:
        """Abandons all requests as `Scheduler.abandon` does, and ends every sequence."""
        waiting = [member for member in self._members if member.flight is None]
        for sequence in {*self._known.values(), *self._backlog, *(member.sequence for member in self._members)}:
            sequence.waiting.clear()
            sequence.is_admitted = False
            sequence.rest()
        self._known.clear()
        self._backlog.clear()
        self._admitted = 0
        now_ns = self._clock.now_ns()
        for member in waiting:
            member.silence()
            self._recorder.failed(FailureReason.OTHER, request_ns=now_ns - member.request.received_ns)
            self._deliver(member, Unavailable(why))
        self._inner.abandon(why)

    async def close(self) -> None:
        """Closes as `Scheduler.close` does."""
        self._is_closed = True
        self.abandon(f"model '{self._model}' was unloaded")
        await self._inner.close()

    def _mark_of(self, request: InferRequest) -> SequenceMark:
        """The place in its sequence that a client's request names."""
        return request.sequence or _NO_MARK

    def _member(
        self, sequence: OpenSequence, request: InferRequest, mark: SequenceMark, now_ns: int, done: Done, ended: Callable[[], None]
    ) -> Member:
        """The completion of an accepted request."""
        return Member(sequence, request, mark, now_ns, done, ended, self._withdraw)

    def _rejected(self, mark: SequenceMark) -> None:
        """Ends the sequence whose id a rejected START names: later requests with the id belong to that START."""
        if mark.is_start and (before := self._known.get(mark.id)) is not None:
            self._replace(before)
            self._admit()

    def _check(self, request: InferRequest, mark: SequenceMark) -> None:
        if not mark.id:
            raise InvalidRequest(f"{named(request)} to model '{self._model}' must specify a non-zero or non-empty correlation ID")
        if request.rows > 1:
            raise InvalidRequest(
                f"{named(request)} to model '{self._model}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        for control in self._batching.controls:
            if control.kind is ControlKind.ID:
                id_array(control, mark.id, self._model)
        if not mark.is_start and mark.id not in self._known:
            raise self._without_start(request, mark)

    def _without_start(self, request: InferRequest, mark: SequenceMark) -> InvalidRequest:
        return InvalidRequest(
            f"{named(request)} for sequence {mark.id} to model '{self._model}' must specify the START flag"
            " on the first request of the sequence"
            + ("; its state was lost when the worker process of the model ended: begin it again" if mark.id in self._lost_ids else "")
        )

    def _begin(self, sequence_id: int | str) -> OpenSequence:
        """Begins a sequence; an earlier one of the same id only completes its accepted requests."""
        self._lost_ids.pop(sequence_id, None)
        before = self._known.get(sequence_id)
        if before is not None:
            self._replace(before)
        states = first_states(self._batching, is_batched=self._signature.is_batched)
        sequence = self._known[sequence_id] = OpenSequence(sequence_id, states)
        self._backlog[sequence] = None
        self._admit()
        return sequence

    def _replace(self, before: OpenSequence) -> None:
        """Removes the id from a sequence; its waiting and running requests continue, and it ends with the last of them."""
        before.rest()
        del self._known[before.id]
        if before.is_admitted and before.running is None:
            before.is_admitted = False
            self._admitted -= 1

    def _admit(self) -> None:
        """Starts waiting sequences up to the bound; requests that cannot run fail with the reason."""
        if self._is_admitting:
            return  # a sequence below ended at once; the loop that admitted it continues
        self._is_admitting = True
        try:
            while self._backlog and self._admitted < self._batching.most_sequences:
                sequence = next(iter(self._backlog))
                del self._backlog[sequence]
                sequence.is_admitted = True
                self._admitted += 1
                self._run_next(sequence)
        finally:
            self._is_admitting = False

    def _run(self, member: Member) -> None:
        """Passes a request to the inner scheduler.

        Raises:
            ServingError: the inner scheduler rejects it.
        """
        sequence, request = member.sequence, member.request
        sequence.rest()
        member.silence()
        now_ns = self._clock.now_ns()
        if member.timeout_ns is not None and member.timeout_ns <= now_ns:
            self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - request.received_ns)
            raise _queue_timeout()
        inner = self._step(member, member.mark)
        inner.timeout_us = 0 if member.timeout_ns is None else max(1, (member.timeout_ns - now_ns) // 1_000)
        member.flight = self._inner.submit(inner, lambda response: self._finished(member, response))
        sequence.running = member

    def _step(self, member: Member, mark: SequenceMark) -> InferRequest:
        """The request that the model gets for `member`, as the request at the place `mark` of its sequence."""
        sequence, request = member.sequence, member.request
        outputs = dict.fromkeys((*request.output_names, *(state.output.name for state in self._batching.states)))
        inner = copy.copy(request)
        inner.inputs = {
            **request.inputs,
            **control_arrays(self._batching, mark, self._model, is_batched=self._signature.is_batched),
            **sequence.states,
        }
        inner.output_names = tuple(outputs)
        inner.signature = self._inner_signature
        return inner

    def _run_next(self, sequence: OpenSequence) -> None:
        while sequence.running is None and sequence.waiting:
            member = sequence.waiting.popleft()
            try:
                self._run(member)
            except ServingError as error:
                if member.mark.is_start:
                    self._forget(sequence)
                self._deliver(member, error)
                if member.mark.is_start:
                    self._reject_followers(sequence)
                    return
        if sequence.running is None:
            self._rest_or_end(sequence)

    def _finished(self, member: Member, response: EngineResult) -> None:
        sequence = member.sequence
        has_run = member.has_run  # before the callback runs, which may cancel any request
        is_response = isinstance(response, InferResponse)
        if isinstance(response, InferResponse):
            sequence.states.update(next_states(self._batching, response.outputs))
            outputs = {name: response.outputs[name] for name in member.request.output_names}
            response = InferResponse(
                response.model_name, response.model_version, response.request_id, outputs, self._signature, response.parameters
            )
        self._deliver(member, response)
        if not has_run or (member.mark.is_start and not is_response):
            self._lost(member)
            return
        sequence.running = None
        if member.mark.is_end:
            self._reject_followers(sequence)
        else:
            self._run_next(sequence)

    def _lost(self, member: Member) -> None:
        """Continues after `member`, whose turn had come: it was not run, or it is a START that failed."""
        sequence = member.sequence
        if sequence.running is member:
            sequence.running = None
        if member.mark.is_start:
            self._reject_followers(sequence)
        else:
            self._run_next(sequence)

    def _forget(self, sequence: OpenSequence) -> None:
        """Ends a sequence: from now on its id needs a START."""
        if self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        self._backlog.pop(sequence, None)

    def _reject_followers(self, sequence: OpenSequence) -> None:
        """Ends a sequence whose END has run, or whose START has not: its waiting requests would need a START, and are rejected."""
        self._reject_waiting(sequence)
        self._over(sequence)

    def _reject_waiting(self, sequence: OpenSequence) -> None:
        """Ends a sequence: its waiting requests would need a START, and are rejected."""
        self._forget(sequence)
        while sequence.waiting:
            follower = sequence.waiting.popleft()
            follower.silence()
            self._recorder.failed(FailureReason.REJECTED, request_ns=self._clock.now_ns() - follower.request.received_ns)
            self._deliver(follower, self._without_start(follower.request, follower.mark))

    def _rest_or_end(self, sequence: OpenSequence) -> None:
        """Waits for the next request of a sequence that has none; ends a sequence whose id another one has taken."""
        if self._known.get(sequence.id) is sequence:
            self._watch(sequence)
        else:
            self._over(sequence)

    def _over(self, sequence: OpenSequence) -> None:
        sequence.rest()
        if self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        if sequence.is_admitted:
            sequence.is_admitted = False
            self._admitted -= 1
            self._admit()

    def _watch(self, sequence: OpenSequence) -> None:
        """Sets the timer that ends an idle sequence."""
        sequence.rest()
        sequence.idle = self._timers.call_at(self._clock.now_ns() + self._batching.idle_us * 1_000, lambda: self._over(sequence))

    def _withdraw(self, member: Member) -> None:
        """Handles a cancelled request. If a worker has started it, it still runs and its state counts, so the next request waits for it."""
        self._members.discard(member)
        if member.flight is None:
            self._count_cancelled(member)
            self._take_out(member)
        elif not member.has_run:
            member.flight.cancel()
        elif not member.flight.is_counted:
            member.flight.is_counted = True
            self._count_cancelled(member)
        self._end(member)
        if member.flight is None:
            self._after_taking_out(member)
        elif not member.has_run:
            self._lost(member)

    def _count_cancelled(self, member: Member) -> None:
        self._recorder.failed(FailureReason.CANCELED, request_ns=self._clock.now_ns() - member.request.received_ns)

    def _expire(self, member: Member) -> None:
        """Fails a request that expired before its turn."""
        self._take_out(member)
        now_ns = self._clock.now_ns()
        self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - member.request.received_ns)
        deadline_ns = member.request.deadline_ns
        is_past_deadline = deadline_ns is not None and deadline_ns <= now_ns
        self._deliver(
            member, DeadlineExceeded("the request's deadline passed while it waited for its turn") if is_past_deadline else _queue_timeout()
        )
        self._after_taking_out(member)

    def _take_out(self, member: Member) -> None:
        """Removes a request that waits for its turn. A sequence without its START cannot begin."""
        member.silence()
        member.sequence.waiting.remove(member)
        if member.mark.is_start:
            self._forget(member.sequence)

    def _after_taking_out(self, member: Member) -> None:
        if member.mark.is_start:
            self._reject_followers(member.sequence)

    def _deliver(self, member: Member, response: EngineResult) -> None:
        if member.is_over:
            return
        self._members.discard(member)
        try:
            member.complete(response)
        except Exception:  # a defect of one frontend; the sequence continues
            log.exception("the result callback of a request raised")
        self._end(member)

    def _end(self, member: Member) -> None:
        member.ended()
        if not self._members and self.on_idle is not None:
            self.on_idle()


def _queue_timeout() -> QueueTimeout:
    return QueueTimeout("Request timeout expired", retry_after_s=1.0)


def named(request: InferRequest) -> str:
    """The beginning of the text of an error, as in Triton: it names the request."""
    return f"[request id: {request.request_id or '<id_unknown>'}] inference request"


def _ignore() -> None:
    """The default callback."""
