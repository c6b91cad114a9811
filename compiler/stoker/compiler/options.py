"""The options of the target's compiler: `CompilerOptions`, and how `--compiler_options` and `--popart_options` become one.

Names and defaults are those of PopRT 1.5. Values are typed by the fields of `CompilerOptions`; one warning names each option that changes
nothing on a simulated device. The converter's own options are in `convert/options.py`.
"""

import collections.abc
import dataclasses
import logging
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import OptionError
from stoker.compiler.option_fields import NAMES, TEXT, literal, option

logger = logging.getLogger(__name__)

ProgressCallback = Callable[[int, int], None]
"""Called with (step, steps) as work goes on."""


#: Section headings of the help.
COMPILATION_GROUP, CPU_GROUP = "Compilation", "CPU"


#: Values of `operators`: see `Target.porting`.
OPERATOR_MODES = ("lowered", "vendor")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options with one name in the command line, the YAML file and `--compiler_options`, which the vendors' own compilers lack.

    `cost_constants` may in Python also be the constants themselves, by name.
    """

    operators: str = option(
        TEXT,
        "Nodes that are compiled: all that this compiler can lower, with a warning for those that the vendor's tools do not take, or the "
        "vendor's only (ipu, gcu).",
        group=COMPILATION_GROUP,
        default="lowered",
        choices=OPERATOR_MODES,
    )
    card: str = option(
        TEXT, "Card that is compiled for (gcu): i20, i10 or T20. Times are fitted for the i20 only.", group=COMPILATION_GROUP, default="i20"
    )
    build_flag: str = option(
        TEXT,
        "What the device computes in behind inputs and outputs of the model's types (gcu): fp32, fp16 or mixed.",
        group=COMPILATION_GROUP,
        default="fp32",
    )
    resource_mode: str = option(
        TEXT, "Clusters that times are modelled for (gcu), such as 1c. [default: all]", group=COMPILATION_GROUP, default=""
    )
    cost_constants: str | Mapping[str, float] = option(
        TEXT,
        "File of constants for the modelled times (ipu, gcu) that `stoker device-check --fit` wrote. [default: fitted to published tables]",
        group=COMPILATION_GROUP,
        default="",
    )
    format: str = option(
        TEXT,
        "File that is made (cpu): onnx, or openvino's IR, which backend openvino serves.",
        group=CPU_GROUP,
        default="onnx",
        choices=("onnx", "openvino"),
    )
    quantizer: str = option(
        TEXT,
        "Whose static quantisation makes int8 of it (cpu); nncf makes openvino's IR only.",
        group=CPU_GROUP,
        default="onnxruntime",
        choices=("onnxruntime", "nncf"),
    )
    calibration_method: str = option(
        TEXT,
        "How the range of a tensor follows from the samples (cpu, int8, quantizer onnxruntime).",
        group=CPU_GROUP,
        default="minmax",
        choices=("minmax", "entropy", "percentile"),
    )
    int8_preset: str = option(
        TEXT,
        "Operators that become int8 (cpu, int8): all that can, or MatMul and Gemm only (transformer); auto takes the latter for a graph "
        "with attention.",
        group=CPU_GROUP,
        default="auto",
        choices=("auto", "all", "transformer"),
    )
    int8_weight_bits: str = option(
        TEXT,
        "Bits of int8 weights (cpu, int8, int8_dynamic, quantizer onnxruntime): with 8, sums may saturate on x86 CPUs without VNNI; auto "
        "takes 7 where this CPU is one.",
        group=CPU_GROUP,
        default="auto",
        choices=("auto", "7", "8"),
    )
    int8_skip_op_types: Sequence[str] = option(
        NAMES, "Operator types that stay FP32 (cpu, int8, int8_dynamic).", group=CPU_GROUP, default=()
    )
    int8_skip_op_names: Sequence[str] = option(NAMES, "Nodes that stay FP32 (cpu, int8, int8_dynamic).", group=CPU_GROUP, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerOptions(BuildOptions):
    """Options of PopRT's compiler and, with `BuildOptions`, of TopsInference's compiler and of the CPU target.

    `NO_EFFECT` lists the options without effect on a simulated device.

    `partials_type`: `half` or `float`. If it is empty, the planned memory and time are those of half partials, PopRT's default, and the
    host adds in FLOAT. With `half`, the host rounds the partial sums to FLOAT16 too, which takes it several times longer.
    """

    num_ipus: int = 1
    ipu_version: str = ""
    batches_per_step: int = 1
    partials_type: str = ""
    available_memory_proportion: float | Mapping[str, float] = 0.6
    num_io_tiles: int = 0
    enable_model_fusion: bool = False
    enable_prefetch_datastreams: bool = True
    stream_buffering_depth: int = 1
    enable_gather_simplifier: bool = True
    serialize_ir: bool = False
    engine_options: Mapping[str, str] = field(default_factory=dict)
    custom_patterns: Sequence[str] = ()
    custom_transform_applier_settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    opaque_blobs: Mapping[str, bytes] = field(default_factory=dict)
    use_128bit_conv_unit_load: bool = False
    enable_multi_stage_reduce: bool = True
    enable_fast_reduce: bool = False
    enable_outlining: bool = True
    outline_threshold: float = 1.0
    group_host_sync: bool = False
    rearrange_streams_on_host: bool = False
    rearrange_anchors_on_host: bool = True
    enable_non_stable_softmax: bool = False
    enable_pipelining: bool = False
    enable_engine_caching: bool = False
    cache_path: str = ""
    constant_weights: bool = True
    virtual_graph_mode: str = "off"
    virtual_graph_split_ratios: Sequence[float] = ()
    replication_factor: int = 1
    tiles_per_ipu: int = 0
    system: str = ""
    compress: bool = False
    batch_axis: int = 0
    time_limit_scheduler: float = 1e9
    swap_limit_scheduler: int = 1_000_000_000
    transitive_closure_optimization_threshold: int = 100_000
    show_compilation_progress_bar: bool = True
    compilation_progress_logger: ProgressCallback | None = None


#: Options that a simulated device accepts and ignores; the value is the reason for the warning.
NO_EFFECT: Mapping[str, str] = {
    "enable_prefetch_datastreams": "whether host IO overlaps with compute is num_io_tiles' business alone",
    "stream_buffering_depth": "the rings between host and device have the depth that whoever runs the program gives them",
    "custom_patterns": "PopART's patterns do not run here",
    "virtual_graph_split_ratios": "nodes are placed on IPUs by manual_sharding only",
    "engine_options": "they are noted in the file, and there is no Poplar engine to read them",
    "enable_gather_simplifier": "gathers are mapped the same way with and without it",
    "serialize_ir": "there is no PopART IR to write",
    "custom_transform_applier_settings": "PopART's transforms do not run here",
    "enable_multi_stage_reduce": "the cost model has one reduction plan",
    "outline_threshold": "code size is estimated without outlining thresholds",
    "group_host_sync": "host syncs are counted once a step already",
    "rearrange_streams_on_host": "streams are not rearranged",
    "rearrange_anchors_on_host": "streams are not rearranged",
    "time_limit_scheduler": "the schedule is the graph's order",
    "swap_limit_scheduler": "the schedule is the graph's order",
    "transitive_closure_optimization_threshold": "the schedule is the graph's order",
}


#: PopART session options that are equivalent to one of the compiler's options.
_POPART_MEANS = {
    "enablePrefetchDatastreams": "enable_prefetch_datastreams",
    "defaultBufferingDepth": "stream_buffering_depth",
    "defaultPrefetchBufferingDepth": "stream_buffering_depth",
    "enableOutlining": "enable_outlining",
    "outlineThreshold": "outline_threshold",
    "groupHostSync": "group_host_sync",
    "enablePipelining": "enable_pipelining",
    "enableEngineCaching": "enable_engine_caching",
    "cachePath": "cache_path",
    "constantWeights": "constant_weights",
    "virtualGraphMode": "virtual_graph_mode",
    "virtualGraphSplitRatios": "virtual_graph_split_ratios",
    "replicatedGraphCount": "replication_factor",
    "partialsTypeMatMuls": "partials_type",
    "engineOptions": "engine_options",
    "rearrangeAnchorsOnHost": "rearrange_anchors_on_host",
    "rearrangeStreamsOnHost": "rearrange_streams_on_host",
    "enableNonStableSoftmax": "enable_non_stable_softmax",
    "timeLimitScheduler": "time_limit_scheduler",
    "swapLimitScheduler": "swap_limit_scheduler",
    "transitiveClosureOptimizationThreshold": "transitive_closure_optimization_threshold",
    "numIOTiles": "num_io_tiles",
}

#: PopART session options for training, PopART's IR, planners or debugging; they have no counterpart here.
_POPART_WITHOUT_EFFECT = frozenset({
    "accumulateOuterFragmentSettings", "accumulationAndReplicationReductionType", "accumulationFactor",
    "accumulatorTensorLocationSettings", "activationTensorLocationSettings", "aliasZeroCopy", "autodiffSettings",
    "automaticLossScalingSettings", "autoRecomputation", "batchSerializationSettings", "bufferingDepthMap", "compilationProgressLogger",
    "compilationProgressTotal", "compileEngine", "convolutionOptions", "createImplicitPipeliningFwdOnlyProgram",
    "customCodeletCompileFlags", "customCodelets", "decomposeGradSum", "delayVarUpdates", "developerSettings",
    "disableGradAccumulationTensorStreams", "disableOptimizerStateTensorStreams", "dotChecks", "dotOpNames",
    "enableConstantFoldingOfMultipleConsumers", "enableDistributedReplicatedGraphs", "enableExplicitIR", "enableExplicitMainLoops",
    "enableFloatingPointChecks", "enableFullyConnectedPass", "enableGradientAccumulation", "enableInplaceAmbiguityChecking",
    "enableLoadAndOffloadRNGState", "enableMergeExchange", "enableOutliningCopyCostPruning", "enableReplicatedGraphs",
    "enableSerializedMatmuls", "enableStableNorm", "enableStochasticRounding", "enableSupportedDataTypeCasting",
    "enableVariablesCaching", "ensureFp32LossScaleTensor", "executionPhaseSettings", "explicitRecomputation",
    "exportPoplarComputationGraph", "exportPoplarVertexGraph", "finalDotOp", "firstDotOp", "gclOptions", "globalReplicaOffset",
    "globalReplicationFactor", "groupNormStridedChannelGrouping", "hardwareInstrumentations", "instrumentWithHardwareCycleCounter",
    "kahnTieBreaker", "logDir", "looseThresholdAtPeak", "lstmOptions", "matmulOptions",
    "meanAccumulationAndReplicationReductionStrategy", "mergeVarUpdate", "mergeVarUpdateMemThreshold",
    "optimizerStateTensorLocationSettings", "opxAliasChecking", "opxModifyChecking", "outlineSequenceBreakCost",
    "prefetchBufferingDepthMap", "replicatedCollectivesSettings", "reportOptions", "scheduleNonWeightUpdateGradientConsumersEarly",
    "separateCallOpPdfs", "serializedPoprithmsAnnealGraphsDir", "serializedPoprithmsShiftGraphsDir", "stashAllTensorsInferencePipeline",
    "strictOpVersions", "subgraphCopyingStrategy", "syntheticDataMode", "tensorLocationSettingsOverride",
    "throwIfLog2ScaleTensorNotInRange", "updatableNamedBuffers", "useHostCopyOps", "useLoopCandidateCreator",
    "weightTensorLocationSettings",
})  # fmt: skip

#: PopRT compiler options that name a path for PopART's files.
_COMPILER_WITHOUT_EFFECT = {"serialized_ir_dest": "there is no PopART IR to write"}


def compiler_options(
    given: Mapping[str, Any], popart: Mapping[str, Any], *, settings: Mapping[str, Any], origin: str = "compiler_options"
) -> CompilerOptions:
    """Returns the `CompilerOptions` from `--compiler_options`, `--popart_options` and the command line's arguments (`settings`).

    Raises:
        OptionError: a name is unknown (with the nearest), a value is not of its field's type, or two places say different things.
    """
    fields = typing.get_type_hints(CompilerOptions)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name in _COMPILER_WITHOUT_EFFECT:
            _warn(f"{origin} {name}", _COMPILER_WITHOUT_EFFECT[name])
            continue
        if name not in fields:
            raise OptionError(f"{origin}: there is no option '{name}'{did_you_mean(name, fields)}")
        values[name] = typed(f"{origin} {name}", text, fields[name])
    for name, text in popart.items():
        if name.partition(".")[0] in _POPART_WITHOUT_EFFECT:
            _warn(f"popart_options {name}", "PopART is not part of this compiler")
            continue
        _take_popart(name, text, values, fields)
    for name, value in settings.items():
        if name in values and values[name] != value:
            raise OptionError(f"{name} is {value} by its own argument and {values[name]} in {origin}: give one of them")
        values[name] = value
    for name in values:
        if name in NO_EFFECT and name in given:
            _warn(f"{origin} {name}", NO_EFFECT[name])
    return CompilerOptions(**values)


def _take_popart(name: str, text: Any, values: dict[str, Any], fields: Mapping[str, Any]) -> None:
    base, _, member = name.partition(".")
    ours = _POPART_MEANS.get(base)
    if ours is None:
        known = [*_POPART_MEANS, *_POPART_WITHOUT_EFFECT]
        raise OptionError(f"popart_options: there is no session option '{name}'{did_you_mean(name, known)}")
    if ours in NO_EFFECT:
        _warn(f"popart_options {name}", NO_EFFECT[ours])
    if fields[ours] == Mapping[str, str]:
        members = {member: str(text)} if member else typed(f"popart_options {name}", text, fields[ours])
        values[ours] = {**values.get(ours, {}), **members}
        return
    value = typed(f"popart_options {name}", text, fields[ours])
    if ours in values and values[ours] != value:
        raise OptionError(f"popart_options {name} says {value}, compiler_options {ours} says {values[ours]}: give one of them")
    values[ours] = value


def typed(what: str, value: Any, hint: Any) -> Any:
    """Converts `value` (text or a typed value) to type `hint` of a `CompilerOptions` field.

    Raises:
        OptionError: it is not of that type; the text names `what`.
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _typed_union(what, value, typing.get_args(hint))
    if hint is str:
        return str(value)
    found = literal(value)
    if hint is bool and isinstance(found, bool | int) and found in (0, 1):
        return bool(found)
    if hint is int and isinstance(found, int) and not isinstance(found, bool):
        return found
    if hint is int and isinstance(found, float) and found.is_integer():
        return int(found)
    if hint is float and isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    if origin is collections.abc.Sequence:
        (inner,) = typing.get_args(hint)
        words = found.split(",") if isinstance(found, str) else found
        if isinstance(words, list | tuple):
            return tuple(typed(what, word, inner) for word in words)
        return (typed(what, found, inner),)
    if origin is collections.abc.Mapping and isinstance(found, Mapping):
        _, inner = typing.get_args(hint)
        return {str(key): typed(f"{what}, '{key}'", each, inner) for key, each in found.items()}
    raise OptionError(f"{what}: expected {_type_name(hint)}, got {value!r}")


