"""What is wrong with a configuration: every problem found, each with its place."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backends.api.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        source: Short file name, such as `digits/config.pbtxt`.
        line: 1-based; None where the source has no lines.
        field: Path of the field, such as `input[1].dims`.
        message: What is wrong and what is allowed.
    """

    source: str
    line: int | None
    field: str
    message: str

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.field}: {self.message}"


class ConfigError(ModelLoadError):
    """A configuration that cannot be used. `str()` gives one `file:line: field: message` line for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def allowed_names(wrong: str, allowed: Iterable[str]) -> str:
    """The end of a message about an unknown name: `; did you mean 'x'? allowed: x, y, z`."""
    names = list(allowed)
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wrong.lower(), folded, n=1, cutoff=0.5)
    hint = f"; did you mean '{folded[close[0]]}'?" if close else ";"
    return f"{hint} allowed: {', '.join(names) or 'nothing'}"
