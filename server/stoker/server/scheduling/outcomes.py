"""The outcome of a batch: counts it for all requests of the batch, and logs each failure of the backend once."""

import logging
from collections.abc import Iterable
from typing import Final

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import ErrorCode, ServingError, drop_tracebacks
from stoker.server.core.request import InferRequest
from stoker.server.observability.logs import LineBudget
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.pending import Pending


def count_batch(recorder: VersionRecorder, entries: Iterable[Pending], result: BatchResult, now_ns: int) -> None:
    """Counts a finished batch, and its requests that are not over."""
    input_ns, infer_ns, output_ns = result.input_ns, result.infer_ns, result.output_ns
    recorder.executed(result.executions, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
    apart_ns = result.apart_ns
    compute_ns: list[tuple[int, int, int]] | None = None if apart_ns is None else []
    rows: list[int] = []
    request_ns: list[int] = []
    queue_ns: list[int] = []
    outcomes = result.outcomes
    # Compiled, `zip` with `strict` takes 0.3 us.
    for at, entry in enumerate(entries):
        if apart_ns is not None:
            input_ns, infer_ns, output_ns = apart_ns[at]
        if entry.is_over or entry.is_counted:
            continue  # cancelled or abandoned, and counted at that time
        entry.is_counted = True
        if (trace := entry.request.trace) is not None:
            trace.computed(enqueued_ns=entry.enqueued_ns, ended_ns=now_ns, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
        if (note := entry.request.access) is not None:
            note.queue_ns = entry.dispatched_ns - entry.enqueued_ns
            note.compute_ns = input_ns + infer_ns + output_ns
            note.input_ns = input_ns
            note.output_ns = output_ns
            if note.is_part:
                continue
        outcome = outcomes[at]
        if isinstance(outcome, ServingError):
            recorder.failed(failure_reason(outcome), request_ns=now_ns - entry.request.received_ns)
        else:
            rows.append(entry.rows)
            request_ns.append(now_ns - entry.request.received_ns)
            queue_ns.append(entry.dispatched_ns - entry.enqueued_ns)
            if compute_ns is not None:
                compute_ns.append((input_ns, infer_ns, output_ns))
    if not rows:
        return
    if compute_ns is not None:
        recorder.succeeded_apart(rows=rows, request_ns=request_ns, queue_ns=queue_ns, compute_ns=compute_ns)
    else:
        recorder.succeeded(rows=rows, request_ns=request_ns, queue_ns=queue_ns, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)


def failure_reason(error: ServingError) -> FailureReason:
    """The reason that a request with this result is counted under."""
    return FailureReason.BACKEND if error.code is ErrorCode.BACKEND_FAILED else FailureReason.OTHER


log = logging.getLogger("stoker.scheduling")

#: Bound on the log lines of one version; further failures are only counted.
FAILURES_PER_S: Final = 5
#: Errors of a backend for which no client is responsible.
_CODES: Final = frozenset({ErrorCode.BACKEND_FAILED, ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL})


class FailureLog:
    """The log of one version's failures. Confined to: the event loop."""

    def __init__(self, model: str, version: int) -> None:
        """Makes an empty log."""
        self._model = model
        self._version = version
        self._budget = LineBudget(FAILURES_PER_S)

    def note(self, error: ServingError, request: InferRequest, now_ns: int) -> None:
        """Logs a backend's error for `request`, unless the client caused it, the log has it, or the bound on lines is reached.

        Removes the error's traceback, see `drop_tracebacks`.
        """
        try:
            self._log(error, request, now_ns)
        finally:
            drop_tracebacks(error)

    def _log(self, error: ServingError, request: InferRequest, now_ns: int) -> None:
        if error.code not in _CODES or error.is_logged:
            return
        suppressed = self._budget.take(now_ns)
        if suppressed is None:
            return
        facts: dict[str, object] = {"model": self._model, "version": self._version}
        if request.request_id:
            facts["request_id"] = request.request_id
        if suppressed:
            facts["suppressed"] = suppressed
        log.error(
            "%smodel '%s' version %d failed: %s",
            "" if error.is_of_model else "the backend of ",
            self._model,
            self._version,
            error.message,
            extra=facts,
            # The exception of the backend. An error of Stoker's own has none: its text says all.
            exc_info=error.__cause__,
        )