def _typed_union(what: str, value: Any, members: tuple[Any, ...]) -> Any:
    if value in (None, "None") and type(None) in members:
        return None
    for member in members:
        if member is type(None):
            continue
        try:
            return typed(what, value, member)
        except OptionError:
            continue
    raise OptionError(f"{what}: expected {' or '.join(_type_name(member) for member in members)}, got {value!r}")


def _type_name(hint: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text", type(None): "nothing"}
    if hint in names:
        return names[hint]
    origin = typing.get_origin(hint)
    if origin is collections.abc.Mapping:
        return "a mapping such as {'name': value}"
    return "a list" if origin is collections.abc.Sequence else "a function, which no text can be"


def _warn(what: str, reason: str) -> None:
    logger.warning("%s has no effect on a simulated device: %s", what, reason)


def check_operator_mode(options: CompilerOptions) -> None:
    """Raises:
    OptionError: `operators` is neither of its values.
    """
    if options.operators not in OPERATOR_MODES:
        raise OptionError(f"operators is '{options.operators}', expected one of {', '.join(OPERATOR_MODES)}")


def effective(options: CompilerOptions) -> Mapping[str, Any]:
    """Returns the options that differ from their defaults, by name."""
    default = CompilerOptions()
    return {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != getattr(default, field.name)
    }
