"""Compares a run with the project's targets. Every figure is a median over pairs of windows of the same round.

On a busy machine, wall-clock figures are unreliable. Their verdicts use only quiet windows (`QUIET_CORES`) if both sides have some; else
all windows, with a note. Other load hardly affects CPU time, which is always used.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.requests import GRPC, HTTP_BINARY
from benchmarks.results import QUIET_CORES, Verdict, Window
from benchmarks.settings import CONCURRENCIES, HEAVY_MODEL

#: Served rows/s of the heavy model, as a share of raw onnxruntime's best.
THROUGHPUT_FLOOR = 0.95
#: Bound on the latency that serving adds to a batch-1 run of raw onnxruntime, milliseconds.
LATENCY_FLOOR_MS = 1.5
#: Bound on the server CPU of a tiny gRPC request, as a multiple of a bare grpc.aio echo's.
CPU_FLOOR = 1.6


def judge(windows: Sequence[Window]) -> list[Verdict]:
    """The verdicts on `windows`; floors without measurements are left out."""
    return [*_throughput(windows), *_latency(windows), *_cpu(windows)]


def _throughput(every: Sequence[Window]) -> Iterable[Verdict]:
    # Both sides use the setting with the best median, not their single best window.
    all_raw = [w for w in every if w.model == HEAVY_MODEL and w.target == "onnxruntime"]
    for protocol in (GRPC, HTTP_BINARY):
        served, raw = (_fastest(side) for side in _quiet(_served(every, HEAVY_MODEL, protocol), all_raw))
        pairs = [(w.rows_per_s, _nearest(w, raw, every).rows_per_s) for w in served] if raw else []
        if pairs:
            yield Verdict(
                floor=f"{HEAVY_MODEL} rows/s over raw onnxruntime's best, {protocol}",
                measured=statistics.median(ours / theirs for ours, theirs in pairs),
                limit=THROUGHPUT_FLOOR, unit="x", at_least=True, foreign_cores=_foreign_cores([*served, *raw]),
                evidence=f"c={served[0].concurrency}/batch {raw[0].rows}: "
                + _list(pairs, lambda pair: f"{pair[0]:.1f}/{pair[1]:.1f}") + " rows/s",
            )  # fmt: skip


def _latency(every: Sequence[Window]) -> Iterable[Verdict]:
    for model in dict.fromkeys(w.model for w in every if w.target == "stoker"):
        all_raw = [w for w in every if (w.target, w.model, w.rows) == ("onnxruntime", model, 1)]
        for protocol in (GRPC, HTTP_BINARY):
            served, raw = _quiet([w for w in _served(every, model, protocol) if w.concurrency == 1], all_raw)
            pairs = [(w.p50_ms, _nearest(w, raw, every).p50_ms) for w in served] if raw else []
            if pairs:
                yield Verdict(
                    floor=f"{model} batch-1 latency above raw, {protocol}",
                    measured=statistics.median(ours - theirs for ours, theirs in pairs),
                    limit=LATENCY_FLOOR_MS, unit="ms", at_least=False, foreign_cores=_foreign_cores([*served, *raw]),
                    evidence=_list(pairs, lambda pair: f"{pair[0]:.2f}-{pair[1]:.2f}") + " ms",
                )  # fmt: skip


def _cpu(windows: Sequence[Window]) -> Iterable[Verdict]:
    for model in ("tiny", "tiny-inline"):
        for echo, is_floor in (("echo-bytes", True), ("echo-protobuf", False)):
            for concurrency in CONCURRENCIES:
                served = {w.repeat: w.server_cpu_us for w in _served(windows, model, GRPC) if w.concurrency == concurrency}
                bare = {w.repeat: w.server_cpu_us for w in windows if w.target == echo and w.concurrency == concurrency}
                pairs = [(served[repeat], bare[repeat]) for repeat in sorted(served.keys() & bare.keys())]
                if pairs:
                    yield Verdict(
                        floor=f"{model} CPU per gRPC request over {echo}, c={concurrency}",
                        measured=statistics.median(ours / theirs for ours, theirs in pairs),
                        limit=CPU_FLOOR, unit="x", at_least=False, is_floor=is_floor,
                        evidence=_list(pairs, lambda pair: f"{pair[0]:.0f}/{pair[1]:.0f}") + " us",
                    )  # fmt: skip


def _served(windows: Iterable[Window], model: str, protocol: str) -> list[Window]:
    return [w for w in windows if (w.target, w.model, w.protocol, w.load) == ("stoker", model, protocol, "closed")]


def _quiet(served: list[Window], raw: list[Window]) -> tuple[list[Window], list[Window]]:
    quiet = [[w for w in side if w.foreign_cores <= QUIET_CORES] for side in (served, raw)]
    return (quiet[0], quiet[1]) if all(quiet) else (served, raw)


def _fastest(windows: Sequence[Window]) -> list[Window]:
    """The windows of the cell with the highest median rows/s."""
    cells: dict[tuple[object, ...], list[Window]] = {}
    for window in windows:
        cells.setdefault(window.cell, []).append(window)
    return max(cells.values(), key=lambda cell: statistics.median(w.rows_per_s for w in cell), default=[])


def _nearest(window: Window, candidates: Sequence[Window], windows: Sequence[Window]) -> Window:
    """The candidate that was measured closest in time; windows are in the order of measurement."""
    place = windows.index(window)
    return min(candidates, key=lambda each: abs(windows.index(each) - place))


def _foreign_cores(windows: Iterable[Window]) -> float:
    return statistics.median(w.foreign_cores for w in windows)


def _list(pairs: Iterable[tuple[float, float]], text: Callable[[tuple[float, float]], str]) -> str:
    return ", ".join(text(pair) for pair in pairs)
