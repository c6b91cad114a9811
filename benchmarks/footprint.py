"""Memory and start time of the server: `python -m benchmarks.footprint`.

Resident memory with one tiny model loaded, idle and after a million requests; the time from start to ready on the sample repository; and
the 99th percentile of a small model's latency while a ResNet-50 uses all available CPU. `--baseline FOLDER` measures another checkout in
turn
with this one, and the last table shows their ratios. `--quick` takes fewer requests and rounds.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.comparison import P99_MS, READY_S, RSS_MIB, Comparison, Figure, add_baseline_options, contenders
from benchmarks.load import Generator, InFlight
from benchmarks.machine import CpuReading, describe_machine
from benchmarks.models import CHECKOUT, build_repository
from benchmarks.process_tree import process_tree
from benchmarks.processes import end_on_sigterm
from benchmarks.report import verdict_table
from benchmarks.requests import GRPC, Request, request_of
from benchmarks.results import Verdict
from benchmarks.servers import Contender, ServerUnderTest

_MIB = 2**20
_CALLS, _ALONE, _HEAVY = InFlight(4, 8), InFlight(1), InFlight(1, 4)
_WARM_REQUESTS, _NEIGHBOUR_REQUESTS = 20_000, 3_000
_QUICK_REQUESTS, _QUICK_ROUNDS, _QUICK_NEIGHBOUR_REQUESTS = 50_000, 2, 1_000
#: The scheduler weight of nice 10 is about a tenth of that of nice 0.
_NICE = 10
_GAINED_MIB = Figure("gained MiB", 2)


def start_times_s(scratch: Path, rounds: int, kinds: Sequence[Contender]) -> dict[str, list[float]]:
    """By contender, seconds from the start of the server on the sample repository until it is ready; the contenders run in turn.

    A first, unmeasured start compiles the modules, as an installer does: a checkout that cannot write bytecode compiles some four hundred
    modules at every start, which takes 0.4 s.
    """
    found: dict[str, list[float]] = {each.name: [] for each in kinds}
    for number in range(rounds + 1):
        for each in kinds:
            folder = scratch / f"start-{each.name}-{number}"
            began = time.monotonic()
            with each.server(CHECKOUT / "model_repos", folder, bytecode=scratch / f"bytecode-{each.name}"):
                found[each.name].append(time.monotonic() - began)
    return {name: times[1:] for name, times in found.items()}


def memory_mib(scratch: Path, requests: int, cores: Sequence[int], client_cores: Sequence[int], kind: Contender) -> tuple[float, float]:
    """Resident memory in MiB with `tiny` loaded: idle, and the growth over `requests` requests after a warm-up.

    The modules are those compiled by `start_times_s`; the memory that compiling takes is released only some seconds later.
    """
    repository, generator = scratch / f"models-{kind.name}", Generator(scratch, client_cores)
    request = request_of(build_repository(repository, ("tiny",))["tiny"], GRPC)
    with kind.server(repository, scratch / f"memory-{kind.name}", cores, bytecode=scratch / f"bytecode-{kind.name}") as server:
        idle = process_tree(server.pid).rss_bytes()
        generator.closed(server, request, _CALLS, _WARM_REQUESTS)
        warm = process_tree(server.pid).rss_bytes()
        generator.closed(server, request, _CALLS, requests)
        return idle / _MIB, (process_tree(server.pid).rss_bytes() - warm) / _MIB


def neighbour_p99_ms(scratch: Path, rounds: int, requests: int, nice: int, kind: Contender) -> list[float]:
    """99th percentiles of single calls of `mlp`, in ms, while four requests for a ResNet-50 are always in flight; all cores are shared.

    `nice`: the parameter in the ResNet-50's config.pbtxt.
    """
    scratch.mkdir()
    models = build_repository(scratch / "both", ("mlp", "resnet50"))
    with (scratch / "both" / "resnet50" / "config.pbtxt").open("a", encoding="utf-8") as config:
        config.write(f'\nparameters {{ key: "nice" value {{ string_value: "{nice}" }} }}\n')
    small, heavy = (request_of(models[name], GRPC) for name in ("mlp", "resnet50"))
    generator = Generator(scratch)
    with kind.server(scratch / "both", scratch / "neighbours") as server:
        done = threading.Event()
        load = threading.Thread(target=_keep_busy, args=(server, heavy, scratch, done))
        load.start()
        try:
            while server.successes("resnet50") == 0 and load.is_alive():
                time.sleep(0.1)
            return [generator.closed(server, small, _ALONE, requests).p99_ms for _ in range(rounds)]
        finally:
            done.set()
            load.join()


def _keep_busy(server: ServerUnderTest, request: Request, scratch: Path, done: threading.Event) -> None:
    folder = scratch / "heavy"
    folder.mkdir()
    generator = Generator(folder)
    while not done.is_set():
        generator.closed(server, request, _HEAVY, 40)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="after which memory is read again (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="starts, and windows beside the ResNet-50 (default %(default)s)")
    parser.add_argument("--without-neighbour", action="store_true", help="leave out the small model beside the ResNet-50")
    parser.add_argument("--quick", action="store_true", help="fewer requests and rounds: under three minutes")
    add_baseline_options(parser)
    options = parser.parse_args(arguments)
    requests = min(options.requests, _QUICK_REQUESTS) if options.quick else options.requests
    rounds = min(options.rounds, _QUICK_ROUNDS) if options.quick else options.rounds
    kinds = contenders(options)
    cores = sorted(os.sched_getaffinity(0))
    console = Console(width=190)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    comparison, verdicts = Comparison(kinds[0].name, kinds[-1].name), []

    def add(case: str, figure: Figure, kind: Contender, values: Sequence[float], limit: float) -> None:
        of, unit = f", {kind.name}" if len(kinds) > 1 else "", figure.name.split()[-1]
        verdicts.append(Verdict.of_rounds(f"{case}{of}", values, limit, unit))
        for value in values:
            comparison.add(case, figure, kind.name, value)

    with tempfile.TemporaryDirectory() as folder:
        scratch, before = Path(folder), CpuReading.of()
        starts = start_times_s(scratch, rounds, kinds)
        foreign_cores = CpuReading.of().foreign_cores_since(before)
        for each in kinds:
            idle_mib, growth_mib = memory_mib(scratch, requests, cores[:1], cores[1:2] or cores[:1], each)
            add("start to ready, sample repository", READY_S, each, starts[each.name], 1.0)
            add("memory with tiny loaded, idle", RSS_MIB, each, [idle_mib], 90)
            add(f"memory gained by {requests:,} requests", _GAINED_MIB, each, [growth_mib], 5)
        comparison.add_load("start to ready, sample repository", foreign_cores)
        small_requests = _QUICK_NEIGHBOUR_REQUESTS if options.quick else _NEIGHBOUR_REQUESTS
        for nice, case in ((0, "a small model beside ResNet-50 at full load, p99"), (_NICE, f"the same with ResNet-50 at nice {_NICE}")):
            for each in kinds if not options.without_neighbour else ():
                p99s = neighbour_p99_ms(scratch / f"{each.name}-nice{nice}", rounds, small_requests, nice, each)
                add(case, P99_MS, each, p99s, 3.0)
    console.print(verdict_table(verdicts))
    if len(kinds) > 1:
        comparison.print(console)


if __name__ == "__main__":
    end_on_sigterm()
    main()
