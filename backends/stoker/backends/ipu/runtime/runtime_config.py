"""The configuration of runners: the fields and defaults of PopRT's `RuntimeConfig`, and settings of simulated devices."""

import datetime
import enum
import logging
import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt

from stoker.backends.ipu.runtime.device import Device
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing


class DeviceWaitStrategy(enum.Enum):
    """Whether to wait for a device."""

    NO_WAIT = "NO_WAIT"
    WAIT_WITH_TIMEOUT = "WAIT_WITH_TIMEOUT"
    WAIT_FOREVER = "WAIT_FOREVER"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWaitConfig:
    """How to wait for a device.

    Attributes:
        strategy: Whether, and how long.
        timeout_s: For `WAIT_WITH_TIMEOUT`.
        sleep_s: Longest pause between two tries; a device released in this process is noticed at once.
    """

    strategy: DeviceWaitStrategy = DeviceWaitStrategy.NO_WAIT
    timeout_s: float = 0.0
    sleep_s: float = 15.0

    def __post_init__(self) -> None:
        if not 0 <= self.timeout_s < math.inf or not 0 < self.sleep_s < math.inf:
            raise ValueError(
                f"waiting for a device needs a finite timeout_s >= 0 and sleep_s > 0, not {self.timeout_s} and {self.sleep_s}; "
                "WAIT_FOREVER has no timeout"
            )


