"""`python -m benchmarks.fronts --peers`: this checkout, and further commands, beside Triton in one run.

    triton, stoker, --command NAME=WORDS ... --compare_windows--> Comparison --peer_table--> ratios against the targets of the cases

All servers run at the same time on the same core, with the same models and the same onnxruntime.
"""

import argparse
import shlex
from collections.abc import Sequence

from rich.table import Table

from benchmarks.comparison import Comparison
from benchmarks.front_cases import Case
from benchmarks.servers import Command, Contender, this_checkout
from benchmarks.triton import add_triton_options, triton_contender


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `peer_contenders` reads."""
    parser.add_argument("--peers", action="store_true", help="compare with Triton in the same run")
    add_triton_options(parser)
    parser.add_argument(
        "--command", action="append", default=[], type=_command, metavar="NAME=WORDS", dest="commands",
        help="--peers: a further server, such as an installed wheel: a command that serves {repository} on {grpc_port} and {http_port}",
    )  # fmt: skip


def peer_contenders(options: argparse.Namespace) -> tuple[Contender, ...]:
    """Triton, this checkout and the further commands.

    Raises:
        TritonMissing: Triton cannot run here.
    """
    return (triton_contender(options.triton, options.onnxruntime_include), this_checkout(), *options.commands)


def peer_table(comparison: Comparison, cases: Sequence[Case]) -> Table:
    """Each case's figure, its median for each server, and the ratios of the medians to the baseline with their spread and verdict."""
    table = Table(title=f"over {comparison.baseline}, medians", title_justify="left")
    for heading in ("case", "figure", comparison.baseline, "target"):
        table.add_column(heading, justify="left" if heading in ("case", "figure") else "right", no_wrap=True)
    for name in comparison.measured:
        for heading in (name, "ratio"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("10-90 % of pairs", no_wrap=True)
    table.add_column("others", justify="right", no_wrap=True)
    for case in cases:
        figure, target = case.peer_figure, case.most_of_peer
        cells = []
        for name in comparison.measured:
            ratio = comparison.ratios(case.name, figure, name)[1]
            verdict = "" if target is None else " [green]pass[/]" if ratio <= target else " [red]miss[/]"
            spread = comparison.spread(case.name, figure, name)
            cells += [f"{comparison.median(case.name, figure, name):.{figure.digits}f}", f"[bold]{ratio:.2f}[/]", f"({spread}){verdict}"]
        baseline = comparison.median(case.name, figure, comparison.baseline)
        table.add_row(
            case.name,
            figure.name,
            f"{baseline:.{figure.digits}f}",
            "" if target is None else f"<= {target:.2f}",
            *cells,
            comparison.others(case.name),
        )
    return table


def _command(text: str) -> Command:
    name, separator, words = text.partition("=")
    if not separator or not name or not words:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=WORDS")
    return Command(name, tuple(shlex.split(words)))
