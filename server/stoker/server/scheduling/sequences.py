"""`SequenceScheduler`: requests of one sequence run one after the other, each with the state of the one before; sequences share batches.

It stands in front of a `Scheduler`, to which every request goes with the control inputs that tell the model where in its sequence it is,
and with the states that the request before gave back. Rules and texts are Triton's.

A request that a worker has taken counts, even if its client has gone: its state goes to the next request, and an END ends the sequence. A
request that is lost before (cancelled, too late, rejected) leaves the sequence as it was. Without an executed START there is no sequence:
when a START is lost or fails, the requests behind it are rejected like any other request without START.
"""

import copy
import logging
from collections import deque
from collections.abc import Callable

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import DeadlineExceeded, InvalidRequest, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature
from stoker.server.core.completion import Completion
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.core.sequence import Array, ControlKind, SequenceBatching, SequenceMark
from stoker.server.core.tasks import Timer, Timers
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.pending import Pending
from stoker.server.scheduling.queue import earliest
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.sequence_tensors import control_arrays, first_states, id_array, next_states


class OpenSequence:
    """Confined to: the event loop.

    Attributes:
        id: What clients call it.
        states: What the next request is given, by input name.
        waiting: Requests behind the one that runs.
        running: The one that runs.
        idle: Rings when nothing has come for too long.
        is_admitted: Whether it counts among those in progress.
    """

    __slots__ = ("id", "idle", "is_admitted", "running", "states", "waiting")

    def __init__(self, sequence_id: int | str, states: dict[str, Array]) -> None:
        self.id = sequence_id
        self.states = states
        self.waiting: deque[Member] = deque()
        self.running: Member | None = None
        self.idle: Timer | None = None
        self.is_admitted = False

    def rest(self) -> None:
        """Nothing waits any more for it to be idle too long."""
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None


