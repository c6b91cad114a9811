"""The cost of a small request and of an image in each front: `python -m benchmarks.fronts`.

The server has one core, the native load generator another. Each round takes every case: a fresh server, and beside it bare echoes on the
same core; medians of the rounds are held against what is wanted, and against Triton's published figures, scaled by the ratio of the
grpc.aio echo here to the same echo in the published measurement. Of an image (602 KB in, 4 KB out) what counts is the CPU time above the
model's own run.

With `--baseline FOLDER`, `serve` of that checkout runs beside this one's on the same core, without the echoes. Each case loads the two in
turn, so that a change of the machine's speed meets both; the table holds the ratio of each round's pair, as their median.
"""

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.case_load import payload_of, run_case, successes
from benchmarks.front_cases import CASES, IMAGE_CASES, REFERENCE_ECHO_CPU_US, Case
from benchmarks.machine import describe_machine
from benchmarks.measure import LoadGenerator, RawEngine, WrongResponse
from benchmarks.models import build_repository
from benchmarks.native_load import NativeWindow, Payload
from benchmarks.report import verdict_table
from benchmarks.results import Verdict
from benchmarks.servers import Checkout, Target, add_baseline_options, checkouts_of, echo_grpc, echo_h2, stoker, this_checkout
from benchmarks.wire import GRPC, canned_response

#: Figures hold with what operators run: a sampled access log, beside validation, statistics and metrics, which are always on.
_FLAGS = ("--access-log=100",)
#: The model whose requests the echoes take too.
_ECHOED = "tiny"
#: Requests of the run that finds the rate, and of a window at least.
_PILOT = 1_000
_LEAST = 2_000


