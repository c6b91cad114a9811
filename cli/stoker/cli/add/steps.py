"""`Steps`: the progress of `stoker add` on standard error: a moving line on a terminal, one line for each step elsewhere."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from stoker.cli.output import printable


class Steps:
    """Shows the current step, and on a terminal the completed ones."""

    def __init__(self, *, is_quiet: bool) -> None:
        """`is_quiet`: nothing is shown unless standard error is a terminal."""
        self._console = Console(stderr=True)
        self._is_quiet = is_quiet
        self._status: Status | None = None
        self._current = ""

    def step(self, text: str) -> None:
        """Shows the next step."""
        if self._status is not None:
            self._complete()
            self._current = printable(text)
            self._status.update(f"{self._current} ...")
        elif not self._is_quiet:
            sys.stderr.write(f"  {printable(text)}\n")

    def _complete(self) -> None:
        if self._current:
            self._console.print(f"✓ {self._current}", highlight=False, markup=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
            if kind is None:
                self._complete()
