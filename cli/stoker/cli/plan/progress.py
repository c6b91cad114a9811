"""`Progress`: the progress of a plan on standard error, on a terminal only."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """A bar with the current step. It disappears at the end."""

    def __init__(self, steps: int) -> None:
        """Prepares a bar of `steps` steps."""
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._steps = steps
        self._task = self._bar.add_task("", total=steps)

    def step(self, text: str, steps: int = 1) -> None:
        """Shows `text`, and counts `steps` steps that this one completes once it is over."""
        self._bar.update(self._task, description=text, advance=steps)

    def more(self, steps: int) -> None:
        """Adds steps."""
        self._steps += steps
        self._bar.update(self._task, total=self._steps)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
