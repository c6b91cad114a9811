"""How far the IPU's cost model is from published figures, row by row, and the fit of its constants.

    python -m benchmarks.ipu_model              # fitted and development rows: published, modelled, error; which rows fit into memory
    python -m benchmarks.ipu_model --test-set   # the rows that were held back, too: they are evaluated once, never aimed at
    python -m benchmarks.ipu_model --write-docs # all groups; replaces the tables of docs/ipu.md
    python -m benchmarks.ipu_model --fit        # searches the fitted constants again and prints them; takes half an hour

All modelled figures are simulated. The fit minimises the mean square of log(modelled / published) over the fitted rows that are no
anomalies and the development rows, which count twice, by a pattern search over the constants that concern time. Its minimum is flat: the
constants in the source are round values within it. The memory constants are set by hand, from which rows fit.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks import ipu_model_docs
from benchmarks.ipu_modelled import ModelledRow, aimed_errors, modelled, published_rows
from benchmarks.ipu_published import Group, PublishedRow
from stoker.backends.ipu.compile.constants import FITTED, CostConstants

TIME_CONSTANTS = ("step_cycles", "block_cycles", "vector_cycles", "copy_cycles", "erf_passes")
_FIRST_RATIO, _LAST_RATIO = 1.3, 1.02
_WEIGHT_OF = {Group.DEVELOPMENT: 2.0}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="search the constants that concern time, and print them")
    parser.add_argument("--test-set", action="store_true", help="show the rows that were held back, too")
    parser.add_argument("--write-docs", action="store_true", help="replace the tables of docs/ipu.md, those of the test set included")
    chosen = parser.parse_args(arguments)
    console = Console(width=130)
    constants = FITTED
    if chosen.fit:
        aimed_at = [(row, row.build()) for row in published_rows(Group.FITTED, Group.DEVELOPMENT)]
        constants = fit(aimed_at, console)
        console.print(constants)
    shown = (Group.FITTED, Group.DEVELOPMENT, *((Group.TEST,) if chosen.test_set or chosen.write_docs else ()), Group.MEMORY)
    groups = {group: [modelled(row, row.build(), constants) for row in published_rows(group)] for group in shown}
    for group, rows in groups.items():
        print_rows(group, rows, console)
    if chosen.write_docs:
        ipu_model_docs.write(groups)


def fit(graphs: Sequence[tuple[PublishedRow, ir.Model]], console: Console, start: CostConstants = FITTED) -> CostConstants:
    """Searches the time constants: each in turn is raised and lowered by a ratio that shrinks when nothing helps any more."""
    aimed_at = [(row, graph) for row, graph in graphs if row.rows_per_s is not None and not row.is_anomaly]

    def loss(constants: CostConstants) -> float:
        squares = [math.log(1 + (modelled(row, graph, constants).error or 0.0)) ** 2 for row, graph in aimed_at]
        return statistics.fmean(squares, weights=[_WEIGHT_OF.get(row.group, 1.0) for row, _ in aimed_at])

    best, least, ratio = start, loss(start), _FIRST_RATIO
    while ratio > _LAST_RATIO:
        improved = False
        for name in TIME_CONSTANTS:
            for factor in (ratio, 1 / ratio):
                tried = replace(best, **{name: getattr(best, name) * factor})
                if (found := loss(tried)) < least:
                    best, least, improved = tried, found, True
                    break
        console.print(f"steps of {ratio:.3f}: error (root of the mean square) {math.sqrt(least):.1%}")
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
            each.memory,
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


if __name__ == "__main__":
    main()
