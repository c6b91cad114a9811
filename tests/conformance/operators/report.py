"""The tables of `scripts/conformance`."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.conformance.operators.running import DEFECTS, Outcome, Result

#: Cases named for each reason unless all are wanted.
_NAMED = 3


def print_report(outcomes: Sequence[Outcome], console: Console, *, is_verbose: bool = False) -> None:
    """Prints counts by part and target, each defect, and the refusals by reason."""
    console.print(_counts(outcomes))
    _print_groups(outcomes, [Result.RUNTIME], console, is_verbose=True)
    _print_groups(outcomes, [Result.REFUSED], console, is_verbose=is_verbose)
    _print_groups(outcomes, DEFECTS, console, is_verbose=True)


def _counts(outcomes: Sequence[Outcome]) -> Table:
    table = Table("part", "target", *(each.value for each in Result))
    counts = Counter((each.part, each.target, each.result) for each in outcomes)
    for part, target in dict.fromkeys((each.part, each.target) for each in outcomes):
        table.add_row(part, target, *(str(counts[part, target, each]) for each in Result))
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def _print_groups(outcomes: Sequence[Outcome], results: Sequence[Result], console: Console, *, is_verbose: bool) -> None:
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in outcomes:
        if each.result in results:
            groups[each.result.value, each.target, without_names(each.reason)].append(f"{each.case}@{each.opset}")
    if not groups:
        return
    table = Table("result", "target", "count", "reason", "cases", show_lines=True)
    for (result, target, reason), cases in sorted(groups.items(), key=lambda group: (group[0][:2], -len(group[1]))):
        named = cases if is_verbose else cases[:_NAMED]
        more = "" if len(named) == len(cases) else f", and {len(cases) - len(named)} more"
        table.add_row(result, target, str(len(cases)), Text(reason), Text(", ".join(named) + more))
    console.print(table)


def without_names(reason: str) -> str:
    """Returns the text with its names and numbers replaced, so that equal reasons become one group."""
    text = re.sub(r"'[^']*'", "'..'", reason.removeprefix("stoker compile: error: "))
    return re.sub(r"\d+", "#", text)
