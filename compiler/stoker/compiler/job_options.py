"""`JobOptions`: what `stoker compile` does around the conversion: which files, which target, what to write, run and print."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from stoker.compiler.convert.option_fields import COUNT, COUNTS, FLAG, NAMES, NUMBER, PAIRS, PATH, POSITIVE, TEXT, OptionSpec, option, specs
from stoker.compiler.convert.options import conversion_specs

_FILES, _COMPILE, _SERVE, _RUN, _TENSORFLOW = "Files", "Compilation", "Model repository", "Running", "TensorFlow input (subcommand tf2onnx)"
_CPU = "CPU"

FRAMEWORKS = ("onnx", "tensorflow")
FORMATS = ("onnx", "openvino")
QUANTIZERS = ("onnxruntime", "nncf")
CALIBRATION_METHODS = ("minmax", "entropy", "percentile")
INT8_PRESETS = ("auto", "all", "transformer")
INT8_WEIGHT_BITS = ("auto", "7", "8")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """One run of the compiler. Each field is an option of the command line and of the YAML file."""

    input_model: str | None = option(
        PATH, "The model: an ONNX file, or a SavedModel folder with --framework tensorflow.", group=_FILES, flags=("-i",)
    )
    output_model: str | None = option(
        PATH,
        "File name of the converted ONNX model in --output_dir. [default: <input>_converted.onnx, where nothing else is written]",
        group=_FILES,
    )
    output_dir: str = option(PATH, "Where files are written.", group=_FILES, default="./")
    framework: str = option(TEXT, "What --input_model comes from.", group=_FILES, default="onnx", choices=FRAMEWORKS)

    export_popef: bool = option(FLAG, "Compile the converted model into an executable in --output_dir.", group=_COMPILE, default=False)
    ipu_version: str = option(TEXT, "ipu2 (M2000, Bow) or ipu21 (C600).", group=_COMPILE, default="ipu2", choices=("ipu2", "ipu21"))
    batches_per_step: int = option(COUNT, "Micro-batches of one host round trip.", group=_COMPILE, default=1)
    batch_sizes: tuple[int, ...] = option(
        COUNTS,
        "Batch sizes to compile for, all in one executable (gcu). The server runs the smallest that takes a batch.",
        group=_COMPILE,
        default=(),
    )
    build_flag: str = option(
        TEXT,
        "What the device computes in behind inputs and outputs of the model's types (gcu): fp32, fp16 or mixed.",
        group=_COMPILE,
        default="fp32",
    )
    resource_mode: str = option(TEXT, "Clusters that times are modelled for (gcu), such as 1c. [default: all]", group=_COMPILE, default="")
    compiler_options: Mapping[str, Any] = option(PAIRS, "Options of the target's compiler.", group=_COMPILE, default={})
    popart_options: Mapping[str, Any] = option(PAIRS, "PopART session options.", group=_COMPILE, default={})
    report: str | None = option(
        PATH, "Also write into this folder where memory and time go, as JSON and as a page; also of what does not fit.", group=_COMPILE
    )
    perf_tuner: bool = option(FLAG, "Accepted, not implemented.", group=_COMPILE, default=False)
    disable_compilation_progress_bar: bool = option(FLAG, "Show no progress.", group=_COMPILE, default=False)

    format: str = option(
        TEXT, "File that is made (cpu): onnx, or openvino's IR, which backend openvino serves.", group=_CPU, default="onnx", choices=FORMATS
    )
    quantizer: str = option(
        TEXT,
        "Whose static quantisation makes int8 of it (cpu); nncf makes openvino's IR only.",
        group=_CPU,
        default="onnxruntime",
        choices=QUANTIZERS,
    )
    calibration_method: str = option(
        TEXT,
        "How the range of a tensor follows from the samples (cpu, int8, quantizer onnxruntime).",
        group=_CPU,
        default="minmax",
        choices=CALIBRATION_METHODS,
    )
    int8_preset: str = option(
        TEXT,
        "Operators that become int8 (cpu, int8): all that can, or MatMul and Gemm only (transformer); auto takes the latter for a graph "
        "with attention.",
        group=_CPU,
        default="auto",
        choices=INT8_PRESETS,
    )
    int8_weight_bits: str = option(
        TEXT,
        "Bits of int8 weights (cpu, int8, int8_dynamic, quantizer onnxruntime): with 8, sums may saturate on x86 CPUs without VNNI; auto "
        "takes 7 where this CPU is one.",
        group=_CPU,
        default="auto",
        choices=INT8_WEIGHT_BITS,
    )
    int8_skip_op_types: tuple[str, ...] = option(NAMES, "Operator types that stay FP32 (cpu, int8, int8_dynamic).", group=_CPU, default=())
    int8_skip_op_names: tuple[str, ...] = option(NAMES, "Nodes that stay FP32 (cpu, int8, int8_dynamic).", group=_CPU, default=())
    min_snr: float | None = option(
        NUMBER,
        "Write nothing, and end with exit code 4, where an output's signal to noise against the source is below X decibels (cpu).",
        group=_CPU,
    )
    min_speedup: float | None = option(
        POSITIVE, "Write nothing, and end with exit code 4, where the result is less than X times as fast as the source (cpu).", group=_CPU
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
    return {**specs(JobOptions), **conversion_specs()}
