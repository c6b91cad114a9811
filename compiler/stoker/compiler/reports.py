"""Prints and writes the results of a run: progress, models, conversion accuracy, and executable speed.

Three reports cover accuracy, from the cheapest to the most detailed. `--check` runs both models with random data. `--precision_compare`
prints the distance of each layer, to find layers that need a wider type. With samples (`--data_preprocess`), the drift of the outputs is
measured in every precision, because fusions and replacements round too.
"""

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import onnx
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from stoker.compiler.check import byte_images, compare_models, error_table, failure_of_check, is_packed, is_runnable
from stoker.compiler.convert.opset import convert_to_internal, opset_of
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.errors import CheckError
from stoker.compiler.output_files import write_text
from stoker.compiler.passes import get_pass
from stoker.compiler.precision.drift import LayerDistance, measure_drift
from stoker.compiler.precision.samples import batches_of, inputs_of, load_samples, split
from stoker.compiler.target import Measurement

logger = logging.getLogger(__name__)

_PIPE_WIDTH = 160

StepCallback = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what comes next; empty at the end)."""


class Progress:
    """Shows the phases of a run on a stream, by default stderr.

    Args:
        is_shown: Whether to show anything.
        stream: A terminal gets a bar; anything else one line when a phase ends.
        now_s: Monotonic time in seconds.
    """

    def __init__(self, *, is_shown: bool = True, stream: TextIO | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._is_shown = is_shown
        self._now_s = now_s

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[StepCallback]:
        """Shows one phase; yields a function that reports steps, which is optional to call."""
        if not self._is_shown:
            yield _nothing
        elif self._stream.isatty():
            with self._bar(title) as report:
                yield report
        else:
            start_s = self._now_s()
            yield _nothing
            self._stream.write(f"{title}: {self._now_s() - start_s:.1f} s\n")
            self._stream.flush()

    @contextlib.contextmanager
    def _bar(self, title: str) -> Iterator[StepCallback]:
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[step]}"),
        )
        with Bars(*columns, console=Console(file=self._stream)) as bars:
            task = bars.add_task(title, total=None, step="")

            def report(done: int, total: int, step: str) -> None:
                bars.update(task, completed=done, total=max(total, 1), step=step)

            yield report
            total = bars.tasks[0].total or 1
            bars.update(task, completed=total, total=total, step="")


def console_on(stream: TextIO) -> Console:
    """For tables; a pipe or a file takes wide ones. Shapes such as `[n, 3]` are no markup."""
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, markup=False, highlight=False)


def _nothing(_done: int, _total: int, _step: str) -> None:
    """Ignores reports that are not shown."""


#: All supported ONNX Runtime versions run models up to this opset.
RUNNABLE_OPSET = 22
DRIFT_LOG = "accuracy_drift.json"


def show_models(title: str, source: onnx.ModelProto, converted: onnx.ModelProto, options: ConversionOptions, out: TextIO) -> None:
    """Prints what `--show` and `--show_io_stat` ask for."""
    console = console_on(out)
    if options.show:
        out.write(f"{title} as it is written:\n")
        get_pass("model_io_info_stat", console=console)(source)
        out.write(f"{title}, converted:\n")
        get_pass("model_overview", console=console)(converted)
    if options.show or options.show_io_stat:
        get_pass("model_io_info_stat", console=console)(converted)


def check(
    title: str, source: onnx.ModelProto, converted: onnx.ModelProto, options: ConversionOptions, progress: Progress, out: TextIO
) -> None:
    """Compares both models with random data and prints a table of error figures.

    Raises:
        CheckError: an output is further from the source's than the precision explains: see `check_limits`.
        CompileError: a model does not run, or the same data does not fit both.
    """
    with progress.phase(f"checking {title}"):
        errors = compare_models(_runnable(title, source), converted)
    out.write(f"check of {title}: converted ({options.precision}) against source, random data\n")
    headings, rows = error_table(errors)
    _print_table(headings, rows, out)
    failures = [text for text in (failure_of_check(each, options.precision) for each in errors) if text]
    if failures:
        raise CheckError(f"the check of {title} failed: {'; '.join(failures)}")


def report_layers(title: str, distances: Sequence[LayerDistance], out: TextIO) -> None:
    """Prints the distance of each layer from the same conversion in FP32."""
    out.write(f"layers of {title}: cosine distance from the same conversion in fp32\n")
    headings = ("node", "operator", "tensor", "computed in", "cosine distance")
    rows = [
        (each.node, each.op_type, each.tensor, each.converted_as or "(fused or replaced)", _figure(each.cosine_distance))
        for each in distances
    ]
    _print_table(headings, rows, out)


def report_drift(
    title: str,
    source: onnx.ModelProto,
    converted: onnx.ModelProto,
    options: ConversionOptions,
    folder: Path,
    progress: Progress,
    out: TextIO,
) -> None:
    """Measures the drift of the outputs over the samples of `data_preprocess`; prints a table, writes `accuracy_drift.json` to `folder`.

    Where calibration took samples of this file, the report is over those that it left out, if there are enough. Samples are for the
    source's inputs: where the conversion changed those, a warning says that nothing was measured.

    Raises:
        OptionError: the samples cannot be read.
        CompileError: a model does not run on ONNX Runtime, or the file cannot be written.
    """
    samples = load_samples(str(options.data_preprocess))
    source = _runnable(title, source)
    inputs = _inputs_to_sample(source, converted)
    if inputs is None:
        logger.warning("%s: its accuracy drift is not measured, since the conversion changed what the inputs hold", title)
        return
    with progress.phase(f"measuring the accuracy drift of {title}"):
        batches = batches_of(inputs, samples, file=options.data_preprocess)
        parts = split(batches)
        if options.calibrates:
            report = measure_drift(source, converted, parts.report, is_held_out=parts.is_held_out)
        else:
            report = measure_drift(source, converted, batches)
    write_text(folder / DRIFT_LOG, report.to_json() + "\n")
    out.write(
        f"accuracy drift of {title}: converted ({options.precision}) against source, data of {options.data_preprocess}: {report.about()}\n"
    )
    console_on(out).print(report.table())


def _inputs_to_sample(source: onnx.ModelProto, converted: onnx.ModelProto) -> list[ir.Value] | None:
    """Returns inputs with the source's types and the converted model's shapes; None if the two models take different data."""
    before = {str(value.name): value for value in inputs_of(ir.from_proto(source).graph)}
    after = {str(value.name): value for value in inputs_of(ir.from_proto(converted).graph)}
    if before.keys() != after.keys() or byte_images(converted) or is_packed(converted):
        return None
    return [ir.Value(name=name, type=value.type, shape=after[name].shape) for name, value in before.items()]


def _runnable(title: str, source: onnx.ModelProto) -> onnx.ModelProto:
    """Returns `source` if ONNX Runtime can run it, otherwise the source at the internal opset, with a warning."""
    if opset_of(source) <= RUNNABLE_OPSET or is_runnable(source):
        return source
    logger.warning("%s: ONNX Runtime does not run opset %d; it is compared in the form that passes start from", title, opset_of(source))
    return convert_to_internal(source)


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    console_on(out).print(table)


def _figure(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3e}"


def report_measurement(measured: Measurement, out: TextIO) -> None:
    """Prints batch size, latency and throughput on lines of their own, in PopRT's words, which scripts look for.

    Of a fused executable each model has these lines, under its name.
    """
    for name, part in measured.parts.items():
        out.write(f"{name}:\n")
        report_measurement(part, out)
    if measured.parts:
        return
    note = f" ({measured.note})" if measured.note else ""
    out.write(f"Bs: {measured.batch_size}\n")
    latency_ms = measured.latency_s * 1e3
    out.write(f"Latency: {latency_ms:{'.2f' if latency_ms >= 1 else '.3g'}}ms{note}\n")
    out.write(f"Tput: {measured.throughput:.0f}\n")
