"""The plot of p99 over the rate: a line for each device, with its error bar as a band."""

import math
from collections.abc import Sequence
from html import escape

from stoker.cli.plan.figures import number, with_bar
from stoker.cli.plan.model import LoadPlan, RateCurve
from stoker.cli.plan.plots import LogScale, series_css
from stoker.compiler.pages.svg import WIDTH, Kind, legend, svg, text_at

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 340, 64, 36, 32, 44
#: A p99 above this multiple of the goal is cut off: the devices are overloaded there.
_MOST_GOALS = 10.0


def load_plot(plan: LoadPlan) -> str:
    """Returns the plot; empty without curves."""
    curves = plan.curves
    if not curves:
        return ""
    goal_ms = plan.load.p99_goal_s * 1e3
    kinds = [Kind(f"{curve.devices} x {_name(curve)}", series_css(at)) for at, curve in enumerate(curves)]
    rates = [point.rate_per_s for curve in curves for point in curve.points]
    times = [each * 1e3 for curve in curves for point in curve.points for each in (point.p99.low, point.p99.value, point.p99.high) if each]
    most_ms = min(max(*times, goal_ms * 1.2), goal_ms * _MOST_GOALS)
    across = LogScale(min(*rates, plan.load.rate_per_s), max(*rates, plan.load.rate_per_s), _LEFT + 8, WIDTH - _RIGHT)
    up = LogScale(min(*times, goal_ms), most_ms, _HEIGHT - _BOTTOM - 6, _TOP)
    parts = [_axes(across, up), _goal(goal_ms, up), _load(plan.load.rate_per_s, across)]
    parts += [_band(curve, kind, across, up) for curve, kind in zip(curves, kinds, strict=True)]
    parts += [_line(curve, kind, across, up) for curve, kind in zip(curves, kinds, strict=True)]
    title = "99th percentile of the latency over the rate: " + "; ".join(
        f"{kind.name}: {number(curve.points[0].p99.value * 1e3)} ms at {number(curve.points[0].rate_per_s)} requests/s, "
        f"{number(curve.points[-1].p99.value * 1e3)} ms at {number(curve.points[-1].rate_per_s)}"
        for curve, kind in zip(curves, kinds, strict=True)
    )
    return legend(kinds) + svg(_HEIGHT, "".join(parts), title)


def _name(curve: RateCurve) -> str:
    return curve.label.partition(" x ")[2] or curve.label


def _axes(across: LogScale, up: LogScale) -> str:
    floor, right = _HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>']
    for tick in up.ticks():
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        parts.append(text_at(_LEFT - 6, up(tick) + 4, number(tick), "end"))
    for tick in across.ticks():
        parts.append(f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{_TOP}" y2="{floor}"/>')
        parts.append(text_at(across(tick), floor + 15, number(tick), "middle"))
    parts.append(text_at(right, floor + 32, "requests per second", "end"))
    parts.append(text_at(4, 11, "p99, ms", "start"))
    return "".join(parts)


def _goal(goal_ms: float, up: LogScale) -> str:
    y = up(goal_ms)
    line = f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + text_at(_LEFT + 12, y - 5 if y > _TOP + 16 else y + 14, f"goal: {number(goal_ms)} ms", "start")


def _load(rate_per_s: float, across: LogScale) -> str:
    if not math.isfinite(rate_per_s):
        return ""
    x = across(rate_per_s)
    line = f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
    middle = min(max(x, _LEFT + 56), WIDTH - 60)
    return line + text_at(middle, _TOP - 6, f"load: {number(rate_per_s)}/s", "middle")


def _band(curve: RateCurve, kind: Kind, across: LogScale, up: LogScale) -> str:
    lower = [(across(point.rate_per_s), up(point.p99.low * 1e3)) for point in curve.points if point.p99.low]
    upper = [(across(point.rate_per_s), up(point.p99.high * 1e3)) for point in curve.points if point.p99.high]
    if len(upper) < len(lower) and upper:
        upper.append((upper[-1][0], _TOP))  # overloaded from here on
        lower = [each for each in lower if each[0] <= upper[-1][0]]
    if len(upper) < 2:
        return ""
    return f'<polygon class="band {kind.css}" points="{_points(lower + upper[::-1])}"/>'


def _line(curve: RateCurve, kind: Kind, across: LogScale, up: LogScale) -> str:
    places = [(across(point.rate_per_s), up(point.p99.value * 1e3)) for point in curve.points]
    dots = "".join(
        f'<circle class="{kind.css}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>'
        f"{escape(f'{kind.name}: {with_bar(point.p99.scaled(1e3))} ms at {number(point.rate_per_s)} requests/s')}</title></circle>"
        for (x, y), point in zip(places, curve.points, strict=True)
    )
    return f'<polyline class="series {kind.css}" points="{_points(places)}"/>{dots}'


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
