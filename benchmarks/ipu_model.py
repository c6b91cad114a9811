"""How far the IPU's cost model is from published figures, row by row, and the fit of its constants.

    python -m benchmarks.ipu_model             # fitted and development rows: published, modelled, error; which rows fit into memory
    python -m benchmarks.ipu_model --test-set  # the rows that were held back, too: they are evaluated once, never aimed at
    python -m benchmarks.ipu_model --fit       # searches the fitted constants again and prints them; takes minutes

All modelled figures are simulated. The fit minimises the mean fourth power of log(modelled / published) over the fitted rows that are no
anomalies and the development rows, so that none is far off, by a pattern search over the constants that concern time; the memory constants
are set by hand, from which rows fit.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.ipu_held_out import held_out_rows
from benchmarks.ipu_published import Group, PublishedRow, fitted_rows
from stoker.backends.ipu.compile.constants import FITTED, CostConstants
from stoker.backends.ipu.compile.plan import GraphPlan, survey_graph
from stoker.backends.ipu.hardware import C600
from stoker.backends.ipu.program import StepKind
from stoker.backends.ipu.timing import lane_cycles

TIME_CONSTANTS = ("step_cycles", "block_cycles", "vector_cycles", "copy_cycles", "erf_passes")
_FIRST_RATIO, _LAST_RATIO = 1.3, 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledRow:
    """A published row beside its model.

    Attributes:
        row: As published.
        rows_per_s: Modelled, whether it fits or not.
        tile_bytes: On the fullest tile.
        fits: Whether that is within the tile's memory.
    """

    row: PublishedRow
    rows_per_s: float
    tile_bytes: int
    fits: bool

    @property
    def error(self) -> float | None:
        """Modelled over published, less 1; None where nothing was published."""
        return None if self.row.rows_per_s is None else self.rows_per_s / self.row.rows_per_s - 1

    @property
    def is_memory_right(self) -> bool:
        """Whether it fits if and only if it did."""
        return self.fits == self.row.is_known_to_fit


def published_rows(*groups: Group) -> Iterator[PublishedRow]:
    """The rows of the groups, in the order of the tables."""
    yield from (row for row in (*fitted_rows(), *held_out_rows()) if row.group in groups)


def modelled(row: PublishedRow, graph: ir.Model, constants: CostConstants = FITTED) -> ModelledRow:
    """The model of one row; `graph` is that row's network, so that a fit builds it once."""
    plan = survey_graph(graph, hardware=C600, options=row.options, name=row.label, constants=constants)
    tile_bytes = max(plan.memory[0].tile_bytes)
    return ModelledRow(
        row=row, rows_per_s=row.batch / _seconds(row, plan), tile_bytes=tile_bytes, fits=tile_bytes <= plan.memory[0].capacity_bytes
    )


def _seconds(row: PublishedRow, plan: GraphPlan) -> float:
    """Returns the time of a micro-batch: between two of a busy device, or of a call where one client waits for it."""
    steps = plan.steps
    if row.is_synthetic:
        steps = tuple(step for step in steps if step.kind not in (StepKind.HOST_READ, StepKind.HOST_WRITE))
    lanes = lane_cycles(steps, is_io_overlapped=row.options.num_io_tiles > 0, is_pipelined=False)
    return (sum(lanes) if row.is_latency else max(lanes)) / C600.clock_hz


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="search the constants that concern time, and print them")
    parser.add_argument("--test-set", action="store_true", help="show the rows that were held back, too")
    chosen = parser.parse_args(arguments)
    console = Console(width=130)
    constants = FITTED
    if chosen.fit:
        aimed_at = [(row, row.build()) for row in published_rows(Group.FITTED, Group.DEVELOPMENT)]
        constants = fit(aimed_at, console)
        console.print(constants)
    for group in (Group.FITTED, Group.DEVELOPMENT, Group.MEMORY, *((Group.TEST,) if chosen.test_set else ())):
        print_rows(group, [modelled(row, row.build(), constants) for row in published_rows(group)], console)


def fit(graphs: Sequence[tuple[PublishedRow, ir.Model]], console: Console, start: CostConstants = FITTED) -> CostConstants:
    """Searches the time constants: each in turn is raised and lowered by a ratio that shrinks when nothing helps any more."""
    aimed_at = [(row, graph) for row, graph in graphs if row.rows_per_s is not None and not row.is_anomaly]

    def loss(constants: CostConstants) -> float:
        ratios = [1 + (modelled(row, graph, constants).error or 0.0) for row, graph in aimed_at]
        return statistics.fmean(math.log(ratio) ** 4 for ratio in ratios)

    best, least, ratio = start, loss(start), _FIRST_RATIO
    while ratio > _LAST_RATIO:
        improved = False
        for name in TIME_CONSTANTS:
            for factor in (ratio, 1 / ratio):
                tried = replace(best, **{name: getattr(best, name) * factor})
                if (found := loss(tried)) < least:
                    best, least, improved = tried, found, True
                    break
        console.print(f"steps of {ratio:.3f}: error (fourth-power mean) {least**0.25:.1%}")
        ratio = ratio if improved else math.sqrt(ratio)
    return best


def print_rows(group: Group, rows: Sequence[ModelledRow], console: Console) -> None:
    """Every row of a group, then the figures that the target speaks of."""
    table = Table(title=f"C600, {group.value} rows: published and modelled (simulated)", title_justify="left")
    for heading in ("row", "published /s", "modelled /s", "error", "tile bytes", "memory", ""):
        table.add_column(heading, justify="left" if heading in ("row", "memory", "") else "right", no_wrap=True)
    for each in rows:
        error = each.error
        table.add_row(
            each.row.label,
            _published(each.row),
            f"{each.rows_per_s:,.0f}",
            "" if error is None else f"{error:+.1%}",
            f"{each.tile_bytes:,}",
            ("fits" if each.fits else "OOM") + ("" if each.is_memory_right else " (published otherwise)"),
            "anomaly" if each.row.is_anomaly else "",
        )
    console.print(table)
    errors = sorted(aimed_errors(rows))
    if errors:
        console.print(f"{group.value} rows: {len(errors)}, median |error| {statistics.median(errors):.1%}, largest {errors[-1]:.1%}")
    wrong = [each.row.label for each in rows if not each.is_memory_right and not each.row.is_anomaly]
    console.print(f"rows whose fit into memory is not as published: {', '.join(wrong) or 'none'}")
    anomalies = [each.row.label for each in rows if each.row.is_anomaly]
    if anomalies:
        console.print(f"anomalies, not aimed at: {', '.join(anomalies)}")
    console.print()


def _published(row: PublishedRow) -> str:
    if row.rows_per_s is not None:
        return f"{row.rows_per_s:,.0f}"
    return "ran" if row.is_known_to_fit else "OOM"


def aimed_errors(rows: Sequence[ModelledRow]) -> list[float]:
    """|error| of the rows that were published as a number and are no anomalies."""
    return [abs(each.error) for each in rows if each.error is not None and not each.row.is_anomaly]


if __name__ == "__main__":
    main()
