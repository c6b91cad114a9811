"""`SequenceScheduler`: requests of one sequence run one after the other, each given what the one before left; different ones share batches.

It stands in front of a `Scheduler`, to which every request goes with the control inputs that tell the model where in its sequence it is,
and with the states that the request before gave back. Rules and texts are Triton's.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from backends.api.clock import Clock
from backends.api.errors import InvalidRequest, Overloaded, ServingError, Unavailable
from backends.api.model import ModelSignature
from backends.api.tensor import DataType
from server.core.request import Answer, Array, Done, InferRequest, InferResponse, InFlight
from server.core.sequence import ControlInput, ControlKind, SequenceBatching, SequenceMark
from server.core.timers import Timer, Timers
from server.observability.recorder import FailureReason, VersionRecorder
from server.scheduling.scheduler import Scheduler

_NO_MARK = SequenceMark(0)


class _Member:
    """One accepted request of a sequence; the `InFlight` of its caller."""

    __slots__ = ("done", "ended", "flight", "is_over", "mark", "request", "scheduler", "sequence")

    def __init__(
        self,
        scheduler: "SequenceScheduler",
        sequence: "_Sequence",
        request: InferRequest,
        mark: SequenceMark,
        done: Done,
        ended: Callable[[], None],
    ) -> None:
        self.scheduler = scheduler
        self.sequence = sequence
        self.request = request
        self.mark = mark
        self.done = done
        self.ended = ended
        self.flight: InFlight | None = None
        self.is_over = False

    def cancel(self) -> None:
        if not self.is_over:
            self.scheduler._withdraw(self)


class _Sequence:
    """One sequence in progress, or waiting to be."""

    __slots__ = ("id", "idle", "is_admitted", "running", "states", "waiting")

    def __init__(self, sequence_id: int | str, states: dict[str, Array]) -> None:
        self.id = sequence_id
        self.states = states
        self.waiting: deque[_Member] = deque()
        self.running: _Member | None = None
        self.idle: Timer | None = None
        self.is_admitted = False


class SequenceScheduler:
    """Sequences of one loaded version. Confined to: the event loop.

    INVARIANT: a sequence has at most one request in the inner scheduler; it is in `_known` from its START until its END has been answered
    or it was idle too long, unless another START took its id.

    Attributes:
        on_idle: Called whenever the last request that had no answer got one.
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
        self._known: dict[int | str, _Sequence] = {}
        self._admitted = 0
        self._backlog: deque[_Sequence] = deque()
        self._members: set[_Member] = set()
        self._is_closed = False

    @property
    def queue_depth(self) -> int:
        """Requests waiting."""
        return len(self._members) - self._inner.unanswered + self._inner.queue_depth

    @property
    def unanswered(self) -> int:
        """Requests accepted that have no answer yet."""
        return len(self._members)

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """As `Scheduler.submit`.

        Raises:
            InvalidRequest: it names no sequence, or one that has not begun, or has several rows. And as `Scheduler.submit`.
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
            raise
        sequence = self._begin(mark.id) if mark.is_start else self._known[mark.id]
        member = _Member(self, sequence, request, mark, done, ended or _ignore)
        if sequence.running is None and not sequence.waiting and sequence.is_admitted:
            # What the inner scheduler refuses is refused here and now.
            try:
                self._run(member)
            except ServingError:
                self._pass_on(sequence, member)
                raise
        else:
            sequence.waiting.append(member)
        self._members.add(member)
        return member

    def abandon(self, why: str) -> None:
        """As `Scheduler.abandon`; every sequence is over."""
        waiting = [member for member in self._members if member.flight is None]
        for sequence in {*self._known.values(), *self._backlog, *(member.sequence for member in self._members)}:
            sequence.waiting.clear()
            sequence.is_admitted = False
            self._rest(sequence)
        self._known.clear()
        self._backlog.clear()
        self._admitted = 0
        now_ns = self._clock.now_ns()
        for member in waiting:
            self._recorder.failed(FailureReason.OTHER, request_ns=now_ns - member.request.received_ns)
            self._answer(member, Unavailable(why))
        self._inner.abandon(why)

    async def close(self) -> None:
        """As `Scheduler.close`."""
        self._is_closed = True
        self.abandon(f"model '{self._model}' was unloaded")
        await self._inner.close()

    def _check(self, request: InferRequest, mark: SequenceMark) -> None:
        said = f"[request id: {request.request_id or '<id_unknown>'}] inference request"
        if not mark.id:
            raise InvalidRequest(f"{said} to model '{self._model}' must specify a non-zero or non-empty correlation ID")
        if request.rows > 1:
            raise InvalidRequest(f"{said} to model '{self._model}' must specify batch-size 1 due to requirements of sequence batcher")
        for control in self._batching.controls:
            if control.kind is ControlKind.ID:
                _id_array(control, mark.id, self._model)
        if not mark.is_start and mark.id not in self._known:
            raise InvalidRequest(
                f"{said} for sequence {mark.id} to model '{self._model}' must specify the START flag on the first request of the sequence"
            )

    def _begin(self, sequence_id: int | str) -> _Sequence:
        """A new sequence, in place of one of the same id: that only ends what it has begun."""
        before = self._known.get(sequence_id)
        if before is not None:
            self._rest(before)
            if before.is_admitted and before.running is None:
                self._admitted -= 1
                before.is_admitted = False
        states = {
            state.input.name: _zeros(state.input.datatype, (1, *state.initial_dims) if self._signature.is_batched else state.initial_dims)
            for state in self._batching.states
        }
        sequence = self._known[sequence_id] = _Sequence(sequence_id, states)
        self._backlog.append(sequence)
        self._admit()
        return sequence

    def _admit(self) -> None:
        """Lets sequences that wait begin, as far as there is room; what of them cannot run is answered with why."""
        while self._backlog and self._admitted < self._batching.most_sequences:
            sequence = self._backlog.popleft()
            sequence.is_admitted = True
            self._admitted += 1
            self._run_next(sequence)

    def _run(self, member: _Member) -> None:
        """Hands a request to the inner scheduler.

        Raises:
            ServingError: it does not take it.
        """
        sequence, request = member.sequence, member.request
        self._rest(sequence)
        outputs = dict.fromkeys((*request.output_names, *(state.output.name for state in self._batching.states)))
        inner = replace(
            request,
            inputs={**request.inputs, **self._controls(member.mark), **sequence.states},
            output_names=tuple(outputs),
            signature=self._inner_signature,
        )
        member.flight = self._inner.submit(inner, lambda answer: self._finished(member, answer))
        sequence.running = member

    def _run_next(self, sequence: _Sequence) -> None:
        while sequence.running is None and sequence.waiting:
            member = sequence.waiting.popleft()
            try:
                self._run(member)
            except ServingError as error:
                self._answer(member, error)
                if member.mark.is_end and not sequence.waiting:
                    self._over(sequence)
                    return
        if sequence.running is None:
            self._watch(sequence)

    def _finished(self, member: _Member, answer: Answer) -> None:
        sequence = member.sequence
        if isinstance(answer, InferResponse):
            for state in self._batching.states:
                sequence.states[state.input.name] = answer.outputs[state.output.name]
            outputs = {name: answer.outputs[name] for name in member.request.output_names}
            answer = InferResponse(answer.model_name, answer.model_version, answer.request_id, outputs, self._signature)
        self._answer(member, answer)
        self._pass_on(sequence, member)

    def _pass_on(self, sequence: _Sequence, member: _Member) -> None:
        """Goes on after `member`, which was the one that ran."""
        if sequence.running is member:
            sequence.running = None
        if (member.mark.is_end or self._known.get(sequence.id) is not sequence) and not sequence.waiting:
            self._over(sequence)
        else:
            self._run_next(sequence)

    def _over(self, sequence: _Sequence) -> None:
        self._rest(sequence)
        if self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]
        if sequence.is_admitted:
            sequence.is_admitted = False
            self._admitted -= 1
            self._admit()

    def _watch(self, sequence: _Sequence) -> None:
        """Ends a sequence that stays without requests."""
        self._rest(sequence)
        sequence.idle = self._timers.call_at(self._clock.now_ns() + self._batching.idle_us * 1_000, lambda: self._over(sequence))

    def _rest(self, sequence: _Sequence) -> None:
        if sequence.idle is not None:
            sequence.idle.cancel()
            sequence.idle = None

    def _withdraw(self, member: _Member) -> None:
        sequence = member.sequence
        member.is_over = True
        self._members.discard(member)
        if member.flight is not None:
            member.flight.cancel()
            self._end(member)
            self._pass_on(sequence, member)
            return
        sequence.waiting.remove(member)
        self._recorder.failed(FailureReason.CANCELED, request_ns=self._clock.now_ns() - member.request.received_ns)
        self._end(member)

    def _answer(self, member: _Member, answer: Answer) -> None:
        if member.is_over:
            return
        member.is_over = True
        self._members.discard(member)
        try:
            member.done(answer)
        finally:
            self._end(member)

    def _end(self, member: _Member) -> None:
        member.ended()
        if not self._members:
            self.on_idle()

    def _controls(self, mark: SequenceMark) -> dict[str, Array]:
        truth = {ControlKind.START: mark.is_start, ControlKind.READY: True, ControlKind.END: mark.is_end}
        controls: dict[str, Array] = {}
        for control in self._batching.controls:
            if control.kind is ControlKind.ID:
                array = _id_array(control, mark.id, self._model)
            else:
                array = np.array([control.values[truth[control.kind]]], dtype=control.datatype.numpy)
            controls[control.name] = array.reshape(1, 1) if self._signature.is_batched else array
        return controls


def _id_array(control: ControlInput, sequence_id: int | str, model: str) -> Array:
    """A sequence's id as the model takes it.

    Raises:
        InvalidRequest: it is of the other kind, or too large.
    """
    if isinstance(sequence_id, str) is not control.datatype.is_bytes:
        wanted = "a string" if control.datatype.is_bytes else "an integer"
        raise InvalidRequest(f"sequence id '{sequence_id}' must be {wanted} for model '{model}'")
    if isinstance(sequence_id, str):
        text = np.empty(1, dtype=np.object_)
        text[0] = sequence_id.encode()
        return text
    if sequence_id > np.iinfo(control.datatype.numpy).max:
        raise InvalidRequest(f"sequence id {sequence_id} is too large for model '{model}', which takes {control.datatype.value}")
    return np.array([sequence_id], dtype=control.datatype.numpy)


def _zeros(datatype: DataType, shape: tuple[int, ...]) -> Array:
    return np.full(shape, b"", dtype=np.object_) if datatype.is_bytes else np.zeros(shape, dtype=datatype.numpy)


def _ignore() -> None:
    """Nobody asked to be told."""
