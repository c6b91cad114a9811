"""Fused programs: the index selects a sub-graph, and only its streams are touched."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.runtime import ApplicationRuntimeError, DeviceManager, QueueManager, Session, SimulatedSystem
from stoker.backends.simulated.pacing import VirtualClock
from tests.fakes.ipu_programs import adding, doubling, write_popef
from tests.fakes.ipu_sessions import PATIENCE_S, ResultRecorder, Signal, enqueue

ONE = np.ones(2, np.float32)


def index(number: int) -> np.ndarray:
    return np.array([number], np.uint8)


class Fused:
    """`graph0` adds a and b, `graph1` doubles x; a timeout of one second on a clock that stands still."""

    def __init__(self, path: Path) -> None:
        self.clock = VirtualClock()
        self.timeouts = Signal()
        self.session = Session(path, device_manager=DeviceManager(SimulatedSystem(1, clock=self.clock)))
        self.queues: QueueManager = self.session.create_queue_manager(4, self.timeouts, 1_000_000_000)

    def start(self) -> None:
        self.session.run_load_programs()
        self.session.run_main_programs()


@pytest.fixture
def fused(tmp_path: Path) -> Iterator[Fused]:
    made = Fused(write_popef(tmp_path / "f.popef", adding(), doubling((2,))))
    with made.session:
        yield made


def test_index_selects_the_graph_that_runs(fused: Fused) -> None:
    fused.start()
    total, y = np.zeros(2, np.float32), np.zeros(2, np.float32)
    first = enqueue(fused.queues, {"index": index(0), "graph0/a": ONE, "graph0/b": ONE * 2}, {"graph0/total": total})
    second = enqueue(fused.queues, {"index": index(1), "graph1/x": ONE * 5}, {"graph1/y": y})

    assert (first.error(), second.error()) == (None, None)
    assert (total.tolist(), y.tolist()) == ([3, 3], [10, 10])


def test_inputs_of_another_graph_starve_the_device_and_stay_queued(fused: Fused) -> None:
    recorder = enqueue(fused.queues, {"index": index(0), "graph1/x": ONE}, {"graph1/y": np.zeros(2, np.float32)})
    fused.start()
    assert fused.clock.until_waited_for(PATIENCE_S)
    fused.clock.advance(1)

    assert fused.timeouts.next() is fused.queues.input_queue("graph0/a")
    assert fused.queues.starving() == ("graph0/a", "graph0/b")
    assert fused.queues.input_queue("graph1/x").read_available() == 1
    assert not recorder.is_done


def test_starved_request_is_flushed_and_the_next_one_runs(fused: Fused) -> None:
    stray = fused.queues.input_queue("graph1/x").enqueue(ONE * 9)
    index_read = ResultRecorder()
    fused.queues.input_queue("index").enqueue(index(0), callback=index_read)
    fused.start()
    assert fused.clock.until_waited_for(PATIENCE_S)
    fused.clock.advance(1)
    fused.timeouts.next()
    assert fused.queues.input_queue("graph1/x").withdraw(stray)
    fused.queues.flush_all()
    assert index_read.error() is None
    y = np.zeros(2, np.float32)
    recorder = enqueue(fused.queues, {"index": index(1), "graph1/x": ONE}, {"graph1/y": y})

    assert recorder.error() is None
    assert y.tolist() == [2, 2]


def test_index_that_selects_no_graph_is_named(fused: Fused) -> None:
    recorder = enqueue(fused.queues, {"index": index(7), "graph1/x": ONE}, {"graph1/y": np.zeros(2, np.float32)})
    fused.start()
    error = recorder.error()

    assert isinstance(error, ApplicationRuntimeError)
    assert "input 'index' selects sub-graph 7; the executable has 0, 1" in str(error)
