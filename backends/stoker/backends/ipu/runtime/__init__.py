"""Running PopEF files on simulated IPUs: devices, sessions, queues, runners."""

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
from stoker.backends.ipu.runtime.fusion_runner import ModelFusionRunner, ModelFusionRunnerConfig
from stoker.backends.ipu.runtime.host_concat_runner import HostConcatConfig, HostConcatRunner, HostConcatRunnerConfig
from stoker.backends.ipu.runtime.inference_future import InferenceFuture
from stoker.backends.ipu.runtime.light_runner import LightRunner, LightRunnerConfig
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.pack_runner import PackRunner
from stoker.backends.ipu.runtime.packing import PackAlgorithm
from stoker.backends.ipu.runtime.packing_config import PackRunnerConfig
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
from stoker.backends.ipu.runtime.runner import Runner
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
    "HostConcatConfig",
    "HostConcatRunner",
    "HostConcatRunnerConfig",
    "InferenceFuture",
    "InputQueue",
    "InputRingBuffer",
    "IpuRuntimeError",
    "LaunchPolicy",
    "LightRunner",
    "LightRunnerConfig",
    "ModelFusionRunner",
    "ModelFusionRunnerConfig",
    "ModelRunner",
    "OutputQueue",
    "OutputRingBuffer",
    "PackAlgorithm",
    "PackRunner",
    "PackRunnerConfig",
    "PackageHashMismatch",
    "PopefError",
    "ProgramEvicted",
    "QueueManager",
    "RecoverableRuntimeError",
    "RecoveryAction",
    "RequestTimeout",
    "RequestTracepoint",
    "RingBuffer",
    "Runner",
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
