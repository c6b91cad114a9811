"""Simulated systems: the number and version of IPUs, their acquisition, and waiting for a free one."""

import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.popef.schema import Metadata
from stoker.backends.ipu.runtime import (
    ApplicationRuntimeError,
    Device,
    DeviceConstraints,
    DeviceManager,
    DeviceUnavailable,
    DeviceWaitConfig,
    DeviceWaitStrategy,
    Executable,
    Session,
    SimulatedSystem,
)
from stoker.backends.ipu.runtime.device import DEFAULT_IPUS
from stoker.backends.simulated.pacing import VirtualClock
from tests.fakes.ipu_programs import doubling, write_popef
from tests.fakes.ipu_sessions import PATIENCE_S, enqueue

TIMEOUT = DeviceWaitConfig(strategy=DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timeout_s=10, sleep_s=3)
FOREVER = DeviceWaitConfig(strategy=DeviceWaitStrategy.WAIT_FOREVER)


@pytest.mark.parametrize("ipu_version", [2, 21])
def test_executables_of_both_versions_run_on_an_unconfigured_system(tmp_path: Path, ipu_version: int) -> None:
    path = write_popef(tmp_path / "m.popef", doubling((2,)), ipu_version=ipu_version)
    with Session(path, device_manager=DeviceManager(SimulatedSystem())) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
        y = np.zeros(2, np.float32)

        assert enqueue(queues, {"x": np.ones(2, np.float32)}, {"y": y}).error() is None
        assert session.device.ipu_version == ipu_version


def test_undecided_ipu_clears_its_version_when_it_is_released(tmp_path: Path) -> None:
    manager = DeviceManager(SimulatedSystem(1))
    for version in (2, 21, 2):
        program = Executable(write_popef(tmp_path / f"{version}.popef", doubling(), ipu_version=version)).program
        with manager.get_device(program) as device:
            assert (device.ipu_version, device.tiles_per_ipu) == (version, 1472)


def test_decided_system_refuses_the_other_version_and_names_its_own(tmp_path: Path) -> None:
    manager = DeviceManager(SimulatedSystem(2, ipu_version="ipu2"))
    executable = Executable(write_popef(tmp_path / "m.popef", doubling(), ipu_version=21))

    with pytest.raises(ApplicationRuntimeError, match=r"wanted 1 IPU.s. of version ipu21; the system has 2 usable IPU.s. of ipu2"):
        manager.get_device(executable.model)


def test_device_for_an_executable_matches_its_program(tmp_path: Path) -> None:
    executable = Executable(write_popef(tmp_path / "m.popef", doubling(), ipu_version=21))
    with DeviceManager(SimulatedSystem(1)).get_device(executable) as device:
        assert (device.ipu_version, device.tiles_per_ipu) == (21, executable.program.tiles_per_ipu)


def test_replicas_need_separate_ipus(tmp_path: Path) -> None:
    executable = Executable(write_popef(tmp_path / "m.popef", doubling(), num_ipus=2, replicas=2))
    with DeviceManager(SimulatedSystem(5)).get_device(executable.metadata) as device:
        assert [ipu.id for ipu in device.ipus] == [0, 1, 2, 3]
    with pytest.raises(ApplicationRuntimeError, match="wanted 4 IPU"):
        DeviceManager(SimulatedSystem(3)).get_device(executable.program)


def test_devices_are_counted_and_acquired_once() -> None:
    manager = DeviceManager(SimulatedSystem(2))
    first, second = manager.get_device(), manager.get_device()

    assert (manager.get_num_devices(), first.id, second.id) == (2, 0, 1)
    with pytest.raises(DeviceUnavailable, match=r"no simulated device is free: wanted 1 IPU.s.; 0 of 2 that fit are free"):
        manager.get_device()
    first.detach()
    first.detach()
    assert not first.is_attached
    assert manager.get_device().id == 0


