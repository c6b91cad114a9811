"""Running PopEF files on simulated IPUs: devices, sessions, queues and `ModelRunner`; `compat/poprt/runtime` has PopRT's other runners."""

from stoker.backends.ipu.popef.schema import PackageHashMismatch, PopefError
from stoker.backends.ipu.runtime.device import Device, DeviceMetrics, SimulatedSystem
from stoker.backends.ipu.runtime.device_manager import DeviceConstraints, DeviceManager
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
from stoker.backends.ipu.runtime.executable import DataDesc, Executable
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, RequestTracepoint
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.queue_manager import InputQueue, InputRingBuffer, OutputQueue, OutputRingBuffer, QueueManager, RingBuffer
from stoker.backends.ipu.runtime.runtime_config import (
    NO_BATCHING_DIM,
    DeviceWaitConfig,
    DeviceWaitStrategy,
    LaunchPolicy,
    RunnerType,
    RuntimeConfig,
    SessionConfig,
)
from stoker.backends.ipu.runtime.session import Session, SessionState
from stoker.backends.ipu.runtime.streams import (
    AnchorCallbackPolicy,
    AnchorPredicate,
    or_bind,
    pred_program_flow_main,
    pred_program_not_assigned,
)

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
