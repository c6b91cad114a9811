"""`run_job` performs one run of `stoker compile`: read, convert, compare, compile, write, measure.

All steps that can fail run before any file is written, and each file appears whole or not at all.
"""

import contextlib
import dataclasses
import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import onnx

from stoker.compiler.convert.converter import Converter, warn_of_no_effect
from stoker.compiler.convert.drift_check import is_compared
from stoker.compiler.convert.free_batch import with_free_batch
from stoker.compiler.convert.free_dimensions import closed, requested_batch_size
from stoker.compiler.convert.options import COMPILED_PRECISIONS
from stoker.compiler.convert.source import TensorflowOptions, read_onnx, read_tensorflow
from stoker.compiler.custom_libraries import using_libraries
from stoker.compiler.errors import CheckError, CompileError, GateError, OptionError, ShapeError
from stoker.compiler.option_fields import specs
from stoker.compiler.options import BuildOptions, CompilerOptions
from stoker.compiler.output_files import check_folder, write_model, write_text, written_whole
from stoker.compiler.plan import NO_EFFECT, TENSORFLOW_NAMES, JobOptions, ModelJob, Plan
from stoker.compiler.precision.samples import load_samples
from stoker.compiler.reports import Progress, check, report_drift, report_layers, report_measurement, show_models
from stoker.compiler.repository_writer import LoadOnce, ServedModel, served_tensors, write_served_versions
from stoker.compiler.target import Artefact, Comparison, ServedPart, SourceModel, Target, rejections_of

logger = logging.getLogger(__name__)

#: Name of the file that `--report` writes if a target compares the models.
COMPARISON_FILE = "comparison.json"


@dataclasses.dataclass(frozen=True, slots=True)
class _Converted:
    name: str
    source: onnx.ModelProto
    internal: onnx.ModelProto
    converter: Converter
    batches: tuple[onnx.ModelProto, ...] = ()


def run_job(plan: Plan, target: Target, progress: Progress, stream: TextIO | None = None, *, load_once: LoadOnce | None = None) -> None:
    """Executes `plan`; prints the requested output to `stream` (stdout) and one line for each written file.

    `load_once` loads each served version before it is written.

    Raises:
        CompileError: something failed; no file that was to be written is left half done.
    """
    out = stream or sys.stdout
    _warn_of_no_effect(plan)
    job = plan.job
    if job.batch_sizes and not target.takes_batch_sizes:
        raise OptionError(f"--batch_sizes: an executable of target '{target.name}' has one batch size; give --batch_size and --batch_axis")
    if job.report is not None and not (target.has_report or target.compares):
        raise OptionError(f"--report: target '{target.name}' has none; the summary of what is compiled says what it needs")
    for name in ("min_snr", "min_speedup"):
        if getattr(job, name) is not None and not target.compares:
            raise OptionError(f"--{name}: target '{target.name}' does not compare what it compiles with the source")
        if getattr(job, name) is not None and not _is_for_target(job):
            raise OptionError(
                f"--{name} judges what is compiled: give --model_repository and --model_name, --export_popef, --run or --report"
            )
    for name in specs(BuildOptions):
        if name not in target.build_options and getattr(plan.compiler, name) != getattr(CompilerOptions(), name):
            raise OptionError(f"--{name}: target '{target.name}' has no such option; --precision says what it computes in")
    for model in plan.models:
        _check_precision(model.conversion.precision, target, is_compiled=_is_compiled(job))
    folder = Path(job.output_dir)
    if _is_for_target(job):
        target.check_options(plan.compiler, [model.conversion.precision for model in plan.models])
    if job.export_popef or _writes_model(plan):
        check_folder(folder)
    names = [f"graph{at}" if plan.is_fused else "" for at in range(len(plan.models))]
    # All converters are made before the first model is read, so that option errors are reported at once.
    converters = [_converters(model, job.batch_sizes, target, folder / name) for model, name in zip(plan.models, names, strict=True)]
    converted = []
    for model, ways, name in zip(plan.models, converters, names, strict=True):
        label = f"{name} ({model.job.input_model})" if plan.is_fused else ""
        with rejections_of(target, plan.compiler, label=label, custom_libraries=model.conversion.custom_library_so_paths):
            converted.append(_convert(model, ways, name, progress))
    for model, made, name in zip(plan.models, converted, names, strict=True):
        _show(model, made, folder / name, progress, out, shows_errors=not (target.compares and _is_for_target(job)))
    # Made before compiling, since an operator may not exist at the requested opset; written after everything succeeded.
    output = None
    if _writes_model(plan):
        output = converted[0].converter.to_output(converted[0].internal)
        converted[0].converter.check_drift(converted[0].source, output, notes=logging.INFO)  # what `internal` lacks was logged
    if _is_for_target(job):
        _compile(plan, target, converted, folder, progress, out, load_once)
    if output is not None:
        path = folder / (job.output_model or f"{Path(str(job.input_model)).stem}_converted.onnx")
        write_model(path, output)
        out.write(f"wrote {path}\n")


