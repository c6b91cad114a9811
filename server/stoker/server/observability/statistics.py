"""What one model version has done so far: the counts behind ModelStatistics and behind its metrics.

A batch costs a dozen integer additions here, and each of its requests two bisects. There are no locks: scheduling reports from the
event loop, and scrapes and statistics calls read on the same loop, so that a snapshot is always consistent.

Semantics are Triton's. The durations of `inference_stats` are per request: a batch that took 5 ms adds 5 ms to each of its requests.
Those of `batch_stats` are per execution. Only successful requests count in rows, queue and compute times; a failed one has its own
count and duration.
"""

from collections.abc import Sequence

from stoker.backends.api.clock import Clock
from stoker.server.core.statistics import BatchSizeStatistics, Duration, ModelStatistics
from stoker.server.observability.histogram import (
    DURATION_BOUNDS_NS,
    ROWS_BOUNDS,
    SERVING_LATENCY_BOUNDS_NS,
    SERVING_QUEUE_BOUNDS_NS,
    Histogram,
)
from stoker.server.observability.latency_summaries import LatencySummaries
from stoker.server.observability.recorder import FailureReason
from stoker.server.observability.response_statistics import ResponseCounts


class _Executions:
    """Executions of one batch size."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class VersionStatistics:
    """The `VersionRecorder` of one version. Confined to: the event loop.

    Attributes (all since the version was first seen; durations in nanoseconds):
        success_count, success_ns: Requests answered, and their time from end to end.
        failure_counts, failure_ns: Requests failed by reason, and their time together.
        rows: Rows answered.
        queue_ns, input_ns, infer_ns, output_ns: Sums over the answered requests.
        execution_count: Executions of the model.
        queue_depth: Requests that wait now.
        responses: Single responses, where the model is decoupled.
        instances_ejected: Instances that are passed over now, because their last batches failed.
        request_histogram, queue_histogram, compute_histogram: Over answered requests; compute is input, infer and output together.
        rows_histogram: Rows of each execution.
        summaries: Times of answered requests by quantile; None: they are not asked for.
    """

    __slots__ = (
        "_batches",
        "_clock",
        "_last_inference_ms",
        "compute_histogram",
        "execution_count",
        "failure_counts",
        "failure_ns",
        "infer_ns",
        "input_ns",
        "instances_ejected",
        "output_ns",
        "queue_depth",
        "queue_histogram",
        "queue_ns",
        "request_histogram",
        "responses",
        "rows",
        "rows_histogram",
        "success_count",
        "success_ns",
        "summaries",
    )

    def __init__(self, clock: Clock, summaries: LatencySummaries | None = None) -> None:
        self._clock = clock
        self.summaries = summaries
        self._last_inference_ms = 0
        self._batches: dict[int, _Executions] = {}
        self.success_count = 0
        self.success_ns = 0
        self.failure_counts = dict.fromkeys(FailureReason, 0)
        self.failure_ns = 0
        self.rows = 0
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0
        self.execution_count = 0
        self.queue_depth = 0
        self.responses = ResponseCounts()
        self.instances_ejected = 0
        self.request_histogram = Histogram(DURATION_BOUNDS_NS, SERVING_LATENCY_BOUNDS_NS)
        self.queue_histogram = Histogram(DURATION_BOUNDS_NS, SERVING_QUEUE_BOUNDS_NS)
        self.compute_histogram = Histogram(DURATION_BOUNDS_NS, SERVING_LATENCY_BOUNDS_NS)
        self.rows_histogram = Histogram(ROWS_BOUNDS)

    def queued(self) -> None:
        self.queue_depth += 1

    def dequeued(self, count: int = 1) -> None:
        self.queue_depth -= count

    def executed(self, rows: Sequence[int], *, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self._last_inference_ms = self._clock.wall_ms()
        self.execution_count += len(rows)
        if len(rows) == 1:
            self._add_execution(rows[0], input_ns, infer_ns, output_ns)
            return
        # Retried apart: the times are known only in sum, so each execution gets a share by its rows, and the last one what rounding left.
        rows_left = sum(rows)
        for size in rows:
            share_input, share_infer, share_output = (
                left * size // rows_left if rows_left else 0 for left in (input_ns, infer_ns, output_ns)
            )
            self._add_execution(size, share_input, share_infer, share_output)
            rows_left -= size
            input_ns -= share_input
            infer_ns -= share_infer
            output_ns -= share_output

    def succeeded(
        self, *, rows: Sequence[int], request_ns: Sequence[int], queue_ns: Sequence[int], input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        count = len(rows)
        self.success_count += count
        self.rows += sum(rows)
        self.input_ns += count * input_ns
        self.infer_ns += count * infer_ns
        self.output_ns += count * output_ns
        self.success_ns += self.request_histogram.observe_all(request_ns)
        self.queue_ns += self.queue_histogram.observe_all(queue_ns)
        self.compute_histogram.observe(input_ns + infer_ns + output_ns, count)
        if self.summaries is not None:
            self.summaries.observe(request_ns=request_ns, queue_ns=queue_ns, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)

    def failed(self, reason: FailureReason, *, request_ns: int) -> None:
        self.failure_counts[reason] += 1
        self.failure_ns += request_ns

    def ejected(self, count: int) -> None:
        self.instances_ejected = count

    def snapshot(self, name: str, version: int) -> ModelStatistics:
        """The counts so far, in Triton's terms, of the version that is called `name`, `version`."""
        answered = self.success_count
        return ModelStatistics(
            name=name,
            version=version,
            last_inference_ms=self._last_inference_ms,
            inference_count=self.rows,
            execution_count=self.execution_count,
            success=Duration(answered, self.success_ns),
            fail=Duration(sum(self.failure_counts.values()), self.failure_ns),
            queue=Duration(answered, self.queue_ns),
            compute_input=Duration(answered, self.input_ns),
            compute_infer=Duration(answered, self.infer_ns),
            compute_output=Duration(answered, self.output_ns),
            batches=tuple(
                BatchSizeStatistics(
                    batch_size=size,
                    compute_input=Duration(batch.count, batch.input_ns),
                    compute_infer=Duration(batch.count, batch.infer_ns),
                    compute_output=Duration(batch.count, batch.output_ns),
                )
                for size, batch in sorted(self._batches.items())
            ),
            responses=self.responses.snapshot(),
        )

    def _add_execution(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self.rows_histogram.observe(rows)
        batch = self._batches.get(rows)
        if batch is None:
            batch = self._batches[rows] = _Executions()
        batch.count += 1
        batch.input_ns += input_ns
        batch.infer_ns += infer_ns
        batch.output_ns += output_ns
