"""Sessions: the order of programs, weights, handlers, replicas, errors, and that nothing is left behind."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.runtime import (
    AnchorCallbackPolicy,
    ApplicationRuntimeError,
    Device,
    DeviceManager,
    IpuRuntimeError,
    LaunchPolicy,
    Session,
    SessionConfig,
    SessionState,
    SessionStopped,
    SimulatedSystem,
)
from stoker.backends.simulated.numerics import Numerics
from tests.fakes.ipu_programs import doubling, failing, weighted, write_popef
from tests.fakes.ipu_sessions import PATIENCE_S, ResultRecorder, Signal, enqueue, ipu_threads

ONES = np.ones(2, np.float32)
WEIGHTS = np.array([3, 5], np.float32)


def nothing_bound(_: Anchor) -> AnchorCallbackPolicy:
    return AnchorCallbackPolicy.BIND_EMPTY_CB


def run_once(session: Session, x: np.ndarray = ONES) -> np.ndarray:
    """Loads, runs one call, stops."""
    queues = session.create_queue_manager(1)
    session.run_load_programs()
    session.run_main_programs()
    y = np.zeros_like(x)
    assert enqueue(queues, {"x": x}, {"y": y}).error() is None
    session.stop()
    return y


def test_programs_run_in_the_order_load_main_save(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", weighted(), tensor_data={"w": WEIGHTS}, saved=["w"])
    with Session(path) as session:
        saved = Signal()
        session.set_user_output_handler("saved/w", lambda memory: saved(memory.copy()))
        assert session.state is SessionState.CREATED
        assert run_once(session).tolist() == [3, 5]
        assert session.state is SessionState.STOPPED
        session.run_save_programs()

        np.testing.assert_array_equal(saved.calls, [WEIGHTS])
        assert session.state is SessionState.SAVED
    assert session.state is SessionState.CLOSED


@pytest.mark.parametrize("step", ["run_main_programs", "run_save_programs"])
def test_nothing_runs_before_the_load_programs(tmp_path: Path, step: str) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        session.create_queue_manager(1)

        with pytest.raises(ApplicationRuntimeError, match=f"{step} of 'model' in state 'created': the order is run_load_programs once"):
            getattr(session, step)()


def test_load_programs_run_once(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        session.run_load_programs()

        with pytest.raises(ApplicationRuntimeError, match="in state 'loaded'"):
            session.run_load_programs()


def test_save_programs_wait_for_the_end_of_main_programs_and_run_last(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
        with pytest.raises(ApplicationRuntimeError, match=r"run_save_programs .* in state 'running'"):
            session.run_save_programs()
        with pytest.raises(ApplicationRuntimeError, match=r"run_main_programs .* in state 'running'"):
            session.run_main_programs()
        session.stop()
        session.run_save_programs()

        with pytest.raises(ApplicationRuntimeError, match="in state 'saved'"):
            session.run_main_programs()


def test_restarted_main_programs_keep_their_queue(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling((2,)))) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
        y = np.zeros(2, np.float32)
        assert enqueue(queues, {"x": ONES}, {"y": y}).error() is None
        session.stop()
        recorder = enqueue(queues, {"x": ONES * 4}, {"y": y})
        session.run_main_programs()

        assert recorder.error() is None
        assert y.tolist() == [8, 8]


def test_main_programs_end_after_the_requested_number_of_calls(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling((2,)), batches_per_step=2)) as session:
        queues = session.create_queue_manager(8)
        tolds = [enqueue(queues, {"x": ONES}, {"y": np.zeros(2, np.float32)}) for _ in range(6)]
        session.run_load_programs()
        session.run_main_programs(calls=2)

        assert session.wait(PATIENCE_S)
        assert [recorder.is_done for recorder in tolds] == [True] * 4 + [False] * 2
        assert session.device.metrics.calls == 2


def test_tensor_data_is_bound_by_name(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", weighted(), tensor_data={"w": WEIGHTS})) as session:
        assert [anchor.name for anchor in session.get_user_input_anchors()] == ["x"]
        assert [anchor.name for anchor in session.get_user_output_anchors()] == ["y"]
        assert run_once(session).tolist() == [3, 5]


def test_users_handler_overrides_tensor_data(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", weighted(), tensor_data={"w": WEIGHTS})) as session:
        session.set_user_input_handler("w", lambda memory: memory.fill(7))

        assert run_once(session).tolist() == [7, 7]


def test_predicate_prevents_the_binding_of_tensor_data(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", weighted(), tensor_data={"w": WEIGHTS})
    with Session(path, tensor_data_predicate=nothing_bound) as session:
        assert [anchor.name for anchor in session.get_user_input_anchors()] == ["x", "w"]
        with pytest.raises(ApplicationRuntimeError, match=r"load programs .* nothing is connected to: w;"):
            session.run_load_programs()
        session.set_user_input_handler("w", lambda memory: memory.fill(2))

        assert run_once(session).tolist() == [2, 2]


def test_input_of_main_programs_may_be_tensor_data(tmp_path: Path) -> None:
    x = np.array([4, 5], np.float32)
    with Session(write_popef(tmp_path / "m.popef", doubling((2,)), tensor_data={"x": x})) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
        y = np.zeros(2, np.float32)

        assert list(queues.inputs) == []
        assert enqueue(queues, {}, {}).is_done is False
        recorder = ResultRecorder()
        queues.output_queue("y").enqueue(y, callback=recorder)
        assert recorder.error() is None
        assert y.tolist() == [8, 10]


def test_tensor_data_of_another_shape_than_its_anchor_is_refused(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", weighted(), tensor_data={"w": np.zeros(3, np.float32)})
    with pytest.raises(ApplicationRuntimeError, match=r"tensor data 'w' has shape \[3\] and type F32, its anchor \[2\] and F32"):
        Session(path)


def test_handlers_fill_and_read_the_devices_memory(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling((2,)))) as session:
        results = Signal()
        session.set_user_input_handler("x", lambda memory: memory.fill(21))
        session.set_user_output_handler("y", lambda memory: results(memory.tolist()))
        session.run_load_programs()
        session.run_main_programs(calls=3)
        assert session.wait(PATIENCE_S)

        assert results.calls == [[42, 42]] * 3


def test_main_programs_name_unconnected_anchors(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        session.run_load_programs()

        with pytest.raises(ApplicationRuntimeError, match=r"main programs .* nothing is connected to: x, y;"):
            session.run_main_programs()


def test_invalid_anchor_is_refused(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        with pytest.raises(ApplicationRuntimeError, match="has no input 'y'; it has x"):
            session.set_user_input_handler("y", lambda memory: None)
        with pytest.raises(ApplicationRuntimeError, match="has no output 'q'; it has y"):
            session.set_user_output_handler("q", lambda memory: None)


def test_replicas_read_their_parts_of_one_entry(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", weighted(), tensor_data={"w": WEIGHTS}, replicas=2)
    with Session(path) as session:
        x = np.array([[1, 1], [10, 10]], np.float32)

        assert run_once(session, x).tolist() == [[3, 5], [30, 50]]
        assert session.device.num_ipus == 2


def test_outputs_are_zeros_with_numerics_off(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling((2,))), SessionConfig(numerics=Numerics.OFF)) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
        y = np.full(2, 9, np.float32)

        assert enqueue(queues, {"x": ONES}, {"y": y}).error() is None
        assert y.tolist() == [0, 0]


def test_failing_graph_fails_every_waiting_caller(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", failing())) as session:
        queues = session.create_queue_manager(4)
        tolds = [enqueue(queues, {"x": ONES}, {"y": np.zeros(2, np.float32)}) for _ in range(3)]
        session.run_load_programs()
        session.run_main_programs()

        errors = [recorder.error() for recorder in tolds]
        assert all(isinstance(error, ApplicationRuntimeError) for error in errors)
        assert "sub-graph 'model': the lowered graph failed" in str(errors[0])
        assert session.wait(PATIENCE_S)
        assert session.state is SessionState.FAILED
        assert session.error is errors[0]
        with pytest.raises(ApplicationRuntimeError, match="lowered graph failed"):
            queues.input_queue("x").enqueue(ONES)
        with pytest.raises(ApplicationRuntimeError, match="lowered graph failed"):
            session.run_save_programs()


def test_handler_that_raises_ends_the_session_with_its_reason(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling((2,)))) as session:
        session.create_queue_manager(1)
        session.set_user_input_handler("x", lambda memory: memory.fill("text"))
        session.run_load_programs()
        session.run_main_programs()
        assert session.wait(PATIENCE_S)

        assert isinstance(session.error, ApplicationRuntimeError)
        assert "executable 'model' failed: ValueError" in str(session.error)
        assert isinstance(session.error.__cause__, ValueError)


def test_graph_that_cannot_be_prepared_is_named(tmp_path: Path) -> None:
    part = doubling()
    broken = type(part)(nodes=[], inputs=part.inputs, outputs=part.outputs)
    with pytest.raises(ApplicationRuntimeError, match="sub-graph 'model': the lowered graph cannot be prepared"):
        Session(write_popef(tmp_path / "m.popef", broken))


def test_threads_end_after_stop_or_close(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling((2,)))
    sessions = [Session(path, device_manager=DeviceManager(SimulatedSystem(1))) for _ in range(3)]
    for session in sessions:
        session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
    assert len(ipu_threads()) == 3
    sessions[0].stop()
    assert len(ipu_threads()) == 2
    for session in sessions:
        session.close()
        session.close()

    assert ipu_threads() == []


def test_unreferenced_session_releases_its_device_and_ends_its_thread(tmp_path: Path) -> None:
    manager = DeviceManager(SimulatedSystem(1))
    session = Session(write_popef(tmp_path / "m.popef", doubling((2,))), device_manager=manager)
    session.create_queue_manager(1)
    session.run_load_programs()
    session.run_main_programs()
    (thread,) = (each for each in threading.enumerate() if each.name in ipu_threads())
    del session
    gc.collect()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    manager.get_device().detach()


def test_callback_may_stop_the_session(tmp_path: Path) -> None:
    session = Session(write_popef(tmp_path / "m.popef", doubling((2,))))
    queues = session.create_queue_manager(1)
    session.run_load_programs()
    session.run_main_programs()
    queues.output_queue("y").enqueue(np.zeros(2, np.float32), callback=lambda error: session.stop())
    queues.input_queue("x").enqueue(ONES)

    assert session.wait(PATIENCE_S)
    session.close()


def test_deferred_launch_acquires_its_device_with_the_load_programs(tmp_path: Path) -> None:
    manager = DeviceManager(SimulatedSystem(1))
    config = SessionConfig(policy=LaunchPolicy.DEFERRED)
    with Session(write_popef(tmp_path / "m.popef", doubling((2,))), config, device_manager=manager) as session:
        with pytest.raises(ApplicationRuntimeError, match="no device before run_load_programs"):
            _ = session.device
        manager.get_device().detach()

        assert run_once(session).tolist() == [2, 2]
        assert session.device.is_attached


def test_immediate_launch_loads_the_executable_at_once(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        assert session.device.resident is not None
        assert session.device.resident.name == "model"
        assert session.device.metrics.loads == 1


def two_on_one_device(tmp_path: Path, config: SessionConfig) -> tuple[Device, Session, Session]:
    device = DeviceManager.create_ipu_model_device()
    first = Session(write_popef(tmp_path / "a.popef", weighted(), tensor_data={"w": WEIGHTS}, name="first"), config, device=device)
    second = Session(write_popef(tmp_path / "b.popef", doubling((2,)), name="second"), config, device=device)
    return device, first, second


def test_sessions_that_share_a_device_reload_each_other_and_are_counted(tmp_path: Path) -> None:
    device, first, second = two_on_one_device(tmp_path, SessionConfig())
    with device, first, second:
        queues = [session.create_queue_manager(1) for session in (first, second)]
        for session in (first, second):
            session.run_load_programs()
            session.run_main_programs()
        before = device.metrics
        for _ in range(3):
            for place, expected in enumerate(([3, 5], [2, 2])):
                y = np.zeros(2, np.float32)
                assert enqueue(queues[place], {"x": ONES}, {"y": y}).error() is None
                assert y.tolist() == expected

        assert device.metrics.loads - before.loads == 6
        assert device.metrics.evictions - before.evictions == 6
        assert device.metrics.load_s > before.load_s > 0


def test_session_without_reload_names_the_session_on_its_device(tmp_path: Path) -> None:
    device, first, second = two_on_one_device(tmp_path, SessionConfig(reloads_when_evicted=False))
    with device, first, second:
        queues = first.create_queue_manager(1)
        first.run_load_programs()
        second.run_load_programs()
        first.run_main_programs()
        error = enqueue(queues, {"x": ONES}, {"y": np.zeros(2, np.float32)}).error()

        assert isinstance(error, IpuRuntimeError)
        assert "executable 'first' is no longer on device 0: 'second' was loaded to it meanwhile" in str(error)


def test_session_can_be_stopped_while_another_has_the_device(tmp_path: Path) -> None:
    device = DeviceManager.create_ipu_model_device()
    long = Session(write_popef(tmp_path / "a.popef", doubling((2,)), batches_per_step=2, name="long"), device=device)
    short = Session(write_popef(tmp_path / "b.popef", doubling((2,)), name="short"), device=device)
    with device, long, short:
        waiting = [session.create_queue_manager(2) for session in (long, short)]
        for session in (long, short):
            session.run_load_programs()
            session.run_main_programs()
        # `long` is in the midst of a call, and has the device until the call's second micro-batch comes.
        assert enqueue(waiting[0], {"x": ONES}, {"y": np.zeros(2, np.float32)}).error() is None
        recorder = enqueue(waiting[1], {"x": ONES}, {"y": np.zeros(2, np.float32)})
        short.stop()
        assert short.error is None
        assert not recorder.is_done
        short.close()

        assert isinstance(recorder.error(), SessionStopped)