def _warn_of_no_effect(plan: Plan) -> None:
    for name, reason in NO_EFFECT.items():
        if getattr(plan.job, name):
            logger.warning("%s has no effect: %s", name, reason)
    warn_of_no_effect([model.conversion for model in plan.models])


def _converters(model: ModelJob, batch_sizes: Sequence[int], target: Target, log_folder: Path) -> list[Converter]:
    """Returns one converter, or one for each batch size."""
    conversion = dataclasses.replace(model.conversion, skip_passes=(*model.conversion.skip_passes, *target.skip_passes))
    sized = [dataclasses.replace(conversion, batch_size=size, batch_axis=0) for size in batch_sizes] or [conversion]
    settings: dict[str, Any] = {"is_version_requested": model.is_version_requested, "log_folder": log_folder}
    return [Converter.of(each, **settings, keeps_free_dimensions=target.keeps_free_dimensions) for each in sized]


def _convert(model: ModelJob, converters: Sequence[Converter], fused_name: str, progress: Progress) -> _Converted:
    path = str(model.job.input_model)
    with progress.phase(f"reading {path}"):
        source = _read(model.job)
    batches = []
    freed = with_free_batch(source, model.job.batch_sizes)
    sizes = model.job.batch_sizes or (0,)
    for size, converter in zip(sizes, converters, strict=True):
        with progress.phase(f"converting {path}") as report:
            batches.append(converter.convert_internal(freed, report, is_compared=is_compared(size, sizes)))
    name = fused_name or model.job.model_name or Path(path).stem
    return _Converted(name, source, batches[0], converters[0], tuple(batches) if len(batches) > 1 else ())


def _read(job: JobOptions) -> onnx.ModelProto:
    given = [name for name in TENSORFLOW_NAMES if getattr(job, name) != getattr(JobOptions(), name)]
    if job.framework == "tensorflow":
        return read_tensorflow(str(job.input_model), TensorflowOptions(**{name: getattr(job, name) for name in TENSORFLOW_NAMES}))
    if given:
        raise OptionError(f"--{given[0]} concerns TensorFlow models: give --framework tensorflow too")
    return read_onnx(str(job.input_model))


def _check_precision(precision: str, target: Target, *, is_compiled: bool) -> None:
    if precision not in target.precisions:
        raise OptionError(f"--precision {precision}: target '{target.name}' has {', '.join(target.precisions)}")
    if precision in COMPILED_PRECISIONS and not is_compiled:
        raise OptionError(
            f"--precision {precision} is made by compiling: give --model_repository and --model_name, or --export_popef for the file alone"
        )


def _show(model: ModelJob, converted: _Converted, folder: Path, progress: Progress, out: TextIO, *, shows_errors: bool) -> None:
    """Prints the requested output. If `shows_errors` is false, it omits comparisons with the source, which the target makes."""
    options, title = model.conversion, str(model.job.input_model)
    source, internal = converted.source, converted.internal
    show_models(title, source, internal, options, out)
    if options.precision_compare:
        report_layers(title, converted.converter.layer_distances, out)
    if not shows_errors:
        return
    with using_libraries(options.custom_library_so_paths):
        if options.check:
            check(title, source, closed(internal), options, progress, out)
        if options.data_preprocess is not None:
            sized = closed(internal, load_samples(options.data_preprocess))
            report_drift(title, source, sized, options, folder, progress, out)


