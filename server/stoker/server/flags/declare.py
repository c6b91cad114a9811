"""How a group declares its flags.

Every flag has one name, spelled with dashes, is also read from `STOKER_<NAME>`, and shows its aliases in the help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stoker.server.flags.aliases import ALIASES
from stoker.server.flags.values import boolean, choice, seconds, whole_number

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
