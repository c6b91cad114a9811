"""Running PopEF files on simulated IPUs: devices, sessions, queues, runners."""

from backends.ipu.popef.errors import PackageHashMismatch, PopefError
from backends.ipu.runtime.device import Device, DeviceMetrics
from backends.ipu.runtime.device_manager import DeviceConstraints, DeviceManager
from backends.ipu.runtime.device_wait import DeviceWaitConfig, DeviceWaitStrategy
from backends.ipu.runtime.errors import (
    ApplicationRuntimeError,
    DeviceUnavailable,
    IpuRuntimeError,
    ProgramEvicted,
    RecoverableRuntimeError,
    RecoveryAction,
    SessionStopped,
    UnknownRuntimeError,
)
from backends.ipu.runtime.executable import Executable
from backends.ipu.runtime.predicates import (
    AnchorCallbackPolicy,
    AnchorPredicate,
    or_bind,
    pred_program_flow_main,
    pred_program_not_assigned,
)
from backends.ipu.runtime.queue_manager import InputQueue, OutputQueue, QueueManager
from backends.ipu.runtime.ring_buffer import InputRingBuffer, OutputRingBuffer, RingBuffer
from backends.ipu.runtime.session import Session, SessionState
from backends.ipu.runtime.session_config import LaunchPolicy, SessionConfig
from backends.ipu.runtime.simulated_system import SimulatedSystem

__all__ = [
    "AnchorCallbackPolicy",
    "AnchorPredicate",
    "ApplicationRuntimeError",
    "Device",
    "DeviceConstraints",
    "DeviceManager",
    "DeviceMetrics",
    "DeviceUnavailable",
    "DeviceWaitConfig",
    "DeviceWaitStrategy",
    "Executable",
    "InputQueue",
    "InputRingBuffer",
    "IpuRuntimeError",
    "LaunchPolicy",
    "OutputQueue",
    "OutputRingBuffer",
    "PackageHashMismatch",
    "PopefError",
    "ProgramEvicted",
    "QueueManager",
    "RecoverableRuntimeError",
    "RecoveryAction",
    "RingBuffer",
    "Session",
    "SessionConfig",
    "SessionState",
    "SessionStopped",
    "SimulatedSystem",
    "UnknownRuntimeError",
    "or_bind",
    "pred_program_flow_main",
    "pred_program_not_assigned",
]
