"""Which execution providers of ONNX Runtime a session uses: from `instance_group.kind` and `optimization.execution_accelerators`.

The installed onnxruntime decides which exist. A configuration that asks for another one is rejected, with the reason, what is installed,
and the remedy: a silent fallback to the CPU would serve at a fraction of the expected speed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.backends.api.candidate import Accelerator, Candidate, Violation, parameter_path
from stoker.backends.api.nearest import did_you_mean
from stoker.backends.onnx.provider_options import (
    CPU,
    CPU_ACCELERATORS,
    CUDA,
    CUDA_PARAMETERS,
    FOLDER_KEYS,
    GPU_ACCELERATORS,
    OPENVINO,
    TENSORRT,
    AcceleratorKind,
    read_option,
)

GPU_KIND = "KIND_GPU"

_REMEDIES = {
    CUDA: "install onnxruntime-gpu in place of onnxruntime (docs/onnx.md, Execution providers)",
    TENSORRT: "install onnxruntime-gpu in place of onnxruntime, and TensorRT (docs/onnx.md, Execution providers)",
    OPENVINO: "install onnxruntime-openvino in place of onnxruntime, or choose backend 'openvino', which needs no other onnxruntime",
}


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider with its options, in ONNX Runtime's spelling."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[str, dict[str, str]]:
        """As `InferenceSession` takes it."""
        return self.name, dict(self.options)


@dataclass(frozen=True, slots=True)
class ProviderPlan:
    """The providers of one session.

    Attributes:
        providers: In order of precedence; the CPU's is the last one.
        cuda_device: The CUDA device whose memory holds the tensors; None: the host's.
    """

    providers: tuple[Provider, ...]
    cuda_device: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether only the CPU's own provider computes."""
        return len(self.providers) == 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the providers."""
        return tuple(provider.name for provider in self.providers)


PLAIN = ProviderPlan((Provider(CPU),))


def missing_provider(name: str, available: Sequence[str]) -> str:
    """Why a session cannot use provider `name`; empty: it can."""
    if name in available:
        return ""
    return f"the installed onnxruntime has no {name}; it has {', '.join(available)}: {_REMEDIES[name]}"


def provider_violations(candidate: Candidate, available: Sequence[str], *, has_cache_folder: bool) -> Iterator[Violation]:
    """Every accelerator, and every setting of one, that the installed onnxruntime does not take."""
    for key, option in CUDA_PARAMETERS.items():
        if key in candidate.parameters and option.parse(candidate.parameters[key].strip()) is None:
            yield Violation(parameter_path(key), f"takes {option.allowed}, not '{candidate.parameters[key][:40]}'")
    for known, accelerators in ((GPU_ACCELERATORS, candidate.gpu_accelerators), (CPU_ACCELERATORS, candidate.cpu_accelerators)):
        seen: set[str] = set()
        for accelerator in accelerators:
            yield from _violations(accelerator, known, seen, available, has_cache_folder)


def _violations(
    accelerator: Accelerator, known: Mapping[str, AcceleratorKind], seen: set[str], available: Sequence[str], has_cache_folder: bool
) -> Iterator[Violation]:
    kind = known.get(accelerator.name)
    if kind is None:
        names = ", ".join(sorted(known))
        yield Violation(f"{accelerator.path}.name", f"no accelerator '{accelerator.name[:40]}' of backend 'onnxruntime'; allowed: {names}")
        return
    if accelerator.name in seen:
        yield Violation(f"{accelerator.path}.name", f"'{accelerator.name}' is there twice")
    seen.add(accelerator.name)
    if reason := missing_provider(kind.provider, available):
        yield Violation(f"{accelerator.path}.name", f"'{accelerator.name}': {reason}")
    for key, text in accelerator.parameters.items():
        at = f"{accelerator.path}.{parameter_path(key)}"
        if key not in kind.keys:
            hint = did_you_mean(key, kind.keys)
            yield Violation(at, f"'{accelerator.name}' has no parameter '{key[:64]}'{hint}; it has {', '.join(kind.keys)}")
            continue
        options, allowed = read_option(kind, key, text)
        if options is None:
            yield Violation(at, f"takes {allowed}, not '{text[:64]}'")
        elif (key in FOLDER_KEYS or (key.endswith("_cache_enable") and "True" in options.values())) and not has_cache_folder:
            yield Violation(at, "needs a folder for caches: start the server with --backend-config=onnxruntime,cache-dir=DIR")


def plan(
    kind: str,
    device_id: int | None,
    parameters: Mapping[str, str],
    gpu_accelerators: Sequence[Accelerator],
    cpu_accelerators: Sequence[Accelerator],
    cache_folder: Path | None = None,
) -> ProviderPlan:
    """The providers of an instance of `kind` on CUDA device `device_id` (None: the first one).

    REQUIRES: `provider_violations` found nothing.
    """
    providers: list[Provider] = []
    device = None
    if kind == GPU_KIND:
        device = device_id or 0
        written = {each.name: _options(each, GPU_ACCELERATORS[each.name]) for each in gpu_accelerators}
        if "tensorrt" in written:
            providers.append(Provider(TENSORRT, {"device_id": str(device), **_cached(written["tensorrt"], cache_folder)}))
        own: dict[str, str] = {}
        for key, option in CUDA_PARAMETERS.items():
            value = option.parse(parameters[key].strip()) if key in parameters else None
            if value is not None:
                own[option.name] = value
        providers.append(Provider(CUDA, {"device_id": str(device), **own, **written.get("cuda", {})}))
    for accelerator in cpu_accelerators:
        chosen = CPU_ACCELERATORS[accelerator.name]
        providers.append(Provider(chosen.provider, _options(accelerator, chosen)))
    return ProviderPlan((*providers, Provider(CPU)), device)


def _options(accelerator: Accelerator, kind: AcceleratorKind) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text in accelerator.parameters.items():
        options.update(read_option(kind, key, text)[0] or {})
    return options


def _cached(options: dict[str, str], folder: Path | None) -> dict[str, str]:
    """`options` with the caches below `folder`."""
    if folder is None:
        return options
    for key in sorted(FOLDER_KEYS):
        is_used = options.get(f"{key.removesuffix('_path')}_enable") == "True"
        if key in options or is_used:
            options[key] = str(folder / options.get(key, ""))
    return options


def absence_of_devices(available: Sequence[str], device_count: Callable[[], int]) -> str:
    """Why no CUDA device can be used; empty: one can."""
    if reason := missing_provider(CUDA, available):
        return reason
    return "" if device_count() else "no CUDA device is visible: `nvidia-smi -L` lists them, CUDA_VISIBLE_DEVICES may hide them"
