"""`stoker compile --target cpu`: a model for the host's own CPU, what it costs in accuracy, and what it gains in speed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from stoker.backends.cpu.comparison import compare
from stoker.backends.cpu.int8_operators import check_types, weight_bits
from stoker.backends.cpu.openvino_files import check_integers, check_nncf, check_openvino, write_ir, write_quantised_ir
from stoker.backends.cpu.quantising import quantised, quantised_dynamically
from stoker.backends.cpu.runtime import check_size, optimised
from stoker.backends.cpu.samples import batch_of, calibration_batches
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.option_fields import specs
from stoker.compiler.options import BuildOptions, CompilerOptions
from stoker.compiler.target import Artefact, Comparison, SourceModel, Target

#: Fields of `CompilerOptions` that are this target's.
CPU_OPTIONS = frozenset(
    {"format", "quantizer", "calibration_method", "int8_preset", "int8_weight_bits", "int8_skip_op_types", "int8_skip_op_names"}
)
_INT8 = ("int8", "int8_dynamic")


class CpuTarget(Target):
    """Makes `model.onnx`, or `model.xml` with its `model.bin`.

    In FP32 and INT8 an ONNX file is for backend `onnxruntime`; in BF16, which ONNX Runtime does not compute in on CPUs, and as IR it is for
    backend `openvino`.
    """

    name = "cpu"
    artefact_filename = "model.onnx"
    build_options = CPU_OPTIONS
    precisions = ("fp32", "bf16", "int8", "int8_dynamic")
    compares = True
    keeps_free_dimensions = True
    #: A CPU has 64-bit types and all operators, so what other devices need would only cost time here.
    skip_passes = (
        "int64_to_int32", "double_to_float", "gelu_pattern", "layer_norm_pattern", "merge_multi_slice",
        "replace_hardswish", "replace_isinf", "replace_nonzero", "replace_pow", "replace_round", "replace_greater_or_equal",
        "replace_less_or_equal", "topk_workaround", "cumsum_workaround", "onehot_workaround", "indices_workaround",
        "float_ops_workaround", "batchnorm_workaround",
    )  # fmt: skip

    def filename(self, options: CompilerOptions) -> str:
        return "model.xml" if options.format == "openvino" else self.artefact_filename

    def check_options(self, options: CompilerOptions, precisions: Sequence[str]) -> None:
        """Rejects options that contradict each other, and those that need a package that is not installed.

        Raises:
            OptionError: naming option, value and what was expected.
        """
        for name, spec in specs(BuildOptions).items():
            if spec.choices and getattr(options, name) not in spec.choices:  # compiler_options may say any text
                raise OptionError(f"--{name}: '{getattr(options, name)}' is none of {', '.join(spec.choices)}")
        if options.quantizer == "nncf":
            if options.int8_weight_bits != "auto":
                raise OptionError("--int8_weight_bits is for --quantizer onnxruntime: NNCF chooses by itself")
            if options.format != "openvino":
                raise OptionError("--quantizer nncf makes OpenVINO IR: give --format openvino too")
            check_nncf()
        if options.format == "openvino":
            check_openvino("--format openvino")
        check_types(options.int8_skip_op_types)
        for precision in precisions:
            given = [name for name in ("int8_skip_op_types", "int8_skip_op_names") if getattr(options, name)]
            if precision not in _INT8 and given:
                raise OptionError(f"--{given[0]} is for --precision int8 and int8_dynamic, not {precision}")
            if precision != "int8" and options.int8_preset != "auto":
                raise OptionError(f"--int8_preset is for --precision int8, not {precision}")
            if precision not in _INT8 and options.int8_weight_bits != "auto":
                raise OptionError(f"--int8_weight_bits is for --precision int8 and int8_dynamic, not {precision}")
            if precision == "int8_dynamic" and options.format == "openvino":
                raise OptionError("--precision int8_dynamic is computed by ONNX Runtime: give --format onnx")

    def export(self, sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> Artefact:
        """Writes the one source as a model for CPUs to `path`.

        Raises:
            OptionError: there are several sources, or INT8 is asked for without samples.
            CompileError: it cannot be quantised or written, or its backend could not serve it.
        """
        if len(sources) != 1:
            raise OptionError("a CPU runs each model by itself: compile them one by one, and serve them side by side")
        (source,) = sources
        if source.custom_libraries:
            raise OptionError("--custom_library_so_paths: target 'cpu' makes files for servers, which load no library for a model")
        if _is_for_openvino(source, options):
            _reject_strings(source.model)
        check_size(source.model)
        batch, freed = batch_of(source)
        model = optimised(freed)
        if _is_for_openvino(source, options):
            check_integers(model)
        companions: Mapping[str, Path] = {}
        preset = ""
        if options.format == "openvino" and source.precision == "int8" and options.quantizer == "nncf":
            companions, chosen = write_quantised_ir(model, calibration_batches(source, batch), options, path)
            preset = chosen.preset
        else:
            if source.precision == "int8":
                model, chosen = quantised(model, calibration_batches(source, batch), options)
                preset = chosen.preset
            elif source.precision == "int8_dynamic":
                model, chosen = quantised_dynamically(model, options)
                preset = chosen.preset
            if options.format == "openvino":
                companions = write_ir(model, path)
            else:
                path.write_bytes(model.SerializeToString())
        return Artefact(
            path=path,
            summary={**_summary(source, options, batch, path, companions), "int8_preset": preset},
            config=_config(source, options, batch),
            companions=companions,
        )

    def compare(self, artefact: Artefact, sources: Sequence[SourceModel], options: CompilerOptions, *, is_timed: bool) -> Comparison:
        (source,) = sources
        return compare(artefact, source, filename=self.filename(options), is_timed=is_timed)


def _is_for_openvino(source: SourceModel, options: CompilerOptions) -> bool:
    return options.format == "openvino" or source.precision == "bf16"


def _reject_strings(model: onnx.ModelProto) -> None:
    """Raises:
    CompileError: a tensor that clients send or get is of strings.
    """
    for side, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                raise CompileError(f"{side} '{value.name}': OpenVINO serves no strings; precision fp32 in format onnx is for ONNX Runtime")


def _config(source: SourceModel, options: CompilerOptions, batch: int) -> Mapping[str, object]:
    is_openvino = _is_for_openvino(source, options)
    config: dict[str, object] = {"backend": "openvino" if is_openvino else "onnxruntime", "max_batch_size": batch}
    if is_openvino:
        # Beside what eight bits cost, what is not quantised may as well be bfloat16: ResNet-50 runs at twice the speed so.
        config["parameters"] = {"precision": "f32" if source.precision == "fp32" else "bf16"}
    return config


def _summary(source: SourceModel, options: CompilerOptions, batch: int, path: Path, companions: Mapping[str, Path]) -> Mapping[str, object]:
    config = _config(source, options, batch)
    is_by_onnxruntime = source.precision == "int8_dynamic" or (source.precision == "int8" and options.quantizer == "onnxruntime")
    return {
        "precision": source.precision,
        "backend": config["backend"],
        "max_batch_size": batch,
        "file_bytes": path.stat().st_size + sum(each.stat().st_size for each in companions.values()),
        "quantizer": options.quantizer if source.precision == "int8" else "onnxruntime" if source.precision == "int8_dynamic" else "",
        "calibration_method": options.calibration_method if source.precision == "int8" and options.quantizer == "onnxruntime" else "",
        "int8_weight_bits": weight_bits(options)[1] if is_by_onnxruntime else "",
    }