def _writes_model(plan: Plan) -> bool:
    """Returns whether to write a converted ONNX file: on request, or if no other output is requested. Fused models have no single ONNX
    file.
    """
    job = plan.job
    return not plan.is_fused and (job.output_model is not None or not _is_for_target(job))


def _is_for_target(job: JobOptions) -> bool:
    return _is_compiled(job) or job.report is not None


def _is_compiled(job: JobOptions) -> bool:
    return job.export_popef or job.run or job.model_repository is not None


def _compile(
    plan: Plan, target: Target, converted: Sequence[_Converted], folder: Path, progress: Progress, out: TextIO, load_once: LoadOnce | None
) -> None:
    job = plan.job
    if job.report is not None and target.has_report:  # before compiling, which rejects models that do not fit
        with progress.phase("planning for the report"):
            written = target.report(_sources(converted), plan.compiler, Path(job.report))
        for path in written:
            out.write(f"wrote {path}\n")
        if not _is_compiled(job):
            return
    filename = target.filename(plan.compiler)
    with _draft_path(folder / filename, is_kept=job.export_popef) as draft, contextlib.ExitStack() as made:
        artefact = _export(plan, target, converted, draft, progress)
        for path in artefact.companions.values():
            made.callback(path.unlink, missing_ok=True)
        if target.compares:
            _compare(plan, target, artefact, converted, progress, out)
        elif job.run:
            with progress.phase("running with random data"):
                libraries = [path for each in converted for path in each.converter.options.custom_library_so_paths]
                measured = target.measure(draft, custom_libraries=libraries)
            report_measurement(measured, out)
        served = []
        if job.model_repository is not None:
            with progress.phase("loading what is written, once"):
                served = _serve(plan, artefact, converted, target, load_once)
        if job.export_popef:
            for name, path in artefact.companions.items():
                path.replace(folder / name)
    if job.export_popef:
        out.writelines(f"wrote {folder / name}\n" for name in (filename, *artefact.companions))
    for version in served:
        out.write(f"wrote {version}\n")
    _print_summary(artefact, out)


def _compare(plan: Plan, target: Target, artefact: Artefact, converted: Sequence[_Converted], progress: Progress, out: TextIO) -> None:
    """Compares the compiled model with the source, if requested or if compilation stores fewer bits; measures both, if requested."""
    job = plan.job
    is_timed = job.run or job.report is not None or job.min_speedup is not None
    is_requested = any(model.conversion.check or model.conversion.data_preprocess is not None for model in plan.models)
    is_narrower = any(model.conversion.precision in COMPILED_PRECISIONS for model in plan.models)
    if not (is_timed or is_requested or is_narrower or job.min_snr is not None):
        return
    with progress.phase("comparing with the source model"):
        comparison = target.compare(artefact, _sources(converted), plan.compiler, is_timed=is_timed)
    if is_timed or is_requested or job.min_snr is not None:
        out.write(comparison.text)
    if job.run and comparison.measurement is not None:
        report_measurement(comparison.measurement, out)
    missed = _missed_gates(job, comparison)
    if job.report is not None:
        path = Path(job.report) / COMPARISON_FILE
        write_text(path, json.dumps({**comparison.data, "missed": missed}, indent=2, allow_nan=False) + "\n")
        out.write(f"wrote {path}\n")
    # A limit that the user gives replaces the precision's limit.
    if comparison.failures and job.min_snr is None:
        text = f"the compiled model differs from its source: {'; '.join(comparison.failures)}"
        if any(model.conversion.check for model in plan.models):
            raise CheckError(f"the check failed: {text}")
        if not all(model.conversion.allow_drift for model in plan.models):
            raise CheckError(f"{text}; allow_drift compiles it nevertheless")
        logger.warning("%s", text)
    if missed:
        raise GateError(f"{'; '.join(missed)}; nothing is written to serve")


