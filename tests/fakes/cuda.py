"""A host with CUDA devices, as far as the server sees it: an NVML module, and sessions that only note how they were made."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort

from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.onnx.cuda_devices import CudaDevices

GPU_BUILD = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
CPU_BUILD = ("AzureExecutionProvider", "CPUExecutionProvider")


class FakeNvml:
    """nvidia-ml-py on a host of `count` devices; device 1 measures no power."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.energy_mj = 5_000

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}a"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=25 + handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=16 << 30, used=1 << 30)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise RuntimeError("Not Supported")
        return 70_500

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return 300_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self.energy_mj


def cuda_devices(count: int = 2, **environment: str) -> CudaDevices:
    return CudaDevices(load=lambda: FakeNvml(count), environment=environment, driver=Path("/nowhere"))


@dataclass
class SessionMaker:
    """Makes sessions on the CPU whatever is asked for, and keeps the providers that were."""

    starts: Sequence[str] = GPU_BUILD
    asked: list[list[tuple[str, dict[str, str]]]] = field(default_factory=list)

    def __call__(self, model: Any, options: ort.SessionOptions, *, providers: list[tuple[str, dict[str, str]]], **more: Any) -> Any:
        self.asked.append(providers)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], **more)
        return _Session(session, [name for name, _ in providers if name in (*self.starts, "CPUExecutionProvider")])


class _Session:
    def __init__(self, session: ort.InferenceSession, providers: list[str]) -> None:
        self._session = session
        self._providers = providers

    def get_providers(self) -> list[str]:
        return self._providers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def gpu_backend(sessions: SessionMaker | None = None, count: int = 2, providers: Sequence[str] = GPU_BUILD) -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend(
        providers=lambda: providers, make_session=sessions or SessionMaker(), devices=cuda_devices(count), device_memory="cpu"
    )
