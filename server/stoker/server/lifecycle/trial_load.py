"""Trial loads of versions in a separate process, so that a crash, a hang or a lack of memory ends only that process."""

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
from stoker.server.core.timers import LoopTimers
from stoker.server.lifecycle.loader import VersionLoader, VersionSource
from stoker.server.lifecycle.settings import MAX_REASON_LENGTH, TRIAL_CORE_BYTES, TRIAL_MEMORY_BYTES, TRIAL_TIMEOUT_S, LoaderSettings
from stoker.server.observability.metrics import Metrics

#: Bound on the requests that may wait for a version; none is sent.
_QUEUE_SIZE = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial load.

    Attributes:
        source: The version to load.
        area: The folder of its private copy.
        size_bytes: Size of its files together.
        ends_after_s: After this time, in seconds, the kernel ends the process even if its parent has ended.
    """

    source: VersionSource
    area: Path
    size_bytes: int
    ends_after_s: float


def serve_trials(
    connection: Connection, output: Path, registry: Callable[[], BackendRegistry]
) -> None:  # pragma: no cover - runs in the process of the trial
    """Sends None once ready. Then sends the reason of the failure, or None, for each `Trial`, until the other side closes."""
    # Output of libraries must not mix with the result of the command or appear on its terminal.
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    # Only the stack of the failed thread: the stacks of the others change while they are read.
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
        return asyncio.run(failure_of_load(trial.source, trial.area, registry))
    except MemoryError:
        return f"it takes more than {_memory_bytes(trial.size_bytes) >> 20} MiB of memory"


async def failure_of_load(source: VersionSource, area: Path, registry: BackendRegistry) -> str | None:
    """Loads `source`, warms it up and closes it, in this process; returns the reason of a failure, or None.

    Raises:
        MemoryError: the load takes more memory than there is.
    """
    try:
        clock = SystemClock()
        loader = VersionLoader(
            registry,
            clock=clock,
            timers=LoopTimers(asyncio.get_running_loop(), clock),
            recorder=Metrics(clock),
            area=area,
            settings=LoaderSettings(max_queue_size=_QUEUE_SIZE),
        )
        servable = await loader.load(source)
        await servable.close()
    except ServingError as error:
        return error.message
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a backend is a plug-in: whatever it raises is this version's problem
        return f"{type(error).__name__}: {error}"
    return None


def _memory_bytes(size_bytes: int) -> int:  # pragma: no cover - runs in the process of the trial
    return TRIAL_MEMORY_BYTES + TRIAL_CORE_BYTES * usable_cores() + 8 * size_bytes


def _bound_memory(size_bytes: int) -> None:  # pragma: no cover - runs in the process of the trial
    """Bounds the address space of this process to its current size plus the bound of a load of `size_bytes`."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        pages = 0  # not Linux
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    desired = pages * resource.getpagesize() + _memory_bytes(size_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (desired if most == resource.RLIM_INFINITY else min(desired, most), most))


#: Bound on the time to start the process and import its modules, seconds.
_START_TIMEOUT_S = 120.0
#: Bound on the time until a killed or crashed process has ended, seconds.
_END_TIMEOUT_S = 10.0
#: Additional time before the kernel ends a load that this process could not end because it was killed, seconds.
_SOLO_GRACE_S = 5.0
#: Bytes that are read of a crashed process's output; its first line gives the reason.
_OUTPUT_BYTES = 4096


class TrialLoads:
    """Runs trial loads one after the other, in one process until it crashes or is ended; the next load then starts another process."""

    def __init__(
        self, area: Path, *, timeout_s: float = TRIAL_TIMEOUT_S, registry: Callable[[], BackendRegistry] = BackendRegistry
    ) -> None:
        """Makes the runner; no process is started yet.

        Args:
            area: Folder for private copies and the output of the process; its owner removes it with all its contents.
            timeout_s: Bound of one load, seconds.
            registry: Makes the backends in the other process, which imports this function by its name.
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
        """Loads `source`, warms it up and closes it; returns the reason of a failure, or None.

        Args:
            source: The version to load.
            size_bytes: Size of the version's files together; the bound on memory depends on it.
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
        """Starts the process and waits until it accepts trials.

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
