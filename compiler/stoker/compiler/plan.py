"""`Plan`: what one run of `stoker compile` was told, read and checked before any model is."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.compiler.convert.options import ConversionOptions, conversion_specs
from stoker.compiler.errors import OptionError
from stoker.compiler.job_options import JobOptions
from stoker.compiler.options import CompilerOptions
from stoker.compiler.session_options import compiler_options

#: Options of the command line that are the compiler's under the same names.
BUILD_OPTIONS = (
    "build_flag",
    "resource_mode",
    "format",
    "quantizer",
    "calibration_method",
    "int8_preset",
    "int8_weight_bits",
    "int8_skip_op_types",
    "int8_skip_op_names",
)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelJob:
    """One model to convert.

    Attributes:
        job: Says where the model is and what it comes from.
        conversion: How it is converted.
        is_version_asked: Whether `convert_version` was given.
    """

    job: JobOptions
    conversion: ConversionOptions
    is_version_asked: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run of the compiler was told, read and checked.

    Attributes:
        job: What to write, run and print.
        models: One, or several to be fused.
        compiler: What the target's compiler is told.
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
    named = ("ipu_version", "batches_per_step", "num_io_tiles", *BUILD_OPTIONS)
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
