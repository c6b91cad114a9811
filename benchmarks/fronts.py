"""The cost of a small request and of an image in each frontend: `python -m benchmarks.fronts`.

The server has one core, the load generator another. Each round measures every case with a new server, and bare echoes on the same core. The
medians of the rounds are compared with the targets. For an image (602 KB in, 4 KB out), the CPU time of the model's run is subtracted.

With `--baseline FOLDER`, `serve` of that checkout runs beside this one's on the same core, without the echoes. Each case loads the two in
turn, in windows of some 600 requests; the table shows the best window and the median of each, their ratios, and the spread of the ratios.
With `--peers`, Triton is the baseline, and the ratios are compared with the targets of the cases.
"""

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.comparison import CPU_US, Comparison, add_baseline_options, compare_windows, contenders
from benchmarks.front_cases import APART_CASES, CASES, DIALECT_CASES, ENSEMBLE_CASES, EXECUTION_CASES, IMAGE_CASES, Case
from benchmarks.load import Generator, WrongResponse
from benchmarks.machine import describe_machine
from benchmarks.models import Array, BenchModel, build_repository
from benchmarks.peers import add_peer_options, peer_contenders, peer_table
from benchmarks.processes import end_on_sigterm
from benchmarks.raw_engine import RawEngine
from benchmarks.report import verdict_table
from benchmarks.requests import GRPC, canned_response, request_of
from benchmarks.results import Verdict, Window
from benchmarks.servers import Contender, EchoServer, ServerUnderTest, this_checkout
from benchmarks.triton import TritonMissing

#: The figures are for a usual configuration: a sampled access log, beside validation, statistics and metrics, which are always on.
_FLAGS = ("--access-log=100",)
#: The model whose requests the echoes also get.
_ECHOED = "tiny"
#: Windows of a case and requests of a window in a comparison; the windows are distributed over the rounds.
_COMPARED_WINDOWS, _COMPARED_REQUESTS = 30, 600
#: The same beside another server: in windows of 600 requests, connections and cold caches are a third of the figure.
_PEER_WINDOWS, _PEER_REQUESTS = 10, 6_000