class Member(Completion[InferResponse]):
    """The completion of one accepted request of a sequence. Confined to: the event loop.

    Attributes:
        sequence: Its sequence.
        request: What was asked.
        mark: Its place in the sequence.
        timeout_ns: When its time in the queue runs out; None: never.
        ended: Called once, when it was completed or withdrawn.
        expiry: Rings when it has waited for its turn too long.
        flight: What the inner scheduler gave for it; None: it waits for its turn.
    """

    __slots__ = ("_withdraw_from", "ended", "expiry", "flight", "mark", "request", "sequence", "timeout_ns")

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
        """Accepted at `now_ns`; `withdraw` takes it back."""
        super().__init__(done)
        self.sequence = sequence
        self.request = request
        self.mark = mark
        self.timeout_ns = now_ns + request.timeout_us * 1_000 if request.timeout_us else None
        self.ended = ended
        self.expiry: Timer | None = None
        self.flight: Pending | None = None
        self._withdraw_from = withdraw

    def _withdraw(self) -> None:
        self._withdraw_from(self)

    @property
    def has_run(self) -> bool:
        """Whether a worker has taken it, so that the model sees it."""
        return self.flight is not None and self.flight.dispatched_ns > 0

    def silence(self) -> None:
        """Nothing waits any more for it to have waited too long."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


log = logging.getLogger("stoker.scheduling")

_NO_MARK = SequenceMark(0)


class SequenceScheduler:
    """Sequences of one loaded version. Confined to: the event loop.

    INVARIANT: a sequence has at most one request in the inner scheduler; it is in `_known` from its START until that START is lost or
    fails, or its END has run, or it was idle too long, unless another START took its id. One in `_backlog` has a START that waits, so that
    they are bounded too.

    Attributes:
        on_idle: Called whenever the last request that had no response got one.
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
        """Feeds `inner`, whose signature is `signature`, which clients see, extended by `batching`."""
        self.on_idle: Callable[[], None] = _ignore
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
        # In order; a dict, so that one whose requests were all taken back leaves at once.
        self._backlog: dict[OpenSequence, None] = {}
        self._members: set[Member] = set()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Requests accepted that have no response yet."""
        return len(self._members)

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """As `Scheduler.submit`.

        Raises:
            InvalidRequest: it names no sequence, or one that has not begun, or has several rows. And as `Scheduler.submit`. A rejected
                START ends the sequence that has its id: what follows belongs to the one that was rejected.
        """
        mark = request.sequence or _NO_MARK
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
            if mark.is_start and (before := self._known.get(mark.id)) is not None:
                self._replace(before)
                self._admit()
            raise
        sequence = self._begin(mark.id) if mark.is_start else self._known[mark.id]
        member = Member(sequence, request, mark, now_ns, done, ended or _ignore, self._withdraw)
        if sequence.running is None and not sequence.waiting and sequence.is_admitted:
            # What the inner scheduler rejects is rejected here and now.
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

    def abandon(self, why: str) -> None:
        """As `Scheduler.abandon`; every sequence is over."""
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
        """As `Scheduler.close`."""
        self._is_closed = True
        self.abandon(f"model '{self._model}' was unloaded")
        await self._inner.close()

    def _check(self, request: InferRequest, mark: SequenceMark) -> None:
        if not mark.id:
            raise InvalidRequest(f"{_named(request)} to model '{self._model}' must specify a non-zero or non-empty correlation ID")
        if request.rows > 1:
            raise InvalidRequest(
                f"{_named(request)} to model '{self._model}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        for control in self._batching.controls:
            if control.kind is ControlKind.ID:
                id_array(control, mark.id, self._model)
        if not mark.is_start and mark.id not in self._known:
            raise self._without_start(request, mark)

    def _without_start(self, request: InferRequest, mark: SequenceMark) -> InvalidRequest:
        return InvalidRequest(
            f"{_named(request)} for sequence {mark.id} to model '{self._model}' must specify the START flag"
            " on the first request of the sequence"
        )

    def _begin(self, sequence_id: int | str) -> OpenSequence:
        """A new sequence, in place of one of the same id: that only ends what it has begun."""
        before = self._known.get(sequence_id)
        if before is not None:
            self._replace(before)
        states = first_states(self._batching, is_batched=self._signature.is_batched)
        sequence = self._known[sequence_id] = OpenSequence(sequence_id, states)
        self._backlog[sequence] = None
        self._admit()
        return sequence

    def _replace(self, before: OpenSequence) -> None:
        """Takes the id from a sequence; requests of it that wait or run go on, and it ends with the last of them."""
        before.rest()
        del self._known[before.id]
        if before.is_admitted and before.running is None:
            before.is_admitted = False
            self._admitted -= 1

    def _admit(self) -> None:
        """Starts sequences that wait, as far as there is capacity; requests that cannot run fail with the reason."""
        if self._is_admitting:
            return  # one of those below was over at once; the loop that let it begin goes on
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
        """Hands a request to the inner scheduler.

        Raises:
            ServingError: it does not take it.
        """
        sequence, request = member.sequence, member.request
        sequence.rest()
        member.silence()
        now_ns = self._clock.now_ns()
        if member.timeout_ns is not None and member.timeout_ns <= now_ns:
            self._recorder.failed(FailureReason.REJECTED, request_ns=now_ns - request.received_ns)
            raise _queue_timeout()
        outputs = dict.fromkeys((*request.output_names, *(state.output.name for state in self._batching.states)))
        inner = copy.copy(request)
        inner.inputs = {
            **request.inputs,
            **control_arrays(self._batching, member.mark, self._model, is_batched=self._signature.is_batched),
            **sequence.states,
        }
        inner.output_names = tuple(outputs)
        inner.signature = self._inner_signature
        inner.timeout_us = 0 if member.timeout_ns is None else max(1, (member.timeout_ns - now_ns) // 1_000)
        member.flight = self._inner.submit(inner, lambda response: self._finished(member, response))
        sequence.running = member

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
        has_run = member.has_run  # before the front is called, which may cancel anything
        is_response = isinstance(response, InferResponse)
        if isinstance(response, InferResponse):
            sequence.states.update(next_states(self._batching, response.outputs))
            outputs = {name: response.outputs[name] for name in member.request.output_names}
            response = InferResponse(response.model_name, response.model_version, response.request_id, outputs, self._signature)
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
        """Goes on after `member`, whose turn had come: it was not run, or it is a START that failed."""
        sequence = member.sequence
        if sequence.running is member:
            sequence.running = None
        if member.mark.is_start:
            self._reject_followers(sequence)
        else:
            self._run_next(sequence)

    def _forget(self, sequence: OpenSequence) -> None:
        """From now on a request for its id needs START."""
        if self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        self._backlog.pop(sequence, None)

    def _reject_followers(self, sequence: OpenSequence) -> None:
        """Ends a sequence of which the model has executed the END, or not the START: what waits in it would need a START."""
        self._forget(sequence)
        while sequence.waiting:
            follower = sequence.waiting.popleft()
            follower.silence()
            self._recorder.failed(FailureReason.REJECTED, request_ns=self._clock.now_ns() - follower.request.received_ns)
            self._deliver(follower, self._without_start(follower.request, follower.mark))
        self._over(sequence)

    def _rest_or_end(self, sequence: OpenSequence) -> None:
        """Waits for the next request of a sequence that has none; one whose id another has taken gets no more."""
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
        """Ends a sequence that stays without requests."""
        sequence.rest()
        sequence.idle = self._timers.call_at(self._clock.now_ns() + self._batching.idle_us * 1_000, lambda: self._over(sequence))

    def _withdraw(self, member: Member) -> None:
        """Its client has left. What a worker has is run all the same, and what it leaves counts: another request must wait for it."""
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
        """Fails a request whose time ran out before its turn came."""
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
        """Takes out a request that waits for its turn. A sequence that loses its START cannot begin from now on."""
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
        except Exception:  # a defect of one front; the sequence goes on all the same
            log.exception("the result callback of a request raised")
        self._end(member)

    def _end(self, member: Member) -> None:
        member.ended()
        if not self._members:
            self.on_idle()


def _queue_timeout() -> QueueTimeout:
    return QueueTimeout("Request timeout expired", retry_after_s=1.0)


def _named(request: InferRequest) -> str:
    return f"[request id: {request.request_id or '<id_unknown>'}] inference request"


def _ignore() -> None:
    """No callback was named."""
