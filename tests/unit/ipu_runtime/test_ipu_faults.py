"""Injected faults: the errors of the session, its callbacks, and the recovery of the device."""

from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.runtime import (
    ApplicationRuntimeError,
    DeviceManager,
    IpuRuntimeError,
    QueueManager,
    RecoverableRuntimeError,
    RecoveryAction,
    Session,
    SessionState,
    SimulatedSystem,
    UnknownRuntimeError,
)
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.pacing import VirtualClock
from tests.fakes.ipu_programs import doubling, write_popef
from tests.fakes.ipu_sessions import PATIENCE_S, ResultRecorder, enqueue

ONE = np.ones(2, np.float32)


class Faulty:
    """A running session on a device with a plan of faults."""

    def __init__(self, folder: Path, faults: str, *, num_ipus: int = 1) -> None:
        self.clock = VirtualClock()
        self.path = write_popef(folder / "m.popef", doubling((2,)))
        self.manager = DeviceManager(SimulatedSystem(num_ipus, clock=self.clock, faults=[FaultPlan.parse(faults)]))
        self.session = Session(self.path, device_manager=self.manager)
        self.queues: QueueManager = self.session.create_queue_manager(4)
        self.start()

    def start(self) -> None:
        self.session.run_load_programs()
        self.session.run_main_programs()

    def ask(self) -> tuple[ResultRecorder, np.ndarray]:
        y = np.zeros(2, np.float32)
        return enqueue(self.queues, {"x": ONE}, {"y": y}), y

    def response(self) -> Exception | None:
        return self.ask()[0].error()


@pytest.mark.parametrize(
    ("fault", "action"),
    [
        ("reset@2", RecoveryAction.IPU_RESET),
        ("reset:link@2", RecoveryAction.LINK_RESET),
        ("reset:partition@2", RecoveryAction.PARTITION_RESET),
        ("reset:full@2", RecoveryAction.FULL_RESET),
    ],
)
def test_required_reset_makes_the_session_usable_again(tmp_path: Path, fault: str, action: RecoveryAction) -> None:
    faulty = Faulty(tmp_path, fault)
    with faulty.session as session:
        assert faulty.response() is None
        error = faulty.response()
        assert isinstance(error, RecoverableRuntimeError)
        assert error.action is action
        assert session.wait(PATIENCE_S)
        assert session.state is SessionState.FAILED
        with pytest.raises(RecoverableRuntimeError, match="execution 2"):
            session.run_main_programs()
        session.reset()
        assert session.state is SessionState.CREATED
        faulty.start()
        recorder, y = faulty.ask()

        assert recorder.error() is None
        assert y.tolist() == [2, 2]
        assert session.device.metrics.loads == 2


def test_requests_queued_at_the_time_of_the_error_get_the_same_error(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "reset@1")
    with faulty.session as session:
        session.stop()
        tolds = [faulty.ask()[0] for _ in range(3)]
        session.run_main_programs()
        errors = [recorder.error() for recorder in tolds]

        assert isinstance(errors[0], RecoverableRuntimeError)
        assert all(error is errors[0] for error in errors)


def test_device_needs_the_reset_that_it_requested_or_a_larger_one(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "reset:partition@1")
    with faulty.session as session:
        assert isinstance(faulty.response(), RecoverableRuntimeError)
        with pytest.raises(RecoverableRuntimeError, match="PARTITION_RESET"):
            session.device.reset(RecoveryAction.IPU_RESET)
        session.device.reset(RecoveryAction.FULL_RESET)


def test_lost_device_stays_lost_and_another_can_be_acquired(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "lost@1", num_ipus=2)
    with faulty.session as session:
        assert isinstance(faulty.response(), UnknownRuntimeError)
        with pytest.raises(ApplicationRuntimeError, match="no recoverable error to reset from"):
            session.reset()
        with pytest.raises(UnknownRuntimeError, match="lost"):
            session.device.reset(RecoveryAction.FULL_RESET)
    with Session(faulty.path, device_manager=faulty.manager) as other:
        assert other.device.id == 1


def test_hanging_device_is_aborted_after_the_host_sync_timeout(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "hang@1")
    with faulty.session:
        recorder, _ = faulty.ask()
        assert faulty.clock.until_waited_for(PATIENCE_S)
        faulty.clock.advance(299)
        assert not recorder.is_done
        faulty.clock.advance(1)
        error = recorder.error()

        assert isinstance(error, UnknownRuntimeError)
        assert "no response for 300 s" in str(error)


def test_session_can_be_stopped_while_its_device_hangs(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "hang@1")
    recorder, _ = faulty.ask()
    assert faulty.clock.until_waited_for(PATIENCE_S)
    faulty.session.close()

    assert isinstance(recorder.error(), IpuRuntimeError)


def test_out_of_memory_ends_the_session_and_leaves_the_device_usable(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "oom@1")
    with faulty.session:
        error = faulty.response()
        assert isinstance(error, ApplicationRuntimeError)
        assert "out of memory" in str(error)
    with Session(faulty.path, device_manager=faulty.manager) as other:
        assert other.device.is_attached


def test_bad_output_is_corrupt_for_one_call(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "bad@2")
    with faulty.session:
        responses = []
        for _ in range(3):
            recorder, y = faulty.ask()
            assert recorder.error() is None
            responses.append(y)

        assert np.isnan(responses[1]).all()
        assert (responses[0].tolist(), responses[2].tolist()) == ([2, 2], [2, 2])


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ("reset:soft@1", "'reset:soft@1': no such variant; there are ipu, link, partition, full"),
        ("hang:long@2", "'hang:long@2': no such variant; there are none"),
    ],
)
def test_unknown_fault_is_refused_before_it_occurs(plan: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SimulatedSystem(1, faults=[FaultPlan.parse(plan)])


def test_faults_of_nonexistent_ipus_are_refused() -> None:
    with pytest.raises(ValueError, match="faults for 2 IPUs, the simulated system has 1"):
        SimulatedSystem(1, faults=[FaultPlan(), FaultPlan()])


def test_fault_of_any_ipu_fails_the_device(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling((2,)), num_ipus=2)
    manager = DeviceManager(SimulatedSystem(2, faults=[FaultPlan(), FaultPlan.parse("bad@2")]))
    with Session(path, device_manager=manager) as session:
        queues = session.create_queue_manager(2)
        session.run_load_programs()
        session.run_main_programs()
        outputs = [np.zeros(2, np.float32) for _ in range(2)]
        assert [enqueue(queues, {"x": ONE}, {"y": y}).error() for y in outputs] == [None, None]
        assert outputs[0].tolist() == [2, 2]
        assert np.isnan(outputs[1]).all()
