"""The values of all flags, read from the words of a command line and from the environment.

Written by hand because it is part of every start: typer reads a command line through pydantic, which would stay in memory for the server's
life (11 MiB and a fifth of the start, see docs/adr/0066). What a flag is stands in its group alone; typer makes the help from the same
declarations.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, get_args, get_origin

from stoker.server.flags.declare import Flag
from stoker.server.flags.groups import annotations, defaults, flag_of
from stoker.server.flags.nearest import meant
from stoker.server.flags.spelling import BARE, STRAY, refuse_stray
from stoker.server.flags.values import BadValue, FlagError


class Page(Enum):
    """What is printed instead of a start."""

    HELP = auto()
    VERSION = auto()


def read_flags(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any] | Page:
    """By field of a group, its value: from `words`, else from `environment`, else its default; or the page that `words` ask for.

    Args:
        words: As `spell` returns them.
        environment: Variables by name.

    Raises:
        FlagError: an unknown flag, a word too many, or a value that is missing or cannot be read.
    """
    given = _by_flag(words)
    for name, texts in given.items():  # in the order they came
        if name in BARE:
            return Page[name.upper()]
        if name == STRAY:
            refuse_stray(texts)
    values = defaults()
    for field, kind in annotations().items():
        flag = flag_of(kind)
        if flag.name in given:
            values[field] = _value(f"--{flag.name}", flag, kind, given[flag.name])
        elif (variable := next((each for each in flag.variables if environment.get(each)), None)) is not None:
            values[field] = _value(variable, flag, kind, _pieces(kind, environment[variable]))
    return values


def _by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """The texts each flag was given, by its name."""
    names = {flag_of(kind).name for kind in annotations().values()} | {STRAY} | BARE
    found: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            refuse_stray(list(rest))
            break
        if not word.startswith("--"):  # one dash: `spell` has made every other word a flag or its value
            refuse_stray([word])
        name, equals, text = word.removeprefix("--").partition("=")
        if name not in names:
            raise FlagError(f"unknown flag --{name}{meant(name, names - {STRAY}, prefix='--')}")
        if name in BARE:
            if equals:
                raise FlagError(f"--{name} takes no value")
        elif not equals:
            following = next(rest, None)
            if following is None:
                raise FlagError(f"--{name} needs a value")
            text = following
        found.setdefault(name, []).append(text)
    return found


def _value(place: str, flag: Flag, kind: Any, texts: Sequence[str]) -> Any:
    """What `texts`, of a flag or variable called `place`, mean; of several the last counts, unless the flag takes a list."""
    read: Callable[[str], Any] = flag.parser or (Path if _holds(kind, Path) else str)
    try:
        if _holds(kind, list):
            return [read(text) for text in texts]
        return read(texts[-1])
    except BadValue as error:
        raise FlagError(f"{place}={error.text}: expected {error.expected}") from None


def _pieces(kind: Any, text: str) -> list[str]:
    """What a variable holds: of a list, one path per line (a path may hold any other separator), or texts separated by blanks."""
    if not _holds(kind, list):
        return [text]
    pieces = text.splitlines() if _holds(kind, Path) else text.split()
    return [piece.strip() for piece in pieces if piece.strip()]


def _holds(kind: Any, sought: type) -> bool:
    """Whether an annotation is of the type `sought`, perhaps beside None or within a list."""
    return kind is sought or get_origin(kind) is sought or any(_holds(part, sought) for part in get_args(kind) if part is not None)
