"""The tables of docs/ipu.md that state how far the cost model is from published figures: made from the model, between two marks."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.ipu_modelled import ModelledRow, aimed_errors
from benchmarks.ipu_published import Group

PAGE = Path(__file__).parent.parent / "docs" / "ipu.md"
BEGIN, END = "<!-- ipu_model: begin -->", "<!-- ipu_model: end -->"


def tables(groups: Mapping[Group, Sequence[ModelledRow]]) -> str:
    """Returns the tables in Markdown: the errors of each group, then every row outside the fit."""
    lines = ["| rows | figures | median error | largest error | memory not as published |", "|---|---:|---:|---:|---|"]
    for group, rows in groups.items():
        errors = aimed_errors(rows)
        wrong = ", ".join(each.row.label for each in rows if not each.is_memory_right and not each.row.is_anomaly)
        figures = f"{statistics.median(errors):.1%} | {max(errors):.1%}" if errors else "|"
        lines.append(f"| {group.value} | {len(errors)} | {figures} | {wrong or 'none'} |")
    lines += ["", "| row | set | published/s | modelled/s | error | memory |", "|---|---|---:|---:|---:|---|"]
    lines += [line for group, rows in groups.items() if group is not Group.FITTED for line in map(_line, rows)]
    return "\n".join(lines)


def write(groups: Mapping[Group, Sequence[ModelledRow]], page: Path = PAGE) -> None:
    """Replaces the tables between the marks of `page`.

    Raises:
        ValueError: the page has no marks.
    """
    before, found, rest = page.read_text().partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{page} has no lines {BEGIN} and {END} in this order")
    page.write_text(f"{before}{BEGIN}\n\n{tables(groups)}\n\n{END}{after}")


def written(page: Path = PAGE) -> str:
    """Returns the tables that stand in `page`."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def _line(each: ModelledRow) -> str:
    row = each.row
    published = "ran" if row.rows_per_s is None else f"{row.rows_per_s:,.0f}"
    error = "" if each.error is None else f"{each.error:+.1%}"
    return f"| {row.label} | {row.group.value} | {published} | {each.rows_per_s:,.0f} | {error} | {each.memory} |"
