"""The cost of a request from the bytes of a read to the bytes of a write, in one process: `python -m benchmarks.connection_cost`.

    python -m benchmarks.connection_cost [--cases grpc http-json tfs-grpc] [--requests 1 4 8] [--seconds 2]

Connections of a real engine get their bytes from a transport without a socket. For gRPC, one connection reads all requests of a burst in
one read; for HTTP, each of as many connections reads one, in one turn of the loop. The figures are the CPU time of this thread for each
request in the best of many bursts, and contain neither system calls nor a client. `benchmarks.inner_way` and `benchmarks.decode_cost`
measure the layers below. It runs with the pure and with the native build.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.in_process import Load, complete_burst, engine_of, load_of
from benchmarks.models import BenchModel, build_repository
from benchmarks.requests import PROTOCOLS, UNARY_PROTOCOLS
from stoker.server.core.build_kind import BUILD

#: Requests of one timed burst, and requests before the clock starts: after these, `execution: auto` has decided.
_BURST_REQUESTS: Final = 240
_WARM_REQUESTS: Final = 1000


@dataclass(frozen=True, slots=True)
class ConnectionCost:
    """Microseconds for a request of one case, in bursts of `requests`."""

    case: str
    requests: int
    us: float


async def measure(model: BenchModel, repository: Path, cases: Sequence[str], sizes: Sequence[int], seconds: float) -> list[ConnectionCost]:
    """Serves `model` from `repository`, and times bursts of each of `sizes` for `seconds`.

    Raises:
        RuntimeError: the model does not load, or a request fails.
    """
    found = []
    async with engine_of(repository) as engine:
        for case in cases:
            for requests in sizes:
                load = load_of(engine, model, case, requests)
                for _ in range(-(-_WARM_REQUESTS // requests)):
                    load.prepare()
                    await complete_burst(load, requests)
                found.append(ConnectionCost(case, requests, await _best_us(load, requests, seconds)))
    return found


async def _best_us(load: Load, requests: int, seconds: float) -> float:
    bursts = -(-_BURST_REQUESTS // requests)
    best_ns = float("inf")
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        spent_ns = 0
        for _ in range(bursts):
            load.prepare()
            begun_ns = time.thread_time_ns()
            await complete_burst(load, requests)
            spent_ns += time.thread_time_ns() - begun_ns
        best_ns = min(best_ns, spent_ns / (bursts * requests))
    return best_ns / 1e3


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=UNARY_PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 4, 8], metavar="N", help="requests of a burst")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    options = parser.parse_args()
    print(f"{BUILD} build\n{'case':12} {'requests':>8} {'us':>8}")
    with tempfile.TemporaryDirectory() as folder:
        [model] = build_repository(Path(folder), ("tiny",)).values()
        for each in uvloop.run(measure(model, Path(folder), options.cases, options.requests, options.seconds)):
            print(f"{each.case:12} {each.requests:8} {each.us:8.2f}")


if __name__ == "__main__":
    main()
