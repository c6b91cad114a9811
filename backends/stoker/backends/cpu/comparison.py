"""Compares a compiled model with its source: the difference of the outputs and the speed-up.

The source runs on ONNX Runtime as it is; the other as the server will run it, by its backend. Both have all usable cores, and take turns
in random order.

The speeds of two functions are measured in pairs of short windows, in random order within each pair. So other load on the machine affects
both equally, and neither always runs first. The figures are medians; their uncertainty is that of the median of the pairs' ratios, and
figures are printed to the digits that it leaves.
"""

import dataclasses
import io
import logging
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from stoker.backends.api.backend import Backend, Instance, LoadRequest
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.cpu import usable_cores
from stoker.backends.api.errors import ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import BY_CONFIG_NAME, DataType
from stoker.backends.cpu.runtime import Run, run_of
from stoker.backends.cpu.samples import Batches, Samples, samples_of
from stoker.compiler.check import failure_of_drift
from stoker.compiler.errors import CompileError
from stoker.compiler.precision.drift import DriftReport, drift_between, random_outputs
from stoker.compiler.repository_writer import ServedTensor, served_tensors
from stoker.compiler.target import Artefact, Comparison, Measurement, SourceModel

PAIRS: Final = 24
#: Pairs of a model so slow that all would take longer than `LONGEST_S`.
LEAST_PAIRS: Final = 6
WINDOW_S: Final = 0.08
LONGEST_S: Final = 20.0
#: Half the width of the interval that holds the median of repeated medians in 95 of 100 cases, in quartile distances / sqrt(n).
#: (McGill, Tukey, Larsen: Variations of Box Plots, 1978)
_NOTCH: Final = 1.57


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds per call in each window, pair by pair.

    Attributes:
        source: Times of the source model.
        compiled: Times of the compiled model.
    """

    source: tuple[float, ...]
    compiled: tuple[float, ...]

    @property
    def source_s(self) -> float:
        """Median seconds per call of the source model."""
        return statistics.median(self.source)

    @property
    def compiled_s(self) -> float:
        """Median seconds per call of the compiled model."""
        return statistics.median(self.compiled)

    @property
    def ratio(self) -> float:
        """Speed-up of the compiled model, from the medians."""
        return self.source_s / self.compiled_s

    @property
    def ratios(self) -> list[float]:
        """Speed-up in each pair of windows."""
        return [one / other for one, other in zip(self.source, self.compiled, strict=True)]

    @property
    def error(self) -> float:
        """Uncertainty of `ratio` (95 %)."""
        return uncertainty(self.ratios)


def measure(source: Callable[[int], object], compiled: Callable[[int], object], *, seed: int = 0, clock: Clock | None = None) -> Speeds:
    """Times both, each called with the number of the call in its window.

    Args:
        source: What the other is measured against.
        compiled: What is timed.
        seed: Of the order in each pair.
        clock: Another one for tests.
    """
    order, ticking = random.Random(seed), clock or SystemClock()  # noqa: S311 - of windows, not of secrets
    found: tuple[list[float], list[float]] = ([], [])
    functions = (source, compiled)
    for function in functions:  # warm: the first calls allocate
        _call_s(function, ticking)
    start = ticking.now_ns()
    for pair in range(PAIRS):
        if pair >= LEAST_PAIRS and ticking.now_ns() - start > LONGEST_S * 1e9:
            break
        for which in order.sample((0, 1), 2):
            found[which].append(_call_s(functions[which], ticking))
    return Speeds(tuple(found[0]), tuple(found[1]))


def _call_s(function: Callable[[int], object], clock: Clock) -> float:
    """Mean of the calls of one window, of which there is one at least."""
    calls, start = 0, clock.now_ns()
    while calls == 0 or clock.now_ns() - start < WINDOW_S * 1e9:
        function(calls)
        calls += 1
    return max(clock.now_ns() - start, 1) / 1e9 / calls


def uncertainty(values: Sequence[float]) -> float:
    """Confidence interval (95 %) of the median of `values`; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return _NOTCH * (upper - lower) / math.sqrt(len(values))


