"""What a run prints of a conversion: the models themselves, where that was asked for, and what the conversion costs in accuracy.

Three reports, from the cheapest to the most telling: `--check` runs both models with random data; `--precision_compare` says how far each
layer is, so that one finds the layer to keep wider; and wherever samples were given (`--data_preprocess`) the drift of the outputs over
these samples is measured, in every precision, since fusions and replacements round otherwise too.
"""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import onnx
import onnx_ir as ir
from rich.table import Table

from stoker.compiler.check import byte_images, compare_models, error_table, is_packed, is_runnable
from stoker.compiler.check_limits import failure_of_check
from stoker.compiler.convert.opset import convert_to_internal, opset_of
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.errors import CheckError
from stoker.compiler.output_files import write_text
from stoker.compiler.passes import get_pass
from stoker.compiler.precision.compare import LayerDistance
from stoker.compiler.precision.drift import measure_drift
from stoker.compiler.precision.samples import batches_of, inputs_of, load_samples, split
from stoker.compiler.progress import Progress, console_on

logger = logging.getLogger(__name__)

#: Every supported ONNX Runtime runs models up to this opset.
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
    """Prints how far each layer is from the same conversion in FP32."""
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
    """Inputs of the source's types and the converted model's shapes; None where the two do not take the same data."""
    before = {str(value.name): value for value in inputs_of(ir.from_proto(source).graph)}
    after = {str(value.name): value for value in inputs_of(ir.from_proto(converted).graph)}
    if before.keys() != after.keys() or byte_images(converted) or is_packed(converted):
        return None
    return [ir.Value(name=name, type=value.type, shape=after[name].shape) for name, value in before.items()]


def _runnable(title: str, source: onnx.ModelProto) -> onnx.ModelProto:
    """`source` itself where this ONNX Runtime runs it."""
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