def test_constraints_filter_candidates() -> None:
    manager = DeviceManager(SimulatedSystem(3, ipu_version=21, tiles_per_ipu=64))
    with manager.get_device(constraints=DeviceConstraints(device_ids=frozenset({2}), ipu_version=21, tiles_per_ipu=64)) as device:
        assert (device.id, device.ipu_version, device.tiles_per_ipu) == (2, 21, 64)
    for constraints, reason in (
        (DeviceConstraints(ipu_version=2), "of version ipu2"),
        (DeviceConstraints(tiles_per_ipu=1472), "with 1472 tiles"),
        (DeviceConstraints(device_ids=frozenset({7})), r"among ids \[7\]"),
        (DeviceConstraints(num_ipus=4), "wanted 4 IPU"),
    ):
        with pytest.raises(ApplicationRuntimeError, match=reason):
            manager.get_device(constraints=constraints)


def test_constraints_that_contradict_the_model_are_refused(tmp_path: Path) -> None:
    executable = Executable(write_popef(tmp_path / "m.popef", doubling(), ipu_version=21))
    with pytest.raises(ApplicationRuntimeError, match="ipu_version 21 and 2 at once"):
        DeviceManager(SimulatedSystem()).get_device(executable.model, constraints=DeviceConstraints(ipu_version=2))


def test_specific_device_is_acquired_or_none() -> None:
    manager = DeviceManager(SimulatedSystem(2))
    with manager.get_specific_device(1) as device:
        assert device.id == 1
        with pytest.raises(DeviceUnavailable):
            manager.get_specific_device(1)
    with pytest.raises(ApplicationRuntimeError, match=r"among ids \[5\]"):
        manager.get_specific_device(5)


def waiting_for_a_device(manager: DeviceManager, wait: DeviceWaitConfig) -> tuple[threading.Thread, list[Device | Exception]]:
    results: list[Device | Exception] = []

    def attach() -> None:
        try:
            results.append(manager.get_device(wait_config=wait))
        except DeviceUnavailable as error:
            results.append(error)

    thread = threading.Thread(target=attach, daemon=True)
    thread.start()
    return thread, results


@pytest.mark.parametrize("wait", [TIMEOUT, FOREVER])
def test_released_device_is_given_to_a_waiting_caller(wait: DeviceWaitConfig) -> None:
    clock = VirtualClock()
    manager = DeviceManager(SimulatedSystem(1, clock=clock))
    taken = manager.get_device()
    thread, results = waiting_for_a_device(manager, wait)
    assert clock.until_waited_for(PATIENCE_S)
    taken.detach()
    thread.join(PATIENCE_S)

    assert isinstance(results[0], Device)


def test_wait_for_a_device_ends_with_the_timeout() -> None:
    clock = VirtualClock()
    manager = DeviceManager(SimulatedSystem(1, clock=clock))
    manager.get_device()
    thread, results = waiting_for_a_device(manager, TIMEOUT)
    while thread.is_alive():
        if clock.until_waited_for(0.01):
            clock.advance(1)
    thread.join(PATIENCE_S)

    assert "no simulated device is free after 10 s" in str(results[0])
    assert clock.now_ns() == 10_000_000_000


def test_model_devices_are_not_in_the_systems_count() -> None:
    device = DeviceManager.create_ipu_model_device(num_ipus=2, ipu_version="ipu21")
    small = DeviceManager.create_small_ipu_model_device()

    assert (device.num_ipus, device.ipu_version, device.tiles_per_ipu) == (2, 21, 1472)
    assert (small.num_ipus, small.ipu_version, small.tiles_per_ipu) == (1, 2, 4)


def test_program_runs_only_on_the_kind_of_device_it_was_compiled_for(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling(), replicas=2)
    with pytest.raises(ApplicationRuntimeError) as caught:
        Session(path, device=DeviceManager.create_ipu_model_device(ipu_version=21, tiles_per_ipu=4))

    assert "compiled for ipu2, the device is an ipu21" in str(caught.value)
    assert "compiled for 1472 tiles, each IPU of the device has 4" in str(caught.value)
    assert "needs 2 IPUs, the device has 1" in str(caught.value)


def test_detached_device_runs_nothing(tmp_path: Path) -> None:
    device = DeviceManager.create_ipu_model_device()
    with Session(write_popef(tmp_path / "m.popef", doubling((2,))), device=device) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        device.detach()
        session.run_main_programs()
        error = enqueue(queues, {"x": np.ones(2, np.float32)}, {"y": np.zeros(2, np.float32)}).error()

        assert "device 0 is detached; executable 'model' cannot run on it" in str(error)


