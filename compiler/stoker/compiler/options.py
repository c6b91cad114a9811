"""`CompilerOptions`: what a target's compiler is told, with PopRT 1.5's names and defaults.

The converter's own options are in `conversion.py`; these concern what comes after it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ProgressCallback = Callable[[int, int], None]
"""Called with (step, steps) as work goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerOptions:
    """Options of PopRT's compiler, `build_flag` and `resource_mode` of TopsInference's, and from `format` on those of the CPU's.

    Which of them change nothing on a simulated device is said by `NO_EFFECT`.
    """

    num_ipus: int = 1
    ipu_version: str = ""
    batches_per_step: int = 1
    partials_type: str = "half"
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
    build_flag: str = "fp32"
    resource_mode: str = ""
    format: str = "onnx"
    quantizer: str = "onnxruntime"
    calibration_method: str = "minmax"
    int8_preset: str = "auto"
    int8_weight_bits: str = "auto"
    int8_skip_op_types: Sequence[str] = ()
    int8_skip_op_names: Sequence[str] = ()
    time_limit_scheduler: float = 1e9
    swap_limit_scheduler: int = 1_000_000_000
    transitive_closure_optimization_threshold: int = 100_000
    show_compilation_progress_bar: bool = True
    compilation_progress_logger: ProgressCallback | None = None


#: Options that a simulated device accepts and that change nothing on it; the reason is for the warning.
NO_EFFECT: Mapping[str, str] = {
    "enable_prefetch_datastreams": "whether host IO overlaps with compute is num_io_tiles' business alone",
    "stream_buffering_depth": "the rings between host and device have the depth that whoever runs the program gives them",
    "custom_patterns": "PopART's patterns do not run here",
    "enable_non_stable_softmax": "softmax is computed in its stable form, at one cost",
    "virtual_graph_split_ratios": "nodes are placed on IPUs by manual_sharding only",
    "engine_options": "they are noted in the file, and there is no Poplar engine to read them",
    "enable_gather_simplifier": "gathers are mapped the same way with and without it",
    "serialize_ir": "there is no PopART IR to write",
    "custom_transform_applier_settings": "PopART's transforms do not run here",
    "use_128bit_conv_unit_load": "the cost model has one load width",
    "enable_multi_stage_reduce": "the cost model has one reduction plan",
    "enable_fast_reduce": "the cost model has one reduction plan",
    "outline_threshold": "code size is estimated without outlining thresholds",
    "group_host_sync": "host syncs are counted once a step already",
    "rearrange_streams_on_host": "streams are not rearranged",
    "rearrange_anchors_on_host": "streams are not rearranged",
    "time_limit_scheduler": "the schedule is the graph's order",
    "swap_limit_scheduler": "the schedule is the graph's order",
    "transitive_closure_optimization_threshold": "the schedule is the graph's order",
}
