"""How a group declares its flags.

Every flag has one name, spelled with dashes, is also read from `STOKER_<NAME>`, and shows its aliases in the help.
"""

from enum import StrEnum
from typing import Any

import typer

from server.flags.aliases import ALIASES
from server.flags.values import boolean, choice, seconds, whole_number

#: A boolean that takes a value; typer would give a parameter annotated `bool` none.
Switch = Any
#: What the help shows for the value of a boolean, and what tells booleans apart.
BOOLEAN_METAVAR = "BOOL"


def option(name: str, *, text: str, panel: str, metavar: str = "TEXT", **settings: Any) -> Any:
    """A flag; `settings` go to `typer.Option`."""
    also = ", ".join(f"--{alias}" for alias in ALIASES.get(name, ()))
    text = f"{text} (also {also})" if also else text
    environment = [f"STOKER_{each.replace('-', '_').upper()}" for each in (name, *ALIASES.get(name, ()))]
    return typer.Option(f"--{name}", help=text, rich_help_panel=panel, envvar=environment, show_envvar=False, metavar=metavar, **settings)


def flag(name: str, *, text: str, panel: str) -> Any:
    """A boolean flag: bare, or with a value."""
    return option(name, text=text, panel=panel, metavar=BOOLEAN_METAVAR, parser=boolean)


def number(name: str, low: int, high: int | None = None, *, text: str, panel: str) -> Any:
    """A flag that takes a whole number from `low` to `high`."""
    return option(name, text=text, panel=panel, metavar="N", parser=whole_number(low, high))


def time(name: str, low: float, high: float, *, text: str, panel: str) -> Any:
    """A flag that takes a time from `low` to `high` seconds."""
    return option(name, text=text, panel=panel, metavar="SECONDS", parser=seconds(low, high))


def one_of(name: str, kind: type[StrEnum], *, text: str, panel: str) -> Any:
    """A flag that takes one of the values of `kind`."""
    return option(name, text=text, panel=panel, metavar="NAME", parser=choice(kind))


def path(name: str, *, text: str, panel: str) -> Any:
    """A flag that takes a file or folder."""
    return option(name, text=text, panel=panel, metavar="PATH")
