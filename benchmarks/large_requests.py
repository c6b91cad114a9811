"""ResNet-50 under a native load generator: `python -m benchmarks.large_requests`.

The generator of `python -m benchmarks` is Python, and beside a model that takes all cores its own work counts: this one's does not.
Raw onnxruntime, gRPC and HTTP binary take turns, round after round, on all cores: the latency of one image at a time, and images a second
with 32 in flight beside raw onnxruntime's best batch.
"""

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.case_load import payload_of, run_case
from benchmarks.front_cases import Case
from benchmarks.machine import describe_machine
from benchmarks.measure import RawEngine
from benchmarks.models import build_repository
from benchmarks.report import verdict_table
from benchmarks.results import Verdict
from benchmarks.servers import stoker
from benchmarks.wire import GRPC, HTTP_BINARY

_MODEL = "resnet50"
_RAW_BATCHES = (8, 16, 32)
_ALONE = {GRPC: Case(name="", protocol=GRPC, connections=1), HTTP_BINARY: Case(name="", protocol=HTTP_BINARY, connections=1)}
_MANY = {GRPC: Case(name="", protocol=GRPC, connections=4, streams=8), HTTP_BINARY: Case(name="", protocol=HTTP_BINARY, connections=32)}


def measure(scratch: Path, rounds: int, seconds: float, console: Console) -> dict[str, list[float]]:
    """By figure, one value for each round: milliseconds above raw onnxruntime, and rows a second over its best."""
    found: dict[str, list[float]] = defaultdict(list)
    cores = sorted(os.sched_getaffinity(0))
    model = build_repository(scratch / "models", (_MODEL,))[_MODEL]
    raw = RawEngine(scratch, len(cores), cores)
    try:
        with stoker(scratch / "models", scratch / "server", ()) as target:

            def load(case: Case, requests: int) -> tuple[float, float]:
                window = run_case(case, payload_of(case, model, scratch), target, requests, scratch, ())
                return window.latency.p50_ms, window.requests_per_s

            for case in (*_ALONE.values(), *_MANY.values()):
                load(case, 64)
            for number in range(rounds):
                alone_ms = raw.measure(model, 1, seconds, number).p50_ms
                best = max(raw.measure(model, batch, seconds, number).rows_per_s for batch in _RAW_BATCHES)
                for protocol in (GRPC, HTTP_BINARY):
                    found[f"{protocol}: ms above raw, one at a time"].append(load(_ALONE[protocol], round(best * seconds))[0] - alone_ms)
                    found[f"{protocol}: rows/s over raw's best"].append(load(_MANY[protocol], round(best * seconds * 2))[1] / best)
                console.print(f"[dim]round {number + 1}: raw {alone_ms:.2f} ms alone, {best:.1f} rows/s at best[/]")
    finally:
        raw.close()
    return found


def judge(found: dict[str, list[float]]) -> list[Verdict]:
    """Each figure's median held against its bound: 1.5 ms, and 0.95."""
    return [
        Verdict.of_rounds(name, values, 0.95, "x", at_least=True) if "rows/s" in name else Verdict.of_rounds(name, values, 1.5, "ms")
        for name, values in found.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window, about (default %(default)s)")
    options = parser.parse_args(arguments)
    console = Console(width=150)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.rounds, options.seconds, console)
    console.print(verdict_table(judge(found)))


if __name__ == "__main__":
    main()
