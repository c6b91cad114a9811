"""`Report`: collects what is wrong or remarkable while one configuration is read, and knows which line every field stands on."""

import json
import re
from collections.abc import Iterable, Mapping

from stoker.server.config.errors import ConfigError, Problem
from stoker.server.config.limits import MAX_DEPTH, MAX_PROBLEMS

#: One step of a path: a field, an index, a map's key.
_STEP = re.compile(r"""\.?\w+|\[-?\d+\]|\["(?:[^"\\]|\\.)*+"\]""")
#: A field that was written lies at most so many steps deep: each block is a field with an index or a key.
_MAX_STEPS = 2 * (MAX_DEPTH + 1)


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
        """The line of the field, or of the nearest one around it that was written.

        `path` may end in any text: the last name of a configuration may be whatever a client wrote. Its cost is linear in the length.
        """
        for end in (len(path), *reversed(_ends(path))):
            line = self._lines.get(path[:end])
            if line is not None:
                return line
        return self._first_line

    def error(self, path: str, message: str, *, line: int | None = None) -> None:
        """Notes a problem; each only once.

        Raises:
            ConfigError: so many were found that reading on makes no sense.
        """
        self._problems[self._problem(path, message, line)] = None
        if len(self._problems) >= MAX_PROBLEMS:
            self.raise_if_any()

    def warn(self, path: str, message: str) -> None:
        """Notes something that is accepted but has no effect, or not the one expected."""
        warning = self._problem(path, message, None)
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

    def _problem(self, path: str, message: str, line: int | None) -> Problem:
        return Problem.of(self._source, line or self.line_of(path), path, message)


def _ends(path: str) -> list[int]:
    """Where the leading steps of `path` end, at most `_MAX_STEPS` of them; the first thing that is no step ends the list."""
    ends = [0]
    while len(ends) <= _MAX_STEPS and (step := _STEP.match(path, ends[-1])) is not None:
        ends.append(step.end())
    return ends[1:]


def map_path(path: str, key: object) -> str:
    """Path of a map's entry: `parameters["execution"]`, `priority_queue_policy[2]`."""
    return f"{path}[{key}]" if isinstance(key, int) else f"{path}[{json.dumps(key, ensure_ascii=False)}]"
