"""What was compiled beside its source: how far the outputs are apart, and how much faster it runs.

The source runs on ONNX Runtime as it is; the other as the server will run it, by its backend. Both have all usable cores, and take turns,
so that whatever else the machine does meets both alike.
"""

import io
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from rich.console import Console

from backends.api.backend import Backend, Instance, LoadRequest
from backends.api.clock import SystemClock
from backends.api.cpu import usable_cores
from backends.api.errors import ServingError
from backends.api.files import ModelFiles
from backends.api.model import ModelSignature, TensorSpec
from backends.api.registry import BackendRegistry
from backends.api.tensor import BY_CONFIG_NAME
from backends.cpu.samples import Batches, comparison_batches
from backends.onnx_files.runtime_errors import ORT_ERRORS
from backends.onnx_files.runtime_messages import public_text
from compiler.errors import CompileError
from compiler.precision.drift import DriftReport, drift_between
from compiler.repository_writer import ServedTensor
from compiler.served_tensors import served_tensors
from compiler.target import Artefact, Comparison, Measurement, SourceModel

#: Batches that outputs are compared over; more samples than that calibrate, but need not all be run twice more.
MAX_BATCHES = 64
_ROUNDS = 5
_WINDOW_S = 0.5

Run = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


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
    batches = comparison_batches(source)[:MAX_BATCHES]
    threads = usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        served = _instance(artefact, source, Path(folder), filename, threads)
        try:
            names = [value.name for value in source.model.graph.output]
            before, after = _source_run(source, names, threads), _served_run(served, names)
            expected, found = [before(batch) for batch in batches], [after(batch) for batch in batches]
            # Fewer rows, too: kernels are chosen by their number, and a lone request must be answered as well as a full batch is.
            for rows in _fewer_rows(artefact):
                expected.append({name: array[:rows] for name, array in expected[0].items()})
                found.append(after({name: array[:rows] for name, array in batches[0].items()}))
            drift = drift_between(names, expected, found)
            speeds = _speeds(before, after, batches) if is_timed else None
        finally:
            served.close()
    return _comparison(source, drift, speeds, _max_batch_size(artefact) or 1, threads)


def _max_batch_size(artefact: Artefact) -> int:
    return int(str(artefact.config.get("max_batch_size", 0)))


def _parameters(artefact: Artefact) -> Mapping[str, str]:
    parameters = artefact.config.get("parameters", {})
    assert isinstance(parameters, Mapping)
    return {str(key): str(value) for key, value in parameters.items()}


def _fewer_rows(artefact: Artefact) -> Iterator[int]:
    """Powers of two below the full batch."""
    rows = _max_batch_size(artefact)
    while rows > 1:
        rows = 1 << ((rows - 1).bit_length() - 1)
        yield rows


def _comparison(
    source: SourceModel, drift: DriftReport, speeds: tuple[list[float], list[float]] | None, rows: int, threads: int
) -> Comparison:
    text = io.StringIO()
    data = "the samples" if source.samples else "random data"
    text.write(f"{source.precision} against the source model on onnxruntime, over {data}\n")
    Console(file=text, width=140).print(drift.table())
    found: dict[str, Any] = {"precision": source.precision, "is_random_data": source.samples is None, "drift": drift.to_data()}
    measurement = None
    if speeds is not None:
        before, after = speeds
        source_s, call_s = statistics.median(before), statistics.median(after)
        # Of the two rates that stand beside it, so that who divides them finds it; the windows' own ratios tell how far to trust it.
        ratio = source_s / call_s
        ratios = [one / other for one, other in zip(before, after, strict=True)]
        text.write(
            f"speed on this host, {threads} thread(s), batch {rows}: {_rate(rows / call_s)} rows/s, source {_rate(rows / source_s)} rows/s"
            f": {ratio:.2f} times the source's ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs of windows)\n"
        )
        found["speed"] = {
            "threads": threads,
            "batch_size": rows,
            "rows_per_s": rows / call_s,
            "source_rows_per_s": rows / source_s,
            "ratio": ratio,
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        measurement = Measurement(
            batch_size=rows,
            calls=len(after),
            latency_s=call_s,
            throughput=rows / call_s,
            note=f"measured on this host, {threads} thread(s)",
        )
    return Comparison(text=text.getvalue(), data=found, measurement=measurement)


def _rate(per_s: float) -> str:
    """Whole where that is exact enough: four figures at least, and never an exponent."""
    return f"{per_s:.0f}" if per_s >= 1000 else f"{per_s:.4g}" if per_s >= 1 else f"{per_s:.4f}"


def _instance(artefact: Artefact, source: SourceModel, folder: Path, filename: str, threads: int) -> Instance:
    """The artefact, loaded as the server will load it."""
    parts = {filename: artefact.path, **artefact.companions}
    for name, path in parts.items():
        (folder / name).symlink_to(path.resolve())
    request = LoadRequest(
        model_name=source.name,
        version=1,
        files=ModelFiles(folder, {name: path.stat().st_size for name, path in parts.items()}),
        model_filename=filename,
        signature=_signature(artefact, source),
        parameters=_parameters(artefact),
        instance_name=source.name,
        cpu_threads=threads,
    )
    try:
        backend: Backend = BackendRegistry().get(str(artefact.config["backend"]))
        return backend.load(request)
    except ServingError as error:
        raise CompileError(f"what was compiled cannot be loaded to be compared: {error.message}") from error


def _signature(artefact: Artefact, source: SourceModel) -> ModelSignature:
    rows = _max_batch_size(artefact)
    inputs, outputs = served_tensors(source.source or source.model, source.model, is_batched=bool(rows))
    return ModelSignature(tuple(map(_spec, inputs)), tuple(map(_spec, outputs)), rows)


def _spec(tensor: ServedTensor) -> TensorSpec:
    return TensorSpec(tensor.name, BY_CONFIG_NAME[tensor.datatype], tensor.dims)


def _source_run(source: SourceModel, names: list[str], threads: int) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession((source.source or source.model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ORT_ERRORS as error:
        raise CompileError(f"the source model cannot be run to be compared with: {public_text(error)}") from error

    def run(batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            return dict(zip(names, session.run(names, dict(batch)), strict=True))
        except ORT_ERRORS as error:
            raise CompileError(f"the source model does not run: {public_text(error)}") from error

    return run


def _served_run(instance: Instance, names: list[str]) -> Run:
    def run(batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            return {name: np.asarray(array) for name, array in instance.execute(batch, names).items()}
        except ServingError as error:
            raise CompileError(f"what was compiled does not run: {error.message}") from error

    return run


def _speeds(before: Run, after: Run, batches: Batches) -> tuple[list[float], list[float]]:
    """Seconds of a call, in windows in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for run, seconds in zip((before, after), found, strict=True):
            seconds.append(_call_s(run, batches))
    return found


def _call_s(run: Run, batches: Batches) -> float:
    """Mean of the calls of one window, of which there is one at least."""
    clock = SystemClock()
    calls, start = 0, clock.now_ns()
    while calls == 0 or clock.now_ns() - start < _WINDOW_S * 1e9:
        run(batches[calls % len(batches)])
        calls += 1
    return (clock.now_ns() - start) / 1e9 / calls
