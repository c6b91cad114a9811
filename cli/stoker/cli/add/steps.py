"""`Steps`: the progress of `stoker add` on standard error: a moving line on a terminal, one line for each step elsewhere."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from stoker.cli.output import printable


class Steps:
    """Shows the current step."""

    def __init__(self, *, is_quiet: bool) -> None:
        """`is_quiet`: nothing is shown unless standard error is a terminal."""
        self._console = Console(stderr=True)
        self._is_quiet = is_quiet
        self._status: Status | None = None

    def step(self, text: str) -> None:
        """Shows the next step."""
        if self._status is not None:
            self._console.print(f"  {printable(text)}", highlight=False, markup=False)
            self._status.update(f"{printable(text)} ...")
        elif not self._is_quiet:
            sys.stderr.write(f"  {printable(text)}\n")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
