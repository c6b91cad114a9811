"""Plots of the summary report as inline SVG: no library and no network access. Colours are the page's CSS variables, for light and dark
mode.

Every mark carries a `<title>`, which browsers show as a tooltip. The page has a table of the numbers beside each plot.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from stoker.backends.ipu.compile.summary_report import BatchEstimate, OpRun
from stoker.compiler.pages.svg import WIDTH, Kind, grid, rect, round_up, short, svg, text_at

_LEFT, _RIGHT, _ROW, _BAR = 170, 90, 24, 14


MEMORY_KINDS: Mapping[str, Kind] = {
    "weights": Kind("weights", "c1"),
    "activations": Kind("live activations", "c2"),
    "temporary": Kind("temporary data", "c3"),
    "code": Kind("code", "c4"),
    "exchange_code": Kind("exchange code", "c5"),
    "io": Kind("stream buffers", "c6"),
}
TIME_KINDS: Mapping[str, Kind] = {
    "compute_s": Kind("compute", "c1"),
    "exchange_s": Kind("exchange", "c2"),
    "sync_s": Kind("sync", "c0"),
    "link_s": Kind("IPU link", "c5"),
    "host_s": Kind("host IO", "c3"),
}


def microseconds(seconds: float) -> str:
    """Returns a time as text in microseconds."""
    return f"{seconds * 1e3:,.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.2f} µs"


def memory_bar(by_category: Mapping[str, int], capacity_bytes: int) -> str:
    """Returns a bar of one tile's memory by category, with its capacity as a line."""
    scale = (WIDTH - 20) / max(capacity_bytes, sum(by_category.values()), 1)
    parts, x = [], 10.0
    for key, size in by_category.items():
        if size:
            kind = MEMORY_KINDS.get(key, Kind(key, "c0"))
            parts.append(rect(x, 8, max(size * scale - 2, 0.5), 26, kind.css, f"{kind.name}: {size:,} bytes"))
            x += size * scale
    limit = 10 + capacity_bytes * scale
    parts.append(f'<line class="limit" x1="{limit:.1f}" x2="{limit:.1f}" y1="2" y2="40"/>')
    parts.append(text_at(limit, 54, f"{capacity_bytes:,} bytes: all that a tile has", "end"))
    return svg(60, "".join(parts), "Memory of the fullest tile by kind")


def tile_histogram(tile_bytes: Sequence[int], capacity_bytes: int, bins: int = 40) -> str:
    """Returns a histogram of the bytes per tile, from 0 to the capacity (or to the fullest tile, if that holds more)."""
    counts, edges = np.histogram(tile_bytes, bins=bins, range=(0, max(capacity_bytes, *tile_bytes, 1)))
    height, top, scale = 150, 14, (WIDTH - 80) / edges[-1]
    most = max(int(counts.max()), 1)
    parts = [grid(60, WIDTH - 20, top + height, [(top + height * (1 - share), f"{most * share:,.0f}") for share in (0.0, 0.5, 1.0)])]
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        if count:
            tall = max(height * int(count) / most, 2)
            label = f"{count} tiles hold {low:,.0f} to {high:,.0f} bytes"
            css = "c3" if low >= capacity_bytes else "c1"
            parts.append(rect(60 + low * scale, top + height - tall, max((high - low) * scale - 2, 1), tall, css, label))
    limit = 60 + capacity_bytes * scale
    parts.append(f'<line class="limit" x1="{limit:.1f}" x2="{limit:.1f}" y1="{top}" y2="{top + height}"/>')
    for at in range(5):
        edge = edges[-1] * at / 4
        parts.append(
            text_at(
                60 + edge * scale, top + height + 18, f"{edge / 1024:,.0f} KiB", "middle" if 0 < at < 4 else "start" if not at else "end"
            )
        )
    return svg(top + height + 28, "".join(parts), "Tiles by bytes held")


def stacked_rows(rows: Sequence[tuple[str, Mapping[str, float], str]]) -> str:
    """Horizontal bars of parts by the keys of `TIME_KINDS`: label, parts, text behind the bar."""
    longest = max((sum(parts.values()) for _, parts, _ in rows), default=0.0) or 1.0
    scale = (WIDTH - _LEFT - _RIGHT) / longest
    drawn = []
    for at, (label, parts, text) in enumerate(rows):
        y, x = 4 + at * _ROW, float(_LEFT)
        drawn.append(text_at(_LEFT - 8, y + 11, short(label), "end", title=label))
        for key, kind in TIME_KINDS.items():
            if parts.get(key):
                wide = parts[key] * scale
                drawn.append(rect(x, y, max(wide - 1, 0.5), _BAR, kind.css, f"{label}, {kind.name}: {microseconds(parts[key])}"))
                x += wide
        drawn.append(text_at(x + 6, y + 11, text, "start"))
    return svg(8 + len(rows) * _ROW, "".join(drawn), "Time by part")


