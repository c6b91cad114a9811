"""A simulated system for tests of runners, with a clock that they control."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.ipu.runtime import DeviceManager, ModelRunner, RuntimeConfig, SimulatedSystem
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.pacing import VirtualClock
from tests.fakes.ipu_programs import Part, write_popef
from tests.fakes.ipu_sessions import PATIENCE_S, ipu_threads


class Bench:
    """Runners on a simulated system whose time advances only by the test."""

    def __init__(self, folder: Path, *, num_ipus: int = 4, faults: str = "") -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.system = SimulatedSystem(num_ipus, clock=self.clock, faults=[FaultPlan.parse(faults)])
        self.manager = DeviceManager(self.system)

    def runner(self, *parts: Part, config: RuntimeConfig | None = None, kind: type[ModelRunner] = ModelRunner, **popef: Any) -> ModelRunner:
        """A runner of a file with `parts`."""
        return kind(write_popef(self.folder / "model.popef", *parts, **popef), config, device_manager=self.manager)

    def pass_timeout(self, seconds: float = 0.010) -> None:
        """Turns the clock by `seconds`, as soon as some thread waits for a moment."""
        assert self.clock.until_waited_for(PATIENCE_S), "nobody waits for a moment"
        self.clock.advance(seconds)

    @contextmanager
    def passing_time(self) -> Iterator[None]:
        """Lets time pass on a thread of its own, 10 ms whenever some thread waits for a moment.

        For what the device waits for: a test cannot know when its thread has begun to wait.
        """
        is_over = threading.Event()

        def pass_on() -> None:
            while not is_over.wait(0.0005):
                if self.clock.until_waited_for(0.01):
                    self.clock.advance(0.010)

        thread = threading.Thread(target=pass_on, name="passing-time", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def free_ipus(self) -> int:
        """IPUs that no device has."""
        return sum(not ipu.is_attached for ipu in self.system.ipus)


def rows(count: int, *shape: int, begin: float = 1) -> np.ndarray:
    """float32 of shape [count, *shape], no two values alike."""
    size = count * int(np.prod(shape, dtype=int))
    return np.arange(begin, begin + size, dtype=np.float32).reshape(count, *shape)


def assert_nothing_is_left(bench: Bench) -> None:
    """No thread lives, and every IPU is free."""
    assert ipu_threads() == []
    assert bench.free_ipus() == len(bench.system.ipus)
