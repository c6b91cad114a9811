"""The results of a run as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.results import Run, Verdict, Window, medians

_NUMBERS = ("req/s", "rows/s", "p50 ms", "p95 ms", "p99 ms", "CPU us/req", "server cores", "client CPU", "others", "RSS MiB", "errors")


def print_report(run: Run, console: Console) -> None:
    """Prints the machine, one table for each model, and the verdicts."""
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in run.machine.items()))
    cells = medians(run.windows)
    for model in dict.fromkeys(each.model for each in cells):
        console.print(cells_table(model, [each for each in cells if each.model == model]))
    console.print(verdict_table(run.verdicts))


def cells_table(model: str, cells: Sequence[Window]) -> Table:
    """Every cell of one model, medians over the repeats."""
    table = Table(title=f"{model} (medians over the repeats)", title_justify="left")
    for heading in ("target", "protocol", "load"):
        table.add_column(heading, no_wrap=True)
    for heading in _NUMBERS:
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(
            cell.target,
            cell.protocol,
            load_name(cell),
            f"{cell.requests_per_s:,.0f}" if cell.requests_per_s >= 100 else f"{cell.requests_per_s:.1f}",
            f"{cell.rows_per_s:,.0f}" if cell.rows_per_s >= 100 else f"{cell.rows_per_s:.1f}",
            *(f"{each:.3f}" if each < 10 else f"{each:.1f}" for each in (cell.p50_ms, cell.p95_ms, cell.p99_ms)),
            f"{cell.server_cpu_us:,.0f}" if cell.server_cpu_us >= 10 else f"{cell.server_cpu_us:.1f}",
            f"{cell.server_cpu_share:.2f}",
            f"{cell.client_cpu_share:.0%}" if cell.protocol != "in-process" else "",
            f"{cell.foreign_cores:.2f}",
            f"{cell.server_rss_mib:.0f}" if cell.server_rss_mib else "",
            str(cell.errors),
        )
    return table


def load_name(cell: Window) -> str:
    """The load of a cell as a word."""
    if cell.protocol == "in-process":
        return f"batch {cell.rows}"
    return f"c={cell.concurrency}" if cell.load == "closed" else f"open {cell.load_factor:g} ({cell.offered_per_s:,.0f}/s)"


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Each floor with its measurement. Comparisons without a floor have no verdict; figures of a busy machine are `unclear`."""
    table = Table(title="verdict", title_justify="left")
    for heading in ("floor", "measured", "bound", "verdict", "rounds"):
        table.add_column(heading, justify="right" if heading in ("measured", "bound") else "left")
    for each in verdicts:
        word = _word(each)
        bound = f"{'>=' if each.at_least else '<='} {each.limit:g} {each.unit}" if each.is_floor else ""
        table.add_row(each.floor, f"{each.measured:.2f} {each.unit}", bound, word, each.evidence)
    return table


def _word(verdict: Verdict) -> str:
    if not verdict.is_floor:
        return "[dim]-[/]"
    if not verdict.is_clear:
        return f"[yellow]unclear[/]: others used {verdict.foreign_cores:.1f} cores"
    return "[green]pass[/]" if verdict.passed else "[red]miss[/]"
