"""The cost model against published throughput, and what the documentation says of it."""

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ipu_model_docs import BEGIN, END, tables, write, written
from benchmarks.ipu_modelled import ModelledRow, aimed_errors, modelled, published_rows
from benchmarks.ipu_published import Group, PublishedRow
from stoker.backends.ipu.compile.constants import TIMING_ERROR

#: Of each line of the fitted tables the smallest batch, and those where memory runs out.
_SAMPLE = {"resnet50": (1, 32, 96), "bert": (1, 4, 32, 64)}


def sample() -> Iterator[PublishedRow]:
    for row in published_rows(Group.FITTED):
        if row.batch in _SAMPLE[row.network] and row.variant in ("real", "erf", "gelu"):
            yield row


@pytest.mark.slow
def test_cost_model_is_close_to_the_fitted_figures() -> None:
    rows: list[ModelledRow] = [modelled(row, row.build()) for row in sample()]
    errors = aimed_errors(rows)
    assert len(errors) >= 15
    assert statistics.median(errors) <= 0.10
    assert max(errors) <= 0.45
    assert [each.row.label for each in rows if each.row.is_known_to_fit and not each.fits] == []
    as_given = {each.row.label for each in rows if each.fits and not each.levers}
    assert not {"resnet50 real fp32 b32", "resnet50 real fp16 b96", "bert erf fp32 b4", "bert erf fp16 b32"} & as_given


@pytest.mark.slow
def test_error_bar_and_page_are_those_of_the_rows_that_were_held_back() -> None:
    rows = [modelled(row, row.build()) for row in published_rows(Group.TEST)]
    errors = aimed_errors(rows)
    assert len(errors) == TIMING_ERROR.rows
    assert statistics.median(errors) == pytest.approx(TIMING_ERROR.median, abs=0.005)
    assert max(errors) == pytest.approx(TIMING_ERROR.worst, abs=0.005)
    assert [each.row.label for each in rows if not each.fits] == []
    shown = set(written().splitlines())
    assert [line for line in tables({Group.TEST: rows}).splitlines() if line not in shown] == []


@pytest.mark.slow
def test_configurations_that_a_card_ran_fit() -> None:
    rows = [modelled(row, row.build()) for row in published_rows(Group.MEMORY)]
    assert len(rows) == 6
    assert [each.row.label for each in rows if not each.fits] == []


def test_page_has_a_line_for_every_row_outside_the_fit() -> None:
    named = re.findall(r"^\| ([^|]+) \| (development|test|memory only) \|", written(), re.MULTILINE)
    assert named == [(row.label, group.value) for group in (Group.DEVELOPMENT, Group.TEST, Group.MEMORY) for row in published_rows(group)]


def test_tables_replace_those_of_a_page_and_nothing_else(tmp_path: Path) -> None:
    row = next(row for row in published_rows(Group.DEVELOPMENT) if row.rows_per_s == 2600)
    groups = {Group.DEVELOPMENT: [ModelledRow(row=row, rows_per_s=2860.0, tile_bytes=1, fits=True)]}
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    write(groups, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| development | 1 | 10.0% | 10.0% | none |" in written(page)
    assert "| vit-b/16 poprt fp16 b8 | development | 2,600 | 2,860 | +10.0% | fits |" in written(page)
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines"):
        write(groups, page)
