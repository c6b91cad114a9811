"""Tells the recorder what became of a batch, once for all of its requests, and the traces of those that are traced."""

from collections.abc import Iterable

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import ErrorCode, ServingError
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
