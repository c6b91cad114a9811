"""Runs the levels of a task one after the other, in one event loop."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stoker.cli.bench.figures import Figures, Outcome
from stoker.cli.bench.grpc_sender import GrpcSender
from stoker.cli.bench.http_sender import HttpSender
from stoker.cli.bench.levels import Level
from stoker.cli.bench.loops import ClosedLoop, Load, OpenLoop, Samples
from stoker.cli.bench.report import load_text
from stoker.cli.bench.server_times import ServerReading, read
from stoker.cli.bench.trial import Rules, Surroundings, run_level
from stoker.cli.connection import tls_for
from stoker.cli.protocols import Target, TensorFormat, dialect
from stoker_client import Client, StokerError, connect
from stoker_client.dialect import Call, Facts
from stoker_client.inference import InferRequest, InferResult

_T = TypeVar("_T")

Hear = Callable[[str, float, float | None], None]
"""Receives a level's name, the elapsed share of its longest time, and the requests a second of its last window."""


@dataclass(frozen=True, slots=True)
class Task:
    """The requests and the settings of a run.

    Attributes:
        facts: The model's metadata.
        rows: Rows of one request.
        headers: Headers of every call; they may contain keys.
        timeout_s: Time limit of each request, seconds.
        connections: Number of gRPC connections.
        poisson: See `OpenLoop`.
    """

    whom: Target
    tensor_format: TensorFormat
    request: InferRequest
    facts: Facts
    rows: int
    headers: Mapping[str, str] = field(repr=False)
    timeout_s: float
    connections: int
    poisson: bool

    def call(self) -> Call[InferResult]:
        """The request in the form of its protocol."""
        return dialect(self.whom.protocol, self.tensor_format).infer(self.request, self.facts)


def run_levels(task: Task, levels: Sequence[Level], rules: Rules, hear: Hear) -> Iterator[Outcome]:
    """Measures the levels in order; an interrupted run keeps the finished ones."""
    for at, level in enumerate(levels, 1):
        name = f"{load_text(level)} ({at} of {len(levels)})"

        def progress(part: float, figures: Figures | None, name: str = name) -> None:
            hear(name, part, None if figures is None else figures.requests_per_s)

        yield run_in_loop(_measured(task, level, rules, progress))


def run_in_loop(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs `coroutine` in a new event loop: uvloop's, except on Windows, which has none."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


async def _measured(task: Task, level: Level, rules: Rules, progress: Callable[[float, Figures | None], None]) -> Outcome:
    samples = Samples()
    connection = task.whom.connection(task.headers)
    sender: GrpcSender | HttpSender
    if task.whom.protocol.is_grpc:
        sender = GrpcSender(connection, task.call(), task.timeout_s, task.connections)
    else:
        sender = HttpSender(connection, task.call(), task.timeout_s)
    load: Load
    if level.rate_per_s is not None:
        load = OpenLoop(sender, samples, time.perf_counter_ns, rate_per_s=level.rate_per_s, poisson=task.poisson)
    else:
        load = ClosedLoop(sender, samples, time.perf_counter_ns, concurrency=level.concurrency or 1)
    statistics = _Statistics(task)
    try:
        world = Surroundings(time.perf_counter_ns, time.process_time_ns, asyncio.sleep, statistics.read, progress)
        return await run_level(level, load, samples, rules, task.rows, world)
    finally:
        statistics.close()
        await sender.close()


class _Statistics:
    """The server's counters of the model; empty if the protocol or the server has none."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._client: Client | None = None
        if task.whom.protocol.is_kserve:
            self._client = connect(task.whom.url, headers=task.headers, timeout_s=task.timeout_s, tls=tls_for(task.whom.url))

    async def read(self) -> ServerReading | None:
        """Reads the counters once."""
        if self._client is None:
            return None
        request = self._task.request
        try:
            entries: list[dict[str, Any]] = await asyncio.to_thread(self._client.statistics, request.model, request.version or None)
        except StokerError:
            return None  # plain KServe servers have no statistics: only the client's figures are reported
        return read(entries)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
