"""`poprt.runtime`: runners, their configurations, devices and errors.

The runners that PopRT adds to Model Runtime are in this package; the rest is `stoker.backends.ipu.runtime`, whose every public name is
here, under its own name and, below, under PopRT's where that differs.
"""

import stoker_compat.device_wait

from poprt.runtime.host_concat_runner import HostConcatConfig, HostConcatRunner, HostConcatRunnerConfig
from poprt.runtime.pack_runner import PackRunner
from poprt.runtime.packing import PackAlgorithm, PackRunnerConfig
from poprt.runtime.runner import LightRunner, LightRunnerConfig, ModelFusionRunner, ModelFusionRunnerConfig, Runner
from stoker.backends.ipu import runtime as _stoker
from stoker.backends.ipu.runtime import *  # noqa: F403 - its __all__ is the list
from stoker.backends.ipu.runtime import ApplicationRuntimeError, RecoverableRuntimeError, UnknownRuntimeError

#: Takes the vendor's `timeout` and `sleepTime`.
DeviceWaitConfig = stoker_compat.device_wait.DeviceWaitConfig  # type: ignore[assignment,misc] # stands for the class
#: Replica number to device.
ReplicaIdToDevice = dict
#: Input or output name to array.
InputMemoryView = OutputMemoryView = dict
#: Errors as the vendor spells them.
application_runtime_error = ApplicationRuntimeError
recoverable_runtime_error = RecoverableRuntimeError
unknown_runtime_error = UnknownRuntimeError

__all__ = [
    *_stoker.__all__,
    "DeviceWaitConfig",
    "HostConcatConfig",
    "HostConcatRunner",
    "HostConcatRunnerConfig",
    "InputMemoryView",
    "LightRunner",
    "LightRunnerConfig",
    "ModelFusionRunner",
    "ModelFusionRunnerConfig",
    "OutputMemoryView",
    "PackAlgorithm",
    "PackRunner",
    "PackRunnerConfig",
    "ReplicaIdToDevice",
    "Runner",
    "application_runtime_error",
    "recoverable_runtime_error",
    "unknown_runtime_error",
]