def test_ipus_are_reused_only_after_their_call_has_ended(tmp_path: Path) -> None:
    manager = DeviceManager(SimulatedSystem(1))
    path = write_popef(tmp_path / "m.popef", doubling((2,)), batches_per_step=2)
    device = manager.get_device(Executable(path).program)
    with Session(path, device=device) as session:
        queues = session.create_queue_manager(2)
        session.run_load_programs()
        session.run_main_programs()
        recorder = enqueue(queues, {"x": np.ones(2, np.float32)}, {"y": np.zeros(2, np.float32)})
        assert recorder.error() is None  # and the call waits for its second micro-batch
        device.detach()
        with pytest.raises(DeviceUnavailable):
            manager.get_device(1)
        session.stop()
        manager.get_device(1).detach()


def test_unloaded_program_is_loaded_again_on_use(tmp_path: Path) -> None:
    device = DeviceManager.create_ipu_model_device()
    with Session(write_popef(tmp_path / "m.popef", doubling((2,))), device=device) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        device.unload_from_device()
        assert device.resident is None
        session.run_main_programs()
        assert enqueue(queues, {"x": np.ones(2, np.float32)}, {"y": np.zeros(2, np.float32)}).error() is None

        assert (device.metrics.loads, device.metrics.evictions) == (2, 0)


def test_environment_describes_the_system() -> None:
    system = SimulatedSystem.from_environment(
        {
            "STOKER_SIM_IPUS": "8",
            "STOKER_SIM_IPU_VERSION": "ipu21",
            "STOKER_SIM_TILES_PER_IPU": "32",
            "STOKER_SIM_FAULTS": "bad@1",
        }
    )

    assert (len(system.ipus), system.ipu_version, system.tiles_per_ipu) == (8, 21, 32)
    assert system.ipus[0].faults.strike() is not None
    assert system.ipus[1].faults.strike() is None
    assert DeviceManager(system).ipu_hardware_version() == "ipu21"


def test_empty_environment_leaves_the_version_open() -> None:
    system = SimulatedSystem.from_environment({"STOKER_SIM_IPUS": ""})

    assert (len(system.ipus), system.ipu_version, system.tiles_per_ipu) == (DEFAULT_IPUS, None, None)
    assert DeviceManager(system).ipu_hardware_version() == "ipu21"


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("STOKER_SIM_IPUS", "many", "STOKER_SIM_IPUS='many' is no number"),
        ("STOKER_SIM_IPUS", "0", "1 to 1024 IPUs, not 0"),
        ("STOKER_SIM_IPUS", "5000", "1 to 1024 IPUs, not 5000"),
        ("STOKER_SIM_IPU_VERSION", "ipu9", "no IPU version 'ipu9'; simulated are ipu2, ipu21"),
        ("STOKER_SIM_TILES_PER_IPU", "0", "at least one tile"),
        ("STOKER_SIM_FAULTS", "boom@1", "'boom@1' is no fault"),
    ],
)
def test_invalid_variable_is_named(variable: str, value: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"STOKER_SIM_.*{reason}"):
        SimulatedSystem.from_environment({variable: value})


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_wait_time_must_be_finite_and_positive(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite timeout_s >= 0"):
        DeviceWaitConfig(timeout_s=seconds)


@pytest.mark.parametrize("number", [0, -1])
def test_device_of_no_ipus_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"at least one IPU, not {number}"):
        DeviceManager(SimulatedSystem(1)).get_device(number)


def test_version_that_is_not_simulated_matches_no_device() -> None:
    with pytest.raises(ApplicationRuntimeError, match=r"no simulated device fits: wanted 1 IPU\(s\) of version ipu1; the system has"):
        DeviceManager(SimulatedSystem(1)).get_device(Metadata(executable="old", anchors=(), ipu_version=1))


def test_model_device_of_no_tiles_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one tile, not 0"):
        DeviceManager.create_ipu_model_device(tiles_per_ipu=0)
