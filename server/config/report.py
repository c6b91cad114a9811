"""`Report`: collects what is wrong or remarkable while one configuration is read, and knows which line every field stands on."""

import json
import re
from collections.abc import Iterable, Mapping

from server.config.errors import ConfigError, Problem
from server.config.limits import MAX_PROBLEMS

_LAST_STEP = re.compile(r"""(?:\.?\w+|\[\d+\]|\["(?:[^"\\]|\\.)*"\])\Z""")


class Report:
    """Problems and warnings of one source, in the order found. Confined to: one reading of one configuration."""

    def __init__(self, source: str, lines: Mapping[str, int | None], *, first_line: int | None, warnings: Iterable[Problem] = ()) -> None:
        """Starts empty.

        Args:
            source: Short file name.
            lines: Field path to line; may still be filled while the report is in use.
            first_line: The line of what has no line of its own; None where the source has no lines.
            warnings: What an earlier reading of the same source remarked already.
        """
        self._source = source
        self._lines = lines
        self._first_line = first_line
        self._problems: dict[Problem, None] = {}
        self.warnings = list(warnings)

    def line_of(self, path: str) -> int | None:
        """The line of the field, or of the nearest one around it that was written."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = _LAST_STEP.sub("", path)
        return self._first_line

    def error(self, path: str, message: str, *, line: int | None = None) -> None:
        """Notes a problem; each only once.

        Raises:
            ConfigError: so many were found that reading on makes no sense.
        """
        self._problems[Problem(self._source, line or self.line_of(path), path, message)] = None
        if len(self._problems) >= MAX_PROBLEMS:
            self.raise_if_any()

    def warn(self, path: str, message: str) -> None:
        """Notes something that is accepted but has no effect, or not the one expected."""
        warning = Problem(self._source, self.line_of(path), path, message)
        if warning not in self.warnings:
            self.warnings.append(warning)

    @property
    def has_problems(self) -> bool:
        """Whether anything wrong was found so far."""
        return bool(self._problems)

    def raise_if_any(self) -> None:
        """Ends the reading if there were problems.

        Raises:
            ConfigError: with all of them, in the order of their lines, and with the warnings.
        """
        if self._problems:
            raise ConfigError(sorted(self._problems, key=lambda problem: problem.line or 0), self.warnings)


def map_path(path: str, key: object) -> str:
    """Path of a map's entry: `parameters["execution"]`, `priority_queue_policy[2]`."""
    return f"{path}[{key}]" if isinstance(key, int) else f"{path}[{json.dumps(key, ensure_ascii=False)}]"
