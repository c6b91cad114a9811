"""How far the IPU's cost model is from the published tables, cell by cell, and the fit of its constants.

    python -m benchmarks.ipu_model          # every cell: published, modelled, error; which batches fit
    python -m benchmarks.ipu_model --fit    # searches the fitted constants again and prints them; takes minutes

All modelled figures are simulated. The fit minimises the mean fourth power of log(modelled / published) over the cells that are no
anomalies, so that none is far off, by a pattern search over the constants that concern time; the memory constants are set by hand, from
which batches fit.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.ipu_published import PublishedRow, published_rows
from stoker.backends.ipu.compile.constants import FITTED, CostConstants
from stoker.backends.ipu.compile.plan import GraphPlan, survey_graph
from stoker.backends.ipu.hardware import C600
from stoker.backends.ipu.program import StepKind
from stoker.backends.ipu.timing import lane_cycles
from stoker.compiler.options import CompilerOptions

#: As ByteMLPerf ran ResNet-50 on a C600 with real data.
_REAL_DATA = CompilerOptions(num_io_tiles=64, stream_buffering_depth=2, batches_per_step=128)
_PLAIN = CompilerOptions()
TIME_CONSTANTS = ("step_cycles", "block_cycles", "vector_cycles", "copy_cycles", "erf_passes")
_FIRST_RATIO, _LAST_RATIO = 1.3, 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledRow:
    """A published cell beside its model.

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
        return self.fits == (self.row.rows_per_s is not None)


def modelled(row: PublishedRow, graph: ir.Model, constants: CostConstants = FITTED) -> ModelledRow:
    """The model of one cell; `graph` is that cell's network, so that a fit builds it once."""
    options = _REAL_DATA if row.variant == "real" else _PLAIN
    plan = survey_graph(graph, hardware=C600, options=options, name=row.label, constants=constants)
    tile_bytes = max(plan.memory[0].tile_bytes)
    return ModelledRow(
        row=row, rows_per_s=row.batch / _period_s(row, plan), tile_bytes=tile_bytes, fits=tile_bytes <= plan.memory[0].capacity_bytes
    )


def _period_s(row: PublishedRow, plan: GraphPlan) -> float:
    steps = plan.steps
    if row.variant == "synth":
        steps = tuple(step for step in steps if step.kind not in (StepKind.HOST_READ, StepKind.HOST_WRITE))
    return max(lane_cycles(steps, is_io_overlapped=row.variant == "real", is_pipelined=False)) / C600.clock_hz


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="search the constants that concern time, and print them")
    console = Console(width=110)
    graphs = [(row, row.graph()) for row in published_rows()]
    constants = FITTED
    if parser.parse_args(arguments).fit:
        constants = fit(graphs, console)
        console.print(constants)
    print_rows([modelled(row, graph, constants) for row, graph in graphs], console)


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


def print_rows(rows: Sequence[ModelledRow], console: Console) -> None:
    """Every cell, then the figures that the target speaks of."""
    table = Table(title="C600: published and modelled (simulated)", title_justify="left")
    for heading in ("cell", "published /s", "modelled /s", "error", "tile bytes", "memory", ""):
        table.add_column(heading, justify="left" if heading in ("cell", "memory", "") else "right", no_wrap=True)
    for each in rows:
        error = each.error
        table.add_row(
            each.row.label,
            "OOM" if each.row.rows_per_s is None else f"{each.row.rows_per_s:,}",
            f"{each.rows_per_s:,.0f}",
            "" if error is None else f"{error:+.1%}",
            f"{each.tile_bytes:,}",
            ("fits" if each.fits else "OOM") + ("" if each.is_memory_right else " (published otherwise)"),
            "anomaly" if each.row.is_anomaly else "",
        )
    console.print(table)
    errors = sorted(aimed_errors(rows))
    console.print(f"cells aimed at: {len(errors)}, median |error| {statistics.median(errors):.1%}, largest {errors[-1]:.1%}")
    wrong = [each.row.label for each in rows if not each.is_memory_right and not each.row.is_anomaly]
    console.print(f"cells whose fit into memory is not as published: {', '.join(wrong) or 'none'}")
    anomalies = [each.row.label for each in rows if each.row.is_anomaly]
    console.print(f"anomalies, not aimed at: {', '.join(anomalies)}")


def aimed_errors(rows: Sequence[ModelledRow]) -> list[float]:
    """|error| of the cells that were published as a number and are no anomalies."""
    return [abs(each.error) for each in rows if each.error is not None and not each.row.is_anomaly]


if __name__ == "__main__":
    main()
