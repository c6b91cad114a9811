"""Helpers for tests of the IPU runtime: a session's queues with recorded results, without sleeps."""

import threading
from collections.abc import Mapping

import numpy as np

from stoker.backends.ipu.runtime import QueueManager

PATIENCE_S = 20.0
"""Only a broken test waits this long."""


class ResultRecorder:
    """A queue's callback that can be waited for."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []
        self.thread_name = ""
        self._event = threading.Event()

    def __call__(self, error: Exception | None) -> None:
        self.errors.append(error)
        self.thread_name = threading.current_thread().name
        self._event.set()

    @property
    def is_done(self) -> bool:
        return self._event.is_set()

    def error(self) -> Exception | None:
        """Waits for the result and returns it."""
        assert self._event.wait(PATIENCE_S), "the callback was not called"
        assert len(self.errors) == 1, "the callback was called more than once"
        return self.errors[0]


class Signal:
    """A timeout callback, or a handler, that can be waited for call by call."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self._came = threading.Semaphore(0)

    def __call__(self, argument: object) -> None:
        self.calls.append(argument)
        self._came.release()

    def next(self) -> object:
        """Waits for one more call and returns its last argument."""
        assert self._came.acquire(timeout=PATIENCE_S), "nothing came"
        return self.calls[-1]


def enqueue(queues: QueueManager, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> ResultRecorder:
    """Queues one micro-batch; done when its last output is written (or its last input read, if there are no outputs)."""
    recorder = ResultRecorder()
    names = list(outputs)
    for name in names:
        queues.output_queue(name).enqueue(outputs[name], callback=recorder if name == names[-1] else None)
    for place, (name, data) in enumerate(inputs.items()):
        queues.input_queue(name).enqueue(data, callback=recorder if not names and place == len(inputs) - 1 else None)
    return recorder


def ipu_threads() -> list[str]:
    """Names of living threads of devices."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ipu-")]
