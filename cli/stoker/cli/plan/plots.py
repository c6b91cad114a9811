"""Plots of a plan as inline SVG: throughput over latency, and memory, with one panel for each device."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from stoker.cli.plan.figures import Figure, number, with_bar
from stoker.cli.plan.model import Combination
from stoker.compiler.pages.page import COLOURS
from stoker.compiler.pages.svg import Kind, legend, rect, svg, text_at

#: Size of one panel.
PANEL_WIDTH, PANEL_HEIGHT = 420, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 18, 40
#: Height of a label, and about the width of one of its characters.
_LABEL_HEIGHT, _CHARACTER_WIDTH = 11, 6.2
#: Marks of precisions, so that colour is not the only difference.
_MARKERS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M-3.6,-3.6h7.2v7.2h-7.2z", "M0,-4.6L4.4,3.6H-4.4z", "M0,-5L5,0L0,5L-5,0z")


def series_css(at: int) -> str:
    """Returns the CSS class that gives series number `at`, from 0, its colour."""
    return f"c{1 + at % COLOURS}"


def series_of(combinations: Sequence[Combination]) -> Mapping[str, Kind]:
    """Returns a series for each precision."""
    names = dict.fromkeys(each.precision for each in combinations)
    return {name: Kind(name, series_css(at)) for at, name in enumerate(names)}


def by_device(combinations: Sequence[Combination]) -> Mapping[str, list[Combination]]:
    """Returns the combinations of each device, in order; those that take several devices are among them."""
    found: dict[str, list[Combination]] = {}
    for each in combinations:
        found.setdefault(each.device, []).append(each)
    return found


def _batch(each: Combination) -> str:
    return str(each.batch) if each.count == 1 else f"{each.batch} on {each.count}"


def series_legend(series: Mapping[str, Kind]) -> str:
    """Returns the legend of the precisions, with their markers."""
    key = '<svg class="key" aria-hidden="true" viewBox="-6 -6 12 12"><path class="{}" d="{}"/></svg>'
    items = "".join(f"<span>{key.format(kind.css, _marker(at))}{escape(name)}</span>" for at, (name, kind) in enumerate(series.items()))
    return f'<p class="legend">{items}</p>'


def throughput_panels(combinations: Sequence[Combination]) -> str:
    """Returns a panel for each device: rows per second over the latency of a call, both logarithmic, with error bars."""
    shown = [each for each in combinations if each.fits and each.latency is not None and each.throughput is not None]
    if not shown:
        return ""
    series = series_of(combinations)
    latencies = [end * 1e3 for each in shown if each.latency for end in _ends(each.latency)]
    rates = [end for each in shown if each.throughput for end in _ends(each.throughput)]
    across = LogScale(min(latencies), max(latencies), _LEFT + 8, PANEL_WIDTH - _RIGHT)
    up = LogScale(min(rates), max(rates), PANEL_HEIGHT - _BOTTOM - 6, _TOP)
    panels = [_panel(name, _throughput(ways, series, across, up)) for name, ways in by_device(shown).items()]
    return f'{series_legend(series)}<div class="panels">{"".join(panels)}</div>'


def _panel(name: str, plot: str) -> str:
    return f"<figure><figcaption>{escape(name)}</figcaption>{plot}</figure>"


class LogScale:
    """A logarithmic scale from values to places; values beyond its ends are placed there."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        """Puts the value `low` at the place `begin`, and `high` at `end`. REQUIRES: 0 < low <= high."""
        self._low, self._high = math.log10(low), math.log10(max(high, low * 1.01))
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        """Returns the place of a value above 0."""
        share = min(max((math.log10(value) - self._low) / (self._high - self._low), 0.0), 1.0)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten within the range; fewer over a wide range."""
        steps = (1, 2, 5) if self._high - self._low < 1.6 else (1, 3) if self._high - self._low < 3 else (1,)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        ticks = [step * 10.0**power for power in powers for step in steps]
        return [tick for tick in ticks if self._low - 1e-9 <= math.log10(tick) <= self._high + 1e-9]


