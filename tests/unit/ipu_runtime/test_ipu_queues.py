"""Queues of the user's memory: views, order, blocking, timeouts, flushing."""

import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.runtime import (
    AnchorCallbackPolicy,
    ApplicationRuntimeError,
    DeviceManager,
    InputQueue,
    QueueManager,
    Session,
    SessionStopped,
    SimulatedSystem,
)
from stoker.backends.simulated.pacing import VirtualClock
from tests.fakes.ipu_programs import adding, doubling, write_popef
from tests.fakes.ipu_sessions import PATIENCE_S, ResultRecorder, Signal, enqueue

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_results_are_written_into_the_users_memory_in_order(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(3)
        session.run_load_programs()
        session.run_main_programs()
        outputs = [np.zeros((2, 3), np.float32) for _ in range(10)]
        tolds = [enqueue(queues, {"x": X + number}, {"y": outputs[number]}) for number in range(10)]

        assert [recorder.error() for recorder in tolds] == [None] * 10
        for number, output in enumerate(outputs):
            np.testing.assert_array_equal(output, (X + number) * 2)


def test_rings_hold_the_users_memory_without_a_copy(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(2)
        x, y = X.copy(), np.zeros(24, np.uint8)
        into = queues.input_queue("x").enqueue(x)
        out = queues.output_queue("y").enqueue(y, size=24)

        assert queues.input_queue("x").ring.front() is into
        assert into.view.ctypes.data == x.ctypes.data
        assert out.view.ctypes.data == y.ctypes.data
        assert (out.view.dtype, out.view.shape) == (np.dtype(np.float32), (2, 3))


def test_device_reads_memory_when_it_runs_not_when_it_is_queued(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(1)
        x, y = X.copy(), np.zeros_like(X)
        recorder = enqueue(queues, {"x": x}, {"y": y})
        x[:] = 5
        session.run_load_programs()
        session.run_main_programs()

        assert recorder.error() is None
        assert (y == 10).all()


def test_input_is_released_before_its_output_is_waited_for(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
        read, written, y = ResultRecorder(), ResultRecorder(), np.zeros_like(X)
        queues.input_queue("x").enqueue(X, callback=read)

        assert read.error() is None
        queues.output_queue("y").enqueue(y, callback=written)
        assert written.error() is None
        assert written.thread_name.startswith("ipu-")
        np.testing.assert_array_equal(y, X * 2)


def test_full_ring_blocks_the_user_until_the_device_takes_an_element(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(1)
        queue = queues.input_queue("x")
        queue.enqueue(X)
        assert (queue.read_available(), queue.ring.write_available) == (1, 0)
        done = threading.Event()

        def second() -> None:
            queue.enqueue(X)
            done.set()

        threading.Thread(target=second, daemon=True).start()
        assert not done.is_set()
        session.run_load_programs()
        session.run_main_programs()
        queues.output_queue("y").enqueue(np.zeros_like(X))

        assert done.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (np.zeros((2, 2), np.float32), r"16 bytes given, one micro-batch of shape \[2, 3\] and type F32 takes 24"),
        (np.zeros(6, np.int32), "the memory holds int32, the anchor float32"),
        (np.zeros((3, 2), np.float32).T, "not C-contiguous"),
        ([[0.0]], "expected a numpy array"),
    ],
)
def test_unusable_memory_is_refused(tmp_path: Path, memory: object, reason: str) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queue = session.create_queue_manager(1).input_queue("x")

        with pytest.raises(ApplicationRuntimeError, match=f"anchor 'x': .*{reason}"):
            queue.enqueue(memory)  # type: ignore[arg-type]


def test_size_other_than_the_anchors_is_refused(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queue = session.create_queue_manager(1).input_queue("x")

        with pytest.raises(ApplicationRuntimeError, match="12 bytes given"):
            queue.enqueue(X, size=12)


def test_read_only_memory_is_accepted_to_read_and_refused_to_write(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(1)
        memory = X.copy()
        memory.flags.writeable = False
        queues.input_queue("x").enqueue(memory)

        with pytest.raises(ApplicationRuntimeError, match="read-only"):
            queues.output_queue("y").enqueue(memory)


def test_unknown_queue_is_named_beside_the_existing_ones(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(1)

        with pytest.raises(ApplicationRuntimeError, match="no input queue 'y'; there are x"):
            queues.input_queue("y")
        with pytest.raises(ApplicationRuntimeError, match="no output queue 'z'; there are y"):
            queues.output_queue("z")


def test_withdrawn_memory_is_skipped(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling())) as session:
        queues = session.create_queue_manager(3)
        queue, withdrawn = queues.input_queue("x"), ResultRecorder()
        entry = queue.enqueue(X, callback=withdrawn)
        assert queue.withdraw(entry)
        assert not queue.withdraw(entry)
        y = np.zeros_like(X)
        recorder = enqueue(queues, {"x": X + 1}, {"y": y})
        session.run_load_programs()
        session.run_main_programs()

        assert recorder.error() is None
        np.testing.assert_array_equal(y, (X + 1) * 2)
        assert not withdrawn.is_done


class Starving:
    """A session on a clock that stands still, with a timeout of one second."""

    def __init__(self, path: Path, *, timeout_ns: int = 1_000_000_000) -> None:
        self.clock = VirtualClock()
        self.timeouts = Signal()
        self.session = Session(path, device_manager=DeviceManager(SimulatedSystem(1, clock=self.clock)))
        self.queues: QueueManager = self.session.create_queue_manager(4, self.timeouts, timeout_ns)

    def start(self, calls: int | None = None) -> None:
        self.session.run_load_programs()
        self.session.run_main_programs(calls)

    def starve(self) -> object:
        assert self.clock.until_waited_for(PATIENCE_S)
        self.clock.advance(1)
        return self.timeouts.next()


def test_starved_device_calls_back_with_the_missing_queue(tmp_path: Path) -> None:
    starving = Starving(write_popef(tmp_path / "m.popef", adding()))
    with starving.session:
        starving.queues.input_queue("a").enqueue(np.ones(2, np.float32))
        starving.start()
        queue = starving.starve()

        assert isinstance(queue, InputQueue)
        assert queue.anchor.name == "b"
        assert queue.read_available() == 0
        assert starving.queues.starving() == ("b",)


def test_data_in_time_prevent_the_timeout(tmp_path: Path) -> None:
    starving = Starving(write_popef(tmp_path / "m.popef", adding()))
    with starving.session:
        starving.start()
        assert starving.clock.until_waited_for(PATIENCE_S)
        starving.clock.advance(0.999)
        one, total = np.ones(2, np.float32), np.zeros(2, np.float32)
        recorder = enqueue(starving.queues, {"a": one, "b": one}, {"total": total})

        assert recorder.error() is None
        assert starving.timeouts.calls == []


def test_device_without_a_timeout_waits_forever(tmp_path: Path) -> None:
    starving = Starving(write_popef(tmp_path / "m.popef", adding()), timeout_ns=0)
    with starving.session:
        starving.queues.input_queue("a").enqueue(np.ones(2, np.float32))
        starving.start()
        starving.clock.advance(1e6)

        assert not starving.clock.until_waited_for(0)
        assert starving.timeouts.calls == []


def test_full_output_queue_starves_the_device_too(tmp_path: Path) -> None:
    starving = Starving(write_popef(tmp_path / "m.popef", doubling()))
    with starving.session:
        starving.start()
        read = ResultRecorder()
        starving.queues.input_queue("x").enqueue(X, callback=read)
        assert read.error() is None
        queue = starving.starve()

        assert queue is starving.queues.output_queue("y")


def test_other_streams_do_not_delay_the_timeout_of_a_full_output_queue(tmp_path: Path) -> None:
    starving = Starving(write_popef(tmp_path / "m.popef", doubling()))
    with starving.session:
        starving.start()
        read = ResultRecorder()
        starving.queues.input_queue("x").enqueue(X, callback=read)
        assert read.error() is None
        assert starving.clock.until_waited_for(PATIENCE_S)
        starving.clock.advance(0.6)
        starving.queues.input_queue("x").enqueue(X)
        assert starving.clock.until_waited_for(PATIENCE_S)
        starving.clock.advance(0.4)

        assert starving.timeouts.next() is starving.queues.output_queue("y")


def test_flush_completes_the_call_so_that_earlier_results_drain(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling(), batches_per_step=4)
    starving = Starving(path)
    with starving.session:
        y, later = np.zeros_like(X), np.zeros_like(X)
        recorder = enqueue(starving.queues, {"x": X}, {"y": y})
        recorded_later = ResultRecorder()
        starving.queues.output_queue("y").enqueue(later, callback=recorded_later)
        starving.start(calls=1)
        assert recorder.error() is None
        assert starving.starve() is starving.queues.input_queue("x")
        assert starving.starve() is starving.queues.input_queue("x")  # tells again and again in the midst of a call
        starving.queues.flush_all()

        assert starving.session.wait(PATIENCE_S)
        assert starving.session.device.metrics.micro_batches == 4
        assert not recorded_later.is_done  # outputs of dummy data take no memory that was meant for others
        starving.queues.input_queue("x").enqueue(X + 1)
        starving.session.run_main_programs()
        assert recorded_later.error() is None
        np.testing.assert_array_equal(later, (X + 1) * 2)


def test_flush_replaces_missing_inputs_with_zeros(tmp_path: Path) -> None:
    starving = Starving(write_popef(tmp_path / "m.popef", adding()))
    with starving.session:
        total, recorder = np.zeros(2, np.float32), ResultRecorder()
        starving.queues.output_queue("total").enqueue(total, callback=recorder)
        starving.queues.input_queue("a").enqueue(np.full(2, 3, np.float32))
        starving.start()
        starving.starve()
        starving.queues.flush_all()

        assert recorder.error() is None
        assert total.tolist() == [3, 3]


def test_flush_of_an_idle_device_runs_nothing(tmp_path: Path) -> None:
    starving = Starving(write_popef(tmp_path / "m.popef", doubling()))
    with starving.session:
        starving.start()
        starving.starve()
        starving.queues.flush_all()
        y = np.zeros_like(X)
        assert enqueue(starving.queues, {"x": X}, {"y": y}).error() is None

        assert starving.session.device.metrics.micro_batches == 1


def test_close_fails_queued_requests(tmp_path: Path) -> None:
    session = Session(write_popef(tmp_path / "m.popef", doubling()))
    queues = session.create_queue_manager(2)
    recorder = ResultRecorder()
    queues.input_queue("x").enqueue(X, callback=recorder)
    session.close()

    assert isinstance(recorder.error(), SessionStopped)
    with pytest.raises(SessionStopped, match="'x' is disconnected"):
        queues.input_queue("x").enqueue(X)


def test_caller_that_waits_for_a_full_queue_gets_an_error_when_the_session_stops(tmp_path: Path) -> None:
    session = Session(write_popef(tmp_path / "m.popef", doubling()))
    queue = session.create_queue_manager(1).output_queue("y")
    session.run_load_programs()
    session.run_main_programs()
    queue.enqueue(np.zeros_like(X))
    began, errors = threading.Event(), list[Exception]()

    def block() -> None:
        began.set()
        try:
            queue.enqueue(np.zeros_like(X))
        except SessionStopped as error:
            errors.append(error)

    thread = threading.Thread(target=block, daemon=True)
    thread.start()
    assert began.wait(PATIENCE_S)
    session.close()
    thread.join(PATIENCE_S)

    assert len(errors) == 1


def test_predicates_select_the_queues_and_other_inputs_are_zeros(tmp_path: Path) -> None:
    def only_a(anchor: object) -> AnchorCallbackPolicy:
        name = getattr(anchor, "name", "")
        return AnchorCallbackPolicy.BIND_USER_CB if name == "a" else AnchorCallbackPolicy.BIND_EMPTY_CB

    with Session(write_popef(tmp_path / "m.popef", adding())) as session:
        queues = session.create_queue_manager(1, in_pred=only_a)
        session.run_load_programs()
        session.run_main_programs()
        total = np.zeros(2, np.float32)
        recorder = enqueue(queues, {"a": np.full(2, 3, np.float32)}, {"total": total})

        assert list(queues.inputs) == ["a"]
        assert recorder.error() is None
        assert total.tolist() == [3, 3]


def test_queues_cannot_change_while_the_device_runs(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", adding())) as session:
        session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()

        with pytest.raises(ApplicationRuntimeError, match=r"create_queue_manager .* stop them first"):
            session.create_queue_manager(1)


def test_negative_timeout_is_refused(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", adding())) as session, pytest.raises(ValueError, match="timeout_ns is -1"):
        session.create_queue_manager(1, timeout_ns=-1)


def test_callback_that_raises_does_not_prevent_other_callbacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = DeviceManager(SimulatedSystem(1))
    session = Session(write_popef(tmp_path / "m.popef", doubling()), device_manager=manager)
    queues = session.create_queue_manager(2)
    first, last = ResultRecorder(), ResultRecorder()

    def refuse(_: Exception | None) -> None:
        raise RuntimeError("no time for this")

    for callback in (refuse, first):
        queues.input_queue("x").enqueue(X, callback=callback)
    queues.output_queue("y").enqueue(np.zeros_like(X), callback=last)
    session.close()

    assert isinstance(first.error(), SessionStopped)
    assert isinstance(last.error(), SessionStopped)
    assert "a callback of queue 'x' raised" in caplog.text
    manager.get_device(1).detach()


def test_closed_session_creates_no_queues(tmp_path: Path) -> None:
    session = Session(write_popef(tmp_path / "m.popef", doubling()))
    session.close()
    with pytest.raises(ApplicationRuntimeError, match="create_queue_manager of 'model' after its session was closed"):
        session.create_queue_manager(1)


def test_predicate_that_returns_no_policy_is_refused(tmp_path: Path) -> None:
    with (
        Session(write_popef(tmp_path / "m.popef", doubling())) as session,
        pytest.raises(ApplicationRuntimeError, match="the predicate says True of anchor 'x'; expected an AnchorCallbackPolicy"),
    ):
        session.create_queue_manager(1, in_pred=lambda _: True)  # type: ignore[arg-type, return-value]