class FrontWindows:
    """All measured windows: by target and case, one for each round."""

    def __init__(self) -> None:
        self.windows: dict[tuple[str, str], list[Window]] = defaultdict(list)

    def median(self, target: str, case: Case) -> Window | None:
        """The window with the median CPU time; None: the case was not measured."""
        found = sorted(self.windows.get((target, case.name), ()), key=lambda each: each.server_cpu_us)
        return found[len(found) // 2] if found else None

    def median_p50_ms(self, target: str, case: Case) -> float:
        return statistics.median(each.p50_ms for each in self.windows[target, case.name])


class Bench:
    """The common parts of the measurements: models, outputs of raw onnxruntime, cores, a generator."""

    def __init__(self, cases: Sequence[Case], scratch: Path, console: Console) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.cases = cases
        self.scratch = scratch
        self.console = console
        self.cores = cores[:1]
        self.generator = Generator(scratch, cores[1:2] or cores[:1])
        self.models: dict[str, BenchModel] = build_repository(scratch / "models", tuple(dict.fromkeys(case.model for case in cases)))
        self.raw = RawEngine(scratch, 1, self.cores)
        self.expected: dict[str, Array] = {name: self.raw.reference(model) for name, model in self.models.items()}

    @contextmanager
    def servers(self, kinds: Sequence[Contender], number: int) -> Iterator[list[ServerUnderTest]]:
        """Starts new servers and checks their responses against the models; at the end, their statistics must equal the requests sent.

        Raises:
            WrongResponse: A response is not the model's, or a request got no good response.
        """
        with ExitStack() as running:
            servers = [
                running.enter_context(kind.server(self.scratch / "models", self.scratch / f"{kind.name}-{number}", self.cores, _FLAGS))
                for kind in kinds
            ]
            for server in servers:
                for name, protocol in dict.fromkeys((case.model, case.protocol) for case in self.cases):
                    self.generator.check(server, request_of(self.models[name], protocol), self.expected[name])
            before = {server.pid: self._successes(server) - self.generator.sent[server.pid] for server in servers}
            yield servers
            for server in servers:
                counted, sent = self._successes(server) - before[server.pid], self.generator.sent[server.pid]
                if counted != sent:
                    raise WrongResponse(f"{sent} requests were sent to {server.name}, but it counts {counted} successes")

    def close(self) -> None:
        self.raw.close()

    def _successes(self, server: ServerUnderTest) -> int:
        return sum(server.successes(name) for name in self.models)


def measure_fronts(bench: Bench, rounds: int, seconds: float) -> tuple[FrontWindows, dict[str, float]]:
    """Measures every case of this checkout in `rounds` rounds, and the echoes.

    Returns:
        The windows; and, by model, the median over the rounds of raw onnxruntime's CPU time for one row, microseconds.

    Raises:
        WrongResponse: A response is not the model's, or a request got no good response.
        NativeLoadFailed: The generator could not work.
    """
    found, raw_us = FrontWindows(), defaultdict[str, list[float]](list)
    with ExitStack() as stack:
        echoes: tuple[ServerUnderTest, ...] = ()
        if _ECHOED in bench.models:
            reply = bench.scratch / "canned.message"
            reply.write_bytes(canned_response(bench.models[_ECHOED], bench.expected[_ECHOED]))
            echoes = tuple(stack.enter_context(EchoServer(kind, reply, bench.cores)) for kind in ("h2", "bytes"))
        for number in range(rounds):
            for name, model in bench.models.items():
                raw_us[name].append(bench.raw.measure(model, 1, 0.5, number).server_cpu_us)
            # Some processes are a quarter slower than others during their whole life, so the median over several is used.
            with bench.servers([this_checkout()], number) as servers:
                for case in bench.cases:
                    request = request_of(bench.models[case.model], case.protocol)
                    for target in (*servers, *(echoes if case.protocol == GRPC and case.model == _ECHOED else ())):
                        window = bench.generator.closed_for(target, request, case.in_flight, seconds, number)
                        found.windows[target.name, case.name].append(window)
                        bench.console.print(
                            f"[dim]round {number + 1}, {target.name}, {case.name}:"
                            f" {window.server_cpu_us:.0f} us, {window.requests_per_s:,.0f}/s[/]"
                        )
    return found, {name: statistics.median(each) for name, each in raw_us.items()}


def compare_fronts(bench: Bench, kinds: Sequence[Contender], rounds: int, windows: int, requests: int) -> Comparison:
    """Loads the servers in turn, with `windows` windows of each case, spread over `rounds` fresh sets of servers. Raises as above."""
    baseline, *measured = (each.name for each in kinds)
    comparison = Comparison(baseline, *measured)
    for number in range(rounds):
        share = windows * (number + 1) // rounds - windows * number // rounds
        if not share:
            continue
        with bench.servers(kinds, number) as servers:
            if number == 0:
                bench.console.print(*(f"[dim]{each.name}: {each.description()}[/]" for each in servers), sep="\n")
            for case in bench.cases:
                request = request_of(bench.models[case.model], case.protocol)
                compare_windows(comparison, case.name, bench.generator, servers, request, case.in_flight, windows=share, requests=requests)
                ratios = ", ".join(f"{comparison.ratios(case.name, CPU_US, name)[1]:.3f}" for name in measured)
                bench.console.print(f"[dim]round {number + 1}, {case.name}: ratio {ratios} of CPU[/]")
    return comparison


def judge(found: FrontWindows, cases: Sequence[Case], raw_us: Mapping[str, float]) -> list[Verdict]:
    """The verdicts on the medians of each case. `raw_us` is from `measure_fronts`."""
    verdicts = []
    for case in cases:
        windows = found.windows["stoker", case.name]
        if case.most_cpu_us is not None:
            model_us = raw_us[case.model] if case.is_above_model else 0.0
            figures = [each.server_cpu_us - model_us for each in windows]
            wanted = f"{case.name}: server CPU per request{' above the model' if case.is_above_model else ''}"
            verdicts.append(Verdict.of_rounds(wanted, figures, case.most_cpu_us, "us"))
        if case.most_p50_ms is not None:
            figures = [each.p50_ms for each in windows]
            verdicts.append(Verdict.of_rounds(f"{case.name}: median latency", figures, case.most_p50_ms, "ms"))
    return verdicts


def front_table(found: FrontWindows, cases: Sequence[Case], raw_us: Mapping[str, float]) -> Table:
    """All cases, with the echoes."""
    raws = ", ".join(f"{name} {each:.1f} us" for name, each in raw_us.items())
    table = Table(title=f"raw onnxruntime: {raws}", title_justify="left")
    for heading in ("case", "req/s", "p50 ms", "p99 ms", "CPU us", "h2 echo us", "grpc.aio echo us"):
        table.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    for case in cases:
        window = found.median("stoker", case)
        assert window is not None
        echoes = [found.median(name, case) for name in ("echo-h2", "echo-bytes")]
        table.add_row(
            case.name,
            f"{window.requests_per_s:,.0f}",
            f"{found.median_p50_ms('stoker', case):.3f}",
            f"{window.p99_ms:.3f}",
            f"{window.server_cpu_us:.0f}",
            *("" if echo is None else f"{echo.server_cpu_us:.0f}" for echo in echoes),
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases",
        default="",
        metavar="TEXT",
        help="only cases whose name contains this text, such as 'gRPC, c = 8' or 'image'; a text without a case lists all names",
    )
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each window (default %(default)s)")
    parser.add_argument(
        "--windows", type=int, help=f"windows of each case, over all rounds (--baseline: {_COMPARED_WINDOWS}, --peers: {_PEER_WINDOWS})"
    )
    parser.add_argument(
        "--requests", type=int, help=f"requests of each window (--baseline: {_COMPARED_REQUESTS:,}, --peers: {_PEER_REQUESTS:,})"
    )
    add_baseline_options(parser)
    add_peer_options(parser)
    options = parser.parse_args(arguments)
    if options.commands and not options.peers:
        parser.error("--command needs --peers")
    if options.peers and (options.baseline or options.baseline_command):
        parser.error("--peers excludes --baseline: Triton is the baseline")
    # Triton does not serve most of the dialects.
    known = (*CASES, *APART_CASES, *(() if options.peers else (*DIALECT_CASES, *EXECUTION_CASES, *ENSEMBLE_CASES)), *IMAGE_CASES)
    cases = [case for case in known if options.cases in case.name]
    if options.peers and not options.cases:
        cases = [case for case in cases if case.most_of_peer is not None]
    if not cases:
        parser.error(f"no case's name contains '{options.cases}'; there are {'; '.join(case.name for case in known)}")
    console = Console(width=190)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    try:
        kinds = peer_contenders(options) if options.peers else contenders(options)
    except TritonMissing as missing:
        console.print(f"[yellow]skipped: {missing}[/]")
        return
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(cases, Path(folder), console)
        console.print(f"[dim]closed loops by {bench.generator.name}[/]")
        try:
            if len(kinds) > 1:
                windows, requests = (_PEER_WINDOWS, _PEER_REQUESTS) if options.peers else (_COMPARED_WINDOWS, _COMPARED_REQUESTS)
                comparison = compare_fronts(bench, kinds, options.rounds, options.windows or windows, options.requests or requests)
                if options.peers:
                    console.print(peer_table(comparison, cases))
                    comparison.print_load(console)
                else:
                    comparison.print(console)
                return
            found, raw_us = measure_fronts(bench, options.rounds, options.seconds)
        finally:
            bench.close()
    console.print(front_table(found, cases, raw_us))
    console.print(verdict_table(judge(found, cases, raw_us)))


if __name__ == "__main__":
    end_on_sigterm()
    main()
