"""The output of commands: tables on a terminal, aligned text in a pipe, JSON if requested; one line and an exit code for a failure."""

import enum
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any


class ExitCode(enum.IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    INTERRUPTED = 130


class CommandFailed(Exception):
    """Ends the command with one line and an exit code.

    Attributes:
        message: The line.
        exit_code: The exit code of the process.
    """

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


STATE_STYLES = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow", "UNAVAILABLE": "red", "yes": "green", "no": "red"}
#: Space between two columns of a table.
_GAP = 3


def print_json(value: Any) -> None:
    """Prints `value` as JSON; numbers without a JSON form become the strings `NaN`, `Infinity`, `-Infinity`."""
    sys.stdout.write(json.dumps(_sayable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_json_line(value: Any) -> None:
    """Prints `value` as `print_json`, but on one line, and at once."""
    sys.stdout.write(json.dumps(_sayable(value), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_line(text: str = "") -> None:
    """Prints one line of plain text."""
    sys.stdout.write(printable(text) + "\n")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: frozenset[str] = frozenset(),
    spare: Sequence[str] = (),
) -> None:
    """Prints a table. On a terminal, states are coloured, and only the last column wraps, after all `spare` columns are left out.

    Args:
        columns: Headings.
        rows: Cells, the same number in each row.
        numeric: Columns to align to the right.
        spare: Columns to leave out, in this order, on a narrow terminal; a line below the table lists them.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells, numeric, spare)
        return
    widths = [max(len(column), *(len(row[at]) for row in cells)) if cells else len(column) for at, column in enumerate(columns)]
    for row in [[column.upper() for column in columns], *cells]:
        aligned = [
            cell.rjust(width) if column in numeric else cell.ljust(width) for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        print_line("  ".join(aligned).rstrip())


def _sayable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sayable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: frozenset[str], spare: Sequence[str]) -> None:
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    widths = {
        column: max(len(column), *(cell_len(row[at]) for row in cells)) if cells else len(column) for at, column in enumerate(columns)
    }
    dropped: list[str] = []
    while _table_width(widths, dropped) > console.width and len(dropped) < len(spare):
        dropped.append(spare[len(dropped)])
    last = [column for column in columns if column not in dropped][-1]
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for column in columns:
        if column not in dropped:
            table.add_column(
                column, justify="right" if column in numeric else "left", overflow="fold", no_wrap=bool(spare) or column != last
            )
    for row in cells:
        shown = [cell for cell, column in zip(row, columns, strict=True) if column not in dropped]
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in shown))
    # The table may be wider than the terminal: a name wrapped by the terminal is complete, a cut one is not.
    console.width = max(console.width, _table_width(widths if spare else {**widths, last: len(last)}, dropped))
    console.print(table)
    if dropped:
        print_line(f"left out for want of width: {', '.join(dropped)} (see --json)")


def _table_width(widths: Mapping[str, int], dropped: Sequence[str]) -> int:
    shown = [width for column, width in widths.items() if column not in dropped]
    return sum(shown) + _GAP * (len(shown) - 1)


def printable(text: str) -> str:
    """Escapes control characters, so that text from a server cannot control the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
