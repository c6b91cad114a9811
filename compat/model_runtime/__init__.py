"""The vendor's Python module `model_runtime`, on simulated IPUs: devices, sessions, queues and `ModelRunner`.

Names may be spelled in camelCase or in snake_case.
"""

import popef as _popef  # noqa: F401 - what sessions give away of a file has its shims from there
from stoker_compat import warn_beside_real
from stoker_compat.absent import absent
from stoker_compat.device_wait import DeviceWaitConfig
from stoker_compat.renaming import renamed

from model_runtime import predicate_factory
from stoker.backends.ipu import runtime
from stoker.backends.ipu.runtime import (
    AnchorCallbackPolicy,
    ApplicationRuntimeError,
    DeviceWaitStrategy,
    LaunchPolicy,
    RecoverableRuntimeError,
    RecoveryAction,
    UnknownRuntimeError,
)

warn_beside_real("model_runtime")

DataDesc = renamed(runtime.DataDesc)
Device = renamed(runtime.Device)
DeviceConstraints = renamed(runtime.DeviceConstraints)
DeviceManager = renamed(runtime.DeviceManager)
Executable = renamed(runtime.Executable)
InputQueue = renamed(runtime.InputQueue)
InputRingBuffer = renamed(runtime.InputRingBuffer)
ModelRunner = renamed(runtime.ModelRunner)
ModelRunnerConfig = renamed(runtime.RuntimeConfig, "ModelRunnerConfig")
OutputQueue = renamed(runtime.OutputQueue)
OutputRingBuffer = renamed(runtime.OutputRingBuffer)
QueueManager = renamed(runtime.QueueManager)
Session = renamed(runtime.Session)
SessionConfig = renamed(runtime.SessionConfig)

#: Input or output name to array: numpy arrays are memory and view at once, and stay the caller's.
InputMemory = InputMemoryView = OutputMemory = OutputMemoryView = dict

__all__ = [
    "AnchorCallbackPolicy",
    "ApplicationRuntimeError",
    "DataDesc",
    "Device",
    "DeviceConstraints",
    "DeviceManager",
    "DeviceWaitConfig",
    "DeviceWaitStrategy",
    "Executable",
    "InputMemory",
    "InputMemoryView",
    "InputQueue",
    "InputRingBuffer",
    "LaunchPolicy",
    "ModelRunner",
    "ModelRunnerConfig",
    "OutputMemory",
    "OutputMemoryView",
    "OutputQueue",
    "OutputRingBuffer",
    "QueueManager",
    "RecoverableRuntimeError",
    "RecoveryAction",
    "Session",
    "SessionConfig",
    "UnknownRuntimeError",
    "predicate_factory",
]

__getattr__ = absent("model_runtime", __all__)
