"""Memory and start time of the server: `python -m benchmarks.footprint`.

Resident memory with one tiny model loaded, idle and after a million requests; the time from start to ready on the sample repository; and
the 99th percentile of a small model while a ResNet-50 takes all the CPU it can get. `--baseline FOLDER`
measures another checkout in the same run.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.case_load import payload_of, run_case, successes
from benchmarks.front_cases import Case
from benchmarks.machine import describe_machine
from benchmarks.models import CHECKOUT, BenchModel, build_repository
from benchmarks.process_tree import process_tree
from benchmarks.report import verdict_table
from benchmarks.results import Verdict
from benchmarks.servers import Checkout, Target, add_baseline_options, checkouts_of, stoker
from benchmarks.wire import GRPC

_MIB = 2**20
_CALLS = Case(name="gRPC, c = 32", protocol=GRPC, connections=4, streams=8)
_ALONE = Case(name="gRPC, c = 1", protocol=GRPC, connections=1)
_HEAVY = Case(name="gRPC, c = 4", protocol=GRPC, connections=1, streams=4)
_WARM_REQUESTS = 20_000
_NEIGHBOUR_REQUESTS = 3_000
#: Weighs a tenth of what threads of nice 0 weigh.
_NICE = 10


def start_times_s(scratch: Path, rounds: int, checkouts: Sequence[Checkout]) -> dict[str, list[float]]:
    """By checkout, seconds from starting `serve` on the sample repository until its ready file stands; the checkouts take turns.

    Modules are compiled by a start that does not count, as an installer does it: a checkout that may not write bytecode compiles some four
    hundred modules at every start, which takes 0.4 s.
    """
    found: dict[str, list[float]] = {each.name: [] for each in checkouts}
    for number in range(rounds + 1):
        for each in checkouts:
            folder = scratch / f"start-{each.name}-{number}"
            began = time.monotonic()
            with stoker(CHECKOUT / "model_repos", folder, (), bytecode=scratch / f"bytecode-{each.name}", checkout=each):
                found[each.name].append(time.monotonic() - began)
    return {name: times[1:] for name, times in found.items()}


def memory_mib(scratch: Path, requests: int, cores: Sequence[int], client_cores: Sequence[int], checkout: Checkout) -> tuple[float, float]:
    """Resident memory with `tiny` loaded: idle; and how much more it is after `requests` requests, counted from a warm-up.

    With modules compiled by `start_times_s`: what compiling them leaves behind is given back some seconds later.
    """
    model = build_repository(scratch / f"models-{checkout.name}", ("tiny",))["tiny"]
    bytecode = scratch / f"bytecode-{checkout.name}"
    with stoker(
        scratch / f"models-{checkout.name}", scratch / f"memory-{checkout.name}", cores, bytecode=bytecode, checkout=checkout
    ) as target:
        idle = process_tree(target.pid).rss_bytes()
        _send(target, model, _CALLS, _WARM_REQUESTS, scratch, client_cores)
        warm = process_tree(target.pid).rss_bytes()
        _send(target, model, _CALLS, requests, scratch, client_cores)
        return idle / _MIB, (process_tree(target.pid).rss_bytes() - warm) / _MIB


def neighbour_p99_ms(scratch: Path, rounds: int, nice: int, checkout: Checkout) -> list[float]:
    """99th percentiles of `mlp` called one at a time, while four requests for a ResNet-50 are always in work; all cores shared.

    `nice`: of the ResNet-50, by its config.pbtxt.
    """
    scratch.mkdir()
    models = build_repository(scratch / "both", ("mlp", "resnet50"))
    with (scratch / "both" / "resnet50" / "config.pbtxt").open("a", encoding="utf-8") as config:
        config.write(f'\nparameters {{ key: "nice" value {{ string_value: "{nice}" }} }}\n')
    found = []
    with stoker(scratch / "both", scratch / "neighbours", (), checkout=checkout) as target:
        done = threading.Event()
        heavy = threading.Thread(target=_keep_busy, args=(target, models["resnet50"], scratch, done))
        heavy.start()
        try:
            while successes(target, "resnet50") == 0 and heavy.is_alive():
                time.sleep(0.1)
            for _ in range(rounds):
                found.append(_send(target, models["mlp"], _ALONE, _NEIGHBOUR_REQUESTS, scratch, ()))
        finally:
            done.set()
            heavy.join()
    return found


def _keep_busy(target: Target, model: BenchModel, scratch: Path, done: threading.Event) -> None:
    folder = scratch / "heavy"
    folder.mkdir()
    while not done.is_set():
        _send(target, model, _HEAVY, 100, folder, ())


def _send(target: Target, model: BenchModel, case: Case, requests: int, scratch: Path, cores: Sequence[int]) -> float:
    """Sends `requests`; returns the 99th percentile of their latency, milliseconds."""
    return run_case(case, payload_of(case, model, scratch), target, requests, scratch, cores).latency.p99_ms


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="after which memory is read again (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="starts, and windows beside the ResNet-50 (default %(default)s)")
    parser.add_argument("--without-neighbour", action="store_true", help="leave out the small model beside the ResNet-50")
    add_baseline_options(parser)
    options = parser.parse_args(arguments)
    checkouts = checkouts_of(options)
    cores = sorted(os.sched_getaffinity(0))
    console = Console(width=150)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        starts = start_times_s(scratch, options.rounds, checkouts)
        for each in checkouts:
            of = f", {each.name}" if len(checkouts) > 1 else ""
            idle_mib, growth_mib = memory_mib(scratch, options.requests, cores[:1], cores[1:2] or cores[:1], each)
            verdicts += [
                Verdict.of_rounds(f"start to ready, sample repository{of}", starts[each.name], 1.0, "s"),
                Verdict.of_rounds(f"memory with tiny loaded, idle{of}", [idle_mib], 90, "MiB"),
                Verdict.of_rounds(f"memory gained by {options.requests:,} requests{of}", [growth_mib], 5, "MiB"),
            ]
        for nice, case in ((0, "a small model beside ResNet-50 at full load, p99"), (_NICE, f"the same with ResNet-50 at nice {_NICE}")):
            for each in checkouts if not options.without_neighbour else ():
                of = f", {each.name}" if len(checkouts) > 1 else ""
                p99s = neighbour_p99_ms(scratch / f"{each.name}-nice{nice}", options.rounds, nice, each)
                verdicts.append(Verdict.of_rounds(f"{case}{of}", p99s, 3.0, "ms"))
    console.print(verdict_table(verdicts))


if __name__ == "__main__":
    main()
