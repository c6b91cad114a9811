"""The options of ONNX Runtime's execution providers, by the names that Triton gives them.

An option that names a file or folder is left out: a model's configuration does not reach outside its version. TensorRT's caches lie below
the folder that the operator names (`--backend-config=onnxruntime,cache-dir=DIR`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

CUDA, TENSORRT, OPENVINO, CPU = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider"

#: Reads a value: the option's value in ONNX Runtime's spelling, or None where it is not allowed.
Parse = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: ONNX Runtime's name.
        parse: Reads the written value.
        allowed: The allowed values, for messages.
    """

    name: str
    parse: Parse
    allowed: str


def _choice(*names: str, numbered: bool = False) -> tuple[Parse, str]:
    """One of `names`; `numbered`: or its index, as Triton writes it."""
    by_text = {name.lower(): name for name in names}
    if numbered:
        by_text |= {str(index): name for index, name in enumerate(names)}
    described = ", ".join(f"{index} ({name})" for index, name in enumerate(names)) if numbered else ", ".join(names)
    return lambda text: by_text.get(text.lower()), described


def _matching(pattern: str, allowed: str) -> tuple[Parse, str]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: text if compiled.fullmatch(text) else None, allowed


_FLAG: tuple[Parse, str] = ({"0": "0", "1": "1", "false": "0", "true": "1"}.get, "0 or 1")
#: The options of OpenVINO and TensorRT's flags are read as True and False.
_BOOLEAN: tuple[Parse, str] = ({"0": "False", "1": "True", "false": "False", "true": "True"}.get, "0 or 1")
_COUNT = _matching("[0-9]{1,9}", "a whole number of at most 9 digits")
_BYTES = _matching("[1-9][0-9]{0,18}", "a number of bytes, at least 1")
#: Of `input:2x3,other:4x5`.
_PROFILE = _matching(r"[\w./:-]{1,128}:[0-9]+(?:x[0-9]+)*(?:,[\w./:-]{1,128}:[0-9]+(?:x[0-9]+)*)*", "shapes such as input:1x3x224x224")
_PLAIN_NAME = _matching(r"[\w.-]{1,128}", "a plain file name")


def _options(**by_key: tuple[str, tuple[Parse, str]]) -> dict[str, Option]:
    return {key: Option(name, parse, allowed) for key, (name, (parse, allowed)) in by_key.items()}


#: Keys that Triton reads among the model's own `parameters`.
CUDA_PARAMETERS = _options(
    gpu_mem_limit=("gpu_mem_limit", _BYTES),
    arena_extend_strategy=("arena_extend_strategy", _choice("kNextPowerOfTwo", "kSameAsRequested", numbered=True)),
    cudnn_conv_algo_search=("cudnn_conv_algo_search", _choice("EXHAUSTIVE", "HEURISTIC", "DEFAULT", numbered=True)),
    do_copy_in_default_stream=("do_copy_in_default_stream", _FLAG),
    cudnn_conv_use_max_workspace=("cudnn_conv_use_max_workspace", _FLAG),
)

_CUDA_OPTIONS = CUDA_PARAMETERS | _options(
    cudnn_conv1d_pad_to_nc1d=("cudnn_conv1d_pad_to_nc1d", _FLAG),
    use_tf32=("use_tf32", _FLAG),
    prefer_nhwc=("prefer_nhwc", _FLAG),
    fuse_conv_bias=("fuse_conv_bias", _FLAG),
    sdpa_kernel=("sdpa_kernel", _COUNT),
    use_ep_level_unified_stream=("use_ep_level_unified_stream", _FLAG),
    enable_skip_layer_norm_strict_mode=("enable_skip_layer_norm_strict_mode", _FLAG),
)

