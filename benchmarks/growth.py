"""How the cost of a request grows: `python -m benchmarks.growth`.

With the number of connections (1 to 1000, one call each at a time), of loaded models (1 to 200), and of rows in a request (1 to 128): each
measured with the native load generator, server and generator on one core each, and drawn into a PNG. `--baseline FOLDER`
measures another checkout in the same run.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.case_load import payload_of, run_case
from benchmarks.front_cases import Case
from benchmarks.models import BenchModel, build_repository
from benchmarks.process_tree import process_tree
from benchmarks.servers import Checkout, add_baseline_options, checkouts_of, stoker
from benchmarks.wire import GRPC, HTTP_BINARY

_CONNECTIONS = (1, 10, 100, 1000)
_MODELS = (1, 20, 100, 200)
_ROWS = (1, 8, 32, 128)
_REQUESTS = 20_000
_MIB = 2**20
_CALLS = Case(name="gRPC, c = 32", protocol=GRPC, connections=4, streams=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement of a series.

    Attributes:
        series: What grows, and over which protocol.
        at: How large it was.
        cpu_us: Server CPU time per request, microseconds.
        p99_ms: Of the latency.
        rss_mib: Resident memory after it.
        ready_s: From start to ready.
    """

    series: str
    at: int
    cpu_us: float
    p99_ms: float
    rss_mib: float
    ready_s: float


def points(scratch: Path, cores: Sequence[int], client_cores: Sequence[int], checkouts: Sequence[Checkout]) -> Iterator[Point]:
    """All points, one after the other; each of all checkouts before the next."""
    model = build_repository(scratch / "one", ("tiny",))["tiny"]

    def measured(series: str, at: int, repository: Path, model: BenchModel, case: Case) -> Iterator[Point]:
        for each in checkouts:
            named = f"{series}, {each.name}" if len(checkouts) > 1 else series
            yield _measure(named, at, repository, model, case, scratch, cores, client_cores, each)

    for protocol in (GRPC, HTTP_BINARY):
        for count in _CONNECTIONS:
            case = Case(name="", protocol=protocol, connections=count)
            yield from measured(f"connections, {protocol}", count, scratch / "one", model, case)
    for count in _MODELS:
        many = scratch / f"models{count}"
        for number in range(count):
            shutil.copytree(scratch / "one" / "tiny", many / f"tiny{number}")
            config = many / f"tiny{number}" / "config.pbtxt"
            config.write_text(config.read_text(encoding="utf-8").replace('"tiny"', f'"tiny{number}"'), encoding="utf-8")
        last = BenchModel(name=f"tiny{count - 1}", path=model.path, input_name=model.input_name, row=model.row)
        yield from measured("loaded models", count, many, last, _CALLS)
    wide = scratch / "wide"
    shutil.copytree(scratch / "one", wide)
    config = wide / "tiny" / "config.pbtxt"
    config.write_text(config.read_text(encoding="utf-8").replace("max_batch_size: 32", f"max_batch_size: {_ROWS[-1]}"), encoding="utf-8")
    for count in _ROWS:
        rows = BenchModel(name="tiny", path=model.path, input_name=model.input_name, row=np.repeat(model.row, count, axis=0))
        yield from measured("rows in a request", count, wide, rows, _CALLS)


def _measure(
    series: str,
    at: int,
    repository: Path,
    model: BenchModel,
    case: Case,
    scratch: Path,
    cores: Sequence[int],
    client_cores: Sequence[int],
    checkout: Checkout,
) -> Point:
    limits = ("--limit=http_connections=2000", "--limit=connections_per_address=2000")
    began = time.monotonic()
    with stoker(repository, scratch / "server", cores, limits, checkout=checkout) as target:
        ready_s = time.monotonic() - began
        payload = payload_of(case, model, scratch)
        run_case(case, payload, target, max(2000, case.in_flight), scratch, client_cores)
        window = run_case(case, payload, target, _REQUESTS, scratch, client_cores)
        rss_mib = process_tree(target.pid).rss_bytes() / _MIB
    shutil.rmtree(scratch / "server")
    return Point(series=series, at=at, cpu_us=window.server_cpu_us, p99_ms=window.latency.p99_ms, rss_mib=rss_mib, ready_s=ready_s)


def growth_table(found: Sequence[Point]) -> Table:
    """All points."""
    table = Table(title="how cost grows", title_justify="left")
    for heading in ("what grows", "to", "CPU us per request", "p99 ms", "RSS MiB", "start to ready, s"):
        table.add_column(heading, justify="left" if heading == "what grows" else "right")
    for each in found:
        table.add_row(each.series, str(each.at), f"{each.cpu_us:.0f}", f"{each.p99_ms:.2f}", f"{each.rss_mib:.0f}", f"{each.ready_s:.2f}")
    return table


def write_plot(found: Sequence[Point], path: Path) -> None:
    """Writes a PNG: one panel for what a request costs in each series, one for memory."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (cost, memory) = plt.subplots(1, 2, figsize=(14, 6), layout="constrained")
    for series in dict.fromkeys(each.series for each in found):
        line = [each for each in found if each.series == series]
        cost.plot([each.at for each in line], [each.cpu_us for each in line], marker="o", label=series)
        memory.plot([each.at for each in line], [each.rss_mib for each in line], marker="o", label=series)
    for axis, title in ((cost, "server CPU per request, us"), (memory, "resident memory, MiB")):
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_ylabel(title)
        axis.set_xlabel("connections, models or rows")
        axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for growth.png (default %(default)s)")
    add_baseline_options(parser)
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    console = Console(width=150)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for each in points(Path(folder), cores[:1], cores[1:2] or cores[:1], checkouts_of(options)):
            found.append(each)
            console.print(f"[dim]{each.series} {each.at}: {each.cpu_us:.0f} us")
    console.print(growth_table(found))
    options.output.mkdir(parents=True, exist_ok=True)
    write_plot(found, options.output / "growth.png")
    console.print(f"drawn in {options.output / 'growth.png'}")


if __name__ == "__main__":
    main()
