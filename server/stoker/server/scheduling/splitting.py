"""`SplittingScheduler`: runs a request of more rows than `max_batch_size` as several parts, and joins their outputs to one response.

Parts are requests of the inner scheduler: they share batches with other requests, and have the deadline, the timeout and the priority of
the whole. The first error ends the whole, whose other parts are cancelled. The whole is one request in all counts.
"""

import copy
import logging
from collections.abc import Callable
from typing import Final

import numpy as np

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, InvalidRequest, ServingError
from stoker.server.core.completion import Completion
from stoker.server.core.request import AccessNote, Array, Done, EngineResult, InferRequest, InferResponse, InFlight, ParameterValue
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.outcomes import failure_reason
from stoker.server.scheduling.pending import Pending
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.wrapped import WrappedScheduler

log = logging.getLogger("stoker.scheduling")

#: Config.pbtxt parameter.
PARAMETER: Final = "split_oversized_requests"


class _Whole(Completion[InferResponse]):
    """A request that runs in parts. Confined to: the event loop.

    Attributes:
        request: The request.
        ended: Called once, when the request is over.
        flights: The parts, in the order of their rows.
        notes: The times of the parts.
        outputs: The joined outputs, as far as parts have run.
        parameters: The parameters of the parts' responses; of one name, the last part's that has run.
        left: Parts without a result.
    """

    __slots__ = ("_owner", "ended", "flights", "left", "notes", "outputs", "parameters", "request")

    def __init__(self, owner: "SplittingScheduler", request: InferRequest, done: Done, ended: Callable[[], None]) -> None:
        super().__init__(done)
        self._owner = owner
        self.request = request
        self.ended = ended
        self.flights: list[Pending] = []
        self.notes: list[AccessNote] = []
        self.outputs: dict[str, Array] = {}
        self.parameters: dict[str, ParameterValue] = {}
        self.left = 0

    def _withdraw(self) -> None:
        self._owner._withdraw(self)

    def cancel_parts(self) -> None:
        """Cancels the parts without a result. They count no failure of their own."""
        flights, self.flights = self.flights, []
        for flight in flights:
            if not flight.is_over:
                flight.is_counted = True
                flight.cancel()


class SplittingScheduler(WrappedScheduler[Scheduler]):
    """Splits requests in front of the scheduler of one loaded version. Confined to: the event loop."""

    def __init__(
        self,
        inner: Scheduler,
        model: str,
        version: int,
        max_batch_size: int,
        *,
        clock: Clock,
        recorder: VersionRecorder,
        max_queue_size: int,
    ) -> None:
        """Makes a scheduler in front of `inner`, whose queue holds at most `max_queue_size` parts of at most `max_batch_size` rows."""
        super().__init__(inner)
        self._model = model
        self._version = version
        self._rows = max_batch_size
        self._now_ns = clock.now_ns
        self._recorder = recorder
        self._most_parts = max_queue_size

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """Submits a request as `Scheduler.submit` does.

        Raises:
            ServingError: as `Scheduler.submit`, also if the queue has no space for all parts.
        """
        if request.rows <= self._rows:
            return self.inner.submit(request, done, ended)
        request.received_ns = request.received_ns or self._now_ns()
        count = -(-request.rows // self._rows)
        if count > self._most_parts:
            self._failed(request, FailureReason.REJECTED)
            most = self._most_parts * self._rows
            raise InvalidRequest(f"a request of {request.rows} rows for '{self._model}' never fits its queue: at most {most} rows")
        whole = _Whole(self, request, done, ended or _ignore)
        whole.left = count
        try:
            for number in range(count):
                self._submit_part(whole, number)
        except ServingError:
            whole.is_over = True
            whole.cancel_parts()
            raise
        return whole

    def _submit_part(self, whole: _Whole, number: int) -> None:
        request, begin = whole.request, number * self._rows
        end = min(begin + self._rows, request.rows)
        part = copy.copy(request)
        part.inputs = {name: array[begin:end] for name, array in request.inputs.items()}
        part.rows = end - begin
        part.trace = None
        part.access = AccessNote(is_part=True)
        whole.notes.append(part.access)
        whole.flights.append(self.inner.submit(part, lambda result: self._part_ended(whole, number, result)))

    def _part_ended(self, whole: _Whole, number: int, result: EngineResult) -> None:
        if whole.is_over:
            return
        error = result if isinstance(result, ServingError) else self._join(whole, number, result)
        if error is None:
            whole.left -= 1
            if not whole.left:
                self._completed(whole)
            return
        whole.cancel_parts()
        if whole.notes[number].compute_ns is not None:
            # A part that did not run has been counted by the inner scheduler.
            self._failed(whole.request, failure_reason(error))
        self._deliver(whole, error)

    def _join(self, whole: _Whole, number: int, response: InferResponse) -> ServingError | None:
        """Copies the outputs of a part to their rows; returns the error if they do not fit."""
        if response.parameters:
            whole.parameters.update(response.parameters)
        rows, begin = whole.request.rows, number * self._rows
        for name, array in response.outputs.items():
            joined = whole.outputs.get(name)
            if joined is None:
                joined = whole.outputs[name] = np.empty((rows, *array.shape[1:]), array.dtype)
            if joined.shape[1:] != array.shape[1:]:
                return BackendFailed(
                    f"output '{name}' has rows of shape {list(array.shape[1:])} and {list(joined.shape[1:])} in parts of one request; "
                    f"send at most {self._rows} rows"
                )
            joined[begin : begin + len(array)] = array
        return None

    def _completed(self, whole: _Whole) -> None:
        request, now_ns = whole.request, self._now_ns()
        queue_ns = max(note.queue_ns or 0 for note in whole.notes)
        input_ns = sum(note.input_ns or 0 for note in whole.notes)
        output_ns = sum(note.output_ns or 0 for note in whole.notes)
        compute_ns = sum(note.compute_ns or 0 for note in whole.notes)
        infer_ns = compute_ns - input_ns - output_ns
        self._recorder.succeeded(
            rows=[request.rows], request_ns=[now_ns - request.received_ns], queue_ns=[queue_ns], input_ns=input_ns, infer_ns=infer_ns,
            output_ns=output_ns,
        )  # fmt: skip
        if (trace := request.trace) is not None:
            trace.computed(
                enqueued_ns=whole.flights[0].enqueued_ns, ended_ns=now_ns, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns
            )
        if (note := request.access) is not None:
            note.queue_ns, note.compute_ns, note.input_ns, note.output_ns = queue_ns, compute_ns, input_ns, output_ns
        outputs = {name: whole.outputs[name] for name in request.output_names}
        parameters = whole.parameters or None
        self._deliver(whole, InferResponse(self._model, self._version, request.request_id, outputs, request.signature, parameters))

    def _failed(self, request: InferRequest, reason: FailureReason) -> None:
        self._recorder.failed(reason, request_ns=self._now_ns() - request.received_ns)

    def _deliver(self, whole: _Whole, result: EngineResult) -> None:
        try:
            whole.complete(result)
        except Exception:  # a defect of one frontend; other requests of the batch must still get their responses
            log.exception("the result callback of a request raised")
        self._end(whole)

    def _withdraw(self, whole: _Whole) -> None:
        """Handles a cancelled request."""
        whole.cancel_parts()
        self._failed(whole.request, FailureReason.CANCELED)
        self._end(whole)

    def _end(self, whole: _Whole) -> None:
        whole.flights = []
        whole.ended()
        whole.ended = _ignore


def _ignore() -> None:
    """The default callback."""
