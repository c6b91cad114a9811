"""Selects the passes for a set of options, in the intended order (`PassManager` moves passes whose constraints require it)."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stoker.compiler.convert.options import COMPILED_PRECISIONS, ConversionOptions
from stoker.compiler.option_fields import literal

#: Simplifications that keep the result. They run before all pattern-matching passes, and again at the end.
_CLEANUP = (
    "remove_initializer_from_input",
    "extract_constant_to_initializer",
    "eliminate_nop_cast",
    "eliminate_nop_expand",
    "eliminate_nop_flatten",
    "eliminate_nop_if",
    "eliminate_nop_pad",
    "eliminate_nop_reshape",
    "eliminate_nop_transpose",
    "eliminate_nop_arithmetic",
    "eliminate_identity",
    "fuse_consecutive_cast",
    "fuse_consecutive_reshape",
    "fuse_consecutive_squeeze",
    "fuse_consecutive_transpose",
    "fuse_consecutive_unsqueeze",
    "fuse_consecutive_arithmetic",
    "eliminate_duplicate_nodes",
    "eliminate_duplicate_initializer",
    "eliminate_deadend",
    "eliminate_unused_initializer",
    "unique_name_for_nodes",
)
#: Replace operators that devices lack or run slowly by equivalent ones.
_REPLACEMENTS = (
    "replace_castlike",
    "replace_clip_empty_inputs",
    "replace_einsum_with_matmul",
    "replace_greater_or_equal",
    "replace_less_or_equal",
    "replace_hardswish",
    "replace_isinf",
    "replace_nonzero",
    "replace_div_with_mul",
    "replace_pow",
    "replace_round",
    "remove_empty_concat_inputs",
    "topk_workaround",
    "cumsum_workaround",
    "onehot_workaround",
    "indices_workaround",
    "float_ops_workaround",
    "batchnorm_workaround",
)
_FUSIONS = (
    "fuse_bn_into_conv",
    "fuse_bn_into_gemm",
    "replace_bn_with_mul_add",
    "fuse_cast_into_onehot",
    "fuse_mul_into_matmul",
    "merge_multi_slice",
    "layer_norm_pattern",
    "gelu_pattern",
)
#: Optional passes in order: the option, the pass, and the pass setting that gets the option's value.
_FUSION_OPTIONS = (
    ("enable_erf_gelu", "erf_gelu_pattern", ""),
    ("enable_compress_pattern", "compress_pattern", ""),
    ("merge_if_with_same_cond", "merge_if_with_same_cond", ""),
    ("merge_matmul", "merge_matmul", "merge_matmul"),
    ("merge_matmul_add", "merge_matmul_add", "merge_matmul_add"),
    ("merge_moe", "merge_moe", "merge_moe"),
)
_LAYOUT_OPTIONS = (
    ("eightbitsio", "eight_bits_io", ""),
    ("apply_hcsr", "apply_host_concat_split", "groups"),
    ("serialize_matmul", "serialize_matmul", "factors"),
    ("serialize_matmul_add", "serialize_matmul_add", "factors"),
    ("fold_periodic_initializer", "fold_periodic_initializer", ""),
    ("inserted_remaps", "auto_insert_remap", "remap_mode"),
    ("num_io_tiles", "overlap_io", "num_io_tiles"),
    ("manual_sharding_config", "manual_sharding", "config"),
)
#: The last passes, which must also follow the user's passes.
_FINISH = ("eliminate_deadend", "eliminate_unused_initializer", "unique_name_for_nodes", "sort_graph", "shape_inference", "final_check")


#: Options that `float_to_fp8` takes under the same names.
_FLOAT8_SETTINGS = (
    "fp8_params",
    "fp8_skip_op_names",
    "num_of_layers_keep_fp16",
    "calibration_with_data",
    "calibration_loss_type",
    "data_preprocess",
)
#: Passes of `shape_steps` that set dimensions to the sizes of the options.
SIZE_STEPS = frozenset({"const_input_shape", "const_batch_size"})
QUANTIZE_LOG = "quantize.log"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One pass to run, with its settings."""

    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def shape_steps(options: ConversionOptions) -> list[Step]:
    """Returns the passes that fix the input shapes and infer the shapes of the graph."""
    steps = [Step("remove_initializer_from_input")]
    if options.input_shape:
        steps.append(Step("const_input_shape", {"input_shape": options.input_shape, "may_lack_batch": options.batch_axis == 0}))
    if options.batch_size is not None:
        steps.append(Step("const_batch_size", {"batch_size": options.batch_size, "batch_axis": options.batch_axis}))
    steps.append(Step("shape_inference"))
    if options.infer_shape_ahead:
        steps += [Step("constant_folding", {"max_tensor_size": options.max_tensor_size}), Step("shape_inference")]
    return steps


