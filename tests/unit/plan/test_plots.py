"""The plots of a plan: different colours, and texts that neither overlap nor leave the plot."""

import re
from collections.abc import Sequence

import pytest

from stoker.cli.plan.figures import Figure, Origin
from stoker.cli.plan.load_plot import load_plot
from stoker.cli.plan.model import Combination, LoadInfo, LoadPlan, Memory, RateCurve, RatePoint
from stoker.cli.plan.plots import PANEL_WIDTH, memory_kinds, throughput_panels
from stoker.compiler.pages.svg import WIDTH

_TEXT = re.compile(r'<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)">([^<]*)')
_CHARACTER_WIDTH = 6.2


def _exactly(value: float) -> Figure:
    return Figure(value=value, low=value, high=value, origin=Origin.SIMULATED)


def _combination(precision: str, batch: int, latency_s: float, rows_per_s: float, memory: Memory | None = None) -> Combination:
    return Combination(
        target="ipu", device="C600", unit="card", count=1, precision=precision, batch=batch, fits=True,
        latency=_exactly(latency_s), period=_exactly(latency_s), throughput=_exactly(rows_per_s), memory=memory,
    )  # fmt: skip


def _boxes(plot: str) -> Sequence[tuple[float, float, float, str]]:
    """Returns begin, end, base line and text of each text."""
    share = {"start": 0.0, "middle": 0.5, "end": 1.0}
    boxes = []
    for x, y, anchor, text in _TEXT.findall(plot):
        wide = _CHARACTER_WIDTH * len(text)
        begin = float(x) - share[anchor] * wide
        boxes.append((begin, begin + wide, float(y), text))
    return boxes


def _overlapping(boxes: Sequence[tuple[float, float, float, str]]) -> list[tuple[str, str]]:
    return [
        (one[3], other[3])
        for at, one in enumerate(boxes)
        for other in boxes[at + 1 :]
        if one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < 10
    ]


def test_eight_kinds_of_memory_have_eight_colours() -> None:
    memory = Memory(place="tile", used_bytes=8, capacity_bytes=9, by_category={f"kind {at}": 1 for at in range(8)})
    kinds = memory_kinds([_combination("fp32", 1, 0.001, 1e3, memory)])
    assert len({each.css for each in kinds.values()}) == 8


def test_texts_of_a_panel_stay_inside_it_and_apart() -> None:
    ways = [_combination(precision, batch, batch * 1e-3, batch * 1e5) for precision in ("fp32", "fp16") for batch in (1, 10)]
    boxes = _boxes(throughput_panels(ways))
    assert {"1,000,000", "10"} <= {each[3] for each in boxes}
    assert [each for each in boxes if each[0] < 0 or each[1] > PANEL_WIDTH] == []
    assert _overlapping(boxes) == []


@pytest.mark.parametrize("rate_per_s", [1_000.0, 5_000.0, 100_000.0])
@pytest.mark.parametrize("goal_s", [1e-3, 5e-3, 0.1])
def test_labels_of_the_goal_and_the_load_stay_apart(rate_per_s: float, goal_s: float) -> None:
    points = [RatePoint(rate_per_s=rate, p99=_exactly(p99_s)) for rate, p99_s in ((1_000.0, 1e-3), (100_000.0, 0.1))]
    curve = RateCurve(combination=0, label="C600, fp32, batch 1", devices=1, points=points)
    info = LoadInfo(arrivals="poisson", rate_per_s=rate_per_s, rows=1, p99_goal_s=goal_s, requests=100)
    boxes = _boxes(load_plot(LoadPlan(load=info, counts=(), curves=[curve])))
    assert [each for each in boxes if each[0] < 0 or each[1] > WIDTH] == []
    assert _overlapping(boxes) == []
