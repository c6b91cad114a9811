"""One window of load on one server, by the generator of `stoker bench`, or in closed loops by h2load where that is installed.

A window reads CPU time at its edges: that of the server, that of the generator (near one core the generator is the limit), and that of all
other processes. Both generators send a multiple of the requests in flight, so that a server that responds in batches gets no credit for a
part of a batch.
"""

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import h2load
from benchmarks.machine import CpuReading
from benchmarks.models import Array
from benchmarks.process_tree import process_tree
from benchmarks.processes import on_cores
from benchmarks.requests import Request
from benchmarks.results import Window
from benchmarks.servers import ServerUnderTest
from stoker.cli.bench.figures import percentile
from stoker.cli.bench.grpc_sender import GrpcSender
from stoker.cli.bench.http_sender import HttpSender
from stoker.cli.bench.loops import ClosedLoop, Load, OpenLoop, Samples
from stoker.cli.bench.run import run_in_loop
from stoker.cli.bench.sender import RequestFailed
from stoker_client.settings import MAX_MESSAGE_BYTES, make_connection

#: Calls that share one gRPC connection, unless the caller sets it.
CALLS_PER_CONNECTION = 8
#: Bound on the requests in flight of an open loop, and its gRPC connections.
_OPEN_IN_FLIGHT, _OPEN_CONNECTIONS = 512, 8
#: Time after which a request without a response has failed, and after which a load is taken as hung, seconds.
_REQUEST_S, _LOAD_S = 20.0, 300.0
#: Requests of the pilot run that finds the rate, and least requests of a window; a large model gets a few for each request in flight.
_PILOT, _LEAST, _HEAVY_ROUNDS = 1_000, 2_000, 2
_MIB = 2**20
#: Least cosine similarity of an output and the same in another precision.
_LEAST_COSINE = 0.98