class LaunchPolicy(enum.Enum):
    """The time at which a session attaches its device."""

    IMMEDIATE = "Immediate"
    """The constructor attaches: the executable is on the device when it returns."""
    DEFERRED = "Deferred"
    """`run_load_programs` attaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """The configuration of a session.

    Attributes:
        check_package_hash: Whether to reject an executable that another version compiled.
        policy: When the device is taken.
        wait_config: What to do when no device is free.
        reloads_when_evicted: Whether the session loads its executable again when another one took the device; each reload takes
            modelled time and is counted. Otherwise its next call fails.
        numerics: Whether outputs are computed.
        pacing: What the modelled time does to the run.
        threads: Threads of this host that an operator may use.
        custom_op_libraries: Shared libraries with custom operators; they run native code in this process.
    """

    check_package_hash: bool = True
    policy: LaunchPolicy = LaunchPolicy.IMMEDIATE
    wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    reloads_when_evicted: bool = True
    numerics: Numerics = Numerics.REAL
    pacing: Pacing = Pacing.NONE
    threads: int = 1
    custom_op_libraries: tuple[Path, ...] = ()


#: `batching_dim` when requests must be whole multiples of the compiled batch.
NO_BATCHING_DIM = 0xFFFFFFFF
#: A timeout that never comes.
MAX_TIMEOUT_NS = 2**63 - 1
#: A duration: an int in nanoseconds, or a `timedelta`.
Nanoseconds = int | datetime.timedelta

_log = logging.getLogger(__name__)


class RunnerType(enum.IntEnum):
    """The settings that `Runner` derives from a configuration."""

    MODEL_RUNNER = 0
    PACK_RUNNER = 1
    MODEL_FUSION_RUNNER = 2


def _patient() -> DeviceWaitConfig:
    return DeviceWaitConfig(strategy=DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timeout_s=1.0, sleep_s=6.0)


@dataclass(slots=True, kw_only=True)
class RuntimeConfig:
    """The configuration of a `ModelRunner`. Changes after the runner was created have no effect on that runner.

    Attributes:
        device_wait_config: What to do when no device is free.
        thread_safe: Whether several threads may use the runner. They always may: False is accepted and changes nothing.
        timeout_ns: A device that begins a call and then starves this long is fed with dummy data, and a request that cannot be completed
            fails; with `batching_dim` also how long a partial batch waits for later requests. 0: for ever.
        validate_io_params: Whether `execute` wants every input and output of the executable. Off for fused executables.
        batching_dim: Dimension of all inputs and outputs that may have any size; `NO_BATCHING_DIM`: only multiples of the compiled batch.
        check_package_hash: Whether to reject an executable that another version compiled.
        ring_buffer_size_multiplier: Calls of the main program whose data fits into the rings between host and device.
        auto_reset: Whether the device is reset, or the executable loaded again, before the next request after an error that this cures.
        flush_on_waiting_outputs: Whether a starving device gets dummy data only while a caller waits for outputs.
        is_batch_size_timeout_enabled: Whether the next two count, in place of `timeout_ns`, for partial batches. `MAX_TIMEOUT_NS`: for
            ever.
        batch_size_timeout_ns: How long a partial batch of one replica waits for later requests.
        data_parallel_timeout_ns: How long whole batches wait for those of the other replicas of a replicated executable.
        request_tracepoints_buffer_size: Requests whose times are kept; 0: of all. Only with `flush_on_waiting_outputs`.
        replication_factor: Copies of the executable, each on a device of its own, that share the requests.
        replica_id_to_device: Devices of some copies; the others look for one.
        flush_by_name: Inputs and outputs of the dummy data for a fused executable, which choose the sub-graph that runs on them; by
            default that of the latest request.
        frozen_inputs: Inputs with the same data in every request; requests may leave them out.
        numerics: Whether the simulated device computes.
        pacing: What the modelled time does to the run.
        threads: Threads of this host that an operator may use.
        custom_op_libraries: Shared libraries with custom operators; they run native code in this process.
    """

    runner_type: ClassVar[RunnerType] = RunnerType.MODEL_RUNNER

    device_wait_config: DeviceWaitConfig = field(default_factory=_patient)
    thread_safe: bool = True
    timeout_ns: Nanoseconds = 10_000_000
    validate_io_params: bool = True
    batching_dim: int = NO_BATCHING_DIM
    check_package_hash: bool = True
    ring_buffer_size_multiplier: int = 2
    auto_reset: bool = False
    flush_on_waiting_outputs: bool = False
    is_batch_size_timeout_enabled: bool = False
    batch_size_timeout_ns: Nanoseconds = MAX_TIMEOUT_NS
    data_parallel_timeout_ns: Nanoseconds = MAX_TIMEOUT_NS
    request_tracepoints_buffer_size: int = 1000
    replication_factor: int = 1
    replica_id_to_device: MutableMapping[int, Device] = field(default_factory=dict)
    flush_by_name: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    frozen_inputs: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    numerics: Numerics = Numerics.REAL
    pacing: Pacing = Pacing.NONE
    threads: int = 1
    custom_op_libraries: tuple[Path, ...] = ()

    @property
    def is_batching(self) -> bool:
        """Whether requests of any size are merged."""
        return self.batching_dim != NO_BATCHING_DIM

    @property
    def replicas(self) -> int:
        """Copies of the executable: as many as asked for, or as have a device."""
        return max(self.replication_factor, 1 + max(self.replica_id_to_device, default=-1))

    def session_config(self) -> SessionConfig:
        """The settings of a session."""
        return SessionConfig(
            check_package_hash=self.check_package_hash,
            wait_config=self.device_wait_config,
            numerics=self.numerics,
            pacing=self.pacing,
            threads=self.threads,
            custom_op_libraries=tuple(self.custom_op_libraries),
        )

    def check(self) -> None:
        """Rejects values that make no sense, and says once which have no effect here.

        Raises:
            ValueError: a value is out of range; names the field.
        """
        for name in ("timeout_ns", "batch_size_timeout_ns", "data_parallel_timeout_ns"):
            nanoseconds(getattr(self, name), name)
        for name, least in (("ring_buffer_size_multiplier", 1), ("replication_factor", 1), ("request_tracepoints_buffer_size", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {least} or more")
        if not 0 <= self.batching_dim <= NO_BATCHING_DIM:
            raise ValueError(f"batching_dim is {self.batching_dim}; expected a dimension, or {NO_BATCHING_DIM:#x} for none")
        if any(replica < 0 for replica in self.replica_id_to_device):
            raise ValueError(f"replica_id_to_device has replica {min(self.replica_id_to_device)}; they are counted from 0")
        if not self.thread_safe:
            _warn_once("thread_safe=False has no effect on a simulated device: runners may always be used by several threads")


def nanoseconds(value: Nanoseconds, name: str) -> int:
    """`value` as an int.

    Raises:
        ValueError: it is negative.
    """
    number = value // datetime.timedelta(microseconds=1) * 1000 if isinstance(value, datetime.timedelta) else int(value)
    if number < 0:
        raise ValueError(f"{name} is {value}; expected 0 nanoseconds or more")
    return number


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)
