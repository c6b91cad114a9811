"""`poprt.runtime`: runners, their configurations, devices and errors.

Every public name of Stoker's `stoker.backends.ipu.runtime` is here, under its own name and, below, under PopRT's where that differs.
"""

import stoker_compat.device_wait

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
    "InputMemoryView",
    "OutputMemoryView",
    "ReplicaIdToDevice",
    "application_runtime_error",
    "recoverable_runtime_error",
    "unknown_runtime_error",
]
