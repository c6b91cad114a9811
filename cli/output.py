"""What commands print on stdout: tables on a terminal, aligned text in a pipe, JSON on request."""

import json
import sys
from collections.abc import Sequence
from typing import Any

STATE_STYLES = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow", "UNAVAILABLE": "red", "yes": "green", "no": "red"}


def print_json(value: Any) -> None:
    """Prints `value` as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_line(text: str = "") -> None:
    """Prints one line of plain text."""
    sys.stdout.write(printable(text) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: frozenset[str] = frozenset()) -> None:
    """Prints a table; the columns named in `numeric` are aligned to the right. Cells that name a state are coloured on a terminal."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells, numeric)
        return
    widths = [max(len(column), *(len(row[at]) for row in cells)) if cells else len(column) for at, column in enumerate(columns)]
    for row in [[column.upper() for column in columns], *cells]:
        aligned = [
            cell.rjust(width) if column in numeric else cell.ljust(width) for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        print_line("  ".join(aligned).rstrip())


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: frozenset[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    Console(file=sys.stdout).print(table)


def printable(text: str) -> str:
    """Control characters in a server's text must not steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
