"""`ConversionOptions`: the options of the converter, with PopRT 1.5's names and defaults."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Self

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import OptionError
from stoker.compiler.option_fields import (
    COUNT,
    FLAG,
    INTEGER,
    NAMES,
    PAIRS,
    PATH,
    PATHS,
    PROPORTION,
    SHAPES,
    SIZE,
    TEXT,
    WORDS,
    Kind,
    OptionSpec,
    option,
    specs,
)
from stoker.compiler.precision.float8_plan import Float8Params

logger = logging.getLogger(__name__)

_SHAPES, _PRECISION, _FP8 = "Shapes", "Precision", "8-bit floats"
_FUSION, _LAYOUT, _PASSES, _EXTENSION, _INSPECTION = "Fusion and patterns", "Memory and layout", "Passes", "Extensions", "Inspection"

_EIGHT_BITS = ("fp8", "fp8_weight")
_NARROW = ("fp16", *_EIGHT_BITS)
#: Precisions of the CPU target: its compiler makes them after the conversion, which leaves the model in FP32.
COMPILED_PRECISIONS = ("bf16", "int8", "int8_dynamic")
PRECISIONS = ("fp32", *_NARROW, *COMPILED_PRECISIONS)
LOSSES = ("mse", "mae", "snr", "kld", "cos_dist", "gptq")


def _fp8_params(value: Any) -> str:
    """Returns the canonical text of a value that `Float8Params` can parse."""
    words = value.split(",") if isinstance(value, str) else value
    try:
        if not isinstance(words, list | tuple):
            raise ValueError(f"expected four values as F143,F143,-1,-1, got {value!r}")
        Float8Params.parse(value if isinstance(value, str) else words)
    except OptionError as error:
        raise ValueError(str(error).removeprefix("fp8_params is ")) from None
    return ",".join(str(word).strip() for word in words)


FP8_PARAMS = Kind("FP8 formats and scales", "F,F,N,N", _fp8_params)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """The options of a conversion. Each field is an option of the command line, of the YAML file and of `Converter`."""

    input_shape: Mapping[str, tuple[int, ...]] = option(
        SHAPES,
        "Sizes for inputs with variable dimensions; `?` leaves one, such as the batch, to other options. Known sizes cannot be changed.",
        group=_SHAPES,
        default={},
    )
    batch_size: int | None = option(COUNT, "Size of dimension --batch_axis of all inputs; the largest one for target cpu.", group=_SHAPES)
    batch_axis: int | None = option(SIZE, "The dimension that --batch_size sets.", group=_SHAPES)
    infer_shape_ahead: bool = option(
        FLAG, "Fix shapes, fold constants and infer shapes before all other passes.", group=_SHAPES, default=False
    )
    convert_version: int = option(COUNT, "Opset of the converted ONNX file.", group=_SHAPES, default=11)

    precision: str = option(
        TEXT,
        "What the device computes in; bf16, int8 and int8_dynamic are for target cpu.",
        group=_PRECISION,
        default="fp32",
        choices=PRECISIONS,
    )
    fp16_skip_op_types: tuple[str, ...] = option(
        NAMES, "Operator types that stay FP32, such as Softmax,LayerNormalization.", group=_PRECISION, default=()
    )
    enable_avoid_overflow_patterns: bool = option(
        FLAG, "Keep patterns that are known to overflow FP16 in FP32.", group=_PRECISION, default=False
    )

    fp8_params: str = option(
        FP8_PARAMS,
        "Input format, weight format (F143 or F152), input scale, weight scale: value = code x 2^scale.",
        group=_FP8,
        default="F143,F143,-1,-1",
    )
    fp8_skip_op_names: tuple[str, ...] = option(NAMES, "Nodes that stay FP16 or FP32.", group=_FP8, default=())
    num_of_layers_keep_fp16: int = option(SIZE, "Keep this many of the layers with the largest loss in FP16.", group=_FP8, default=0)
    calibration_with_data: bool = option(FLAG, "Choose scales with the data of --data_preprocess.", group=_FP8, default=False)
    calibration_loss_type: str = option(
        TEXT, "What calibration minimises; gptq goes with fp8_weight only.", group=_FP8, default="kld", choices=LOSSES
    )
    data_preprocess: str | None = option(
        PATH,
        "Samples for calibration and for the report of accuracy drift: a pickle of {input name: ndarray}, or an .npz file. "
        "Only arrays are read; a pickle with anything else in it is rejected and runs nothing.",
        group=_FP8,
    )
    precision_compare: bool = option(
        FLAG,
        "Print and log how far every Conv, MatMul and Gemm is from the same conversion in FP32, as a cosine distance (fp8 and fp8_weight).",
        group=_FP8,
        default=False,
    )

    enable_erf_gelu: bool = option(FLAG, "Replace GELU written with Erf by one operator.", group=_FUSION, default=False)
    enable_compress_pattern: bool = option(FLAG, "Replace Compress by a masked form.", group=_FUSION, default=False)
    merge_if_with_same_cond: bool = option(FLAG, "Merge If nodes that share a condition.", group=_FUSION, default=False)
    merge_matmul: tuple[str, ...] = option(NAMES, "MatMul nodes to merge.", group=_FUSION, default=())
    merge_matmul_add: tuple[str, ...] = option(NAMES, "MatMul and Add nodes to merge, in pairs.", group=_FUSION, default=())
    merge_moe: tuple[str, ...] = option(NAMES, "First and last nodes of the experts to merge.", group=_FUSION, default=())
    disable_fast_norm: bool = option(FLAG, "Keep layer normalisation as it is written.", group=_FUSION, default=False)
    pack_args: Mapping[str, Any] = option(
        PAIRS,
        "Insert packing: max_valid_num, enable_double_batch_unpack, segment_max_size, head_pattern, dynamic_groups.",
        group=_FUSION,
        default={},
    )

    max_tensor_size: int = option(INTEGER, "Largest tensor in bytes that constant folding may make; -1: any.", group=_LAYOUT, default=-1)
    fold_periodic_initializer: bool = option(FLAG, "Store repetitive weights once.", group=_LAYOUT, default=False)
    serialize_matmul: Mapping[str, str] = option(
        PAIRS, "OP=FACTOR[/MODE[/KEEP_PRECISION]]; modes input_channels, output_channels, reducing_dim, none.", group=_LAYOUT, default={}
    )
    serialize_matmul_add: Mapping[str, str] = option(
        PAIRS, "MATMUL/ADD=FACTOR: split weights and bias on the last dimension.", group=_LAYOUT, default={}
    )
    enable_insert_remap: bool = option(FLAG, "Mark tensors whose layout is to be remapped.", group=_LAYOUT, default=False)
    remap_mode: tuple[str, ...] = option(
        NAMES, "Where: before or after an operator type, such as after_matmul,before_softmax.", group=_LAYOUT, default=("after_matmul",)
    )
    eightbitsio: bool = option(FLAG, "Take images as UINT8 and normalise them on the device.", group=_LAYOUT, default=False)
    apply_hcsr: tuple[str, ...] = option(
        WORDS, "DTYPE,[d0,d1,...][,NUM]: join inputs of one shape on the host, split them on the device.", group=_LAYOUT, default=()
    )
    available_memory_proportion: float | None = option(
        PROPORTION, "Share of tile memory that MatMul, Conv and Gemm may plan with. [default of the target: 0.6]", group=_LAYOUT
    )
    num_io_tiles: int = option(SIZE, "Tiles set apart for host IO; above 0, IO overlaps with compute.", group=_LAYOUT, default=0)
    manual_sharding_config: str | None = option(PATH, "YAML list of {node, device, stage}: where to cut the model.", group=_LAYOUT)
    only_manual_sharding: bool = option(FLAG, "Apply --manual_sharding_config and no other conversion.", group=_LAYOUT, default=False)
    optimize_internal_exchange_code: bool = option(FLAG, "Less memory for exchange code.", group=_LAYOUT, default=False)

    passes: tuple[str, ...] = option(NAMES, "Passes to run, in this order, after those the options call for.", group=_PASSES, default=())
    skip_passes: tuple[str, ...] = option(NAMES, "Passes not to run.", group=_PASSES, default=())
    checkpoints: tuple[str, ...] = option(NAMES, "Tensors to add to the outputs.", group=_PASSES, default=())
    remove_outputs: tuple[str, ...] = option(NAMES, "Outputs to drop, with what only they need.", group=_PASSES, default=())

    custom_library_so_paths: tuple[str, ...] = option(PATHS, "Libraries of ONNX Runtime custom operators.", group=_EXTENSION, default=())
    custom_pass_config: tuple[str, ...] = option(
        NAMES, "Python files that register passes (run them with --passes, or let the file have get_pass()).", group=_EXTENSION, default=()
    )
    custom_shape_inference: tuple[str, ...] = option(
        NAMES, "Python files that register shape functions of custom operators.", group=_EXTENSION, default=()
    )

    check: bool = option(
        FLAG,
        "Compare the converted model with the source on ONNX Runtime; fails (exit code 3) where it is too far from it.",
        group=_INSPECTION,
        default=False,
    )
    allow_drift: bool = option(
        FLAG,
        "Only warn where the converted model differs more from its source than the precision explains; fails otherwise (exit code 3).",
        group=_INSPECTION,
        default=False,
    )
    show: bool = option(FLAG, "Print inputs, outputs and operators of the converted model.", group=_INSPECTION, default=False)
    show_io_stat: bool = option(FLAG, "Print statistics of the inputs and outputs.", group=_INSPECTION, default=False)

    def __post_init__(self) -> None:
        if (self.batch_size is None) != (self.batch_axis is None):
            given, missing = ("batch_size", "batch_axis") if self.batch_axis is None else ("batch_axis", "batch_size")
            raise OptionError(f"{given} needs {missing}: the two are used together")
        if self.only_manual_sharding and self.manual_sharding_config is None:
            raise OptionError("only_manual_sharding needs manual_sharding_config")
        if self.calibration_loss_type == "gptq" and self.precision != "fp8_weight":
            raise OptionError("calibration_loss_type gptq is for precision fp8_weight only")
        if self.calibration_with_data and self.data_preprocess is None:
            raise OptionError("calibration_with_data needs data_preprocess")
        only_fp8 = [name for name in ("calibration_with_data", "precision_compare") if getattr(self, name)]
        if only_fp8 and self.precision not in ("fp8", "fp8_weight"):
            raise OptionError(f"{only_fp8[0]} is for precision fp8 and fp8_weight only")

    @property
    def inserted_remaps(self) -> tuple[str, ...] | None:
        """Returns `remap_mode`; None if no remap is requested."""
        return self.remap_mode if self.enable_insert_remap else None

    @property
    def calibrates(self) -> bool:
        """Returns whether the conversion uses the samples of `data_preprocess` to choose formats, layers or codes."""
        is_requested = self.calibration_with_data or self.num_of_layers_keep_fp16 > 0 or self.calibration_loss_type == "gptq"
        return self.data_preprocess is not None and self.precision in _EIGHT_BITS and is_requested

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Parses option values, given as text, lists or Python values by name.

        Raises:
            OptionError: a name is unknown (the nearest are named), or a value is not of its option's kind.
        """
        declared = conversion_specs()
        values = renamed(values, declared)
        return cls(**{name: declared[name].parse(value) for name, value in values.items()})