def shown(value: float, error: float, *, most: int = 3) -> str:
    """`value` to the digit that `error` leaves uncertain, with `most` significant digits at most and never an exponent."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    first = math.floor(math.log10(value))
    last = math.floor(math.log10(error)) if error > 0 else first - most + 1
    digit = min(max(last, first - most + 1), first)
    return f"{round(value, -digit):.{max(-digit, 0)}f}"


logger = logging.getLogger(__name__)


def compare(artefact: Artefact, source: SourceModel, *, filename: str, is_timed: bool) -> Comparison:
    """Runs both.

    Args:
        artefact: What `export` wrote.
        source: With the model before conversion, and its samples; random data is used where it has none.
        filename: What the artefact is called where it is served.
        is_timed: Whether to measure their speed, too.

    Raises:
        CompileError: one of the two does not run, or outputs have different shapes.
    """
    threads = usable_cores()
    names = [value.name for value in source.model.graph.output]
    before = run_of(source.source or source.model, names, threads=threads)
    batch = _max_batch_size(artefact)
    samples = samples_of(source, batch, before)
    with tempfile.TemporaryDirectory() as folder:
        signature = _signature(artefact, source)
        served = _instance(artefact, source, signature, Path(folder), filename, threads)
        try:
            after = _served_run(served, names, signature)
            expected, found = [before(each) for each in samples.report], [after(each) for each in samples.report]
            # Fewer rows, too: kernels are chosen by their number, and a single row must be as exact as a full batch.
            for rows in _fewer_rows(batch, samples.report[0]):
                expected.append({name: array[:rows] for name, array in expected[0].items()})
                found.append(after({name: array[:rows] for name, array in samples.report[0].items()}))
            drift = drift_between(names, expected, found)
            drift = dataclasses.replace(drift, rows=samples.rows, is_held_out=samples.is_held_out)
            speeds = _speeds(before, after, samples.report, batch) if is_timed else None
        finally:
            served.close()
    return _comparison(source, samples, drift, speeds, batch or source.batch_size, threads)


def _max_batch_size(artefact: Artefact) -> int:
    return int(str(artefact.config.get("max_batch_size", 0)))


def _parameters(artefact: Artefact) -> Mapping[str, str]:
    parameters = artefact.config.get("parameters", {})
    assert isinstance(parameters, Mapping)
    return {str(key): str(value) for key, value in parameters.items()}


def _fewer_rows(batch: int, feed: Mapping[str, NDArray[Any]]) -> Iterator[int]:
    """Powers of two below the rows of `feed`, where the model takes batches."""
    rows = min((len(array) for array in feed.values()), default=0) if batch else 0
    while rows > 1:
        rows = 1 << ((rows - 1).bit_length() - 1)
        yield rows


def _comparison(
    source: SourceModel, samples: Samples, drift: DriftReport, speeds: Speeds | None, rows: int | None, threads: int
) -> Comparison:
    """`rows` are those of one call; None where a call has no rows, so that calls are counted."""
    text = io.StringIO()
    data = "random data" if samples.is_random else "the samples"
    text.write(f"{source.precision} against the source model on onnxruntime, over {data}: {drift.about()}\n")
    Console(file=text, width=140).print(drift.table())
    found: dict[str, Any] = {"precision": source.precision, "is_random_data": samples.is_random, "drift": drift.to_data()}
    random = random_outputs(source.source or source.model)
    for name in sorted(random):
        text.write(f"output '{name}' is not comparable: random numbers\n")
    drift = dataclasses.replace(drift, outputs=tuple(each for each in drift.outputs if each.output not in random))
    failures = [each for each in (failure_of_drift(each, source.precision) for each in drift.outputs) if each]
    if speeds is None:
        return Comparison(text=text.getvalue(), data=found, snr_db=drift.snr_db, failures=failures)
    unit, each = ("calls", 1) if rows is None else ("rows", rows)
    rates = [
        shown(each / median, uncertainty([each / one for one in windows]))
        for median, windows in ((speeds.compiled_s, speeds.compiled), (speeds.source_s, speeds.source))
    ]
    ratio, error = shown(speeds.ratio, speeds.error), shown(speeds.error, speeds.error, most=1) if speeds.error else "0"
    of_batch = "no batch" if rows is None else f"batch {rows}"
    spread = f"{min(speeds.ratios):.2f} to {max(speeds.ratios):.2f} in {len(speeds.ratios)} pairs of windows in random order"
    text.write(
        f"speed on this host, {threads} thread(s), {of_batch}: {rates[0]} {unit}/s, source {rates[1]} {unit}/s: "
        f"{ratio} +- {error} times the source's ({spread})\n"
    )
    if speeds.ratio < 1:
        doubt = "" if speeds.ratio + speeds.error < 1 else ", which the measurement cannot tell from the same speed"
        logger.warning("what was compiled is slower than its source: %s +- %s times its speed%s", ratio, error, doubt)
    found["speed"] = {
        "threads": threads,
        "batch_size": each,
        "unit": unit,
        "rows_per_s": each / speeds.compiled_s,
        "source_rows_per_s": each / speeds.source_s,
        "ratio": speeds.ratio,
        "ratio_error": speeds.error,
        "ratio_min": min(speeds.ratios),
        "ratio_max": max(speeds.ratios),
        "pairs": len(speeds.ratios),
    }
    measurement = Measurement(
        batch_size=each,
        calls=len(speeds.compiled),
        latency_s=speeds.compiled_s,
        throughput=float(rates[0]),
        note=f"measured on this host, {threads} thread(s)",
    )
    return Comparison(
        text=text.getvalue(), data=found, measurement=measurement, snr_db=drift.snr_db, speedup=speeds.ratio, failures=failures
    )


def _instance(artefact: Artefact, source: SourceModel, signature: ModelSignature, folder: Path, filename: str, threads: int) -> Instance:
    """The artefact, loaded as the server will load it."""
    parts = {filename: artefact.path, **artefact.companions}
    for name, path in parts.items():
        (folder / name).symlink_to(path.resolve())
    request = LoadRequest(
        model_name=source.name,
        version=1,
        files=ModelFiles(folder, {name: path.stat().st_size for name, path in parts.items()}),
        model_filename=filename,
        signature=signature,
        parameters=_parameters(artefact),
        instance_name=source.name,
        cpu_threads=threads,
    )
    try:
        backend: Backend = BackendRegistry().get(str(artefact.config["backend"]))
        return backend.load(request)
    except ServingError as error:
        raise CompileError(f"the compiled model cannot be loaded for the comparison: {error.message}") from error


def _signature(artefact: Artefact, source: SourceModel) -> ModelSignature:
    rows = _max_batch_size(artefact)
    inputs, outputs = served_tensors(source.source or source.model, source.model, is_batched=bool(rows))
    return ModelSignature(tuple(map(_spec, inputs)), tuple(map(_spec, outputs)), rows)


def _spec(tensor: ServedTensor) -> TensorSpec:
    return TensorSpec(tensor.name, BY_CONFIG_NAME[tensor.datatype], tensor.dims)


def _served_run(instance: Instance, names: Sequence[str], signature: ModelSignature) -> Run:
    """The counterpart of `run_of`: bfloat16 bits of the backend become float32, its bytes become text, as ONNX Runtime returns them."""
    bfloats = {spec.name for spec in (*signature.inputs, *signature.outputs) if spec.datatype is DataType.BF16}

    def run(batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        feeds = {name: _sent(array, is_bfloat=name in bfloats) for name, array in batch.items()}
        try:
            found = instance.execute(feeds, names)
        except ServingError as error:
            raise CompileError(f"the compiled model does not run: {error.message}") from error
        return {name: _received(np.asarray(array), is_bfloat=name in bfloats) for name, array in found.items()}

    return run


def _sent(array: NDArray[Any], *, is_bfloat: bool) -> NDArray[Any]:
    if is_bfloat:
        return array.astype(ml_dtypes.bfloat16).view(np.uint16)
    if array.dtype.kind in "OU":
        return np.array([str(each).encode() for each in array.reshape(-1)], object).reshape(array.shape)
    return array


def _received(array: NDArray[Any], *, is_bfloat: bool) -> NDArray[Any]:
    return array.view(ml_dtypes.bfloat16).astype(np.float32) if is_bfloat else array


def _speeds(before: Run, after: Run, batches: Batches, batch: int) -> Speeds:
    """Full batches. Rows are repeated if there are fewer samples than rows of a batch."""
    shapes = {name: array.shape for name, array in batches[0].items()}
    full = [each for each in batches if {name: array.shape for name, array in each.items()} == shapes]
    full = [each for each in full if not batch or all(len(array) == batch for array in each.values())]
    if not full:
        full = [{name: np.resize(array, (batch, *array.shape[1:])) for name, array in batches[0].items()}]
    return measure(lambda call: before(full[call % len(full)]), lambda call: after(full[call % len(full)]))
