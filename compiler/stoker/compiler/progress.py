"""Progress of long work: a bar on a terminal, one line a phase elsewhere, nothing where it was asked off."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console

_PIPE_WIDTH = 160

StepCallback = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what comes next; empty at the end)."""


class Progress:
    """Shows phases of work on a stream, stderr unless told otherwise.

    Args:
        is_shown: False shows nothing at all.
        stream: A terminal gets a bar; anything else one line when a phase ends.
        now_s: Monotonic time in seconds.
    """

    def __init__(self, *, is_shown: bool = True, stream: TextIO | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._is_shown = is_shown
        self._now_s = now_s

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[StepCallback]:
        """One phase; the block is given a function to report its steps with, and need not call it."""
        if not self._is_shown:
            yield _nothing
        elif self._stream.isatty():
            with self._bar(title) as report:
                yield report
        else:
            start_s = self._now_s()
            yield _nothing
            self._stream.write(f"{title}: {self._now_s() - start_s:.1f} s\n")
            self._stream.flush()

    @contextlib.contextmanager
    def _bar(self, title: str) -> Iterator[StepCallback]:
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[step]}"),
        )
        with Bars(*columns, console=Console(file=self._stream)) as bars:
            task = bars.add_task(title, total=None, step="")

            def report(done: int, total: int, step: str) -> None:
                bars.update(task, completed=done, total=max(total, 1), step=step)

            yield report
            total = bars.tasks[0].total or 1
            bars.update(task, completed=total, total=total, step="")


def console_on(stream: TextIO) -> Console:
    """For tables; a pipe or file has room for wide ones. Shapes such as `[n, 3]` are no markup."""
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, markup=False, highlight=False)


def _nothing(_done: int, _total: int, _step: str) -> None:
    """Takes reports that are not shown."""
