"""The load generator's process: takes one job a line on standard input as JSON, runs it, answers with one line.

The process also reads the server's CPU time at the very edges of the window, and its own, so that a window limited by the generator itself
is seen for what it is.
"""

import asyncio
import base64
import dataclasses
import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.latency import percentile, summarise
from benchmarks.load_grpc import GrpcSender
from benchmarks.load_http import HttpSender
from benchmarks.loops import ClosedLoop, LoadCounters, OpenLoop
from benchmarks.process_tree import ProcessTree, machine_cpu_s, process_tree
from benchmarks.ticker import Ticker

#: Calls that share one gRPC connection in a closed loop before another is opened.
CALLS_PER_CONNECTION = 8
#: Requests that an open loop lets wait for their answer at once, and connections it spreads them over.
OPEN_IN_FLIGHT = 512
OPEN_CONNECTIONS = {"grpc": 8, "http": 64}
#: HTTP connections that an open loop starts with.
OPEN_READY = 4
#: How long a request may stay unanswered, seconds: the bound on the end of every window.
DRAIN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """One window of load.

    Attributes:
        transport: `grpc` or `http`.
        port: The server's, on 127.0.0.1.
        payload: File with what is sent: a gRPC message, or a whole HTTP request.
        watch_pid: The server's process.
        cores: Cores of this machine the generator keeps to; empty: as it was started.
        concurrency: Of a closed loop; 0: open loop.
        rate_per_s: Of an open loop.
        warmup_s, duration_s: Before and within the window, seconds.
        max_requests: Bound on the requests of the window.
    """

    transport: str
    port: int
    payload: str
    watch_pid: int
    cores: tuple[int, ...] = ()
    concurrency: int = 0
    rate_per_s: float = 0.0
    warmup_s: float = 0.5
    duration_s: float = 2.0
    max_requests: int = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What one window saw.

    Attributes:
        completed, errors, unfinished: Requests of the window.
        elapsed_s: Length of the window.
        p50_ms, p95_ms, p99_ms, max_ms: Latency; of an open loop, from when a request was due.
        server_cpu_s: CPU time of the server's processes within the window.
        server_rss_bytes: Their resident memory at its end.
        client_cpu_share: The generator's own CPU time over the window's length: near 1.0 it was the limit.
        foreign_cores: Cores that anything else on the machine kept busy.
        send_lag_p99_ms: Open loop: how late requests left.
        gave_up: The window ended early for want of good answers.
        reply: The last good answer, base64.
    """

    completed: int
    errors: int
    unfinished: int
    elapsed_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    server_cpu_s: float
    server_rss_bytes: int
    client_cpu_share: float
    foreign_cores: float
    send_lag_p99_ms: float
    gave_up: bool
    reply: str


class _Edges:
    """CPU readings as the window opens and closes."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._readings: list[tuple[float, float, float]] = []

    def read(self) -> None:
        self._readings.append((self._tree.cpu_s(), time.process_time(), machine_cpu_s()))

    def spent(self) -> tuple[float, float, float]:
        """CPU seconds of the server, of this process, and of everything else, between the first reading and the last."""
        if len(self._readings) < 2:
            return 0.0, 0.0, 0.0
        server, own, machine = (end - start for start, end in zip(self._readings[0], self._readings[-1], strict=True))
        return server, own, max(0.0, machine - server - own)


async def run_job(job: LoadJob, payload: bytes) -> LoadResult:
    """Connects, warms up, measures and closes.

    Raises:
        OSError: the server cannot be reached.
    """
    tree = process_tree(job.watch_pid)
    sender = _sender(job, payload)
    await sender.connect()
    edges = _Edges(tree)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    if job.concurrency:
        closed = ClosedLoop(
            sender, concurrency=job.concurrency, warmup_s=job.warmup_s, duration_s=job.duration_s, max_requests=job.max_requests,
            clock_ns=time.monotonic_ns, on_edge=edges.read, on_end=ended.set,
        )  # fmt: skip
        closed.start()
        loop.call_later(job.warmup_s + job.duration_s + DRAIN_S, closed.stop)
        await _within(ended, job.warmup_s + job.duration_s + 2 * DRAIN_S)
        counters = closed.counters
    else:
        opened = OpenLoop(
            sender, rate_per_s=job.rate_per_s, warmup_s=job.warmup_s, duration_s=job.duration_s, max_requests=job.max_requests,
            max_in_flight=OPEN_IN_FLIGHT, clock_ns=time.monotonic_ns, on_edge=edges.read, on_end=ended.set,
        )  # fmt: skip
        opened.start()
        ticker = Ticker(loop, round(1e9 / job.rate_per_s), opened.tick)
        loop.call_later(job.warmup_s + job.duration_s + DRAIN_S, opened.stop)
        await _within(ended, job.warmup_s + job.duration_s + 2 * DRAIN_S)
        ticker.close()
        counters = opened.counters
    sender.close()
    return _result(counters, edges, tree, sender.reply)


def _sender(job: LoadJob, payload: bytes) -> GrpcSender | HttpSender:
    if job.transport == "grpc":
        connections = -(-job.concurrency // CALLS_PER_CONNECTION) or OPEN_CONNECTIONS["grpc"]
        return GrpcSender("127.0.0.1", job.port, payload, connections)
    ready = job.concurrency or OPEN_READY
    return HttpSender("127.0.0.1", job.port, payload, ready=ready, most=job.concurrency or OPEN_CONNECTIONS["http"])


async def _within(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        print("load: a closed loop's last answers never came", file=sys.stderr)


def _result(counters: LoadCounters, edges: _Edges, tree: ProcessTree, reply: bytes) -> LoadResult:
    server_cpu_s, own_cpu_s, foreign_cpu_s = edges.spent()
    latency = summarise(counters.latencies_ns)
    return LoadResult(
        completed=counters.completed,
        errors=counters.errors,
        unfinished=counters.unfinished,
        elapsed_s=counters.elapsed_s,
        p50_ms=latency.p50_ms,
        p95_ms=latency.p95_ms,
        p99_ms=latency.p99_ms,
        max_ms=latency.max_ms,
        server_cpu_s=server_cpu_s,
        server_rss_bytes=tree.rss_bytes(),
        client_cpu_share=own_cpu_s / counters.elapsed_s if counters.elapsed_s else 0.0,
        foreign_cores=foreign_cpu_s / counters.elapsed_s if counters.elapsed_s else 0.0,
        send_lag_p99_ms=percentile(sorted(counters.send_lags_ns), 99) / 1e6 if counters.send_lags_ns else 0.0,
        gave_up=counters.gave_up,
        reply=base64.b64encode(reply).decode("ascii"),
    )


def _parse(line: str) -> LoadJob:
    fields: dict[str, Any] = json.loads(line)
    fields["cores"] = tuple(fields.get("cores", ()))
    return LoadJob(**fields)


def main() -> None:
    everywhere = os.sched_getaffinity(0)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = _parse(line)
        os.sched_setaffinity(0, job.cores or everywhere)
        gc.collect()
        gc.disable()  # a window holds little garbage, and a collection would show as the server's latency
        result = uvloop.run(run_job(job, Path(job.payload).read_bytes()))
        gc.enable()
        print(json.dumps(dataclasses.asdict(result)), flush=True)


if __name__ == "__main__":
    main()
