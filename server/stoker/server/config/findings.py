"""What completing a configuration found out, line by line, for `stoker check` and the log."""

import enum
from dataclasses import dataclass


class FindingKind(enum.Enum):
    """Where a value came from."""

    WRITTEN = "written"
    INFERRED = "inferred"
    DEFAULT = "default"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One value of a completed configuration.

    Attributes:
        field: Path of the field.
        kind: Where the value came from.
        text: The value, and why where it was not written.
    """

    field: str
    kind: FindingKind
    text: str


class Findings:
    """Collects findings in order. Confined to: one completion."""

    def __init__(self) -> None:
        self._all: list[Finding] = []

    def written(self, field: str, text: str) -> None:
        """A value that the configuration says."""
        self._all.append(Finding(field, FindingKind.WRITTEN, text))

    def inferred(self, field: str, text: str) -> None:
        """A value that the model file says."""
        self._all.append(Finding(field, FindingKind.INFERRED, text))

    def default(self, field: str, text: str) -> None:
        """A value that holds because nobody says another."""
        self._all.append(Finding(field, FindingKind.DEFAULT, text))

    def warning(self, field: str, text: str) -> None:
        """Something without the effect expected."""
        self._all.append(Finding(field, FindingKind.WARNING, text))

    def all(self) -> tuple[Finding, ...]:
        """Everything found so far."""
        return tuple(self._all)
