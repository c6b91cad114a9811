"""The modelled times of compiled executables, as a load simulation takes them."""

from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.program import GcuExecutable, GcuTensor
from stoker.backends.gcu.serving.mount import SMALL_BYTES
from stoker.backends.gcu.timing import copy_time_s, run_time_s
from stoker.backends.ipu.program import StaticProgram
from stoker.backends.ipu.timing import step_timing
from stoker.cli.plan.load import MOST_DEPTH, ServiceTimes


def micro_batch_times(program: StaticProgram) -> ServiceTimes:
    """Returns the times of one micro-batch of the first sub-graph, as `ModelRunner` takes them: a request is one micro-batch, and the rings
    hold every request.
    """
    timing = step_timing(program, program.graphs[0].index)
    micro_batches = max(program.batches_per_step, 1)
    period_s = timing.period_s / micro_batches
    rows = max(program.micro_batch_size, 1) * max(program.replication_factor, 1)
    # Later micro-batches of a call follow at intervals of one period.
    return ServiceTimes((rows,), {rows: timing.latency_s - (micro_batches - 1) * period_s}, {rows: period_s}, pipeline_depth=MOST_DEPTH)


def ipu_call_times(program: StaticProgram, *, pipeline_depth: int, request_overhead_s: float = 0.0) -> ServiceTimes:
    """Returns the times of the server's calls of the first sub-graph: all micro-batches of a step, padded."""
    timing = step_timing(program, program.graphs[0].index)
    rows = max(timing.rows, 1)
    return ServiceTimes(
        (rows,),
        {rows: timing.latency_s},
        {rows: timing.period_s},
        pipeline_depth=pipeline_depth,
        request_overhead_s=request_overhead_s,
    )


def gcu_call_times(
    executable: GcuExecutable,
    hardware: GcuHardware,
    *,
    request_rows: int = 1,
    pipeline_depth: int,
    request_overhead_s: float = 0.0,
) -> ServiceTimes:
    """Returns the times of the server's batches of one instance on all clusters, by actual rows: only these are copied, but a compiled
    batch runs.

    Args:
        executable: The executable.
        hardware: The card.
        request_rows: Rows of each request, whose large tensors are copied one by one.
        pipeline_depth: Batches in flight, each in a stream of its own.
        request_overhead_s: See `ServiceTimes`.
    """
    latency_s, period_s = {}, {}
    sizes = tuple(range(request_rows, executable.max_batch_size + 1, request_rows))
    for rows in sizes:
        lanes = [
            sum(_copy_s(hardware, tensor, rows, request_rows) for tensor in executable.inputs),
            run_time_s(executable.batch_for(rows), hardware.clusters),
            sum(_copy_s(hardware, tensor, rows, request_rows) for tensor in executable.outputs),
        ]
        latency_s[rows], period_s[rows] = sum(lanes), max(lanes)
    return ServiceTimes(sizes, latency_s, period_s, pipeline_depth=pipeline_depth, request_overhead_s=request_overhead_s)


def _copy_s(hardware: GcuHardware, tensor: GcuTensor, rows: int, request_rows: int) -> float:
    """The copies of one tensor of a batch: one for each request, or one of all if they are small."""
    pieces = -(-rows // request_rows)
    if pieces > 1 and tensor.sample_bytes * rows <= SMALL_BYTES * pieces:
        pieces = 1
    return pieces * copy_time_s(hardware, tensor.sample_bytes * rows // pieces)