class WrongResponse(RuntimeError):
    """A response is not the model's, or too many requests failed, so that the figures are invalid."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """How many requests are in flight: `connections` times `streams`."""

    connections: int
    streams: int = 1

    @classmethod
    def of(cls, concurrency: int, request: Request) -> "InFlight":
        """`concurrency` requests: up to eight share a gRPC connection, each has an HTTP connection of its own."""
        if not request.is_grpc:
            return cls(concurrency)
        connections = -(-concurrency // CALLS_PER_CONNECTION)
        return cls(connections, concurrency // connections)

    @property
    def total(self) -> int:
        return self.connections * self.streams


class _Run(NamedTuple):
    """Latencies of good responses, the length of the run, failures, and how late the requests of an open loop were sent."""

    latencies_ns: Sequence[int]
    elapsed_s: float
    errors: int = 0
    lags_ns: Sequence[int] = ()


class Generator:
    """Sends load from `cores` (empty: from all).

    Args:
        scratch: A folder for request bodies and logs.
        is_native: Whether h2load runs the closed loops; None: if it is installed.

    Attributes:
        sent: By the process id of a server, the number of requests sent to it, without those of `check`.
    """

    def __init__(self, scratch: Path, cores: Sequence[int] = (), *, is_native: bool | None = None) -> None:
        self.is_native = h2load.is_installed() if is_native is None else is_native
        self._scratch = scratch
        self._cores = cores
        self.sent: dict[int, int] = defaultdict(int)
        self._rates: dict[tuple[object, ...], float] = {}

    @property
    def name(self) -> str:
        """For reports."""
        return "h2load" if self.is_native else "the Python generator (h2load is not installed)"

    def closed(self, server: ServerUnderTest, request: Request, in_flight: InFlight, requests: int, repeat: int = 0) -> Window:
        """A closed loop of `requests` requests, rounded up to a multiple of those in flight.

        Raises:
            WrongResponse: More than 1 % of the requests failed.
            NativeLoadFailed: h2load failed, or any request of it.
        """
        requests = -(-requests // in_flight.total) * in_flight.total

        def send() -> _Run:
            if self.is_native:
                port = server.port(request.is_grpc)
                latencies, elapsed_s = h2load.run(
                    request, port, connections=in_flight.connections, streams=in_flight.streams, requests=requests, scratch=self._scratch
                )
                return _Run(latencies, elapsed_s)
            return self._python(server, request, in_flight.connections, requests, concurrency=in_flight.total)

        return self._measure(server, request, send, repeat, load="closed", concurrency=in_flight.total)

    def closed_for(self, server: ServerUnderTest, request: Request, in_flight: InFlight, seconds: float, repeat: int = 0) -> Window:
        """A closed loop of about `seconds`; a pilot run, which warms the server, finds the rate. Raises as `closed`."""
        key = (server.pid, request.model, request.protocol, in_flight)
        if key not in self._rates:
            pilot = _HEAVY_ROUNDS * in_flight.total if request.is_heavy else max(_PILOT, in_flight.total)
            self._rates[key] = self.closed(server, request, in_flight, pilot).requests_per_s
        requests = max(_HEAVY_ROUNDS * in_flight.total if request.is_heavy else _LEAST, round(self._rates[key] * seconds))
        window = self.closed(server, request, in_flight, requests, repeat)
        self._rates[key] = window.requests_per_s
        return window

    def open(
        self,
        server: ServerUnderTest,
        request: Request,
        capacity_per_s: float,
        load_factor: float,
        seconds: float,
        *,
        is_poisson: bool = False,
    ) -> Window:
        """An open loop at `load_factor` of `capacity_per_s`, always by the Python generator: latency counts from the due time.

        With `is_poisson`, the gaps are exponentially distributed; else they are equal.

        Raises:
            WrongResponse: As `closed`.
        """
        rate = capacity_per_s * load_factor
        requests = max(1, round(rate * seconds))
        return self._measure(
            server, request,
            lambda: self._python(server, request, _OPEN_CONNECTIONS, requests, rate_per_s=rate, is_poisson=is_poisson),
            load="open", offered_per_s=rate, load_factor=load_factor,
        )  # fmt: skip

    def python_capacity(self, server: ServerUnderTest, request: Request, in_flight: InFlight, seconds: float) -> float:
        """Requests a second of the Python generator in a closed loop, which bounds the rate of an open loop."""
        return Generator(self._scratch, self._cores, is_native=False).closed_for(server, request, in_flight, seconds).requests_per_s

    def check(self, server: ServerUnderTest, request: Request, expected: Array, *, is_exact: bool = True) -> None:
        """Sends one request and compares the response with `expected`.

        Args:
            server: The server.
            request: The request.
            expected: The model's output.
            is_exact: False: the model has another precision, so that only the direction is compared (cosine similarity).

        Raises:
            WrongResponse: It is an error, or differs by more than rounding; or by its direction, if not `is_exact`.
        """
        sender, subject = self._sender(server, request, 1), f"{server.name} {request.model} over {request.protocol}"

        async def send() -> None:
            try:
                await sender.send()
            finally:
                await sender.close()

        try:
            run_in_loop(send())
        except RequestFailed as error:
            raise WrongResponse(f"{subject}: {error}") from error
        assert sender.result is not None
        (found,) = sender.result.values()
        if found.shape != expected.shape or not (_is_close if is_exact else _is_similar)(found, expected):
            raise WrongResponse(f"{subject}: expected {expected.ravel()[:4]}..., got {found.ravel()[:4]}...")

    def _measure(self, server: ServerUnderTest, request: Request, send: Callable[[], _Run], repeat: int = 0, **settings: object) -> Window:
        with on_cores(self._cores):
            before = CpuReading.of(server.pid)
            done = send()
            after = CpuReading.of(server.pid)
        good, elapsed_s = len(done.latencies_ns), done.elapsed_s
        self.sent[server.pid] += good
        if not good or done.errors > 0.01 * good:
            raise WrongResponse(
                f"{server.name} {request.model} over {request.protocol}, {settings}: {done.errors} errors, {good} good responses"
            )
        ordered = sorted(done.latencies_ns)
        server_s, own_s = after.servers_s - before.servers_s, after.own_s - before.own_s
        return Window(
            target=server.name, model=request.model, protocol=request.protocol, rows=request.rows, repeat=repeat,
            requests=good, errors=done.errors, elapsed_s=elapsed_s,
            requests_per_s=good / elapsed_s, rows_per_s=good * request.rows / elapsed_s,
            mean_ms=sum(ordered) / good / 1e6, max_ms=ordered[-1] / 1e6,
            p50_ms=percentile(ordered, 50) / 1e6, p95_ms=percentile(ordered, 95) / 1e6, p99_ms=percentile(ordered, 99) / 1e6,
            server_cpu_us=server_s / good * 1e6, server_cpu_share=server_s / elapsed_s,
            server_rss_mib=process_tree(server.pid).rss_bytes() / _MIB, client_cpu_share=own_s / elapsed_s,
            send_lag_p99_ms=percentile(sorted(done.lags_ns), 99) / 1e6, foreign_cores=after.foreign_cores_since(before),
            **settings,  # type: ignore[arg-type]
        )  # fmt: skip

    def _python(
        self,
        server: ServerUnderTest,
        request: Request,
        connections: int,
        requests: int,
        *,
        concurrency: int = 0,
        rate_per_s: float = 0.0,
        is_poisson: bool = False,
    ) -> _Run:
        sender, samples = self._sender(server, request, connections), Samples()
        load: Load
        if concurrency:
            load = ClosedLoop(sender, samples, time.perf_counter_ns, concurrency=concurrency, requests=requests)
        else:
            load = OpenLoop(
                sender,
                samples,
                time.perf_counter_ns,
                rate_per_s=rate_per_s,
                requests=requests,
                poisson=is_poisson,
                most_in_flight=_OPEN_IN_FLIGHT,
            )

        async def send() -> float:
            begun_s = time.perf_counter()
            try:
                async with asyncio.timeout(_LOAD_S):
                    await load.run()
                return time.perf_counter() - begun_s
            finally:
                await sender.close()

        gc.collect()
        gc.disable()  # a window makes little garbage, and a collection would appear as the server's latency
        try:
            elapsed_s = run_in_loop(send())
        finally:
            gc.enable()
        return _Run(samples.latency_ns, elapsed_s, len(samples.failed_ns), samples.lag_ns)

    def _sender(self, server: ServerUnderTest, request: Request, connections: int) -> GrpcSender | HttpSender:
        scheme = "grpc" if request.is_grpc else "http"
        url = f"{scheme}://127.0.0.1:{server.port(request.is_grpc)}"
        connection = make_connection(url, scheme, tls=None, api_key=None, headers=None, max_message_bytes=MAX_MESSAGE_BYTES)
        if request.is_grpc:
            return GrpcSender(connection, request.call, _REQUEST_S, connections)
        return HttpSender(connection, request.call, _REQUEST_S)


def _is_close(found: Array, expected: Array) -> bool:
    return np.allclose(found, expected, rtol=1e-3, atol=1e-4)


def _is_similar(found: Array, expected: Array) -> bool:
    cosine = (found * expected).sum() / np.linalg.norm(found) / np.linalg.norm(expected)
    return bool(cosine >= _LEAST_COSINE)
