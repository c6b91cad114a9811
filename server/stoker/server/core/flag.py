"""How a setting declares its flag of `serve`: name, help text, and the reader of its value.

A flag is metadata of the field that it sets: `poll_interval_s: Annotated[float, duration("repository-poll-secs", ...)] = 15.0`. It has one
name, spelled with dashes, is also read from `STOKER_<NAME>`, and shows its aliases in the help. `stoker.server.flags` collects the flags.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

TRUE: Final = frozenset({"true", "1", "yes", "on"})
FALSE: Final = frozenset({"false", "0", "no", "off"})

Choice = TypeVar("Choice", bound=StrEnum)


class FlagError(Exception):
    """The flags do not allow the server to start; the message is the complete line to print."""


class BadValue(FlagError):
    """The value of a flag cannot be read. The caller, which has the flag's name, raises a `FlagError`.

    Attributes:
        text: The value as given.
        expected: The values that the reader accepts.
    """

    def __init__(self, text: str, expected: str) -> None:
        super().__init__(f"{text}: expected {expected}")
        self.text = text
        self.expected = expected


class Panel(StrEnum):
    """A section of the help."""

    MODELS = "Models"
    NETWORK = "Network"
    TLS = "TLS"
    API_KEY = "API key"
    GRPC = "gRPC connections"
    KSERVE = "KServe v2 extensions"
    TENSORFLOW = "TensorFlow Serving"
    SERVING = "Serving"
    LOGGING = "Logging"
    WITHOUT_EFFECT = "Without effect"


def boolean(given: str) -> bool:
    """Reads `true`, `1`, `yes`, `on` or their opposites, in any case."""
    text = given.lower()
    if text not in TRUE | FALSE:
        raise BadValue(given, "true, false, 1 or 0")
    return text in TRUE


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Returns a reader of whole numbers from `low` to `high`; `high` None: no upper bound."""
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
    """Returns a reader of times from `low` to `high` seconds."""
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
    """Returns a reader of the values of the enum `kind`."""

    def read(given: str) -> Choice:
        try:
            return kind(given)
        except ValueError:
            raise BadValue(given, one_of_values(each.value for each in kind)) from None

    return read


def one_of_values(values: Iterable[str]) -> str:
    """The values as the text `a, b or c`."""
    *others, last = values
    return f"{', '.join(others)} or {last}"


def _bounds(low: float, high: float | None) -> str:
    return f"from {low:g} up" if high is None else f"from {low} to {high}"


def _never(_text: str) -> bool:
    return False


#: The metavar of a boolean flag, which also identifies boolean flags: one without a value stands for `=true`.
BOOLEAN_METAVAR: Final = "BOOL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag.

    Attributes:
        name: The name with dashes between its words, without the leading dashes.
        aliases: Its other names.
        text: The help text.
        panel: The section of the help that lists it.
        metavar: The placeholder of the value in the help.
        parser: Reads the value from its text; None: the text itself, or a path where the field's type is one.
        shown: Converts the field's default to the default that the help shows; None: the same.
        hidden: Whether the help omits it.
        show_default: Whether the help shows its default.
        holds_secret: Whether a text that sets the flag holds a secret, which is never printed.
    """

    name: str
    aliases: tuple[str, ...] = ()
    text: str
    panel: Panel
    metavar: str
    parser: Callable[[str], Any] | None = None
    shown: Callable[[Any], Any] | None = None
    hidden: bool = False
    show_default: bool = True
    holds_secret: Callable[[str], bool] = _never

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables of the flag; the first that is set and not empty counts."""
        return tuple(f"STOKER_{each.replace('-', '_').upper()}" for each in (self.name, *self.aliases))


def option(name: str, *, text: str, panel: Panel, metavar: str = "TEXT", aliases: tuple[str, ...] = (), **details: Any) -> Flag:
    """A flag; `details` are further attributes of it."""
    also = f" (also {', '.join(f'--{alias}' for alias in aliases)})" if aliases else ""
    return Flag(name=name, text=text + also, panel=panel, metavar=metavar, aliases=aliases, **details)


def switch(name: str, **details: Any) -> Flag:
    """A boolean flag: bare, or with a value."""
    return option(name, metavar=BOOLEAN_METAVAR, parser=boolean, **details)


def off_switch(name: str, **details: Any) -> Flag:
    """A boolean flag that sets its field to the opposite."""
    return option(name, metavar=BOOLEAN_METAVAR, parser=lambda given: not boolean(given), shown=lambda value: not value, **details)


def number(name: str, low: int, high: int | None = None, **details: Any) -> Flag:
    """A flag that takes a whole number from `low` to `high`."""
    return option(name, metavar="N", parser=whole_number(low, high), **details)


def duration(name: str, low: float, high: float, **details: Any) -> Flag:
    """A flag that takes a time from `low` to `high` seconds."""
    return option(name, metavar="SECONDS", parser=seconds(low, high), **details)


_MS_PER_S: Final = 1000.0


def milliseconds(name: str, low: int, high: int, *, is_none_at_0: bool = False, **details: Any) -> Flag:
    """A flag that takes a whole number of milliseconds, and sets a field in seconds; `is_none_at_0`: 0 sets None."""
    read_ms = whole_number(low, high)

    def read(given: str) -> float | None:
        time_s = read_ms(given) / _MS_PER_S
        return None if is_none_at_0 and not time_s else time_s

    return option(name, metavar="N", parser=read, shown=lambda value: None if value is None else round(value * _MS_PER_S), **details)


def one_of(name: str, kind: type[StrEnum], **details: Any) -> Flag:
    """A flag that takes one of the values of `kind`."""
    return option(name, metavar="NAME", parser=choice(kind), **details)


def path(name: str, **details: Any) -> Flag:
    """A flag that takes a file or folder."""
    return option(name, metavar="PATH", **details)
