"""Instances in worker processes: how one is started, first by a load and then by each restart."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stoker.backends.api.backend import Backend, LoadRequest
from stoker.backends.api.batch import BatchItem
from stoker.backends.api.clock import Clock
from stoker.backends.worker.load_message import WorkerLoad
from stoker.backends.worker.process import StartControl, WorkerProcess
from stoker.server.core.model_config import ModelConfig
from stoker.server.lifecycle.warmup import run_samples
from stoker.server.observability.logs import LineBudget

log = logging.getLogger("stoker.model")

#: Bound on the lines that one instance may print to the log; further ones are counted.
LINES_PER_S: Final = 50
_LEVELS: Final = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "CRITICAL": logging.ERROR}


class ModelOutput:
    """Logs lines that the processes of one instance print, by their level. May be called in any thread."""

    def __init__(self, request: LoadRequest, clock: Clock) -> None:
        self._facts = {"model": request.model_name, "version": request.version, "instance": request.instance_name}
        self._now_ns = clock.now_ns
        self._budget = LineBudget(LINES_PER_S)
        self._lock = threading.Lock()

    def __call__(self, lines: Sequence[str], left_out: int) -> None:
        """Logs `lines`, as many as the bound allows; `left_out` lines before them are only counted."""
        with self._lock:
            self._budget.leave_out(left_out)
        for line in lines:
            with self._lock:
                suppressed = self._budget.take(self._now_ns())
            if suppressed is not None:
                level, text = _level_of(line)
                log.log(level, "%s", text, extra={**self._facts, "suppressed": suppressed} if suppressed else self._facts)


def _level_of(line: str) -> tuple[int, str]:
    """The level of a printed line and its text: `WARNING text`, as a model's own logging prints it, has that level; others have INFO."""
    name, _, text = line.partition(" ")
    level = _LEVELS.get(name)
    return (logging.INFO, line) if level is None or not text else (level, text)


@dataclass(frozen=True, slots=True)
class InstanceStart:
    """Starts the worker process of one instance. Callable in a thread.

    Attributes:
        load: What the process loads.
        backend: Chooses the interpreter.
        config: The configuration of the model, with inner signature.
        samples: The warm-up, in the order of `config.warmups`.
        on_lines: Takes what the process prints.
        clock: Measures the warm-up.
    """

    load: WorkerLoad
    backend: Backend
    config: ModelConfig
    samples: Sequence[BatchItem]
    on_lines: ModelOutput
    clock: Clock

    def __call__(self, control: StartControl) -> WorkerProcess:
        """Starts a process, which loads and warms up, unless `control` ends it.

        Raises:
            ServingError: it could not; nothing is left behind.
        """
        interpreter = self.backend.interpreter(self.load.request)
        process = WorkerProcess(
            self.load, timeout_s=self.config.instance_timeout_s, interpreter=interpreter, on_lines=self.on_lines, control=control
        )
        try:
            since_ns = self.clock.now_ns()
            run_samples(self.config, self.samples, process.process)
            process.warmup_ns = self.clock.now_ns() - since_ns
        except BaseException:
            process.kill()
            raise
        return process


def instance_start(
    backend: Backend, settings: dict[str, str], request: LoadRequest, config: ModelConfig, samples: Sequence[BatchItem], clock: Clock
) -> InstanceStart:
    """The start of the instance that `request` says. `settings`: the operator's of the backend."""
    kind = type(backend)
    load = WorkerLoad(
        backend=f"{kind.__module__}:{kind.__qualname__}",
        request=request,
        settings=settings,
        nice=config.nice,
        memory_limit_bytes=config.instance_memory_limit_bytes,
    )
    return InstanceStart(load, backend, config, samples, ModelOutput(request, clock), clock)


class ProcessInstance:
    """A loaded instance in a worker process, until a `ProcessWorker` takes it over.

    Attributes:
        start: Starts its next processes.
        process: The process.
    """

    def __init__(self, start: InstanceStart, control: StartControl) -> None:
        """Starts the process, unless `control` ends it.

        Raises:
            ServingError: as `InstanceStart`.
        """
        self.start = start
        self.process = start(control)

    def close(self) -> None:
        """Closes the instance and ends the process."""
        self.process.close()
