"""A `Metrics` with a sample in every family, for tests of a whole exposition."""

import os
from collections.abc import Sequence
from pathlib import Path

from stoker.backends.api.backend import Figure
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.state import VersionState
from stoker.server.execution.process_figures import ProcessFigures
from stoker.server.observability.families import BackendFamilies
from stoker.server.observability.loop_watch import LoopWatch
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.recorder import FailureReason, GoawayReason
from stoker.server.observability.series import CacheFigures
from stoker.server.observability.settings import LoopWatchSettings, MetricsSettings


class _Process:
    """A worker process as its metrics see it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_closed = False
        self.labels = {"model": "embed", "version": "1", "worker": "embed_0"}
        self.model_figures: Sequence[Figure] = ()


_PROCESS = _Process()


def busy_metrics(proc: Path = Path("/proc")) -> Metrics:
    """`digits` 1 and 2 with traffic, `embed` with a response cache, `broken` with failed loads."""
    shown = MetricsSettings(histogram_latencies=True, summary_latencies=True)
    metrics = Metrics(FakeClock(), settings=shown, release="1.2.3", proc=proc)
    metrics.watch(
        requests_in_flight=lambda: 3,
        bytes_in_flight=lambda: 4096,
        evictions=lambda: 2,
        log_lines_dropped=lambda: 0,
        is_ready=lambda: True,
        cache_figures=lambda: CacheFigures(size_bytes=4096, entries=2, evicted=1),
    )
    processes = ProcessFigures()
    processes.add(_PROCESS)
    metrics.registry.register(BackendFamilies(lambda: (processes,)))
    metrics.registry.register(LoopWatch(LoopWatchSettings(), lambda: 0))
    for version in (1, 2):
        recorder = metrics.version("digits", version, {})
        metrics.state("digits", version, VersionState.READY)
        metrics.loaded("digits", version, seconds=0.25)
        recorder.queue_depth += 1
        recorder.executed([4], input_ns=10_500, infer_ns=2_000_000, output_ns=7_000)
        recorder.succeeded(rows=[4], request_ns=[3_000_400], queue_ns=[900_000], input_ns=10_500, infer_ns=2_000_000, output_ns=7_000)
        recorder.responses.completed(0, 1_000)
        recorder.failed(FailureReason.BACKEND, request_ns=1_000)
    cached = metrics.version("embed", 1, {})
    cached.uses_cache(True)
    cached.padded(useful=20, computed=32)
    cached.cache_hit(request_ns=20_000, queue_ns=0, lookup_ns=10_000)
    cached.cache_missed(lookup_ns=15_000)
    metrics.load_failed("broken", 1)
    metrics.note_goaway(GoawayReason.RESET_FLOOD)
    metrics.state("broken", 1, VersionState.FAILED)
    return metrics
