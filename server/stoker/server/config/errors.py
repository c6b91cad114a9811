"""What is wrong with a configuration: every problem found, each with its place."""

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.server.config.limits import MAX_FIELD_LENGTH, MAX_MESSAGE_LENGTH


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

    @classmethod
    def of(cls, source: str, line: int | None, field: str, message: str) -> "Problem":
        """A problem whose texts are bounded and can be sent: field and message may repeat whatever a configuration holds."""
        return cls(source, line, _cut(field, MAX_FIELD_LENGTH), _cut(message, MAX_MESSAGE_LENGTH))

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.field}: {self.message}"


def _cut(text: str, length: int) -> str:
    """`text` in at most `length` characters, all of which have a UTF-8 form (JSON can write a lone surrogate)."""
    shown = text[: length + 1].encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= length else f"{shown[: length - 3]}..."


class ConfigError(ModelLoadError):
    """A configuration that cannot be used. `str()` is one line: `file:line: field: message` of each problem, joined by `; `.

    Attributes:
        problems: Everything wrong, in the order of their lines.
        warnings: What would be accepted without the effect expected, were it not for the problems.
    """

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)


def problem_lines(error: ServingError) -> tuple[str, ...]:
    """The message of `error`; one for each problem if it has several."""
    return tuple(str(problem) for problem in error.problems) if isinstance(error, ConfigError) else (error.message,)
