"""What the process of `TrialLoads` does: loads one version after the other as a server does, and says how each went."""

import asyncio
import faulthandler
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from stoker.backends.api.clock import SystemClock
from stoker.backends.api.cpu import usable_cores
from stoker.backends.api.errors import ServingError
from stoker.backends.api.registry import BackendRegistry
from stoker.server.core.timers import LoopTimers
from stoker.server.lifecycle.bounds import TRIAL_CORE_BYTES, TRIAL_MEMORY_BYTES
from stoker.server.lifecycle.loader import LoaderSettings, VersionLoader, VersionSource
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
        ends_after_s: When the kernel ends the process, should whoever waits for it be gone by then, seconds.
    """

    source: VersionSource
    area: Path
    size_bytes: int
    ends_after_s: float


def serve_trials(connection: Connection, output: Path, registry: Callable[[], BackendRegistry]) -> None:
    """Says that it is ready by None, then answers each `Trial` by why it failed, None if it did not; until the other side closes."""
    # What libraries print belongs neither to the answer of the command nor to its terminal.
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


def _try(trial: Trial, registry: BackendRegistry) -> str | None:
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
        settings=LoaderSettings(snapshot_dir=trial.area, usable_cores=usable_cores(), max_queue_size=_QUEUE_SIZE),
    )
    servable = await loader.load(trial.source)
    await servable.close()


def _memory_bytes(size_bytes: int) -> int:
    return TRIAL_MEMORY_BYTES + TRIAL_CORE_BYTES * usable_cores() + 8 * size_bytes


def _bound_memory(size_bytes: int) -> None:
    """Bounds the address space of this process: what it has now, and what the load of `size_bytes` may take."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        pages = 0  # not Linux
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    desired = pages * resource.getpagesize() + _memory_bytes(size_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (desired if most == resource.RLIM_INFINITY else min(desired, most), most))
