"""Options: PopRT's names and defaults, and how values are read."""

import dataclasses

import pytest

from stoker.compiler.cli_arguments import COMMAND_SPECS
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.options import ConversionOptions, conversion_specs
from stoker.compiler.errors import OptionError
from stoker.compiler.plan import all_specs

#: As PopRT 1.5 documents them; those without a default are None or empty there.
PUBLISHED_DEFAULTS = {
    "output_dir": "./", "export_popef": False, "framework": "onnx", "convert_version": 11, "infer_shape_ahead": False, "precision": "fp32",
    "enable_avoid_overflow_patterns": False, "fp8_params": "F143,F143,-1,-1", "num_of_layers_keep_fp16": 0, "calibration_with_data": False,
    "calibration_loss_type": "kld", "precision_compare": False, "ipu_version": "ipu2", "batches_per_step": 1, "num_io_tiles": 0,
    "max_tensor_size": -1, "fold_periodic_initializer": False, "enable_insert_remap": False, "remap_mode": ("after_matmul",),
    "enable_erf_gelu": False, "enable_compress_pattern": False, "merge_if_with_same_cond": False, "disable_fast_norm": False,
    "eightbitsio": False, "only_manual_sharding": False, "optimize_internal_exchange_code": False, "list_all_passes": False, "check": False,
    "run": False, "show": False, "show_io_stat": False, "perf_tuner": False, "logging_level": "WARNING",
    "disable_compilation_progress_bar": False, "version": False, "saved_model": False, "opset": 11,
}  # fmt: skip
WITHOUT_DEFAULT = {
    "input_model", "output_model", "input_shape", "batch_size", "batch_axis", "fp16_skip_op_types", "fp8_skip_op_names", "data_preprocess",
    "available_memory_proportion", "compiler_options", "popart_options", "serialize_matmul", "serialize_matmul_add", "merge_matmul",
    "merge_matmul_add", "merge_moe", "apply_hcsr", "pack_args", "manual_sharding_config", "custom_library_so_paths", "custom_pass_config",
    "custom_shape_inference", "passes", "skip_passes", "checkpoints", "remove_outputs", "print_completion", "config_yaml", "signature_def",
    "tag", "inputs", "outputs", "inputs_as_nchw", "outputs_as_nchw",
}  # fmt: skip
OUR_OWN = {
    "target",
    "model_repository",
    "model_name",
    "model_version",
    "report",
    "batch_sizes",
    "operators",
    "card",
    "cost_constants",
    "build_flag",
    "resource_mode",
    "format",
    "quantizer",
    "calibration_method",
    "int8_preset",
    "int8_weight_bits",
    "allow_drift",
    "min_snr",
    "min_speedup",
    "int8_skip_op_types",
    "int8_skip_op_names",
}


def test_every_published_option_exists_with_its_default() -> None:
    options = {**COMMAND_SPECS, **all_specs()}
    assert set(options) == set(PUBLISHED_DEFAULTS) | WITHOUT_DEFAULT | OUR_OWN
    assert {name: options[name].default for name in PUBLISHED_DEFAULTS} == PUBLISHED_DEFAULTS
    assert [name for name in WITHOUT_DEFAULT if options[name].default not in (None, (), {})] == []


def test_defaults_of_the_declarations_are_those_of_the_dataclass() -> None:
    options = ConversionOptions()
    assert {name: spec.default for name, spec in conversion_specs().items()} == {
        field.name: getattr(options, field.name) for field in dataclasses.fields(options)
    }


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("input_shape", ["ids=1,512", "a=b=2"], {"ids": (1, 512), "a=b": (2,)}),
        ("input_shape", {"ids": [1, 512], "scalar": []}, {"ids": (1, 512), "scalar": ()}),
        ("input_shape", "ids=[1, 512]", {"ids": (1, 512)}),
        ("fp16_skip_op_types", "Softmax, Gelu", ("Softmax", "Gelu")),
        ("passes", ["pre_scale,fused_attention", "erf_gelu_pattern"], ("pre_scale", "fused_attention", "erf_gelu_pattern")),
        ("serialize_matmul", ["MatMul_1=4/input_channels/True", "MatMul_2=4"], {"MatMul_1": "4/input_channels/True", "MatMul_2": "4"}),
        ("pack_args", {"max_valid_num": 90}, {"max_valid_num": 90}),
        ("apply_hcsr", ["fp32,[512,1],50", "fp32,[512,5]"], ("fp32,[512,1],50", "fp32,[512,5]")),
        ("fp8_params", "F143, F152, 0, -3", "F143,F152,0,-3"),
        ("fp8_params", ("F143", "F143", -1, -1), "F143,F143,-1,-1"),
        ("batch_size", "4", 4),
        ("max_tensor_size", "-1", -1),
        ("check", "true", True),
        ("available_memory_proportion", "0.15", 0.15),
        ("precision", None, "fp32"),
    ],
)
def test_values_are_read_from_text_lists_and_python(name: str, written: object, value: object) -> None:
    assert conversion_specs()[name].parse(written) == value


@pytest.mark.parametrize(
    ("name", "written", "reason"),
    [
        ("input_shape", ["ids"], "expected NAME=d0,d1"),
        ("input_shape", ["ids=1,n"], "expected sizes for 'ids'"),
        ("input_shape", ["ids=0"], "expected sizes of 1 or more for 'ids'"),
        ("input_shape", ["ids=1", "ids=2"], "'ids' is given twice"),
        ("pack_args", ["max_valid_num"], "expected KEY=VALUE"),
        ("fp8_params", "F143,F143,-1", "fp8_params"),
        ("fp8_params", "F144,F143,0,0", "F144"),
        ("batch_size", 1.5, "expected an integer"),
        ("batch_size", True, "expected an integer"),
        ("check", 2, "expected true or false"),
        ("passes", 3, "expected names separated by commas"),
        ("precision", "int4", "is none of fp32, fp16, fp8, fp8_weight, bf16, int8"),
        ("available_memory_proportion", 0, "expected a number above 0 and up to 1"),
    ],
)
def test_values_of_another_kind_are_refused(name: str, written: object, reason: str) -> None:
    with pytest.raises(OptionError, match=name) as caught:
        conversion_specs()[name].parse(written)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"batch_axis": 0}, "batch_axis needs batch_size"),
        ({"calibration_loss_type": "gptq", "precision": "fp8"}, "fp8_weight only"),
        ({"calibration_with_data": True, "precision": "fp8"}, "needs data_preprocess"),
        ({"precision_compare": True}, "for precision fp8 and fp8_weight only"),
        ({"precison": "fp16"}, "there is no option 'precison'; did you mean precision"),
        ({"input_model": "a.onnx"}, "there is no option 'input_model'"),
        ({"quantize": True, "calibration_with_data": True}, "are one option, given twice"),
    ],
)
def test_contradictions_and_unknown_names_are_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        Converter(**values)
    assert reason in str(caught.value)


def test_python_api_starts_from_other_scales_and_accepts_pass_objects() -> None:
    options = Converter(used_passes=["trace_folding"]).options
    assert options.fp8_params == "F143,F143,0,0"
    assert options.passes == ("trace_folding",)


def test_old_option_names_work_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    options = ConversionOptions.of({"quantize_loss_type": "mse", "precision": "fp8"})
    assert options.calibration_loss_type == "mse"
    assert "option 'quantize_loss_type' is deprecated" in caplog.text
