"""`poprt.runtime`: runners, their configurations and devices."""

from backends.ipu.runtime import DeviceManager, ModelRunner, RunnerType, RuntimeConfig

__all__ = ["DeviceManager", "ModelRunner", "RunnerType", "RuntimeConfig"]
