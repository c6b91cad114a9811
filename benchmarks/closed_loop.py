"""A PopEF file in a closed loop: each client sends its next batch after the response to the last one.

`predicted` computes the figures from the cost model on a virtual clock, without this host. `measure` runs the runtime: with
`pacing: realtime` its figures are those of the simulated device and of this host's threads, with `none` those of this host. The mean
latency of a closed loop is clients x rows / throughput, so clients beyond the device's capacity only raise the latency.
"""

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.device_times import micro_batch_times
from stoker.backends.api.clock import Clock
from stoker.backends.ipu.runtime import DeviceManager, Executable, ModelRunner, RuntimeConfig, SimulatedSystem
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import NS_PER_S, Pacing
from stoker.cli.plan.load import Batching, closed_loop
from stoker.cli.plan.load_simulation import simulate

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopMeasurement:
    """The result of one closed loop.

    Attributes:
        requests: Number of requests that ended within the measured time; each is one compiled batch.
        rows_per_request: Rows of one request; 1 if the model has no batch dimension.
        seconds: The measured time, seconds.
        mean_s, p50_s, p99_s: Latency of a request, seconds.
    """

    requests: int
    rows_per_request: int
    seconds: float
    mean_s: float
    p50_s: float
    p99_s: float

    @property
    def rows_per_s(self) -> float:
        """Throughput in rows a second."""
        return self.requests * self.rows_per_request / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Settings of the loop. It ends with `seconds` or `requests`, whichever comes first.

    Attributes:
        clients: Number of threads, each with one request in flight.
        seconds: The measured time after the warm-up, seconds.
        warm_up_s: Time before the measurement, seconds, to fill the pipeline.
        requests: Bound on the measured requests of all clients together; None: only the time ends the loop.
        pacing: Whether the run takes the modelled time.
        numerics: Whether the device computes results.
    """

    clients: int = 1
    seconds: float = 5.0
    warm_up_s: float = 0.5
    requests: int | None = None
    pacing: Pacing = Pacing.REALTIME
    numerics: Numerics = Numerics.OFF

    def __post_init__(self) -> None:
        if self.clients < 1 or not self.seconds > 0 or self.warm_up_s < 0 or (self.requests is not None and self.requests < 1):
            raise ValueError(
                f"a loop needs at least one client and one request, and some time, not clients {self.clients}, seconds {self.seconds}, "
                f"warm_up_s {self.warm_up_s}, requests {self.requests}"
            )


def predicted(path: Path, clients: int) -> LoopMeasurement:
    """Computes the figures of the file's first model, as `measure` finds them with `clients` on a host that takes no time.

    Raises:
        PopefError: the file cannot be read.
        ValueError: the number of clients is out of range.
    """
    service = micro_batch_times(Executable(path).program)
    [rows] = service.batch_sizes
    figures = simulate(service, Batching(rows), closed_loop(clients, rows))
    return LoopMeasurement(
        requests=figures.requests,
        rows_per_request=rows,
        seconds=figures.requests * rows / figures.rows_per_s,
        mean_s=figures.mean_s,
        p50_s=figures.p50_s,
        p99_s=figures.p99_s,
    )


def measure(path: Path, settings: LoopSettings | None = None, *, system: SimulatedSystem | None = None) -> LoopMeasurement:
    """Runs the file in a closed loop on zeros; of a file with several models, the first one.

    Args:
        path: A PopEF file.
        settings: Settings of the loop.
        system: The system to run on; by default a new one that fits the executable.

    Raises:
        PopefError: the file cannot be read.
        IpuRuntimeError: the file cannot be run, or a request failed.
    """
    settings = settings or LoopSettings()
    executable = Executable(path)
    program = executable.program
    system = system or SimulatedSystem(executable.num_ipus, ipu_version=program.ipu_version, tiles_per_ipu=program.tiles_per_ipu)
    config = RuntimeConfig(numerics=settings.numerics, pacing=settings.pacing, validate_io_params=False)
    with ModelRunner(executable, config, device_manager=DeviceManager(system)) as runner:
        own = {binding.anchor for binding in program.graphs[0].inputs}
        feeds = {desc.name: np.zeros(desc.shape, desc.numpy_data_type()) for desc in runner.get_execute_inputs() if desc.name in own}
        if executable.index_anchor is not None:
            info = executable.index_anchor.tensor_info
            feeds[executable.index_anchor.name] = np.full(info.shape, program.graphs[0].index, info.data_type.numpy)
        runner.execute(feeds)  # waits until the executable is loaded
        loop = _Loop(runner, feeds, system.clock, settings)
        latencies = loop.run()
    rows = max(program.micro_batch_size, 1) * max(program.replication_factor, 1)
    return LoopMeasurement(
        requests=len(latencies),
        rows_per_request=rows,
        seconds=loop.seconds,
        mean_s=sum(latencies) / len(latencies) / NS_PER_S if latencies else math.nan,
        p50_s=_percentile(latencies, 50),
        p99_s=_percentile(latencies, 99),
    )


class _Loop:
    """The clients of one measurement, for one use."""

    def __init__(self, runner: ModelRunner, feeds: Mapping[str, Array], clock: Clock, settings: LoopSettings) -> None:
        self._runner = runner
        self._feeds = feeds
        self._clock = clock
        self._limit = settings.requests
        self._clients = settings.clients
        self._start_ns = self._last_ns = clock.now_ns() + round(settings.warm_up_s * NS_PER_S)
        self._stop_ns = self._start_ns + round(settings.seconds * NS_PER_S)
        self._lock = threading.Lock()
        self._latencies: list[int] = []
        self._error: Exception | None = None

    @property
    def seconds(self) -> float:
        """The measured time: all of it, or up to the last request if their number ended the loop."""
        is_cut = self._limit is not None and len(self._latencies) >= self._limit
        return ((self._last_ns if is_cut else self._stop_ns) - self._start_ns) / NS_PER_S

    def run(self) -> list[int]:
        """The latencies of the measured requests, in nanoseconds, ascending.

        Raises:
            IpuRuntimeError: a request failed.
        """
        threads = [threading.Thread(target=self._serve, name=f"measure-{number}", daemon=True) for number in range(self._clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return sorted(self._latencies)

    def _serve(self) -> None:
        try:
            begin = self._clock.now_ns()
            while begin < self._stop_ns and not self._is_over():
                self._runner.execute(self._feeds)
                end = self._clock.now_ns()
                self._count(begin, end)
                begin = end
        except Exception as error:  # noqa: BLE001 - whoever joins the threads raises it
            self._error = error

    def _count(self, begin_ns: int, end_ns: int) -> None:
        with self._lock:
            if self._start_ns <= end_ns < self._stop_ns and not self._is_over():
                self._latencies.append(end_ns - begin_ns)
                self._last_ns = end_ns

    def _is_over(self) -> bool:
        return self._error is not None or (self._limit is not None and len(self._latencies) >= self._limit)


def _percentile(ascending_ns: list[int], percent: int) -> float:
    """The percentile by nearest rank, in seconds."""
    if not ascending_ns:
        return math.nan
    return ascending_ns[math.ceil(len(ascending_ns) * percent / 100) - 1] / NS_PER_S
