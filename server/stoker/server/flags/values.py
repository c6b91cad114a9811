"""The values of `serve`'s flags: each reader takes the text of one flag, and names flag, text and expectation where it does not fit."""

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

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
