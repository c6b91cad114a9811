"""The GCU target of the `stoker` command. It compiles with `stoker.backends.gcu.compile` and runs with `stoker.backends.gcu.runtime`.

These two packages do not import each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.gcu.compile.target import GcuTarget
from stoker.backends.gcu.executable import ExecutableError, read_executable
from stoker.backends.gcu.hardware import CARDS
from stoker.backends.gcu.program import GcuExecutable, GcuTensor
from stoker.backends.gcu.runtime import GcuSystem, StatusError
from stoker.backends.gcu.timing import copy_time_s, run_time_s
from stoker.compiler.errors import CompileError
from stoker.compiler.target import Measurement

Array = npt.NDArray[Any]

#: Upper bound of random integers. They may be indices into a small dimension.
_INTEGER_BOUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRun:
    """The result of a run.

    Attributes:
        executable: The executable that ran.
        calls: Runs of its largest batch.
        clusters: Number of clusters that the times apply to.
        latency_s: Modelled seconds of one run, including the copies to and from the card.
        host_s: Measured seconds of one run on this host.
    """

    executable: GcuExecutable
    calls: int
    clusters: int
    latency_s: float
    host_s: float


def run_with_random_data(path: Path, *, calls: int, host_budget_s: float = 5.0, clock: Clock | None = None) -> RandomRun:
    """Runs the largest compiled batch on a new simulated card `calls` times, or fewer if that would exceed the host's time budget.

    Raises:
        ExecutableError: the file cannot be read.
        StatusError: it cannot be run.
    """
    clock = clock or SystemClock()
    executable = read_executable(path)
    batch = executable.batches[-1]
    clusters = _clusters(executable)
    hardware = CARDS[executable.card.lower()]
    generator = np.random.default_rng(0)
    system = GcuSystem(cards=1, hardware=hardware)
    try:
        with system.acquire(0, list(range(clusters))) as device:
            engine = device.load(executable)
            feeds = [_random(tensor, batch.batch_size, generator) for tensor in executable.inputs]
            inputs = [device.allocate(max(feed.nbytes, 1)) for feed in feeds]
            outputs = [device.allocate(max(tensor.sample_bytes * batch.batch_size, 1)) for tensor in executable.outputs]
            done, began = 0, clock.now_ns()
            while done < calls and (done == 0 or _seconds(clock, began) * (done + 1) / done < host_budget_s):
                for feed, buffer in zip(feeds, inputs, strict=True):
                    device.copy_to_device(feed, buffer)
                engine.run_with_batch(batch.batch_size, inputs, outputs).result()
                done += 1
            host_s = _seconds(clock, began) / done
    finally:
        system.close()
    moved = [tensor.sample_bytes * batch.batch_size for tensor in (*executable.inputs, *executable.outputs)]
    latency_s = run_time_s(batch, clusters) + sum(copy_time_s(hardware, size) for size in moved)
    return RandomRun(executable=executable, calls=done, clusters=clusters, latency_s=latency_s, host_s=host_s)


def _clusters(executable: GcuExecutable) -> int:
    """Returns the number of clusters that the executable was compiled for, or all of the card's if it does not state a number."""
    text = executable.attributes.get("clusters", "")
    most = CARDS[executable.card.lower()].clusters
    return int(text) if text.isascii() and text.isdecimal() and 1 <= int(text) <= most else most


def _seconds(clock: Clock, began: int) -> float:
    return (clock.now_ns() - began) / 1e9


def _random(tensor: GcuTensor, rows: int, generator: np.random.Generator) -> Array:
    shape, dtype = (rows, *tensor.dims), tensor.dtype.numpy
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, _INTEGER_BOUND, shape).astype(dtype)


class SimulatedGcuTarget(GcuTarget):
    """Compiles for a simulated i20, and runs there what it compiled."""

    def measure(self, path: Path, *, calls: int = 100, custom_libraries: Sequence[str] = ()) -> Measurement:
        """Runs the largest batch of the file `path` with random data; the times are the modelled card's, not this host's.

        Raises:
            CompileError: the file cannot be read or run.
        """
        try:
            ran = run_with_random_data(path, calls=calls)
        except (ExecutableError, StatusError) as error:
            raise CompileError(f"running {path} failed: {error}") from error
        batch = ran.executable.max_batch_size
        return Measurement(
            batch_size=batch,
            calls=ran.calls,
            latency_s=ran.latency_s,
            throughput=batch / ran.latency_s,
            note=f"modelled for a simulated {CARDS[ran.executable.card.lower()].label}, {ran.clusters} cluster(s); "
            f"this host took {ran.host_s * 1e3:.2f} ms",
        )