def _throughput(ways: Sequence[Combination], series: Mapping[str, Kind], across: LogScale, up: LogScale) -> str:
    floor, right = PANEL_HEIGHT - _BOTTOM, PANEL_WIDTH - _RIGHT
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>']
    for tick in up.ticks():
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        parts.append(text_at(_LEFT - 6, up(tick) + 4, number(tick), "end"))
    for tick in across.ticks():
        parts.append(f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{_TOP}" y2="{floor}"/>')
        parts.append(text_at(across(tick), floor + 15, number(tick), "middle"))
    parts.append(text_at(right, floor + 31, "latency of a batch, ms", "end"))
    parts.append(text_at(4, 9, "rows/s", "start"))
    labels = _Labels(right)
    for at, (precision, kind) in enumerate(series.items()):
        own = sorted((each for each in ways if each.precision == precision), key=lambda each: (each.count, each.batch))
        parts.append(_line(own, kind, _marker(at), across, up, labels))
    title = f"Rows per second over latency on {ways[0].device}: {'; '.join(_described(each) for each in ways)}"
    return svg(PANEL_HEIGHT, "".join(parts), title, PANEL_WIDTH)


class _Labels:
    """Places labels beside marks, and leaves out one that would cover another."""

    def __init__(self, right: float) -> None:
        self._right = right
        self._taken: list[tuple[float, float, float]] = []

    def beside(self, x: float, y: float, text: str) -> str:
        """Returns the label of the mark at (`x`, `y`); empty where it would cover another one."""
        wide = _CHARACTER_WIDTH * len(text)
        begin, base = (x + 6 if x + 6 + wide <= self._right + _RIGHT else x - 6 - wide), y - 6
        for other, end, other_base in self._taken:
            if begin < end and other < begin + wide and abs(base - other_base) < _LABEL_HEIGHT:
                return ""
        self._taken.append((begin, begin + wide, base))
        return text_at(begin, base, text, "start")


def _line(ways: Sequence[Combination], kind: Kind, marker: str, across: LogScale, up: LogScale, labels: _Labels) -> str:
    points, bars, dots = list[str](), list[str](), list[str]()
    for each in ways:
        assert each.latency is not None
        assert each.throughput is not None
        latency = each.latency.scaled(1e3)
        x, y = across(latency.value), up(each.throughput.value)
        points.append(f"{x:.1f},{y:.1f}")
        bars += [_across_bar(latency, across, y, kind), _up_bar(each.throughput, up, x, kind)]
        title = f"<title>{escape(_described(each))}</title>"
        dots.append(f'<path class="{kind.css} dot" d="{marker}" transform="translate({x:.1f} {y:.1f})">{title}</path>')
        dots.append(labels.beside(x, y, _batch(each)))
    joined = f'<polyline class="series {kind.css}" points="{" ".join(points)}"/>' if len(points) > 1 else ""
    return joined + "".join(bars) + "".join(dots)


def _across_bar(figure: Figure, scale: LogScale, y: float, kind: Kind) -> str:
    ends = _bar(figure, scale)
    return f'<line class="err {kind.css}" x1="{ends[0]:.1f}" y1="{y:.1f}" x2="{ends[1]:.1f}" y2="{y:.1f}"/>' if ends else ""


def _up_bar(figure: Figure, scale: LogScale, x: float, kind: Kind) -> str:
    ends = _bar(figure, scale)
    return f'<line class="err {kind.css}" x1="{x:.1f}" y1="{ends[0]:.1f}" x2="{x:.1f}" y2="{ends[1]:.1f}"/>' if ends else ""


def _bar(figure: Figure, scale: LogScale) -> tuple[float, float] | None:
    """Returns the places of the ends of an error bar; None without one."""
    if not figure.low or not figure.high or not math.isfinite(figure.high):
        return None
    return scale(figure.low), scale(figure.high)


def _marker(at: int) -> str:
    return _MARKERS[at % len(_MARKERS)]


def _ends(figure: Figure) -> Iterator[float]:
    for each in (figure.low, figure.value, figure.high):
        if each and math.isfinite(each):
            yield each


def _described(each: Combination) -> str:
    assert each.latency is not None
    assert each.throughput is not None
    return (
        f"{each.precision} batch {_batch(each)}: {with_bar(each.throughput)} rows/s, {with_bar(each.latency.scaled(1e3))} ms "
        f"({each.throughput.origin})"
    )


def memory_kinds(combinations: Sequence[Combination]) -> Mapping[str, Kind]:
    """Returns a series for each kind of memory that is used."""
    names = dict.fromkeys(name for each in combinations if each.memory for name, size in each.memory.by_category.items() if size)
    return {name: Kind(name.replace("_", " "), series_css(at)) for at, name in enumerate(names)}


def memory_panels(combinations: Sequence[Combination]) -> str:
    """Returns a panel for each device: bars of the memory of its fullest place by kind, with the capacity as a line."""
    shown = [each for each in combinations if each.memory is not None]
    if not shown:
        return ""
    kinds = memory_kinds(shown)
    panels = [
        _panel(f"{name}: {ways[0].memory.place if ways[0].memory else ''}", _memory(ways, kinds)) for name, ways in by_device(shown).items()
    ]
    return f'{legend(list(kinds.values()))}<div class="panels">{"".join(panels)}</div>'


def _place(each: Combination) -> str:
    return each.memory.place if each.memory else ""


def _memory(ways: Sequence[Combination], kinds: Mapping[str, Kind]) -> str:
    floor, right = PANEL_HEIGHT - _BOTTOM - 8, PANEL_WIDTH - _RIGHT
    most = max(1.0, *(_share(each) for each in ways)) * 1.04
    groups = {
        precision: [each for each in ways if each.precision == precision] for precision in dict.fromkeys(each.precision for each in ways)
    }
    slots = len(ways) + len(groups) - 1
    wide = (right - _LEFT - 10) / max(slots, 1)
    scale = (floor - _TOP) / most
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>']
    for share in (0.25, 0.5, 0.75):
        y = floor - share * scale
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text_at(_LEFT - 6, y + 4, f"{share:.0%}", "end"))
    slot = 0.0
    for precision, own in groups.items():
        begin = _LEFT + 6 + slot * wide
        for each in own:
            parts += _stack(each, kinds, _LEFT + 6 + slot * wide, min(wide * 0.8, 46), floor, scale)
            parts.append(
                text_at(
                    _LEFT + 6 + slot * wide + min(wide * 0.8, 46) / 2,
                    floor + 14,
                    str(each.batch) if each.count == 1 else f"{each.batch}/{each.count}",
                    "middle",
                )
            )
            slot += 1
        parts.append(text_at((begin + _LEFT + 6 + slot * wide) / 2, floor + 30, f"{precision}, batch", "middle"))
        slot += 1
    limit = floor - scale
    parts.append(f'<line class="limit" x1="{_LEFT}" x2="{right}" y1="{limit:.1f}" y2="{limit:.1f}"/>')
    parts.append(text_at(_LEFT - 6, limit + 4, "100%", "end"))
    title = f"Memory on {ways[0].device}: {'; '.join(f'{each.precision} batch {_batch(each)} {_share(each):.1%}' for each in ways)}"
    return svg(PANEL_HEIGHT, "".join(parts), title, PANEL_WIDTH)


def _stack(each: Combination, kinds: Mapping[str, Kind], x: float, wide: float, floor: float, scale: float) -> Iterator[str]:
    if each.memory is None:
        return
    y = floor
    for name, size in each.memory.by_category.items():
        if size:
            tall = size / each.memory.capacity_bytes * scale
            y -= tall
            title = f"{each.precision} batch {_batch(each)}, {kinds[name].name}: {size:,} bytes"
            yield rect(x, y, wide, max(tall - 0.5, 0.3), kinds[name].css, title)


def _share(each: Combination) -> float:
    return each.memory.used_bytes / each.memory.capacity_bytes if each.memory else 0.0
