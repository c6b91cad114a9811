"""Flags whole in a narrow help: typer's tables cut or break what is wider than its column, and some flags' names and values are."""

from typing import Any

import rich.columns
import typer.rich_utils
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

#: What the text about a flag needs, in characters; where names leave less, they are broken rather than the text.
_TEXT_WIDTH = 16


class FoldingTable(Table):
    """A table that keeps the words of its first columns whole where there is room, and breaks what is too long instead of cutting it."""

    def add_row(self, *args: Any, **kwargs: Any) -> None:
        super().add_row(*args, **kwargs)
        for column in self.columns:
            column.overflow = "fold"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max((console.measure(cell).maximum for cell in column.cells), default=0) for column in self.columns]
        # Columns for what no flag here has, such as a short name, would take two characters each.
        self.columns = [column for column, width in zip(self.columns, widths, strict=True) if width]
        *names, _ = self.columns
        has_room = sum(widths[:-1]) + self._extra_width + _TEXT_WIDTH <= options.max_width
        for column in names:
            column.no_wrap = has_room
        return super().__rich_console__(console, options)


def fold_help() -> None:
    """Makes the help of this process come in such tables; typer has no setting for it. For a process that ends with its help."""
    for module in (typer.rich_utils, rich.columns):
        vars(module)["Table"] = FoldingTable