#: Option names of PopRT 1.0.2 and their current names.
OLD_NAMES = {"quantize": "calibration_with_data", "quantize_loss_type": "calibration_loss_type", "batch_per_step": "batches_per_step"}

#: Conversion options that are accepted but have no effect; the value is the reason for the warning.
NO_EFFECT: Mapping[str, str] = {
    "optimize_internal_exchange_code": "exchange code is estimated, not generated",
}

_IS_NARROW, _IS_EIGHT_BITS = ("precision", _NARROW), ("precision", _EIGHT_BITS)
#: Options that have an effect only if another option has one of these values.
COUNTS_WITH: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "fp16_skip_op_types": _IS_NARROW,
    "enable_avoid_overflow_patterns": _IS_NARROW,
    "disable_fast_norm": _IS_NARROW,
    "fp8_params": _IS_EIGHT_BITS,
    "fp8_skip_op_names": _IS_EIGHT_BITS,
    "num_of_layers_keep_fp16": _IS_EIGHT_BITS,
    "calibration_loss_type": _IS_EIGHT_BITS,
    "remap_mode": ("enable_insert_remap", (True,)),
}


def conversion_specs() -> dict[str, OptionSpec]:
    """Returns the converter's options by name."""
    return specs(ConversionOptions)


def renamed(values: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """Returns `values` under the current option names; logs a warning for each old name.

    Raises:
        OptionError: a name is unknown, or the old and the new name of an option are both given.
    """
    known = list(known)
    named: dict[str, object] = {}
    for name, value in values.items():
        today = today_name(name, known)
        if today not in known:
            raise OptionError(f"there is no option '{name}'{did_you_mean(name, known)}")
        if today in named:
            raise OptionError(f"'{name}' and '{today}' are one option, given twice")
        named[today] = value
    return named


def today_name(name: str, known: Iterable[str]) -> str:
    """Returns the current name of option `name`; logs a warning if it is an old name of an option in `known`."""
    today = OLD_NAMES.get(name, name)
    if today != name and today in known:
        logger.warning("option '%s' is deprecated: it is called '%s' today", name, today)
    return today
