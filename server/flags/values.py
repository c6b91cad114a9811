"""The values of `serve`'s flags: each reader takes the text of one flag, and names flag, text and expectation where it does not fit."""

import math
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

import typer

TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})

Choice = TypeVar("Choice", bound=StrEnum)


class FlagError(typer.BadParameter):
    """A start that the flags do not allow; the message is the whole line."""

    def format_message(self) -> str:
        return str(self.message)


class BadValue(FlagError):
    """A flag's value that cannot be read.

    Attributes:
        text: What was given.
        expected: What would have been read.
    """

    def __init__(self, text: str, expected: str) -> None:
        super().__init__(expected)
        self.text = text
        self.expected = expected

    def format_message(self) -> str:
        # The context and the parameter were put in by typer, on the error's way out.
        name = self.param.opts[0] if self.param is not None else "value"
        if self.ctx is not None and self.param is not None:
            source = self.ctx.get_parameter_source(self.param.name)
            if source is not None and source.name == "ENVIRONMENT":
                # One flag may be read from several variables; the first that is set is the one that was read.
                name = next((each for each in _variables(self.param.envvar) if os.environ.get(each)), "")
        return f"{name}={self.text}: expected {self.expected}"


def _variables(given: str | Sequence[str] | None) -> Sequence[str]:
    return [given] if isinstance(given, str) else given or []


def boolean(given: str | bool) -> bool:
    """`true`, `1`, `yes`, `on` or their opposites, in any case."""
    text = str(given).lower()
    if text not in TRUE | FALSE:
        raise BadValue(str(given), "true, false, 1 or 0")
    return text in TRUE


def whole_number(low: int, high: int | None = None) -> Callable[[str | int], int]:
    """A reader of whole numbers from `low` to `high`; None: without an upper bound."""
    expected = f"a whole number {_bounds(low, high)}"

    def read(given: str | int) -> int:
        try:
            number = int(given)
        except ValueError:
            raise BadValue(str(given), expected) from None
        if number < low or (high is not None and number > high):
            raise BadValue(str(given), expected)
        return number

    return read


def seconds(low: float, high: float) -> Callable[[str | float], float]:
    """A reader of times from `low` to `high` seconds."""
    expected = f"seconds {_bounds(low, high)}"

    def read(given: str | float) -> float:
        try:
            number = float(given)
        except ValueError:
            raise BadValue(str(given), expected) from None
        if not (math.isfinite(number) and low <= number <= high):
            raise BadValue(str(given), expected)
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
