"""The outcome of a batch: counted for all of its requests at once, and failures of the backend in the log, each once."""

import logging
from collections.abc import Iterable
from typing import Final

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import ErrorCode, ServingError
from stoker.server.core.request import InferRequest
from stoker.server.observability.logs import LineBudget
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.pending import Pending


def count_batch(recorder: VersionRecorder, entries: Iterable[Pending], result: BatchResult, now_ns: int) -> None:
    """Counts a batch that has ended, and those of its requests that are not over."""
    input_ns, infer_ns, output_ns = result.input_ns, result.infer_ns, result.output_ns
    recorder.executed(result.executions, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
    rows: list[int] = []
    request_ns: list[int] = []
    queue_ns: list[int] = []
    for entry, outcome in zip(entries, result.outcomes, strict=True):
        if entry.is_over or entry.is_counted:
            continue  # withdrawn or abandoned, and counted then
        entry.is_counted = True
        if (trace := entry.request.trace) is not None:
            trace.computed(enqueued_ns=entry.enqueued_ns, ended_ns=now_ns, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
        if (note := entry.request.access) is not None:
            note.queue_ns = entry.dispatched_ns - entry.enqueued_ns
            note.compute_ns = input_ns + infer_ns + output_ns
        if isinstance(outcome, ServingError):
            recorder.failed(_reason(outcome), request_ns=now_ns - entry.request.received_ns)
        else:
            rows.append(entry.rows)
            request_ns.append(now_ns - entry.request.received_ns)
            queue_ns.append(entry.dispatched_ns - entry.enqueued_ns)
    if rows:
        recorder.succeeded(rows=rows, request_ns=request_ns, queue_ns=queue_ns, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)


def _reason(error: ServingError) -> FailureReason:
    return FailureReason.BACKEND if error.code is ErrorCode.BACKEND_FAILED else FailureReason.OTHER


log = logging.getLogger("stoker.scheduling")

#: Lines for one version; further ones are counted.
FAILURES_PER_S: Final = 5
#: Errors of a backend that no client has caused.
_CODES: Final = frozenset({ErrorCode.BACKEND_FAILED, ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL})


class FailureLog:
    """Of one version. Confined to: the event loop."""

    def __init__(self, model: str, version: int) -> None:
        """Has logged nothing yet."""
        self._model = model
        self._version = version
        self._budget = LineBudget(FAILURES_PER_S)

    def note(self, error: ServingError, request: InferRequest, now_ns: int) -> None:
        """Logs the error of a backend for `request`, unless the client has caused it, or there are too many lines.

        Then the error has no traceback any more: its frames hold the inputs of the batch, and the error itself, so that only the garbage
        collector would end them.
        """
        try:
            self._log(error, request, now_ns)
        finally:
            _drop_tracebacks(error)

    def _log(self, error: ServingError, request: InferRequest, now_ns: int) -> None:
        if error.code not in _CODES:
            return
        suppressed = self._budget.take(now_ns)
        if suppressed is None:
            return
        facts: dict[str, object] = {"model": self._model, "version": self._version, "request_id": request.request_id}
        if suppressed:
            facts["suppressed"] = suppressed
        log.error(
            "the backend of model '%s' version %d failed: %s",
            self._model,
            self._version,
            error.message,
            extra=facts,
            # What the backend raised; where it is a ServingError, that is the error itself.
            exc_info=error.__cause__ or error,
        )


def _drop_tracebacks(error: BaseException) -> None:
    """Takes the traceback from `error` and from every error that led to it."""
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            found += (each.__cause__, each.__context__)
