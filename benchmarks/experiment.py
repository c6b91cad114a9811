"""The order of a run. Machines drift, so what is compared is measured next to each other, round after round.

Light models: the server's cost is the question, so the server has one core and the generator another; each round walks through the
concurrencies, and at each one takes the echo, the server, the other echo. Heavy model: throughput is the question, so server and raw
onnxruntime in turn have all cores (the other one idle), and raw onnxruntime is measured right before what is held against it.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import LoadGenerator, RawEngine
from benchmarks.models import BenchModel, build_repository
from benchmarks.results import Window
from benchmarks.servers import Target, echo_asgi, echo_grpc, stoker
from benchmarks.settings import CONCURRENCIES, HEAVY_MODEL, LOAD_FACTORS, Settings
from benchmarks.wire import GRPC, HTTP_BINARY, canned_body, canned_response

Say = Callable[[str], None]


class Experiment:
    """One run of everything `settings` asks for.

    Attributes:
        windows: What was measured so far.
    """

    def __init__(self, settings: Settings, scratch: Path, say: Say) -> None:
        self.windows: list[Window] = []
        self._settings = settings
        self._scratch = scratch
        self._say = say
        cores = sorted(os.sched_getaffinity(0))
        self._all_cores = cores
        # With one core only, server and generator have to share it; the report's client share shows what that does.
        self._server_cores, self._client_cores = cores[:1], cores[1:2] or cores[:1]
        self._load = LoadGenerator(scratch, settings.warmup_s)

    def run(self) -> list[Window]:
        """Measures everything.

        Raises:
            WrongResponse: a server did not answer as the model does.
            ChildFailed: a process ended or did not start.
        """
        try:
            if self._settings.light_models:
                self._measure_light()
            if self._settings.has_heavy:
                self._measure_heavy()
        finally:
            self._load.close()
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
            server = stack.enter_context(stoker(self._scratch / "light", self._scratch / "light-server", self._server_cores))
            echoes = [stack.enter_context(echo_grpc(mode, message, self._server_cores)) for mode in ("bytes", "protobuf")]
            asgi = stack.enter_context(echo_asgi(body, self._server_cores))
            for model in models.values():
                for protocol in settings.protocols:
                    self._load.check(server, model, protocol, expected[model.name])
            for repeat in range(settings.repeats):
                for model in models.values():
                    for batch in CONCURRENCIES:
                        self._add(raw.measure(model, batch, settings.duration_s / 3, repeat))
                for concurrency in CONCURRENCIES:
                    self._light_round(server, echoes, asgi, models, concurrency, repeat)
            self._open_loops(server, list(models.values()), settings.duration_s * 2, tuple(self._client_cores))

    def _light_round(
        self, server: Target, echoes: list[Target], asgi: Target, models: dict[str, BenchModel], concurrency: int, repeat: int
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

    def _closed(self, target: Target, model: BenchModel, protocol: str, concurrency: int, repeat: int) -> None:
        heavy = model.is_heavy
        duration_s = self._settings.heavy_duration_s if heavy else self._settings.duration_s
        cores = self._all_cores if heavy else self._client_cores
        self._add(self._load.closed(target, model, protocol, concurrency, duration_s=duration_s, repeat=repeat, cores=cores))

    def _open_loops(self, server: Target, models: list[BenchModel], duration_s: float, cores: tuple[int, ...]) -> None:
        for model in models:
            for protocol in self._settings.protocols:
                capacity = self._capacity(model.name, protocol)
                for factor in LOAD_FACTORS:
                    self._add(
                        self._load.open(server, model, protocol, capacity, factor, duration_s=duration_s, repeat=0, cores=cores),
                    )

    def _capacity(self, model: str, protocol: str) -> float:
        """The best the closed loops reached in their last round, requests a second."""
        rates = [w for w in self.windows if (w.target, w.model, w.protocol, w.load) == ("stoker", model, protocol, "closed")]
        last = max(w.repeat for w in rates)
        return max(w.requests_per_s for w in rates if w.repeat == last)

    def _measure_heavy(self) -> None:
        settings = self._settings
        self._say("building resnet50")
        model = build_repository(self._scratch / "heavy", (HEAVY_MODEL,))[HEAVY_MODEL]
        raw = RawEngine(self._scratch, len(self._all_cores), self._all_cores)
        with ExitStack() as stack:
            stack.callback(raw.close)
            expected = raw.reference(model)
            server = stack.enter_context(stoker(self._scratch / "heavy", self._scratch / "heavy-server", self._all_cores))
            for protocol in settings.protocols:
                self._load.check(server, model, protocol, expected)
            for repeat in range(settings.repeats):
                # JSON and the open loops are not what a floor is about, and take long: once is enough to see them.
                protocols = [each for each in settings.protocols if repeat == 0 or each in (GRPC, HTTP_BINARY)]
                for protocol in protocols:
                    self._heavy_round(raw, server, model, protocol, repeat)
            if not settings.is_quick:
                self._open_loops(server, [model], settings.heavy_duration_s, tuple(self._all_cores))

    def _heavy_round(self, raw: RawEngine, server: Target, model: BenchModel, protocol: str, repeat: int) -> None:
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
