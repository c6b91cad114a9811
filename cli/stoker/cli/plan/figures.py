"""`Figure`: a number with its error bar, and whether it was modelled or measured."""

import enum
import math
from dataclasses import dataclass


class Origin(enum.StrEnum):
    """Where a figure comes from."""

    SIMULATED = "simulated"
    """A cost model computed it; no device was measured."""

    MEASURED = "measured"
    """It was measured on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with its error bar.

    Attributes:
        value: The modelled figure, or the median of the measured ones.
        low, high: The ends of the error bar; None if nothing is known about the error.
        origin: Modelled or measured.
    """

    value: float
    low: float | None
    high: float | None
    origin: Origin

    def scaled(self, factor: float) -> "Figure":
        """Returns the figure in another unit: `factor` times it."""
        ends = (None if each is None else each * factor for each in (self.low, self.high))
        return Figure(value=self.value * factor, low=next(ends), high=next(ends), origin=self.origin)

    def rate(self, rows: int) -> "Figure":
        """Returns the rows per second, if the figure is the seconds that `rows` rows take."""
        low, high = (None if not each else rows / each for each in (self.high, self.low))
        return Figure(value=rows / self.value if self.value else math.inf, low=low, high=high, origin=self.origin)


def modelled(value: float, factors: tuple[float, float] | None) -> Figure:
    """Returns a modelled figure whose true value lies between `factors` times it; None: nothing is known."""
    low, high = (None, None) if factors is None else (value * factors[0], value * factors[1])
    return Figure(value=value, low=low, high=high, origin=Origin.SIMULATED)


def number(value: float | None) -> str:
    """Returns a number as text with three significant digits; empty for None."""
    if value is None:
        return ""
    if math.isnan(value) or math.isinf(value):
        return "inf" if value > 0 else "-inf" if value < 0 else "nan"
    if abs(value) >= 1000:
        digits = math.floor(math.log10(abs(value))) - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:#.3g}".rstrip("0").rstrip(".") if abs(value) < 1 else f"{value:.3g}"


def with_bar(figure: Figure) -> str:
    """Returns the figure with its error bar as text, such as `12.1 (9.3-15.8)`."""
    if figure.low is not None and figure.high is None:
        return f"{number(figure.value)} ({number(figure.low)} and more)"
    if figure.low is None or figure.high is None:
        return f"{number(figure.value)} (error unknown)"
    return f"{number(figure.value)} ({number(figure.low)}-{number(figure.high)})"