def activity(runs: Sequence[OpRun], bins: int = 240) -> str:
    """Returns a plot of the device's activity during one micro-batch: a strip for each kind, whose height is its share of the time."""
    total = sum(run.total_s for run in runs)
    if not total:
        return ""
    kinds = {key: kind for key, kind in TIME_KINDS.items() if any(getattr(run, key) for run in runs)}
    shares = {key: np.zeros(bins) for key in kinds}
    for run in runs:
        if run.total_s:
            # Steps of a node alternate, so each kind has a constant share during the node.
            overlap = _overlap(run.start_s / total * bins, (run.start_s + run.total_s) / total * bins, bins)
            for key in kinds:
                shares[key] += overlap * getattr(run, key) / run.total_s
    height, wide, parts = 34, (WIDTH - _LEFT - 20) / bins, []
    for row, (key, kind) in enumerate(kinds.items()):
        floor = 6 + (row + 1) * (height + 6)
        parts.append(text_at(_LEFT - 8, floor - 12, kind.name, "end"))
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - 20}" y1="{floor}" y2="{floor}"/>')
        for at, share in enumerate(shares[key]):
            if share > 0.005:
                label = f"{kind.name}: {min(share, 1):.0%} of the time around {microseconds(total * (at + 0.5) / bins)}"
                parts.append(rect(_LEFT + at * wide, floor - height * min(share, 1), wide, height * min(share, 1), kind.css, label))
    bottom = 6 + len(kinds) * (height + 6)
    for at in range(5):
        anchor = "start" if not at else "end" if at == 4 else "middle"
        parts.append(text_at(_LEFT + (WIDTH - _LEFT - 20) * at / 4, bottom + 16, microseconds(total * at / 4), anchor))
    return svg(bottom + 26, "".join(parts), "Activity over one micro-batch")


def lanes(names: Sequence[str], seconds: Sequence[float], micro_batches: int) -> str:
    """Returns a plot of the first micro-batches of a call in their lanes. Each lane takes one micro-batch at a time."""
    ends = np.zeros((micro_batches + 1, len(names) + 1))
    boxes = []
    for batch in range(micro_batches):
        for lane, length in enumerate(seconds):
            begin = max(ends[batch + 1, lane], ends[batch, lane + 1])
            ends[batch + 1, lane + 1] = begin + length
            boxes.append((batch, lane, begin, length))
    total = float(ends.max()) or 1.0
    scale = (WIDTH - _LEFT - 20) / total
    parts = [text_at(_LEFT - 8, 18 + lane * 30, short(name), "end", title=name) for lane, name in enumerate(names)]
    for batch, lane, begin, length in boxes:
        label = f"micro-batch {batch}, {names[lane]}: {microseconds(begin)} to {microseconds(begin + length)}"
        css = ("c1", "c2", "c4")[batch % 3]
        x, wide = _LEFT + begin * scale, max(length * scale - 2, 0.5)
        parts.append(rect(x, 4 + lane * 30, wide, 22, css, label))
        if wide > 18:
            parts.append(f'<text class="on" x="{x + wide / 2:.1f}" y="{19 + lane * 30}" text-anchor="middle">{batch}</text>')
    parts.append(text_at(WIDTH - 20, 16 + len(names) * 30, microseconds(total), "end"))
    parts.append(text_at(_LEFT, 16 + len(names) * 30, "0", "start"))
    return svg(26 + len(names) * 30, "".join(parts), "Lanes over the first micro-batches")


def throughput(batches: Sequence[BatchEstimate], own: int) -> str:
    """Returns a plot of rows per second over the batch size (logarithmic). Batches that do not fit are hollow."""
    points = [(each, each.rows_per_s) for each in batches if each.rows_per_s]
    if len(points) < 2:
        return ""
    height, top, left, right = 190, 14, 80, WIDTH - 40
    most = round_up(max(rate for _, rate in points))
    low, high = (math.log2(points[at][0].batch) for at in (0, -1))
    parts = [
        grid(left, right, top + height, [(top + height * (1 - share), f"{most * share:,.0f}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)])
    ]

    def coordinates(each: BatchEstimate, rate: float) -> tuple[float, float]:
        return left + 16 + (right - left - 32) * (math.log2(each.batch) - low) / (high - low), top + height * (1 - rate / most)

    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (coordinates(*point) for point in points))
    parts.append(f'<polyline class="line" points="{path}"/>')
    for each, rate in points:
        x, y = coordinates(each, rate)
        latency = microseconds(each.latency_s or 0.0)
        label = f"batch {each.batch}: {rate:,.0f} rows/s, latency {latency}, {'fits' if each.fits else 'does not fit'}"
        css = "dot" if each.fits else "hollow"
        parts.append(
            f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{7 if each.batch == own else 5}"><title>{escape(label)}</title></circle>'
        )
        parts.append(text_at(x, top + height + 18, str(each.batch), "middle"))
    parts.append(text_at(right, top + height + 34, "rows of a micro-batch", "end"))
    return svg(top + height + 40, "".join(parts), "Throughput by batch size")


def _overlap(begin: float, end: float, bins: int) -> NDArray[np.float64]:
    """Returns for each of `bins` unit intervals the part that lies between `begin` and `end`."""
    edges = np.arange(bins + 1, dtype=np.float64)
    shared: NDArray[np.float64] = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, 1.0)
    return shared
