"""The order of the measurements in a run. The speed of machines drifts, so compared figures are measured next to each other, in each round.

Light models measure the server's cost: the server has one core and the generator another. Each round runs all concurrencies, and at each
one the echo, the server and the other echo. The heavy model measures throughput: server and raw onnxruntime have all cores in turn (the
other one is idle), and raw onnxruntime is measured right before the server.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.load import Generator, InFlight
from benchmarks.models import BenchModel, build_repository
from benchmarks.raw_engine import RawEngine
from benchmarks.requests import GRPC, HTTP_BINARY, Request, canned_body, canned_response, request_of
from benchmarks.results import Window
from benchmarks.servers import EchoServer, ServerUnderTest, this_checkout
from benchmarks.settings import CONCURRENCIES, HEAVY_MODEL, LOAD_FACTORS, Settings

Say = Callable[[str], None]


class Experiment:
    """One run of all measurements that `settings` select.

    Attributes:
        windows: The windows measured so far.
    """

    def __init__(self, settings: Settings, scratch: Path, say: Say) -> None:
        self.windows: list[Window] = []
        self._settings = settings
        self._scratch = scratch
        self._say = say
        cores = sorted(os.sched_getaffinity(0))
        self._all_cores = cores
        # With only one core, server and generator share it; the client's CPU share in the report shows the effect.
        self._server_cores, self._client_cores = cores[:1], cores[1:2] or cores[:1]
        self._light_load, self._heavy_load = Generator(scratch, self._client_cores), Generator(scratch)

    def run(self) -> list[Window]:
        """Measures everything.

        Raises:
            WrongResponse: A response is not the model's, or too many requests failed.
            NativeLoadFailed: h2load could not work.
            ChildFailed: A process ended or did not start.
        """
        self._say(f"closed loops by {self._light_load.name}")
        if self._settings.light_models:
            self._measure_light()
        if self._settings.has_heavy:
            self._measure_heavy()
        return self.windows

    def _measure_light(self) -> None:
        settings = self._settings
        self._say("building " + ", ".join(settings.light_models))
        models = build_repository(self._scratch / "light", settings.light_models)
        first = next(iter(models.values()))
        raw = RawEngine(self._scratch, 1, self._server_cores)
        with ExitStack() as stack:
            stack.callback(raw.close)
            expected = {name: raw.reference(model) for name, model in models.items()}
            message, body = self._scratch / "canned.message", self._scratch / "canned.body"
            message.write_bytes(canned_response(first, expected[first.name]))
            body.write_bytes(canned_body(expected[first.name]))
            kind = this_checkout()
            server = stack.enter_context(kind.server(self._scratch / "light", self._scratch / "light-server", self._server_cores))
            echoes = [stack.enter_context(EchoServer(mode, message, self._server_cores)) for mode in ("bytes", "protobuf")]
            asgi = stack.enter_context(EchoServer("asgi", body, self._server_cores))
            for model in models.values():
                for protocol in settings.protocols:
                    self._light_load.check(server, request_of(model, protocol), expected[model.name])
            for repeat in range(settings.repeats):
                for model in models.values():
                    for batch in CONCURRENCIES:
                        self._add(raw.measure(model, batch, settings.duration_s / 3, repeat))
                for concurrency in CONCURRENCIES:
                    self._light_round(server, echoes, asgi, models, concurrency, repeat)
            self._open_loops(self._light_load, server, list(models.values()), settings.duration_s * 2)

    def _light_round(
        self,
        server: ServerUnderTest,
        echoes: list[ServerUnderTest],
        asgi: ServerUnderTest,
        models: dict[str, BenchModel],
        concurrency: int,
        repeat: int,
    ) -> None:
        first = next(iter(models.values()))
        for protocol in self._settings.protocols:
            before, after = (echoes[:1], echoes[1:]) if protocol == GRPC else ([asgi], []) if protocol == HTTP_BINARY else ([], [])
            for target in before:
                self._closed(target, first, protocol, concurrency, repeat)
            for model in models.values():
                self._closed(server, model, protocol, concurrency, repeat)
            for target in after:
                self._closed(target, first, protocol, concurrency, repeat)

    def _closed(self, target: ServerUnderTest, model: BenchModel, protocol: str, concurrency: int, repeat: int) -> None:
        load, seconds = self._light_load, self._settings.duration_s
        if model.is_heavy:
            load, seconds = self._heavy_load, self._settings.heavy_duration_s
        request = request_of(model, protocol)
        self._add(load.closed_for(target, request, InFlight.of(concurrency, request), seconds, repeat))

    def _open_loops(self, load: Generator, server: ServerUnderTest, models: list[BenchModel], duration_s: float) -> None:
        for model in models:
            for protocol in self._settings.protocols:
                request = request_of(model, protocol)
                capacity = self._capacity(load, server, request, duration_s)
                for factor in LOAD_FACTORS:
                    self._add(load.open(server, request, capacity, factor, duration_s))

    def _capacity(self, load: Generator, server: ServerUnderTest, request: Request, duration_s: float) -> float:
        """The best rate of the closed loops in their last round, bounded by the rate of the open loop's generator."""
        cell = ("stoker", request.model, request.protocol, "closed")
        rates = [w for w in self.windows if (w.target, w.model, w.protocol, w.load) == cell]
        last = max(w.repeat for w in rates)
        best = max((w for w in rates if w.repeat == last), key=lambda w: w.requests_per_s)
        if not load.is_native:
            return best.requests_per_s
        return min(best.requests_per_s, load.python_capacity(server, request, InFlight.of(best.concurrency, request), duration_s / 2))

    def _measure_heavy(self) -> None:
        settings = self._settings
        self._say("building resnet50")
        model = build_repository(self._scratch / "heavy", (HEAVY_MODEL,))[HEAVY_MODEL]
        raw = RawEngine(self._scratch, len(self._all_cores), self._all_cores)
        with ExitStack() as stack:
            stack.callback(raw.close)
            expected = raw.reference(model)
            kind = this_checkout()
            server = stack.enter_context(kind.server(self._scratch / "heavy", self._scratch / "heavy-server", self._all_cores))
            for protocol in settings.protocols:
                self._heavy_load.check(server, request_of(model, protocol), expected)
            for repeat in range(settings.repeats):
                # JSON and the open loops have no floor and take long: one round is enough.
                protocols = [each for each in settings.protocols if repeat == 0 or each in (GRPC, HTTP_BINARY)]
                for protocol in protocols:
                    self._heavy_round(raw, server, model, protocol, repeat)
            if not settings.is_quick:
                self._open_loops(self._heavy_load, server, [model], settings.heavy_duration_s)

    def _heavy_round(self, raw: RawEngine, server: ServerUnderTest, model: BenchModel, protocol: str, repeat: int) -> None:
        settings = self._settings
        for _ in range(1 if settings.is_quick else 2):
            self._add(raw.measure(model, 1, settings.heavy_duration_s / 2, repeat))
            self._closed(server, model, protocol, 1, repeat)
        for batch in settings.raw_batches[1:]:
            self._add(raw.measure(model, batch, settings.heavy_duration_s / 3, repeat))
        for concurrency in CONCURRENCIES[1:2] if settings.is_quick else CONCURRENCIES[1:]:
            self._closed(server, model, protocol, concurrency, repeat)

    def _add(self, window: Window) -> None:
        self.windows.append(window)
        load = f"c={window.concurrency}" if window.load == "closed" else f"{window.offered_per_s:.0f}/s"
        self._say(
            f"{window.repeat + 1}: {window.target} {window.model} {window.protocol} {load} rows={window.rows}:"
            f" {window.requests_per_s:.0f} req/s, p50 {window.p50_ms:.2f} ms, {window.server_cpu_us:.0f} us CPU"
        )
