"""The CPU's combinations: measured on this machine, and labelled so."""

import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx

from stoker.backends.api.cpu import usable_cores
from stoker.cli.plan.cpu_timing import LEAST_CALLS, RUNTIMES, Timing, cpu_name, measure
from stoker.cli.plan.figures import Figure, Origin
from stoker.cli.plan.model import Combination
from stoker.compiler.target import fed_inputs

#: Share of the calls that the error bar leaves out at each end.
_TAIL = 0.1


def installed_runtimes() -> Sequence[str]:
    """Returns the runtimes that can be measured here."""
    return [name for name in RUNTIMES if importlib.util.find_spec(name) is not None]


def busy_note() -> str:
    """Returns a warning if other load on this machine would make measured times too long; empty otherwise."""
    cores, load = usable_cores(), os.getloadavg()[0]
    if load <= cores:
        return ""
    return f"this machine was busy before the measurement (load average {load:.1f} on {cores} cores): its figures are too slow"


def measured(
    runtime: str, model: Path, source: onnx.ModelProto, sized: onnx.ModelProto, batches: Sequence[int], *, is_freed: bool
) -> list[Combination]:
    """Measures `source` with one runtime.

    Args:
        runtime: One of `installed_runtimes`.
        model: The file of the model that the user gave.
        source: The model; its batch is variable, or is the one of `batches`.
        sized: A conversion of it with static shapes, for the sizes of inputs.
        batches: Batch sizes, ascending.
        is_freed: Whether `source` differs from the file.
    """
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in fed_inputs(sized)}
    batched = [
        value.name
        for value in fed_inputs(source)
        if len(value.type.tensor_type.shape.dim) and not value.type.tensor_type.shape.dim[0].HasField("dim_value")
    ]
    threads = usable_cores()
    with _file_of(source, model, is_freed) as path:
        timings = measure(runtime, path, shapes, batched, batches, threads)
    return [_combination(each, threads) for each in timings]


@contextmanager
def _file_of(source: onnx.ModelProto, model: Path, is_freed: bool) -> Iterator[Path]:
    if not is_freed:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="stoker-plan-") as folder:
        path = Path(folder, "model.onnx")
        onnx.save(source, path, save_as_external_data=True, location="weights", size_threshold=1 << 20)
        yield path


def _combination(timing: Timing, threads: int) -> Combination:
    common = {"target": "cpu", "device": f"CPU, {timing.runtime.partition(' ')[0]}", "unit": "host", "count": 1, "precision": "fp32"}
    if not timing.seconds:
        return Combination(**common, batch=timing.batch, fits=False, problem=timing.problem)  # type: ignore[arg-type]
    latency = spread(timing.seconds)
    calls = f"10th to 90th percentile of {len(timing.seconds)} calls" if len(timing.seconds) >= LEAST_CALLS else "a single call"
    source = f"{calls} on this machine: {cpu_name()}, {threads} threads, {timing.runtime}"
    return Combination(
        **common,  # type: ignore[arg-type]
        batch=timing.batch,
        fits=True,
        latency=latency,
        period=latency,
        throughput=latency.rate(timing.batch),
        error_source=source,
    )


def spread(seconds: Sequence[float]) -> Figure:
    """Returns the median of measured times, ascending, with the 10th and the 90th percentile as its error bar if there are enough."""
    if len(seconds) < LEAST_CALLS:
        return Figure(value=seconds[len(seconds) // 2], low=None, high=None, origin=Origin.MEASURED)
    last = len(seconds) - 1

    def at(share: float) -> float:
        return seconds[round(share * last)]

    return Figure(value=at(0.5), low=at(_TAIL), high=at(1 - _TAIL), origin=Origin.MEASURED)
