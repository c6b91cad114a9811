"""Flags of Triton and TensorFlow Serving that have no setting here.

A flag is accepted if responses are the same without it; a log line then states why it has no effect. A flag is rejected if its user would
rely on an effect that is missing. The help lists none of them; docs/triton.md and docs/tfs.md do.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from stoker.server.core.flag import BOOLEAN_METAVAR, FALSE, TRUE, FlagError, Panel, option

_NO_CUDA = "the backends allocate the memory of CUDA devices: parameter gpu_mem_limit of a model limits it"
_ONE_LOOP = "one event loop serves all connections"
_IS_INSTALLED = "backends are installed Python packages"
_NO_CLOUD = "this server speaks no cloud platform's own protocol: send KServe v2 requests"
_ONE_PROCESS = "no second process may share a port"
_NO_TENSORFLOW = "TensorFlow is not used"


class _Ignored(NamedTuple):
    """A flag without effect, and the reason."""

    why: str
    is_boolean: bool = False


_OF_TENSORFLOW_SERVING: Mapping[str, _Ignored] = {
    **dict.fromkeys(
        ("tensorflow-session-parallelism", "tensorflow-intra-op-parallelism", "tensorflow-inter-op-parallelism"),
        _Ignored(f"{_NO_TENSORFLOW}; --cpu-threads shares out the cores"),
    ),
    **dict.fromkeys(("platform-config-file", "saved-model-tags", "mixed-precision"), _Ignored(_NO_TENSORFLOW)),
    **dict.fromkeys(
        (
            "prefer-tflite-model",
            "remove-unused-fields-from-bundle-metagraph",
            "xla-cpu-compilation-enabled",
            "enable-signature-method-name-check",
            "enable-profiler",
        ),
        _Ignored(_NO_TENSORFLOW, is_boolean=True),
    ),
    "per-process-gpu-memory-fraction": _Ignored(_NO_CUDA),
    "rest-api-num-threads": _Ignored(_ONE_LOOP),
    "grpc-max-threads": _Ignored(_ONE_LOOP),
    "grpc-channel-arguments": _Ignored("flags such as --grpc-keepalive-time say what connections may do"),
    "load-retry-interval-micros": _Ignored("further attempts follow at once"),
    "flush-filesystem-caches": _Ignored("a model is loaded from a private copy, which is removed with it", is_boolean=True),
    "enable-per-model-metrics": _Ignored("metrics are by model anyhow", is_boolean=True),
    "enable-grpc-healthcheck-service": _Ignored("grpc.health.v1 is always there", is_boolean=True),
}
_OF_TRITON: Mapping[str, _Ignored] = {
    **dict.fromkeys(
        (
            "pinned-memory-pool-byte-size",
            "cuda-memory-pool-byte-size",
            "cuda-virtual-address-size",
            "min-supported-compute-capability",
            "model-load-gpu-limit",
        ),
        _Ignored(_NO_CUDA),
    ),
    "allow-gpu-metrics": _Ignored("nv_gpu_* metrics exist if nvidia-ml-py is installed and a model may use CUDA", is_boolean=True),
    "enable-peer-access": _Ignored(_NO_CUDA, is_boolean=True),
    "allow-cpu-metrics": _Ignored("figures of the host are read at every scrape", is_boolean=True),
    "metrics-interval-ms": _Ignored("figures are read at every scrape"),
    **dict.fromkeys(("http-thread-count", "grpc-infer-thread-count", "grpc-infer-allocation-pool-size"), _Ignored(_ONE_LOOP)),
    "grpc-max-response-pool-size": _Ignored("--limit stream_responses=N bounds the responses that wait"),
    "grpc-infer-response-compression-level": _Ignored("a response is compressed as its request was"),
    "buffer-manager-thread-count": _Ignored("each instance copies its own tensors"),
    "host-policy": _Ignored("--cpu-threads shares out the cores"),
    **dict.fromkeys(("backend-directory", "repoagent-directory", "cache-directory"), _Ignored(_IS_INSTALLED)),
    **dict.fromkeys(
        ("sagemaker-port", "sagemaker-safe-port-range", "sagemaker-thread-count"),
        _Ignored(_NO_CLOUD),
    ),
    **dict.fromkeys(("vertex-ai-port", "vertex-ai-thread-count", "vertex-ai-default-model"), _Ignored(_NO_CLOUD)),
}
IGNORED: Mapping[str, _Ignored] = {**_OF_TRITON, **_OF_TENSORFLOW_SERVING}
#: Flags that cannot be switched on, each with the reason; off is accepted.
REJECTED_IF_TRUE: Mapping[str, str] = {
    "reuse-http-port": _ONE_PROCESS,
    "reuse-grpc-port": _ONE_PROCESS,
    "allow-sagemaker": _NO_CLOUD,
    "allow-vertex-ai": _NO_CLOUD,
}


def _hidden(name: str, *, is_boolean: bool) -> Any:
    return Annotated[
        list[str] | None, option(name, text="", panel=Panel.WITHOUT_EFFECT, metavar=BOOLEAN_METAVAR if is_boolean else "TEXT", hidden=True)
    ]


def _settings(flags: Any) -> dict[str, Any]:
    """The settings by their path from `ServerConfig`.

    Raises:
        FlagError: a flag enables an unsupported feature.
    """
    for name, why in REJECTED_IF_TRUE.items():
        for value in getattr(flags, _field(name)) or ():
            if value.lower() not in FALSE:
                wrong = why if value.lower() in TRUE else "expected true or false"
                raise FlagError(f"--{name}={value}: {wrong}")
    given = [(name, ignored.why) for name, ignored in IGNORED.items() if getattr(flags, _field(name))]
    return {"notices": tuple(f"--{name} has no effect: {why}" for name, why in given)}


def _field(name: str) -> str:
    return name.replace("-", "_")


#: The group, with one field for each flag of the tables above.
FlagsWithoutEffect: type[Any] = dataclasses.make_dataclass(
    "FlagsWithoutEffect",
    [
        *((_field(name), _hidden(name, is_boolean=ignored.is_boolean), None) for name, ignored in IGNORED.items()),
        *((_field(name), _hidden(name, is_boolean=True), None) for name in REJECTED_IF_TRUE),
    ],
    namespace={"__module__": __name__, "__doc__": "Flags that nothing is set by.", "settings": _settings},
    frozen=True,
    kw_only=True,
)
