"""The server's own figures of a load: KServe's statistics, as the difference between two readings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class ServerReading:
    """A model's counters at one moment.

    Attributes:
        requests, rows, executions: Completed requests, their rows, and the batches they ran in.
        ns: Time that all requests together spent in each part, by its name in the statistics.
    """

    requests: int
    rows: int
    executions: int
    ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Means of a request between two readings.

    Attributes:
        queue_us: Microseconds that it waited for a place in a batch; the others, that the model's steps took.
        rows_per_batch: Rows that ran together.
    """

    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float
    rows_per_batch: float

    @property
    def total_us(self) -> float:
        """All parts together."""
        return self.queue_us + self.compute_input_us + self.compute_infer_us + self.compute_output_us


def read(statistics: Sequence[Mapping[str, Any]]) -> ServerReading:
    """The counters of all versions together: which one a load reached is the server's choice."""
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
    """The difference between two readings; None where no request was counted."""
    requests = after.requests - before.requests
    if requests <= 0:
        return None
    queue, given, run, taken = ((after.ns[part] - before.ns[part]) / requests / 1000 for part in _PARTS)
    executions = after.executions - before.executions
    return ServerTimes(queue, given, run, taken, (after.rows - before.rows) / executions if executions > 0 else 0.0)
