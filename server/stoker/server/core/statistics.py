"""A snapshot of one version's statistics, in Triton's terms. Counted by `stoker.server.observability.statistics`."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Duration:
    """How often, and how long in all (nanoseconds)."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchSizeStatistics:
    """Executions of one batch size (rows)."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics:
    """Responses of a decoupled model at one position, over all requests.

    Attributes:
        compute_infer, compute_output: Time that making them took.
        success, fail: With outputs, and errors in their place.
        empty_response: Ends of requests that brought no outputs.
        cancel: Nobody waited for them any more.
    """

    compute_infer: Duration
    compute_output: Duration
    success: Duration
    fail: Duration
    empty_response: Duration
    cancel: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """Answer of ModelStatistics for one version.

    Attributes:
        last_inference_ms: Wall time of the last request, milliseconds since the epoch; 0 = never.
        inference_count: Rows answered (a request of batch n counts n).
        execution_count: Executions of the model.
        success, fail: Whole requests, end to end.
        queue, compute_input, compute_infer, compute_output: Per request: `count` rises by one for each, `ns` by the time its batch took.
        responses: By position, where the model is decoupled.
        batches: By batch size, ascending; `count` here is executions.
    """

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: tuple[BatchSizeStatistics, ...] = ()
    responses: tuple[ResponseStatistics, ...] = ()
