"""The growth of the cost of a request with connections, models and rows: `python -m benchmarks.growth`.

With the number of connections (1 to 1000, one call each at a time), of loaded models (1 to 200), and of rows in a request (1 to 128): each
measured with server and generator on one core each, and drawn into a PNG. With `--baseline FOLDER` another checkout is loaded in turn with
this one, and the table shows their ratios. `--quick` takes fewer points.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import CPU_US, P99_MS, READY_S, RSS_MIB, Comparison, add_baseline_options, compare_windows, contenders
from benchmarks.load import Generator, InFlight
from benchmarks.machine import describe_machine
from benchmarks.models import BenchModel, build_repository
from benchmarks.process_tree import process_tree
from benchmarks.processes import end_on_sigterm
from benchmarks.requests import GRPC, HTTP_BINARY, Request, request_of
from benchmarks.servers import Contender

_CONNECTIONS = (1, 10, 100, 1000)
_MODELS = (1, 20, 100, 200)
_ROWS = (1, 8, 32, 128)
_QUICK_CONNECTIONS, _QUICK_MODELS, _QUICK_ROWS = (1, 100), (1, 50), (1, 32)
_WARM_REQUESTS, _REQUESTS, _QUICK_REQUESTS = 2_000, 20_000, 5_000
#: For a comparison: windows of a point, requests of a window, and least requests of each connection.
_WINDOWS, _WINDOW_REQUESTS, _CONNECTION_REQUESTS = 25, 600, 5
_LIMITS = ("--limit=http_connections=2000", "--limit=connections_per_address=2000")
_MIB = 2**20
_CALLS = InFlight(4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement of a series.

    Attributes:
        series: The quantity that grows, and the protocol.
        at: The value of that quantity.
        cpu_us: Server CPU time per request, microseconds.
        p99_ms: 99th percentile of the latency, milliseconds.
        rss_mib: Resident memory after the load, MiB.
        ready_s: Time from start to ready, seconds.
    """

    series: str
    at: int
    cpu_us: float
    p99_ms: float
    rss_mib: float
    ready_s: float


class Load(NamedTuple):
    """The load of one point."""

    series: str
    at: int
    repository: Path
    request: Request
    in_flight: InFlight


def loads(scratch: Path, *, is_quick: bool) -> Iterator[Load]:
    """All points, one after the other."""
    connections, models, rows = (_QUICK_CONNECTIONS, _QUICK_MODELS, _QUICK_ROWS) if is_quick else (_CONNECTIONS, _MODELS, _ROWS)
    model = build_repository(scratch / "one", ("tiny",))["tiny"]
    for protocol in (GRPC, HTTP_BINARY):
        for count in connections:
            yield Load(f"connections, {protocol}", count, scratch / "one", request_of(model, protocol), InFlight(count))
    for count in models:
        many = scratch / f"models{count}"
        for number in range(count):
            shutil.copytree(scratch / "one" / "tiny", many / f"tiny{number}")
            config = many / f"tiny{number}" / "config.pbtxt"
            config.write_text(config.read_text(encoding="utf-8").replace('"tiny"', f'"tiny{number}"'), encoding="utf-8")
        last = BenchModel(name=f"tiny{count - 1}", path=model.path, input_name=model.input_name, row=model.row)
        yield Load("loaded models", count, many, request_of(last, GRPC), _CALLS)
    wide = scratch / "wide"
    shutil.copytree(scratch / "one", wide)
    config = wide / "tiny" / "config.pbtxt"
    config.write_text(config.read_text(encoding="utf-8").replace("max_batch_size: 32", f"max_batch_size: {_ROWS[-1]}"), encoding="utf-8")
    for count in rows:
        wider = BenchModel(name="tiny", path=model.path, input_name=model.input_name, row=np.repeat(model.row, count, axis=0))
        yield Load("rows in a request", count, wide, request_of(wider, GRPC), _CALLS)


def measure(
    load: Load, kinds: Sequence[Contender], generator: Generator, scratch: Path, cores: Sequence[int], requests: int, comparison: Comparison
) -> list[Point]:
    """Measures one point of each contender, and adds it to `comparison`."""
    cell, ready_s = f"{load.series} {load.at}", []
    with ExitStack() as running:
        servers = []
        for kind in kinds:
            began = time.monotonic()
            servers.append(running.enter_context(kind.server(load.repository, scratch / f"server-{kind.name}", cores, _LIMITS)))
            ready_s.append(time.monotonic() - began)
        if len(servers) == 1:
            generator.closed(servers[0], load.request, load.in_flight, max(_WARM_REQUESTS, load.in_flight.total))
            window = generator.closed(servers[0], load.request, load.in_flight, requests)
            comparison.add_window(cell, window)
        else:
            each = max(_WINDOW_REQUESTS, _CONNECTION_REQUESTS * load.in_flight.total)
            compare_windows(comparison, cell, generator, servers, load.request, load.in_flight, windows=_WINDOWS, requests=each)
        for server, seconds in zip(servers, ready_s, strict=True):
            comparison.add(cell, RSS_MIB, server.name, process_tree(server.pid).rss_bytes() / _MIB)
            comparison.add(cell, READY_S, server.name, seconds)
    for kind in kinds:
        shutil.rmtree(scratch / f"server-{kind.name}")

    def point(name: str) -> Point:
        series = load.series if len(kinds) == 1 else f"{load.series}, {name}"
        cpu_us, p99_ms, rss_mib, ready = (comparison.median(cell, figure, name) for figure in (CPU_US, P99_MS, RSS_MIB, READY_S))
        return Point(series=series, at=load.at, cpu_us=cpu_us, p99_ms=p99_ms, rss_mib=rss_mib, ready_s=ready)

    return [point(server.name) for server in servers]


def growth_table(found: Sequence[Point]) -> Table:
    """All points."""
    table = Table(title="how cost grows", title_justify="left")
    for heading in ("what grows", "to", "CPU us per request", "p99 ms", "RSS MiB", "start to ready, s"):
        table.add_column(heading, justify="left" if heading == "what grows" else "right")
    for each in found:
        table.add_row(each.series, str(each.at), f"{each.cpu_us:.0f}", f"{each.p99_ms:.2f}", f"{each.rss_mib:.0f}", f"{each.ready_s:.2f}")
    return table


def write_plot(found: Sequence[Point], path: Path) -> None:
    """Writes a PNG with one panel for the cost of a request in each series, and one for memory."""
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
    parser.add_argument("--quick", action="store_true", help="fewer points and requests: under three minutes")
    add_baseline_options(parser)
    options = parser.parse_args(arguments)
    kinds = contenders(options)
    cores = sorted(os.sched_getaffinity(0))
    console = Console(width=190)
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in describe_machine().items()))
    comparison = Comparison(kinds[0].name, kinds[-1].name)
    found: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        generator = Generator(scratch, cores[1:2] or cores[:1])
        requests = _QUICK_REQUESTS if options.quick else _REQUESTS
        for load in loads(scratch, is_quick=options.quick):
            found += (points := measure(load, kinds, generator, scratch, cores[:1], requests, comparison))
            console.print("".join(f"[dim]{each.series} {each.at}: {each.cpu_us:.0f} us  " for each in points))
    console.print(growth_table(found))
    if len(kinds) > 1:
        comparison.print(console)
    options.output.mkdir(parents=True, exist_ok=True)
    write_plot(found, options.output / "growth.png")
    console.print(f"drawn in {options.output / 'growth.png'}")


if __name__ == "__main__":
    end_on_sigterm()
    main()
