"""`stoker sweep`: compiles a model for each precision and batch size, and prints a table of the modelled figures and the accuracy."""

import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.options import AsJson
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line, print_table

if TYPE_CHECKING:
    from stoker.compiler.target import Target

Path_ = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file.", show_default=False)]
TargetName = Annotated[str, typer.Option("--target", help="Device: ipu or gcu.")]
Precisions = Annotated[str, typer.Option("--precisions", metavar="NAME,...", help="Precisions to try.")]
Batches = Annotated[str, typer.Option("--batch-sizes", metavar="N,...", help="Batch sizes to try.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--input-shape", metavar="NAME=d1,d2", help="Sizes of variable dimensions; may be repeated.")
]
IpuVersion = Annotated[str, typer.Option("--ipu-version", help="ipu2 (M2000, Bow) or ipu21 (C600).")]

#: The targets whose times and memory are modelled.
_DEVICES = ("ipu", "gcu")
#: What a row may hold; the target's summary has the figures.
_COLUMNS = ("precision", "batch", "latency ms", "rows/s", "memory", "SNR dB", "note")


def sweep(
    model: Path_,
    target: TargetName = "ipu",
    precisions: Precisions = "fp32,fp16,fp8",
    batch_sizes: Batches = "1,4,16,32",
    input_shape: Shapes = None,
    ipu_version: IpuVersion = "ipu21",
    as_json: AsJson = False,
) -> None:
    """Compile a model for every precision with every batch size: modelled latency, rows/s and memory, and the accuracy on random data."""
    if target not in _DEVICES:
        raise CommandFailed(f"--target: expected {' or '.join(_DEVICES)}, got '{target[:64]}'", ExitCode.USAGE)
    try:
        from stoker.compiler.convert.free_batch import with_free_batch
        from stoker.compiler.convert.source import read_onnx
        from stoker.compiler.errors import CompileError
        from stoker.compiler.option_fields import COUNTS, NAMES, SHAPES
        from stoker.compiler.target import find_target
    except ModuleNotFoundError as error:
        raise CommandFailed(f"compiling needs the package {error.name}: install stoker with its extra, 'stoker[compile]'") from error
    try:
        device, batches = find_target(target), COUNTS.parse(batch_sizes)
        shapes = SHAPES.parse(input_shape or [])
        source = with_free_batch(read_onnx(str(model)), batches)
    except (CompileError, ValueError) as error:
        raise CommandFailed(str(error), ExitCode.USAGE if isinstance(error, ValueError) else ExitCode.FAILED) from error
    ways = itertools.product(NAMES.parse(precisions), batches)
    rows = [{"precision": name, "batch": batch, **_tried(source, device, name, batch, shapes, ipu_version)} for name, batch in ways]
    if as_json:
        print_json(rows)
        return
    print_table(_COLUMNS, [[_text(row[column]) for column in _COLUMNS] for row in rows], numeric=frozenset(_COLUMNS[1:-1]))
    print_line("Times and memory are modelled for a simulated device; the signal-to-noise ratio is against the source, on random data.")


def _tried(
    source: Any, target: "Target", precision: str, batch: int, shapes: Mapping[str, tuple[int, ...]], ipu_version: str
) -> dict[str, Any]:
    """Returns the columns of one way to compile; if it fails, the note has the first line of the reason."""
    from stoker.compiler.check import compare_models
    from stoker.compiler.convert.converter import Converter
    from stoker.compiler.convert.options import ConversionOptions
    from stoker.compiler.errors import CompileError, NotComparableError
    from stoker.compiler.options import CompilerOptions
    from stoker.compiler.target import SourceModel, fed_inputs

    row: dict[str, Any] = dict.fromkeys(_COLUMNS[2:])
    try:
        options = CompilerOptions(ipu_version=ipu_version)
        target.check_options(options, [precision])
        conversion = ConversionOptions(
            precision=precision, input_shape=shapes, batch_size=batch, batch_axis=0, skip_passes=target.skip_passes
        )
        converted = Converter.of(conversion).convert_internal(source, is_compared=False)
        try:
            ratios = [each.snr_db for each in compare_models(source, converted) if not each.not_comparable]
            row["SNR dB"] = min(ratios, default=None)
        except NotComparableError as error:
            row["note"] = str(error)
        inputs = [value.name for value in fed_inputs(source)]
        described = SourceModel(model=converted, name="model", inputs=inputs, source=source, precision=precision)
        with tempfile.TemporaryDirectory(prefix="stoker-sweep-") as folder:
            summary = target.export([described], options, Path(folder, target.artefact_filename)).summary
    except CompileError as error:
        return {**row, "note": str(error).partition("\n")[0]}
    used, capacity = (summary.get(name) or summary.get(other) for name, other in _MEMORY)
    row["latency ms"] = _only(summary.get("modelled_latency_ms"))
    row["rows/s"] = _only(summary.get("modelled_rows_per_s") or summary.get("modelled_samples_per_s"))
    row["memory"] = used / capacity if isinstance(used, int) and isinstance(capacity, int) else None
    return row


#: Names of used and available memory in the summaries: of the fullest tile, or of the card.
_MEMORY = (("tile_bytes", "hbm_bytes"), ("tile_capacity_bytes", "hbm_capacity_bytes"))


def _only(figures: object) -> float | None:
    return next(iter(figures.values()), None) if isinstance(figures, Mapping) else None


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < float("inf") else f"{value:.4g}"
    return "" if value is None else str(value)