def _missed_gates(job: JobOptions, comparison: Comparison) -> list[str]:
    """Returns the limits of `--min_snr` and `--min_speedup` that the compiled model misses."""
    missed = []
    if job.min_snr is not None:
        if comparison.snr_db is None:
            missed.append(f"--min_snr {job.min_snr:g}: no output is of numbers, so that there is no signal to noise")
        elif not comparison.snr_db >= job.min_snr:
            missed.append(f"--min_snr {job.min_snr:g}: the least signal to noise of an output is {comparison.snr_db:.1f} dB")
    if job.min_speedup is not None and not (comparison.speedup or 0) >= job.min_speedup:
        missed.append(f"--min_speedup {job.min_speedup:g}: the result is {comparison.speedup or 0:.3g} times as fast as the source")
    return missed


def _export(plan: Plan, target: Target, converted: Sequence[_Converted], path: Path, progress: Progress) -> Artefact:
    with progress.phase(f"compiling for {target.name}") as report:
        options = dataclasses.replace(plan.compiler, compilation_progress_logger=lambda done, total: report(done, total, ""))
        return target.export(_sources(converted), options, path)


def _sources(converted: Sequence[_Converted]) -> list[SourceModel]:
    return [
        SourceModel(
            model=each.internal,
            name=each.name,
            inputs=_input_order(each),
            custom_libraries=each.converter.options.custom_library_so_paths,
            batches=each.batches,
            source=each.source,
            precision=each.converter.options.precision,
            samples=each.converter.options.data_preprocess,
            batch_size=requested_batch_size(each.converter.options),
            allow_drift=each.converter.options.allow_drift,
        )
        for each in converted
    ]


def _input_order(converted: _Converted) -> tuple[str, ...]:
    """Returns the input names in the source's order, followed by inputs that the conversion added."""
    made = [value.name for value in converted.internal.graph.input]
    order = [value.name for value in converted.source.graph.input if value.name in made]
    return (*order, *(name for name in made if name not in order))


@contextlib.contextmanager
def _draft_path(path: Path, *, is_kept: bool) -> Iterator[Path]:
    """Returns the path for the executable: a temporary file that is renamed on success, or a file in a temporary folder."""
    if is_kept:
        with written_whole(path) as draft:
            yield draft
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / path.name


def _serve(plan: Plan, artefact: Artefact, converted: Sequence[_Converted], target: Target, load_once: LoadOnce | None) -> list[Path]:
    """Writes the model to the repository, or each model of a fused executable under a separate name."""
    job = plan.job
    name = str(job.model_name)
    if artefact.parts:
        models = [
            _served_model(f"{name}_{part.suffix}", part, each, part.files) for part, each in zip(artefact.parts, converted, strict=True)
        ]
    elif len(converted) == 1:
        models = [_served_model(name, artefact, converted[0], {})]
    else:
        raise CompileError(f"target '{target.name}' cannot serve the models of a fused executable: leave model_repository out")
    return write_served_versions(
        Path(str(job.model_repository)),
        models,
        job.model_version,
        artefact.path,
        filename=target.filename(plan.compiler),
        companions=artefact.companions,
        load_once=load_once,
    )


def _served_model(name: str, made: Artefact | ServedPart, converted: _Converted, files: Mapping[str, str]) -> ServedModel:
    if made.not_servable:
        raise ShapeError(f"model '{name}' cannot be served: {made.not_servable}")
    inputs, outputs = served_tensors(
        converted.source, converted.internal, is_batched=bool(made.config.get("max_batch_size")), datatypes=made.datatypes
    )
    return ServedModel(name=name, config=made.config, inputs=inputs, outputs=outputs, files=files)


def _print_summary(artefact: Artefact, out: TextIO) -> None:
    for name, value in artefact.summary.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
        if value not in ("", None):
            out.write(f"  {name}: {_shown(value)}\n")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
