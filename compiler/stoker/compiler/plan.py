"""The steps of one run of `stoker compile` around the conversion: `JobOptions`, and the `Plan` that all options make.

The plan is made and checked before any model is read.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.compiler.convert.options import ConversionOptions, conversion_specs
from stoker.compiler.errors import OptionError
from stoker.compiler.option_fields import COUNT, COUNTS, FLAG, NUMBER, PAIRS, PATH, POSITIVE, TEXT, OptionSpec, option, specs
from stoker.compiler.options import COMPILATION_GROUP, CPU_GROUP, BuildOptions, CompilerOptions, compiler_options

_FILES, _SERVE, _RUN, _TENSORFLOW = "Files", "Model repository", "Running", "TensorFlow input (subcommand tf2onnx)"
#: Headings of the help, in order.
_GROUPS = (_FILES, COMPILATION_GROUP, CPU_GROUP, _SERVE, _RUN, _TENSORFLOW)

FRAMEWORKS = ("onnx", "tensorflow")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(BuildOptions):
    """One run of the compiler. Each field is an option of the command line and of the YAML file."""

    input_model: str | None = option(
        PATH,
        "The model: an ONNX file; a SavedModel folder, .tflite or Keras file with --framework tensorflow.",
        group=_FILES,
        flags=("-i",),
    )
    output_model: str | None = option(
        PATH,
        "File name of the converted ONNX model in --output_dir. [default: <input>_converted.onnx, where nothing else is written]",
        group=_FILES,
    )
    output_dir: str = option(PATH, "Where files are written.", group=_FILES, default="./")
    framework: str = option(TEXT, "What --input_model comes from.", group=_FILES, default="onnx", choices=FRAMEWORKS)

    export_popef: bool = option(
        FLAG, "Compile the converted model into an executable in --output_dir.", group=COMPILATION_GROUP, default=False
    )
    ipu_version: str = option(
        TEXT, "ipu2 (M2000, Bow) or ipu21 (C600).", group=COMPILATION_GROUP, default="ipu2", choices=("ipu2", "ipu21")
    )
    batches_per_step: int = option(COUNT, "Micro-batches of one host round trip.", group=COMPILATION_GROUP, default=1)
    batch_sizes: tuple[int, ...] = option(
        COUNTS,
        "Batch sizes to compile for, all in one executable (gcu). The server runs the smallest that takes a batch.",
        group=COMPILATION_GROUP,
        default=(),
    )
    compiler_options: Mapping[str, Any] = option(PAIRS, "Options of the target's compiler.", group=COMPILATION_GROUP, default={})
    popart_options: Mapping[str, Any] = option(PAIRS, "PopART session options.", group=COMPILATION_GROUP, default={})
    report: str | None = option(
        PATH,
        "Also write into this folder where memory and time go, as JSON and as a page; also of what does not fit.",
        group=COMPILATION_GROUP,
    )
    perf_tuner: bool = option(FLAG, "Accepted, not implemented.", group=COMPILATION_GROUP, default=False)
    disable_compilation_progress_bar: bool = option(FLAG, "Show no progress.", group=COMPILATION_GROUP, default=False)

    min_snr: float | None = option(
        NUMBER,
        "Write nothing, and end with exit code 4, where an output's signal to noise against the source is below X decibels (cpu).",
        group=CPU_GROUP,
    )
    min_speedup: float | None = option(
        POSITIVE,
        "Write nothing, and end with exit code 4, where the result is less than X times as fast as the source (cpu).",
        group=CPU_GROUP,
    )

    model_repository: str | None = option(PATH, "Also write a version that can be served into this model repository.", group=_SERVE)
    model_name: str | None = option(TEXT, "Name of the served model.", group=_SERVE)
    model_version: int | None = option(COUNT, "Version of the served model. [default: one above the highest there]", group=_SERVE)

    run: bool = option(FLAG, "Run the executable with random data; print batch size, latency and throughput.", group=_RUN, default=False)

    saved_model: bool = option(FLAG, "--input_model is a SavedModel.", group=_TENSORFLOW, default=False)
    signature_def: str | None = option(TEXT, "Signature of the SavedModel.", group=_TENSORFLOW)
    tag: str | None = option(TEXT, "Tag of the SavedModel.", group=_TENSORFLOW)
    inputs: str | None = option(TEXT, "Names of the model's inputs, separated by commas (optional for a SavedModel).", group=_TENSORFLOW)
    outputs: str | None = option(TEXT, "Names of the model's outputs, separated by commas.", group=_TENSORFLOW)
    opset: int = option(COUNT, "Opset that the TensorFlow model is converted to.", group=_TENSORFLOW, default=11)
    inputs_as_nchw: str | None = option(TEXT, "Inputs to take as NCHW, separated by commas.", group=_TENSORFLOW)
    outputs_as_nchw: str | None = option(TEXT, "Outputs to give as NCHW, separated by commas.", group=_TENSORFLOW)


#: Options of a TensorFlow model, which the command line takes after the word `tf2onnx`.
TENSORFLOW_NAMES = tuple(name for name, spec in specs(JobOptions).items() if spec.group == _TENSORFLOW)

#: Job options that are accepted and change nothing here; the reason is for the warning.
NO_EFFECT: Mapping[str, str] = {"perf_tuner": "it is not implemented, here as in PopRT"}

#: What a model of a fused executable may not have for itself: it concerns the executable or the command.
SHARED_NAMES = frozenset(specs(JobOptions)) - {"input_model", "framework", *TENSORFLOW_NAMES} | {
    "num_io_tiles",
    "available_memory_proportion",
}


def all_specs() -> dict[str, OptionSpec]:
    """Every option of a compile job by name: the job's and the converter's."""
    inherited = specs(BuildOptions)

    def sort_key(spec: OptionSpec) -> tuple[int, bool]:
        return _GROUPS.index(spec.group), spec.group == COMPILATION_GROUP and spec.name in inherited

    job = {spec.name: spec for spec in sorted(specs(JobOptions).values(), key=sort_key)}
    return {**job, **conversion_specs()}


@dataclasses.dataclass(frozen=True, slots=True)
class ModelJob:
    """One model to convert.

    Attributes:
        job: Says where the model is and what it comes from.
        conversion: How it is converted.
        is_version_requested: Whether `convert_version` was given.
    """

    job: JobOptions
    conversion: ConversionOptions
    is_version_requested: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """All options of a run of the compiler, read and checked.

    Attributes:
        job: What to write, run and print.
        models: One, or several to be fused.
        compiler: Options of the target's compiler.
        is_fused: Whether the models were listed to be fused; also one alone may be.
    """

    job: JobOptions
    models: tuple[ModelJob, ...]
    compiler: CompilerOptions
    is_fused: bool = False


def make_plan(job: Mapping[str, Any], models: Sequence[Mapping[str, Any]] = ()) -> Plan:
    """The plan that option values make, all of them parsed already.

    Args:
        job: For the run and for every model.
        models: One mapping for each model to be fused, over `job`; none: `job` has the model.

    Raises:
        OptionError: what is asked for contradicts itself or lacks something.
    """
    common = _job_options(job)
    if models:
        if not common.export_popef:
            raise OptionError("model_fusion needs --export_popef (export_popef: True), since fused models run as one executable only")
        if job.get("input_model"):
            raise OptionError("--input_model and model_fusion exclude each other: the models to be fused are listed there")
    elif common.input_model is None:
        raise OptionError("--input_model is missing: give -i MODEL, or a YAML file that names it")
    if (common.model_repository is None) != (common.model_name is None):
        raise OptionError("--model_repository and --model_name go together")
    if common.model_version is not None and common.model_repository is None:
        raise OptionError("--model_version needs --model_repository and --model_name")
    each = [_model_job({**job, **model}) for model in models or [{}]]
    if common.batch_sizes:
        _check_batch_sizes(common, each)
    return Plan(common, tuple(each), _compiler_options(common, job, each, bool(models)), bool(models))


def _job_options(values: Mapping[str, Any]) -> JobOptions:
    names = {field.name for field in dataclasses.fields(JobOptions)}
    return JobOptions(**{name: value for name, value in values.items() if name in names})


def _model_job(values: Mapping[str, Any]) -> ModelJob:
    known = conversion_specs()
    conversion = ConversionOptions(**{name: value for name, value in values.items() if name in known})
    return ModelJob(_job_options(values), conversion, "convert_version" in values)


def _compiler_options(job: JobOptions, given: Mapping[str, Any], models: Sequence[ModelJob], is_fused: bool) -> CompilerOptions:
    """The command line's own arguments count only where they were given, so that compiler_options may say the same things."""
    first = models[0].conversion
    named = ("ipu_version", "batches_per_step", "num_io_tiles", *specs(BuildOptions))
    settings: dict[str, Any] = {name: given[name] for name in named if name in given}
    if "ipu_version" not in {*settings, *job.compiler_options}:
        settings["ipu_version"] = job.ipu_version
    if first.available_memory_proportion is not None:
        settings["available_memory_proportion"] = first.available_memory_proportion
    if first.batch_axis is not None:
        settings["batch_axis"] = first.batch_axis
    if is_fused:
        settings["enable_model_fusion"] = True
    if job.disable_compilation_progress_bar:
        settings["show_compilation_progress_bar"] = False
    return compiler_options(job.compiler_options, job.popart_options, settings=settings)


def _check_batch_sizes(job: JobOptions, models: Sequence[ModelJob]) -> None:
    if len(models) > 1:
        raise OptionError("--batch_sizes and model_fusion exclude each other")
    if models[0].conversion.batch_size is not None:
        raise OptionError("--batch_sizes and --batch_size exclude each other: give all sizes in --batch_sizes")
    if len(set(job.batch_sizes)) != len(job.batch_sizes):
        raise OptionError(f"--batch_sizes: {', '.join(map(str, job.batch_sizes))} names a size twice")
