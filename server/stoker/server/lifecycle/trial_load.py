"""Loads versions for a trial in a separate process, which a crash, a hang or a lack of memory ends alone."""

import asyncio
import contextlib
import faulthandler
import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from stoker.backends.api.clock import SystemClock
from stoker.backends.api.cpu import usable_cores
from stoker.backends.api.errors import ServingError
from stoker.backends.api.registry import BackendRegistry
from stoker.server.core.tasks import LoopTimers
from stoker.server.lifecycle.loader import VersionLoader, VersionSource
from stoker.server.lifecycle.settings import MAX_REASON_LENGTH, TRIAL_CORE_BYTES, TRIAL_MEMORY_BYTES, TRIAL_TIMEOUT_S, LoaderSettings
from stoker.server.observability.metrics import Metrics

#: Requests that may wait for a version; none comes.
_QUEUE_SIZE = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One load to try.

    Attributes:
        source: What to load.
        area: Where its private copy is made.
        size_bytes: Of its files together.
        ends_after_s: When the kernel ends the process if its parent has ended before, seconds.
    """

    source: VersionSource
    area: Path
    size_bytes: int
    ends_after_s: float


def serve_trials(
    connection: Connection, output: Path, registry: Callable[[], BackendRegistry]
) -> None:  # pragma: no cover - runs in the process of the trial
    """Sends None when it is ready. Then sends for each `Trial` why it failed, or None, until the other side closes."""
    # Output of libraries belongs neither to the result of the command nor to its terminal.
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    # Of the thread that failed alone: the stacks of the others change while they are read.
    faulthandler.enable(all_threads=False)
    backends = registry()
    connection.send(None)
    while True:
        try:
            trial: Trial = connection.recv()
        except EOFError:
            return
        _bound_memory(trial.size_bytes)
        signal.setitimer(signal.ITIMER_REAL, trial.ends_after_s)  # SIGALRM ends a process that has no handler for it
        failure = _try(trial, backends)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send(failure)


def _try(trial: Trial, registry: BackendRegistry) -> str | None:  # pragma: no cover - runs in the process of the trial
    try:
        asyncio.run(_load_and_close(trial, registry))
    except ServingError as error:
        return error.message
    except MemoryError:
        return f"it takes more than {_memory_bytes(trial.size_bytes) >> 20} MiB of memory"
    except Exception as error:  # noqa: BLE001 - a backend is a plug-in: whatever it raises is this version's problem
        return f"{type(error).__name__}: {error}"
    return None


async def _load_and_close(trial: Trial, registry: BackendRegistry) -> None:
    clock = SystemClock()
    loader = VersionLoader(
        registry,
        clock=clock,
        timers=LoopTimers(asyncio.get_running_loop(), clock),
        recorder=Metrics(clock),
        area=trial.area,
        settings=LoaderSettings(max_queue_size=_QUEUE_SIZE),
    )
    servable = await loader.load(trial.source)
    await servable.close()


def _memory_bytes(size_bytes: int) -> int:  # pragma: no cover - runs in the process of the trial
    return TRIAL_MEMORY_BYTES + TRIAL_CORE_BYTES * usable_cores() + 8 * size_bytes


def _bound_memory(size_bytes: int) -> None:  # pragma: no cover - runs in the process of the trial
    """Bounds the address space of this process: what it has now, and what the load of `size_bytes` may take."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        pages = 0  # not Linux
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    desired = pages * resource.getpagesize() + _memory_bytes(size_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (desired if most == resource.RLIM_INFINITY else min(desired, most), most))


#: Seconds in which the process has to start and import what it needs.
_START_TIMEOUT_S = 120.0
#: Seconds in which a process that was killed, or has crashed, has to be gone.
_END_TIMEOUT_S = 10.0
#: After its time is over, how long a load may last that is not ended, because this process was killed, seconds.
_SOLO_GRACE_S = 5.0
#: Bytes that are read of what a process wrote before it crashed; its first line says why.
_OUTPUT_BYTES = 4096


class TrialLoads:
    """Runs trial loads one after the other. One process serves until it crashes or is ended; then the next load starts another."""

    def __init__(
        self, area: Path, *, timeout_s: float = TRIAL_TIMEOUT_S, registry: Callable[[], BackendRegistry] = BackendRegistry
    ) -> None:
        """Starts nothing yet.

        Args:
            area: Folder for private copies and what the process writes; whoever made it removes it with all that is left there.
            timeout_s: Seconds that one load may take.
            registry: Makes the backends in the other process, which imports it by its name.
        """
        self._area = area
        self._timeout_s = timeout_s
        self._registry = registry
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._output = Path(tempfile.mkdtemp(prefix="trial-", dir=area)) / "output"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end()

    def load(self, source: VersionSource, size_bytes: int) -> str | None:
        """Loads `source`, warms it up and closes it again; returns why that failed, None if it did not.

        Args:
            source: What to load.
            size_bytes: Of the version's files together; the bound of memory follows from it.
        """
        try:
            connection = self._connection or self._start()
            self._output.write_bytes(b"")
            connection.send(Trial(source, self._area, size_bytes, self._timeout_s + _SOLO_GRACE_S))
            if not connection.poll(self._timeout_s):
                self._end()
                return f"the load takes longer than {self._timeout_s:g} s"
            failure: str | None = connection.recv()
        except (EOFError, OSError):
            return self._crash()
        return None if failure is None else failure[:MAX_REASON_LENGTH]

    def _start(self) -> Connection:
        """Starts the process and waits until it takes trials.

        Raises:
            EOFError, OSError: it has crashed, or does not respond in time.
        """
        self._output.write_bytes(b"")
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve_trials, args=(theirs, self._output, self._registry), daemon=True, name="trial-loads")
        self._process.start()
        theirs.close()
        if not self._connection.poll(_START_TIMEOUT_S):
            raise TimeoutError
        self._connection.recv()
        return self._connection

    def _crash(self) -> str:
        """Why the process has ended, or does not respond any more."""
        process = self._process
        code = None
        if process is not None:
            process.join(_END_TIMEOUT_S)
            code = process.exitcode
        self._end()
        why = f"the process that loaded it ended with {_ending(code)}"
        with contextlib.suppress(OSError), self._output.open("rb") as output:
            text = output.read(_OUTPUT_BYTES).decode(errors="replace")
            why += "".join(f": {line.strip()}" for line in text.splitlines()[:1])
        return why

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join(_END_TIMEOUT_S)
        self._connection = self._process = None


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
