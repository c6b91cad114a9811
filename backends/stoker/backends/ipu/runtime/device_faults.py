"""What an injected fault does to a device and to the call it strikes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, RecoverableRuntimeError, SessionStopped, UnknownRuntimeError
from stoker.backends.ipu.runtime.gate import Gate
from stoker.backends.ipu.runtime.simulated_system import RESETS
from stoker.backends.simulated.clocks import NS_PER_S
from stoker.backends.simulated.faults import Fault, FaultKind

Array = npt.NDArray[Any]

#: How long the host waits for a device that hangs [P: Poplar's engine option hostSyncTimeout].
HOST_SYNC_TIMEOUT_S = 300


def apply_fault(fault: Fault, device: Device, gate: Gate) -> None:
    """Lets `fault` happen at the beginning of a call; returns where the call goes on all the same.

    REQUIRES: a system has accepted its plan.

    Raises:
        RecoverableRuntimeError: a reset is needed.
        UnknownRuntimeError: the device is lost, or hung until the host gave up.
        ApplicationRuntimeError: out of memory.
        SessionStopped: the session was stopped while the device hung.
    """
    where = f"device {device.id}, execution {fault.execution} (injected)"
    if fault.kind is FaultKind.RESET:
        action = RESETS[fault.detail]
        error = RecoverableRuntimeError(f"{where}: the device needs {action.value}", action)
        device.break_down(error)
        raise error
    if fault.kind is FaultKind.LOST:
        lost = UnknownRuntimeError(f"{where}: the device is lost")
        device.break_down(lost, is_lost=True)
        raise lost
    if fault.kind is FaultKind.OUT_OF_MEMORY:
        raise ApplicationRuntimeError(f"{where}: out of memory while the program ran")
    if fault.kind is FaultKind.HANG:
        if gate.wait_for(lambda: gate.is_stopping, gate.clock.now_ns() + HOST_SYNC_TIMEOUT_S * NS_PER_S):
            raise SessionStopped(f"{where}: the session was stopped while the device hung")
        hung = UnknownRuntimeError(f"{where}: no response for {HOST_SYNC_TIMEOUT_S} s (host sync timeout)")
        device.break_down(hung)
        raise hung


def garbage(value: Array) -> Array:
    """All bits set: NaN in floats, -1 or the largest number in integers."""
    pattern = b"\x01" if value.dtype == np.bool_ else b"\xff"
    return np.frombuffer(pattern * value.nbytes, value.dtype).reshape(value.shape)
