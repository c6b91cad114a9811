"""Modelled time: the duration of calls, their overlap, and the metrics."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.program import Step
from stoker.backends.ipu.runtime import DeviceManager, Session, SessionConfig, SessionStopped, SimulatedSystem
from stoker.backends.simulated.pacing import Pacing, VirtualClock
from tests.fakes.ipu_programs import compute, doubling, host_read, host_write, write_popef
from tests.fakes.ipu_sessions import PATIENCE_S, ResultRecorder, enqueue, ipu_threads

ONE = np.ones(2, np.float32)
STEPS = (host_read(1), compute(4), host_write(1))


class Paced:
    """A session on a clock of its own, loaded at time zero."""

    def __init__(
        self, folder: Path, pacing: Pacing, *, num_io_tiles: int = 0, batches_per_step: int = 1, steps: Sequence[Step] = STEPS
    ) -> None:
        path = write_popef(folder / "m.popef", doubling((2,), steps=steps), num_io_tiles=num_io_tiles, batches_per_step=batches_per_step)
        self.clock = VirtualClock()
        manager = DeviceManager(SimulatedSystem(1, clock=self.clock))
        self.session = Session(path, SessionConfig(pacing=pacing), device_manager=manager)
        self.queues = self.session.create_queue_manager(8)
        self.session.run_load_programs()
        self.loaded_ms = self.session.device.timeline.free_at_ns / 1e6

    def queue(self, micro_batches: int) -> list["Stamp"]:
        """Queues micro-batches, and notes when each result is written."""
        stamps = [Stamp(self.clock) for _ in range(micro_batches)]
        for stamp in stamps:
            self.queues.output_queue("y").enqueue(np.zeros(2, np.float32), callback=stamp)
            self.queues.input_queue("x").enqueue(ONE)
        return stamps

    def times_ms(self, stamps: Sequence["Stamp"]) -> list[float]:
        """The times of results, in milliseconds since the device was loaded."""
        assert [stamp.error() for stamp in stamps] == [None] * len(stamps)
        return [stamp.at_ns / 1e6 - self.loaded_ms for stamp in stamps]


class Stamp(ResultRecorder):
    """The callback, and the time of its call."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self.at_ns = 0

    def __call__(self, error: Exception | None) -> None:
        self.at_ns = self._clock.now_ns()
        super().__call__(error)


def test_calls_in_virtual_time_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.VIRTUAL)
    with paced.session:
        stamps = paced.queue(3)
        paced.session.run_main_programs()

        assert paced.times_ms(stamps) == pytest.approx([6, 12, 18])


def test_overlapped_io_delivers_at_the_rate_of_the_slowest_lane(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.VIRTUAL, num_io_tiles=32)
    with paced.session:
        stamps = paced.queue(4)
        paced.session.run_main_programs()

        assert paced.times_ms(stamps) == pytest.approx([6, 10, 14, 18])


def test_micro_batches_of_a_call_complete_one_period_apart(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.VIRTUAL, batches_per_step=2)
    with paced.session:
        stamps = paced.queue(4)
        paced.session.run_main_programs()

        assert paced.times_ms(stamps) == pytest.approx([6, 12, 18, 24])


def test_result_in_real_time_is_delivered_at_its_modelled_time(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.REALTIME)
    with paced.session:
        paced.clock.advance_to(round(paced.loaded_ms * 1e6))
        (stamp,) = paced.queue(1)
        paced.session.run_main_programs()
        assert paced.clock.until_waited_for(PATIENCE_S)
        paced.clock.advance(0.005)
        assert not stamp.is_done
        paced.clock.advance(0.001)

        assert paced.times_ms([stamp]) == pytest.approx([6])


def test_overlapped_results_in_real_time_are_delivered_during_the_next_computation(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.REALTIME, num_io_tiles=32)
    with paced.session:
        paced.clock.advance_to(round(paced.loaded_ms * 1e6))
        stamps = paced.queue(3)
        paced.session.run_main_programs()
        while not all(stamp.is_done for stamp in stamps):
            if paced.clock.until_waited_for(0.01):
                paced.clock.advance(0.001)

        assert "ipu-delivery" in ipu_threads()
        # The threads are woken one after the other while the clock goes on, so only the least that the model asks for is certain.
        for came, least in zip(paced.times_ms(stamps), (6, 10, 14), strict=True):
            assert came >= least - 1e-6
    assert ipu_threads() == []


