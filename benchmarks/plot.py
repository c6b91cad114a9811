"""The run as one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import load_name
from benchmarks.results import Run, Window, medians
from benchmarks.settings import CONCURRENCIES, HEAVY_MODEL


def write_plot(run: Run, path: Path) -> None:
    """Writes a PNG: CPU per request and latency of the light models, throughput of the heavy one; panels without data are left out."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cells = medians(run.windows)
    light = [each for each in cells if each.model != HEAVY_MODEL and each.protocol != "in-process" and each.load == "closed"]
    heavy = [each for each in cells if each.model == HEAVY_MODEL]
    panels = [(_draw_cpu, light), (_draw_latency, light), (_draw_throughput, heavy)]
    panels = [(draw, data) for draw, data in panels if data]
    if not panels:
        return
    figure, axes = plt.subplots(1, len(panels), figsize=(7 * len(panels), 6), squeeze=False, layout="constrained")
    for (draw, data), axis in zip(panels, axes[0], strict=True):
        draw(axis, data)
    figure.suptitle(f"{run.machine.get('cpu', '')}, {run.machine.get('cores usable', '?')} cores", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_cpu(axis: Any, cells: Sequence[Window]) -> None:
    lines = list(dict.fromkeys(_name(each) for each in cells))
    for index, concurrency in enumerate(CONCURRENCIES):
        values = {_name(each): each.server_cpu_us for each in cells if each.concurrency == concurrency}
        places = [place + (index - 1) * 0.27 for place in range(len(lines))]
        axis.barh(places, [values.get(line, 0.0) for line in lines], height=0.25, label=f"c={concurrency}")
    axis.set_yticks(range(len(lines)), lines, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("server CPU per request, us")
    axis.set_title("cost of a request, server on one core")
    axis.legend()


def _draw_latency(axis: Any, cells: Sequence[Window]) -> None:
    for line in dict.fromkeys(_name(each) for each in cells):
        points = sorted((each.concurrency, each.p50_ms, each.p99_ms) for each in cells if _name(each) == line)
        (drawn,) = axis.plot([c for c, _, _ in points], [p50 for _, p50, _ in points], marker="o", label=line)
        axis.plot([c for c, _, _ in points], [p99 for _, _, p99 in points], linestyle=":", color=drawn.get_color())
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(CONCURRENCIES, [str(each) for each in CONCURRENCIES])
    axis.set_xlabel("requests in flight")
    axis.set_ylabel("latency, ms (dotted: p99)")
    axis.set_title("latency, closed loop")
    axis.legend(fontsize=7)


def _draw_throughput(axis: Any, cells: Sequence[Window]) -> None:
    names = [f"{each.target} {'' if each.target == 'onnxruntime' else each.protocol} {load_name(each)}" for each in cells]
    colours = ["grey" if each.target == "onnxruntime" else "tab:blue" if each.load == "closed" else "tab:cyan" for each in cells]
    axis.barh(range(len(cells)), [each.rows_per_s for each in cells], color=colours)
    axis.set_yticks(range(len(cells)), names, fontsize=8)
    axis.invert_yaxis()
    best = max((each.rows_per_s for each in cells if each.target == "onnxruntime"), default=0.0)
    axis.axvline(best, color="black", linewidth=0.8)
    axis.set_xlabel("rows/s (line: raw onnxruntime's best)")
    axis.set_title(f"{HEAVY_MODEL}, all cores")


def _name(cell: Window) -> str:
    return f"{cell.target} {cell.protocol}" if cell.target != "stoker" else f"{cell.model} {cell.protocol}"