class FrontWindows:
    """All measured windows.

    Attributes:
        windows: By target and case, one for each round.
        sent: By target, all requests that it was sent.
    """

    def __init__(self, scratch: Path, client_cores: Sequence[int], seconds: float) -> None:
        self.windows: dict[tuple[str, str], list[NativeWindow]] = defaultdict(list)
        self.sent: dict[str, int] = defaultdict(int)
        self._scratch = scratch
        self._client_cores = client_cores
        self._seconds = seconds

    def measure(self, target: Target, case: Case, payload: Payload) -> NativeWindow:
        """One window of `case`: a pilot run finds the rate, then come as many requests as fill the window."""
        pilot = self._load(target, case, payload, max(_PILOT, case.in_flight))
        window = self._load(target, case, payload, max(_LEAST, round(pilot.requests_per_s * self._seconds)))
        self.windows[target.name, case.name].append(window)
        return window

    def median(self, target: str, case: Case) -> NativeWindow | None:
        """The window of the median CPU time; None: the case was not measured there."""
        found = sorted(self.windows.get((target, case.name), ()), key=lambda each: each.server_cpu_us)
        return found[len(found) // 2] if found else None

    def median_p50_ms(self, target: str, case: Case) -> float:
        return statistics.median(each.latency.p50_ms for each in self.windows[target, case.name])

    def _load(self, target: Target, case: Case, payload: Payload, requests: int) -> NativeWindow:
        done = run_case(case, payload, target, requests, self._scratch, self._client_cores)
        self.sent[target.name] += done.requests
        return done


def measure_fronts(
    found: FrontWindows,
    cases: Sequence[Case],
    rounds: int,
    scratch: Path,
    cores: Sequence[int],
    console: Console,
    checkouts: Sequence[Checkout] = (),
) -> dict[str, float]:
    """Measures `cases` in turn, `rounds` times, the servers on `cores`.

    Args:
        found: Where the windows are added.
        cases: What is measured.
        rounds: How often.
        scratch: A folder for models and logs.
        cores: Where the servers run.
        console: For progress.
        checkouts: Whose `serve` is measured, the echoes beside it only where it is one; empty: this checkout's.

    Returns:
        By model, CPU time of raw onnxruntime for one row, microseconds: the median of a measurement in each round.

    Raises:
        WrongResponse: an answer is not the model's, or a request was not answered well.
        NativeLoadFailed: the generator could not work.
    """
    checkouts = checkouts or (this_checkout(),)
    models = build_repository(scratch / "models", tuple(dict.fromkeys(case.model for case in cases)))
    raw_us: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        raw = RawEngine(scratch, 1, cores)
        stack.callback(raw.close)
        expected = {name: raw.reference(model) for name, model in models.items()}
        echoes: tuple[Target, ...] = ()
        if _ECHOED in models and len(checkouts) == 1:
            reply = scratch / "canned.message"
            reply.write_bytes(canned_response(models[_ECHOED], expected[_ECHOED]))
            echoes = (stack.enter_context(echo_h2(cores)), stack.enter_context(echo_grpc("bytes", reply, cores)))
        check = LoadGenerator(scratch, 0.0)
        stack.callback(check.close)
        for number in range(rounds):
            for name, model in models.items():
                raw_us[name].append(raw.measure(model, 1, 0.5, number).server_cpu_us)
            # Some processes are a quarter slower than others for as long as they live: what counts is the median over several.
            with ExitStack() as running:
                servers = [
                    running.enter_context(stoker(scratch / "models", scratch / f"{each.name}-{number}", cores, _FLAGS, checkout=each))
                    for each in checkouts
                ]
                for server in servers:
                    for name, protocol in dict.fromkeys((case.model, case.protocol) for case in cases):
                        check.check(server, models[name], protocol, expected[name])
                before = {each.name: _successes(each, models) - found.sent[each.name] for each in servers}
                for case in cases:
                    payload = payload_of(case, models[case.model], scratch)
                    for server in servers if number % 2 == 0 else reversed(servers):
                        window = found.measure(server, case, payload)
                        console.print(
                            f"[dim]round {number + 1}, {server.name}, {case.name}:"
                            f" {window.server_cpu_us:.0f} us, {window.requests_per_s:,.0f}/s[/]"
                        )
                    for echo in echoes if case.protocol == GRPC and case.model == _ECHOED else ():
                        found.measure(echo, case, payload)
                for server in servers:
                    counted = _successes(server, models) - before[server.name]
                    if counted != found.sent[server.name]:
                        raise WrongResponse(
                            f"{found.sent[server.name]} requests were sent to {server.name}, but it counts {counted} successes"
                        )
        return {name: statistics.median(each) for name, each in raw_us.items()}


def _successes(server: Target, models: Iterable[str]) -> int:
    return sum(successes(server, name) for name in models)


def peer_scale(found: FrontWindows, cases: Sequence[Case]) -> float:
    """How much slower this machine is than that of the published figures: the ratio of the same echo, at the loads that both have seen."""
    windows = [(case, found.median("echo-bytes", case)) for case in cases if not case.is_one_call_per_channel]
    ratios = [window.server_cpu_us / REFERENCE_ECHO_CPU_US[case.in_flight] for case, window in windows if window is not None]
    return statistics.median(ratios) if ratios else 1.0


def judge(found: FrontWindows, cases: Sequence[Case], raw_us: Mapping[str, float]) -> list[Verdict]:
    """The limits of each case, held against the medians. `raw_us` as `measure_fronts` returns it."""
    verdicts = []
    for case in cases:
        windows = found.windows["stoker", case.name]
        if case.most_cpu_us is not None:
            model_us = raw_us[case.model] if case.is_above_model else 0.0
            figures = [each.server_cpu_us - model_us for each in windows]
            wanted = f"{case.name}: server CPU per request{' above the model' if case.is_above_model else ''}"
            verdicts.append(Verdict.of_rounds(wanted, figures, case.most_cpu_us, "us"))
        if case.most_p50_ms is not None:
            figures = [each.latency.p50_ms for each in windows]
            verdicts.append(Verdict.of_rounds(f"{case.name}: median latency", figures, case.most_p50_ms, "ms"))
    return verdicts


def front_table(found: FrontWindows, cases: Sequence[Case], raw_us: Mapping[str, float]) -> Table:
    """All cases, the echoes and the scaled peer beside."""
    scale = peer_scale(found, cases)
    raws = ", ".join(f"{name} {each:.1f} us" for name, each in raw_us.items())
    table = Table(title=f"raw onnxruntime: {raws}; Triton's published figures times {scale:.2f}", title_justify="left")
    headings = ("case", "req/s", "p50 ms", "p99 ms", "CPU us", "h2 echo us", "grpc.aio echo us", "Triton us", "Triton p50 ms")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    for case in cases:
        window = found.median("stoker", case)
        assert window is not None
        echoes = [found.median(name, case) for name in ("echo-h2", "echo-bytes")]
        table.add_row(
            case.name,
            f"{window.requests_per_s:,.0f}",
            f"{found.median_p50_ms('stoker', case):.3f}",
            f"{window.latency.p99_ms:.3f}",
            f"{window.server_cpu_us:.0f}",
            *("" if echo is None else f"{echo.server_cpu_us:.0f}" for echo in echoes),
            "" if case.triton_cpu_us is None else f"{case.triton_cpu_us * scale:.0f}",
            "" if case.triton_p50_ms is None else f"{case.triton_p50_ms * scale:.2f}",
        )
    return table


def comparison_table(found: FrontWindows, cases: Sequence[Case], baseline: str, measured: str) -> Table:
    """The two targets side by side; a ratio is the median over the rounds of `measured` / `baseline`."""
    table = Table(title=f"{measured} / {baseline}, interleaved; below 1 is less than {baseline}", title_justify="left")
    for heading in ("case", *(name for unit in ("CPU us", "p50 ms", "p99 ms", "req/s") for name in (f"{unit} old", "new", "ratio"))):
        table.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    for case in cases:
        old, new = (found.windows[target, case.name] for target in (baseline, measured))
        cells = []
        for digits, figure in ((1, _cpu_us), (3, _p50_ms), (3, _p99_ms), (0, _rate)):
            before, after = [figure(each) for each in old], [figure(each) for each in new]
            cells += [f"{statistics.median(each):,.{digits}f}" for each in (before, after)]
            cells.append(f"[bold]{statistics.median(b / a for a, b in zip(before, after, strict=True)):.2f}[/]")
        table.add_row(case.name, *cells)
    return table


def _cpu_us(window: NativeWindow) -> float:
    return window.server_cpu_us


def _p50_ms(window: NativeWindow) -> float:
    return window.latency.p50_ms


def _p99_ms(window: NativeWindow) -> float:
    return window.latency.p99_ms


def _rate(window: NativeWindow) -> float:
    return window.requests_per_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each window (default %(default)s)")
    add_baseline_options(parser)
    options = parser.parse_args(arguments)
    cases = [case for case in (*CASES, *IMAGE_CASES) if options.cases in case.name]
    if not cases:
        parser.error(f"no case's name contains '{options.cases}'; there are {'; '.join(case.name for case in (*CASES, *IMAGE_CASES))}")
    cores = sorted(os.sched_getaffinity(0))
    console = Console(width=150)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        found = FrontWindows(Path(folder), cores[1:2] or cores[:1], options.seconds)
        checkouts = checkouts_of(options)
        raw_us = measure_fronts(found, cases, options.rounds, Path(folder), cores[:1], console, checkouts)
    if len(checkouts) > 1:
        Console(width=190).print(comparison_table(found, cases, *(each.name for each in checkouts)))
        return
    console.print(front_table(found, cases, raw_us))
    console.print(verdict_table(judge(found, cases, raw_us)))


if __name__ == "__main__":
    main()
