"""Long words whole in a narrow help: typer's tables cut what is wider than its column, and some flags' names and values are."""

from typing import Any

import rich.columns
import typer.rich_utils
from rich.table import Table


class FoldingTable(Table):
    """A table that breaks a word at the end of its column instead of cutting it."""

    def add_row(self, *args: Any, **kwargs: Any) -> None:
        super().add_row(*args, **kwargs)
        for column in self.columns:
            column.overflow = "fold"


def fold_help() -> None:
    """Makes the help of this process come in such tables; typer has no setting for it. For a process that ends with its help."""
    for module in (typer.rich_utils, rich.columns):
        vars(module)["Table"] = FoldingTable