def test_stop_ends_a_session_that_waits_for_modelled_time(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.REALTIME, num_io_tiles=32)
    paced.queue(2)
    paced.session.run_main_programs()
    assert paced.clock.until_waited_for(PATIENCE_S)
    paced.session.close()

    assert ipu_threads() == []


def test_session_without_pacing_counts_modelled_time_without_waiting(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.NONE)
    with paced.session:
        stamps = paced.queue(2)
        paced.session.run_main_programs()
        assert [stamp.error() for stamp in stamps] == [None, None]
        metrics = paced.session.device.metrics

        assert paced.clock.now_ns() == 0
        assert metrics.busy_s - metrics.load_s == pytest.approx(0.012)
        assert metrics.cycles == 2 * sum(step.cycles for step in STEPS)
        assert (metrics.micro_batches, metrics.slow_micro_batches) == (2, 0)


def test_micro_batch_computed_slower_than_modelled_is_counted(tmp_path: Path) -> None:
    with Session(write_popef(tmp_path / "m.popef", doubling((2,), steps=[Step(kind=STEPS[1].kind, cycles=2)]))) as session:
        queues = session.create_queue_manager(1)
        session.run_load_programs()
        session.run_main_programs()
        assert enqueue(queues, {"x": ONE}, {"y": np.zeros(2, np.float32)}).error() is None

        assert session.device.metrics.slow_micro_batches == 1


@pytest.mark.parametrize("num_io_tiles", [0, 32], ids=["delivered at once", "delivered behind the device's back"])
def test_results_held_back_by_a_stop_are_delivered_first_after_a_restart(tmp_path: Path, num_io_tiles: int) -> None:
    paced = Paced(tmp_path, Pacing.REALTIME, num_io_tiles=num_io_tiles)
    outputs = [np.zeros(2, np.float32) for _ in range(3)]
    with paced.session:
        recorder = [enqueue(paced.queues, {"x": ONE * number}, {"y": y}) for number, y in enumerate(outputs)]
        paced.session.run_main_programs()
        assert paced.clock.until_waited_for(PATIENCE_S)
        paced.session.stop()
        assert not any(each.is_done for each in recorder)
        paced.session.run_main_programs()
        while not all(each.is_done for each in recorder):
            if paced.clock.until_waited_for(0.01):
                paced.clock.advance(0.5)

        assert [each.error() for each in recorder] == [None] * 3
        assert [y.tolist() for y in outputs] == [[0, 0], [2, 2], [4, 4]]


def test_new_queues_get_no_results_computed_for_the_old_ones(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.REALTIME)
    with paced.session:
        old = enqueue(paced.queues, {"x": ONE}, {"y": np.zeros(2, np.float32)})
        paced.session.run_main_programs()
        assert paced.clock.until_waited_for(PATIENCE_S)
        paced.session.stop()
        queues = paced.session.create_queue_manager(8)
        assert isinstance(old.error(), SessionStopped)
        y = np.zeros(2, np.float32)
        recorder = enqueue(queues, {"x": ONE * 3}, {"y": y})
        paced.session.run_main_programs()
        while not recorder.is_done:
            if paced.clock.until_waited_for(0.01):
                paced.clock.advance(0.5)

        assert (recorder.error(), y.tolist()) == (None, [6, 6])


def test_callback_may_close_the_session_on_any_thread(tmp_path: Path) -> None:
    paced = Paced(tmp_path, Pacing.REALTIME, num_io_tiles=32)
    session, ended = paced.session, ResultRecorder()

    def close(error: Exception | None) -> None:
        session.close()
        ended(error)

    paced.queues.output_queue("y").enqueue(np.zeros(2, np.float32), callback=close)
    paced.queues.input_queue("x").enqueue(ONE)
    session.run_main_programs()
    while not ended.is_done:
        if paced.clock.until_waited_for(0.01):
            paced.clock.advance(0.5)

    assert ended.thread_name == "ipu-delivery"
    assert session.wait(PATIENCE_S)
    assert ipu_threads() == []
