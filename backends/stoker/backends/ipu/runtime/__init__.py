"""Running PopEF files on simulated IPUs: devices, sessions, queues and `ModelRunner`; `compat/poprt/runtime` has PopRT's other runners."""

from stoker.backends.ipu.popef.errors import PackageHashMismatch, PopefError
from stoker.backends.ipu.runtime.data_desc import DataDesc
from stoker.backends.ipu.runtime.device import Device, DeviceMetrics
from stoker.backends.ipu.runtime.device_manager import DeviceConstraints, DeviceManager
from stoker.backends.ipu.runtime.device_wait import DeviceWaitConfig, DeviceWaitStrategy
from stoker.backends.ipu.runtime.errors import (
    ApplicationRuntimeError,
    DeviceUnavailable,
    IpuRuntimeError,
    ProgramEvicted,
    RecoverableRuntimeError,
    RecoveryAction,
    RequestTimeout,
    SessionStopped,
    UnknownRuntimeError,
)
from stoker.backends.ipu.runtime.executable import Executable
from stoker.backends.ipu.runtime.inference_future import InferenceFuture
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.predicates import (
    AnchorCallbackPolicy,
    AnchorPredicate,
    or_bind,
    pred_program_flow_main,
    pred_program_not_assigned,
)
from stoker.backends.ipu.runtime.queue_manager import InputQueue, OutputQueue, QueueManager
from stoker.backends.ipu.runtime.request_tracepoints import RequestTracepoint
from stoker.backends.ipu.runtime.ring_buffer import InputRingBuffer, OutputRingBuffer, RingBuffer
from stoker.backends.ipu.runtime.runtime_config import NO_BATCHING_DIM, RunnerType, RuntimeConfig
from stoker.backends.ipu.runtime.session import Session, SessionState
from stoker.backends.ipu.runtime.session_config import LaunchPolicy, SessionConfig
from stoker.backends.ipu.runtime.simulated_system import SimulatedSystem

__all__ = [
    "NO_BATCHING_DIM",
    "AnchorCallbackPolicy",
    "AnchorPredicate",
    "ApplicationRuntimeError",
    "DataDesc",
    "Device",
    "DeviceConstraints",
    "DeviceManager",
    "DeviceMetrics",
    "DeviceUnavailable",
    "DeviceWaitConfig",
    "DeviceWaitStrategy",
    "Executable",
    "InferenceFuture",
    "InputQueue",
    "InputRingBuffer",
    "IpuRuntimeError",
    "LaunchPolicy",
    "ModelRunner",
    "OutputQueue",
    "OutputRingBuffer",
    "PackageHashMismatch",
    "PopefError",
    "ProgramEvicted",
    "QueueManager",
    "RecoverableRuntimeError",
    "RecoveryAction",
    "RequestTimeout",
    "RequestTracepoint",
    "RingBuffer",
    "RunnerType",
    "RuntimeConfig",
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
