"""The server's figures of a load: the difference between two readings of KServe's statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class ServerReading:
    """A model's counters at one moment.

    Attributes:
        requests, rows, executions: Completed requests, their rows, and the batches they ran in.
        ns: Total time of all requests in each step, by its name in the statistics, nanoseconds.
    """

    requests: int
    rows: int
    executions: int
    ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Means for one request between two readings.

    Attributes:
        queue_us: Time in the queue, microseconds; the other attributes are the times of the model's steps.
        rows_per_batch: Mean number of rows in a batch.
    """

    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float
    rows_per_batch: float

    @property
    def total_us(self) -> float:
        """Sum of all times, microseconds."""
        return self.queue_us + self.compute_input_us + self.compute_infer_us + self.compute_output_us


def read(statistics: Sequence[Mapping[str, Any]]) -> ServerReading:
    """The counters of all versions together: the server chooses the version for a load."""
    ns = dict.fromkeys(_PARTS, 0)
    requests = rows = executions = 0
    for entry in statistics:
        stats = entry.get("inference_stats", {})
        requests += int(stats.get("success", {}).get("count", 0))
        rows += int(entry.get("inference_count", 0))
        executions += int(entry.get("execution_count", 0))
        for part in _PARTS:
            ns[part] += int(stats.get(part, {}).get("ns", 0))
    return ServerReading(requests, rows, executions, ns)


def between(before: ServerReading, after: ServerReading) -> ServerTimes | None:
    """The difference between two readings; None if no request was counted."""
    requests = after.requests - before.requests
    if requests <= 0:
        return None
    queue, given, run, taken = ((after.ns[part] - before.ns[part]) / requests / 1000 for part in _PARTS)
    executions = after.executions - before.executions
    return ServerTimes(queue, given, run, taken, (after.rows - before.rows) / executions if executions > 0 else 0.0)
