"""Parts of plots as inline SVG: no library and no network access. Colours are the page's CSS variables, for light and dark mode.

Every mark carries a `<title>`, which browsers show as a tooltip. Pages have a table of the numbers beside each plot.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Width of a plot that takes the whole page, in its own units.
WIDTH = 860


@dataclass(frozen=True, slots=True)
class Kind:
    """A series of a plot: its name, and the CSS class that gives its colour."""

    name: str
    css: str


def legend(kinds: Sequence[Kind]) -> str:
    """Returns the legend of a plot."""
    items = "".join(f'<span><i class="{kind.css}"></i>{escape(kind.name)}</span>' for kind in kinds)
    return f'<p class="legend">{items}</p>'


def round_up(number: float) -> float:
    """Rounds up to 1, 2, 2.5 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(number))
    return float(next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= number * 0.999))


def grid(left: float, right: float, floor: float, ticks: Sequence[tuple[float, str]]) -> str:
    """Returns horizontal lines with labels at their left: `ticks` are heights with texts, `floor` is the height of the axis."""
    lines = "".join(
        f'<line class="{"axis" if y == floor else "grid"}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>' for y, _ in ticks
    )
    return lines + "".join(text_at(left - 8, y + 4, text, "end") for y, text in ticks)


def rect(x: float, y: float, width: float, height: float, css: str, title: str) -> str:
    """Returns a bar with a tooltip."""
    coordinates = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{css}" {coordinates} rx="1.5"><title>{escape(title)}</title></rect>'


def text_at(x: float, y: float, text: str, anchor: str, title: str = "") -> str:
    """Returns a text, with a tooltip if there is a `title`."""
    shown = f"<title>{escape(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}{shown}</text>'


def short(text: str, most: int = 24) -> str:
    """Returns the end of a long text."""
    return text if len(text) <= most else f"…{text[-most + 1 :]}"


def svg(height: float, content: str, title: str, width: float = WIDTH) -> str:
    """Returns a plot; `title` is its text for readers who do not see it."""
    return f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {width:.0f} {height:.0f}">{content}</svg>'
