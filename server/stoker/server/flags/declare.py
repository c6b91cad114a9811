"""Values, aliases and declarations of `serve`'s flags.

Every flag has one name, spelled with dashes, is also read from `STOKER_<NAME>`, and shows its aliases in the help.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from stoker.backends.api.nearest import nearest


def meant(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """`: is X meant?` for the end of an error, X with `prefix` before it; empty where none of the names `known` is near."""
    found = nearest(name, sorted(known))
    return f": is {prefix}{found[0]} meant?" if found else ""


TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})

Choice = TypeVar("Choice", bound=StrEnum)


class FlagError(Exception):
    """A start that the flags do not allow; the message is the whole line."""


class BadValue(FlagError):
    """A flag's value that cannot be read. Who knows the flag says so in its place.

    Attributes:
        text: What was given.
        expected: What would have been read.
    """

    def __init__(self, text: str, expected: str) -> None:
        super().__init__(f"{text}: expected {expected}")
        self.text = text
        self.expected = expected


def boolean(given: str) -> bool:
    """`true`, `1`, `yes`, `on` or their opposites, in any case."""
    text = given.lower()
    if text not in TRUE | FALSE:
        raise BadValue(given, "true, false, 1 or 0")
    return text in TRUE


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers from `low` to `high`; None: without an upper bound."""
    expected = f"a whole number {_bounds(low, high)}"

    def read(given: str) -> int:
        try:
            number = int(given)
        except ValueError:
            raise BadValue(given, expected) from None
        if number < low or (high is not None and number > high):
            raise BadValue(given, expected)
        return number

    return read


def seconds(low: float, high: float) -> Callable[[str], float]:
    """A reader of times from `low` to `high` seconds."""
    expected = f"seconds {_bounds(low, high)}"

    def read(given: str) -> float:
        try:
            number = float(given)
        except ValueError:
            raise BadValue(given, expected) from None
        if not (math.isfinite(number) and low <= number <= high):
            raise BadValue(given, expected)
        return number

    return read


def choice(kind: type[Choice]) -> Callable[[str], Choice]:
    """A reader of one of the values of `kind`."""

    def read(given: str) -> Choice:
        try:
            return kind(given)
        except ValueError:
            *others, last = [str(each.value) for each in kind]
            raise BadValue(given, f"{', '.join(others)} or {last}") from None

    return read


def _bounds(low: float, high: float | None) -> str:
    return f"from {low:g} up" if high is None else f"from {low} to {high}"


class Piece(NamedTuple):
    """A flag whose value is a piece of another flag's.

    Attributes:
        flag: The other flag.
        beginning: What stands before the value there.
    """

    flag: str
    beginning: str


#: By a flag's own name, in its dashed spelling.
ALIASES: dict[str, tuple[str, ...]] = {
    "model-base-path": ("model-repository", "model-store"),
    "repository-poll-secs": ("fs-poll-wait-seconds",),
    "grpc-port": ("port",),
    "http-port": ("rest-api-port",),
    "disable-auto-complete-config": ("strict-model-config",),
    "model-load-retry-count": ("max-num-load-retries",),
}
#: By alias, the flag's own name.
PRIMARY = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
#: Triton's older flags, each of which set one thing.
PIECES = {
    "trace-file": Piece("trace-config", "triton,file="),
    "trace-log-frequency": Piece("trace-config", "triton,log-frequency="),
    "trace-level": Piece("trace-config", "level="),
    "trace-rate": Piece("trace-config", "rate="),
    "trace-count": Piece("trace-config", "count="),
}


#: A boolean that takes a value.
Switch = Any
#: What the help shows for the value of a boolean, and what tells booleans apart.
BOOLEAN_METAVAR = "BOOL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag, as it stands beside its type in a group.

    Attributes:
        name: In its dashed spelling, without the dashes before it.
        text: What the help says.
        panel: The part of the help it stands in.
        variables: Of the environment; the first that is set and not empty counts.
        metavar: What the help shows for its value.
        parser: Reads its text; None: the text itself, or a path where the type says so.
        hidden: Whether the help leaves it away.
        show_default: Whether the help says its default.
    """

    name: str
    text: str
    panel: str
    variables: tuple[str, ...]
    metavar: str
    parser: Callable[[str], Any] | None = None
    hidden: bool = False
    show_default: bool = True


def option(name: str, *, text: str, panel: str, metavar: str = "TEXT", **settings: Any) -> Flag:
    """A flag; `settings` are further attributes of it."""
    also = ", ".join(f"--{alias}" for alias in ALIASES.get(name, ()))
    text = f"{text} (also {also})" if also else text
    variables = tuple(f"STOKER_{each.replace('-', '_').upper()}" for each in (name, *ALIASES.get(name, ())))
    return Flag(name=name, text=text, panel=panel, variables=variables, metavar=metavar, **settings)


def flag(name: str, *, text: str, panel: str) -> Flag:
    """A boolean flag: bare, or with a value."""
    return option(name, text=text, panel=panel, metavar=BOOLEAN_METAVAR, parser=boolean)


def number(name: str, low: int, high: int | None = None, *, text: str, panel: str) -> Flag:
    """A flag that takes a whole number from `low` to `high`."""
    return option(name, text=text, panel=panel, metavar="N", parser=whole_number(low, high))


def time(name: str, low: float, high: float, *, text: str, panel: str) -> Flag:
    """A flag that takes a time from `low` to `high` seconds."""
    return option(name, text=text, panel=panel, metavar="SECONDS", parser=seconds(low, high))


def one_of(name: str, kind: type[StrEnum], *, text: str, panel: str) -> Flag:
    """A flag that takes one of the values of `kind`."""
    return option(name, text=text, panel=panel, metavar="NAME", parser=choice(kind))


def path(name: str, *, text: str, panel: str) -> Flag:
    """A flag that takes a file or folder."""
    return option(name, text=text, panel=panel, metavar="PATH")