_TENSORRT_OPTIONS = _options(
    max_workspace_size_bytes=("trt_max_workspace_size", _BYTES),
    trt_max_workspace_size=("trt_max_workspace_size", _BYTES),
    int8_calibration_table_name=("trt_int8_calibration_table_name", _PLAIN_NAME),
    trt_int8_calibration_table_name=("trt_int8_calibration_table_name", _PLAIN_NAME),
    int8_use_native_calibration_table=("trt_int8_use_native_calibration_table", _BOOLEAN),
    trt_int8_use_native_calibration_table=("trt_int8_use_native_calibration_table", _BOOLEAN),
    trt_fp16_enable=("trt_fp16_enable", _BOOLEAN),
    trt_bf16_enable=("trt_bf16_enable", _BOOLEAN),
    trt_int8_enable=("trt_int8_enable", _BOOLEAN),
    trt_max_partition_iterations=("trt_max_partition_iterations", _COUNT),
    trt_min_subgraph_size=("trt_min_subgraph_size", _COUNT),
    trt_dla_enable=("trt_dla_enable", _BOOLEAN),
    trt_dla_core=("trt_dla_core", _COUNT),
    trt_engine_cache_enable=("trt_engine_cache_enable", _BOOLEAN),
    trt_engine_cache_prefix=("trt_engine_cache_prefix", _PLAIN_NAME),
    trt_timing_cache_enable=("trt_timing_cache_enable", _BOOLEAN),
    trt_force_timing_cache=("trt_force_timing_cache", _BOOLEAN),
    trt_force_sequential_engine_build=("trt_force_sequential_engine_build", _BOOLEAN),
    trt_context_memory_sharing_enable=("trt_context_memory_sharing_enable", _BOOLEAN),
    trt_layer_norm_fp32_fallback=("trt_layer_norm_fp32_fallback", _BOOLEAN),
    trt_build_heuristics_enable=("trt_build_heuristics_enable", _BOOLEAN),
    trt_sparsity_enable=("trt_sparsity_enable", _BOOLEAN),
    trt_builder_optimization_level=("trt_builder_optimization_level", _matching("[0-5]", "0 to 5")),
    trt_auxiliary_streams=("trt_auxiliary_streams", _matching("-1|[0-9]{1,3}", "-1 to 999")),
    trt_profile_min_shapes=("trt_profile_min_shapes", _PROFILE),
    trt_profile_opt_shapes=("trt_profile_opt_shapes", _PROFILE),
    trt_profile_max_shapes=("trt_profile_max_shapes", _PROFILE),
)

_OPENVINO_DEVICE = r"(?:(?:AUTO|HETERO|MULTI):)?(?:CPU|NPU|GPU(?:\.[0-9])?)(?:,(?:CPU|NPU|GPU(?:\.[0-9])?))*|AUTO"

_OPENVINO_OPTIONS = _options(
    device_type=("device_type", _matching(_OPENVINO_DEVICE, "CPU, GPU, GPU.0, NPU, AUTO, or such as AUTO:GPU,CPU")),
    precision=("precision", _choice("FP32", "FP16", "ACCURACY")),
    num_of_threads=("num_of_threads", _matching("[1-9][0-9]{0,3}", "1 to 9999")),
    num_streams=("num_streams", _matching("[1-9][0-9]{0,2}", "1 to 999")),
    disable_dynamic_shapes=("disable_dynamic_shapes", _BOOLEAN),
    enable_qdq_optimizer=("enable_qdq_optimizer", _BOOLEAN),
    model_priority=("model_priority", _choice("LOW", "MEDIUM", "HIGH", "DEFAULT")),
)

_PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "fp32": {},
    "fp16": {"trt_fp16_enable": "True"},
    "int8": {"trt_int8_enable": "True"},
}

#: Options that name folders: relative ones lie below the operator's.
FOLDER_KEYS = frozenset({"trt_engine_cache_path", "trt_timing_cache_path"})


@dataclass(frozen=True, slots=True)
class AcceleratorKind:
    """An execution accelerator of config.pbtxt.

    Attributes:
        provider: ONNX Runtime's name of it.
        options: By config.pbtxt key.
        further: Keys with a meaning of their own, see `read_option`.
    """

    provider: str
    options: Mapping[str, Option]
    further: frozenset[str] = frozenset()

    @property
    def keys(self) -> list[str]:
        """Every key that it takes."""
        return sorted({*self.options, *self.further})


GPU_ACCELERATORS: Mapping[str, AcceleratorKind] = {
    "cuda": AcceleratorKind(CUDA, _CUDA_OPTIONS),
    "tensorrt": AcceleratorKind(TENSORRT, _TENSORRT_OPTIONS, frozenset({"precision_mode", *FOLDER_KEYS})),
}
CPU_ACCELERATORS: Mapping[str, AcceleratorKind] = {"openvino": AcceleratorKind(OPENVINO, _OPENVINO_OPTIONS)}


def read_option(kind: AcceleratorKind, key: str, text: str) -> tuple[Mapping[str, str] | None, str]:
    """ONNX Runtime's options that `key` of value `text` stands for, and the allowed values; None: the value is not allowed.

    REQUIRES: `key` is among `kind.keys`.
    """
    text = text.strip()
    if key == "precision_mode":
        return _PRECISIONS.get(text.lower()), "FP32, FP16 or INT8"
    if key in FOLDER_KEYS:
        parts = text.split("/")
        is_inside = re.fullmatch(r"[\w./-]{1,256}", text, re.ASCII) is not None and not text.startswith("/") and ".." not in parts
        allowed = "a path relative to the cache folder, which --backend-config=onnxruntime,cache-dir=DIR names"
        return ({key: text} if is_inside else None), allowed
    option = kind.options[key]
    value = option.parse(text)
    return (None if value is None else {option.name: value}), option.allowed
