"""Loads several servers in turn, so that a change of the machine's speed affects all, and prints their ratios to the first in each cell.

    contenders --server--> servers --compare_windows--> Comparison --> table of ratios

A window is short (some 600 requests) and there are many: on a machine with other load the best window and the median are then both steady,
and their ratios agree. The spread shows where they do not.
"""

import argparse
import os
import shlex
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.load import Generator, InFlight
from benchmarks.machine import CpuReading
from benchmarks.requests import Request
from benchmarks.results import QUIET_CORES, Window
from benchmarks.servers import Command, Contender, ServerUnderTest, other_checkout, this_checkout


class Figure(NamedTuple):
    """A measured figure.

    Attributes:
        name: The name with its unit.
        digits: Digits after the point.
        more_is_better: True for rates, False for costs.
    """

    name: str
    digits: int
    more_is_better: bool = False


CPU_US, P50_MS, P99_MS, RATE = Figure("CPU us", 1), Figure("p50 ms", 3), Figure("p99 ms", 3), Figure("req/s", 0, True)
RSS_MIB, READY_S = Figure("RSS MiB", 1), Figure("start s", 3)


class Comparison:
    """The figures of a baseline and of measured servers, by cell. Values with the same index were measured next to each other.

    Attributes:
        baseline: Name of the contender that the others are compared with.
        measured: Names of the others.
    """

    def __init__(self, baseline: str, *measured: str) -> None:
        self.baseline = baseline
        self.measured = measured
        self._values: dict[tuple[str, Figure], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._foreign: dict[str, list[float]] = defaultdict(list)

    def add(self, cell: str, figure: Figure, name: str, value: float) -> None:
        """Adds a value of the contender `name`."""
        self._values[cell, figure][name].append(value)

    def add_window(self, cell: str, window: Window) -> None:
        """Adds the usual figures of one window."""
        values = ((CPU_US, window.server_cpu_us), (P50_MS, window.p50_ms), (P99_MS, window.p99_ms), (RATE, window.requests_per_s))
        for figure, value in values:
            self.add(cell, figure, window.target, value)

    def add_load(self, cell: str, foreign_cores: float) -> None:
        """Adds the cores that other processes used while the cell was measured."""
        self._foreign[cell].append(foreign_cores)

    def median(self, cell: str, figure: Figure, name: str) -> float:
        """The median of a contender's values."""
        return statistics.median(self._values[cell, figure][name])

    def ratios(self, cell: str, figure: Figure, measured: str) -> tuple[float, float]:
        """The best value of `measured` over the baseline's, and the same of the medians."""
        old, new = (self._values[cell, figure][name] for name in (self.baseline, measured))
        best = max if figure.more_is_better else min
        return _ratio(best(new), best(old)), _ratio(statistics.median(new), statistics.median(old))

    def spread(self, cell: str, figure: Figure, measured: str) -> str:
        """The range that contains 80 % of the ratios of neighbouring windows; empty for a single pair."""
        by_name = self._values[cell, figure]
        ratios = sorted(_ratio(after, before) for before, after in zip(by_name[self.baseline], by_name[measured], strict=True))
        if len(ratios) < 2:
            return ""
        tenths = statistics.quantiles(ratios, n=10, method="inclusive")
        return f"{tenths[0]:.2f}-{tenths[-1]:.2f}"

    def others(self, cell: str) -> str:
        """The cores that other processes used, on average; empty if they were not measured."""
        return f"{statistics.fmean(self._foreign[cell]):.2f}" if cell in self._foreign else ""

    def table(self, measured: str) -> Table:
        """The table of all cells of `measured`; a ratio below 1 means a lower cost, or a lower rate."""
        baseline = self.baseline
        table = Table(title=f"{measured} / {baseline}, in turn", title_justify="left")
        table.add_column("case", no_wrap=True)
        table.add_column("figure", no_wrap=True)
        for heading in (
            f"{baseline} best", "median", f"{measured} best", "median", "ratio of best", "of medians", "10-90 % of pairs", "n", "others",
        ):  # fmt: skip
            table.add_column(heading, justify="right", no_wrap=True)
        shown = ""
        for (cell, figure), by_name in self._values.items():
            old, new = by_name[baseline], by_name[measured]
            best = max if figure.more_is_better else min
            values = (f"{each:,.{figure.digits}f}" for side in (old, new) for each in (best(side), statistics.median(side)))
            best_ratio, median_ratio = self.ratios(cell, figure, measured)
            foreign = self.others(cell) if cell != shown else ""
            table.add_row(
                cell if cell != shown else "", figure.name, *values, f"{best_ratio:.3f}", f"[bold]{median_ratio:.3f}[/]",
                self.spread(cell, figure, measured), str(len(new)), foreign,
            )  # fmt: skip
            shown = cell
        return table

    def print(self, console: Console) -> None:
        """Prints a table for each measured server, and a warning if the machine was busy."""
        for measured in self.measured:
            console.print(self.table(measured))
        self.print_load(console)

    def print_load(self, console: Console) -> None:
        """Prints a warning if the machine was busy."""
        console.print("[dim]others: cores that other processes of the machine used; a ratio matters if it is outside of its spread[/]")
        busy = {cell: cores for cell, each in self._foreign.items() if (cores := statistics.fmean(each)) > QUIET_CORES}
        if busy:
            worst = max(busy, key=lambda cell: busy[cell])
            console.print(
                f"[yellow]warning: the machine was busy in {len(busy)} of {len(self._foreign)} cases (others used up to"
                f" {busy[worst]:.2f} cores, in '{worst}'): compare CPU time only, and repeat on a quiet machine[/]"
            )


def compare_windows(
    comparison: Comparison,
    cell: str,
    generator: Generator,
    servers: Sequence[ServerUnderTest],
    request: Request,
    in_flight: InFlight,
    *,
    windows: int,
    requests: int,
) -> None:
    """Loads `servers` in turn, in both orders, in `windows` windows of `requests` requests each; the first window of each is a warm-up.

    Raises:
        WrongResponse: Requests failed.
        NativeLoadFailed: The generator failed.
    """
    for server in servers:
        generator.closed(server, request, in_flight, requests)
    pids = [server.pid for server in servers]
    before = CpuReading.of(*pids)
    for number in range(windows):
        for server in servers if number % 2 == 0 else reversed(servers):
            comparison.add_window(cell, generator.closed(server, request, in_flight, requests))
    comparison.add_load(cell, CpuReading.of(*pids).foreign_cores_since(before))


def add_baseline_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `contenders` reads."""
    parser.add_argument(
        "--baseline", type=_checkout, metavar="FOLDER", help="another checkout, measured in the same run and compared with this one"
    )
    parser.add_argument(
        "--baseline-python", type=_program, metavar="FILE", help="its interpreter (default: that of its .venv, or this one)"
    )
    parser.add_argument(
        "--baseline-command",
        metavar="WORDS",
        help="instead of --baseline: a command that serves {repository} on {grpc_port} and {http_port} over KServe's protocols",
    )


def contenders(options: argparse.Namespace) -> tuple[Contender, ...]:
    """This checkout, preceded by the baseline if there is one."""
    if options.baseline_command is not None:
        return (Command("baseline", tuple(shlex.split(options.baseline_command))), this_checkout())
    if options.baseline is not None:
        return (other_checkout("baseline", options.baseline, options.baseline_python), this_checkout())
    return (this_checkout(),)


def _checkout(text: str) -> Path:
    folder = Path(text)
    try:
        other_checkout("baseline", folder)
    except FileNotFoundError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return folder


def _program(text: str) -> Path:
    if not os.access(text, os.X_OK) or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no program '{text}'")
    return Path(text)


def _ratio(measured: float, baseline: float) -> float:
    return measured / baseline if baseline else float("nan")