def conversion_steps(options: ConversionOptions, log_folder: Path | None = None) -> list[Step]:
    """Returns the passes between the fixed shapes and the user's passes; calibration logs are written to `log_folder`."""
    steps: list[Step] = []
    if options.remove_outputs:
        steps.append(Step("remove_outputs", {"remove_outputs": options.remove_outputs}))
    if options.checkpoints:
        steps.append(Step("add_checkpoints", {"checkpoints": options.checkpoints}))
    steps += _steps(_CLEANUP)
    steps.append(Step("constant_folding", {"max_tensor_size": options.max_tensor_size}))
    steps += [Step("double_to_float"), Step("int64_to_int32")]
    steps += _steps(_REPLACEMENTS)
    steps += _fusion_steps(options)
    steps += _precision_steps(options, log_folder)
    steps += _asked_steps(options, _LAYOUT_OPTIONS)
    steps += _steps(name for name in _CLEANUP if name.startswith(("eliminate", "fuse_consecutive")))
    return steps


def finish_steps(*, is_static: bool = True) -> list[Step]:
    """Returns the passes after the user's passes; the last one rejects variable dimensions if the model must be static."""
    return [Step(name, {} if is_static or name != "final_check" else {"is_static": False}) for name in _FINISH]


def _steps(names: Iterable[str]) -> list[Step]:
    """Returns steps for passes without settings."""
    return [Step(name) for name in names]


def _fusion_steps(options: ConversionOptions) -> list[Step]:
    steps = _steps(_FUSIONS) + _asked_steps(options, _FUSION_OPTIONS)
    if options.pack_args:
        steps.append(Step("packed_transformer", {name: literal(value) for name, value in options.pack_args.items()}))
    return steps


def _asked_steps(options: ConversionOptions, table: Iterable[tuple[str, str, str]]) -> list[Step]:
    """Returns steps for the passes in `table` whose options are set."""
    given = [(name, setting, getattr(options, option)) for option, name, setting in table]
    return [Step(name, {setting: value} if setting else {}) for name, setting, value in given if value not in (None, False, (), {})]


def _precision_steps(options: ConversionOptions, log_folder: Path | None) -> list[Step]:
    if options.precision in ("fp32", *COMPILED_PRECISIONS):
        return []
    half = {
        "fp16_skip_op_types": options.fp16_skip_op_types,
        "enable_avoid_overflow_patterns": options.enable_avoid_overflow_patterns,
    }
    steps = [Step("float_to_half", half)]
    if not options.disable_fast_norm:
        steps.append(Step("replace_groupnorm_with_fast_norm"))
    if options.precision in ("fp8", "fp8_weight"):
        eight_bits: dict[str, Any] = {name: getattr(options, name) for name in _FLOAT8_SETTINGS}
        eight_bits["weight_only"] = options.precision == "fp8_weight"
        if log_folder is not None:
            eight_bits["quantize_log"] = log_folder / QUANTIZE_LOG
        steps.append(Step("float_to_fp8", eight_bits))
    return steps
