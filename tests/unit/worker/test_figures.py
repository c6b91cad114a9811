"""Metrics of a model as messages: what is sent, how often, and what is rejected."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.backend import Figure
from stoker.backends.api.model_metrics import MAX_BOUNDS, MAX_FAMILIES, MAX_SERIES
from stoker.backends.worker.channel import Channel, Message
from stoker.backends.worker.figures import FigureReporter, figures_text, read_figures
from stoker.backends.worker.protocol import FIGURES
from tests.unit.worker.damage import strange


def message(text: bytes) -> Message:
    return Message(FIGURES, 0, 0, (0, 0, 0), text, np.zeros(0, np.uint8))


def series(count: int, families: int = 1) -> list[Figure]:
    return [Figure(name=f"m{index % families}", help="h", kind="gauge", value=index, labels={"i": str(index)}) for index in range(count)]


SOME = (
    Figure(name="requests", help="Requests.", kind="counter", value=3.0, labels={"kind": "é"}),
    Figure(name="requests", help="Requests.", kind="counter", value=4.0, labels={"kind": "b"}),
    Figure(name="level", help="", kind="gauge", value=math.inf, labels={}),
    Figure(name="sizes", help="Sizes.", kind="histogram", value=1.5, labels={"a": "b"}, buckets=((0.5, 1), (2.0, 3), (math.inf, 4))),
    Figure(name="sizes", help="Sizes.", kind="histogram", value=0.0, labels={}, buckets=((math.inf, 0),)),
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    server, end = Channel.pair()
    worker = Channel(end)
    server.set_timeout(0)
    yield server, worker
    server.close()
    worker.close()


def test_figures_arrive_as_they_are():
    assert read_figures(message(figures_text(SOME))) == SOME


def test_figures_are_sent_only_when_one_has_changed(ends: tuple[Channel, Channel]):
    server, worker = ends
    figures: list[Figure] = []
    reporter = FigureReporter(worker, lambda: figures)
    reporter.report()
    with pytest.raises(BlockingIOError):
        server.receive()
    figures += SOME
    reporter.report()
    reporter.report()
    assert read_figures(server.receive()) == SOME
    with pytest.raises(BlockingIOError):
        server.receive()
    figures.pop()
    reporter.report()
    assert read_figures(server.receive()) == SOME[:-1]


def test_as_many_figures_as_allowed_arrive(ends: tuple[Channel, Channel]):
    server, worker = ends
    FigureReporter(worker, lambda: series(MAX_SERIES, MAX_FAMILIES)).report()
    assert len(read_figures(server.receive())) == MAX_SERIES


def histograms(count: int) -> list[Figure]:
    """Histograms of `count` series."""
    buckets = ((1.0, 0), (math.inf, 0))
    return [
        Figure(name="m", help="h", kind="histogram", value=0.0, labels={"i": str(index)}, buckets=buckets) for index in range(count // 4)
    ]


def test_each_bucket_of_a_histogram_counts_as_a_series():
    assert len(read_figures(message(figures_text(histograms(MAX_SERIES))))) == MAX_SERIES // 4
    with pytest.raises(ValueError, match="metric 'm' is one of more than 4096 series"):
        read_figures(message(figures_text(histograms(MAX_SERIES + 4))))


@pytest.mark.parametrize("figures", [series(MAX_SERIES + 1), series(MAX_FAMILIES + 1, MAX_FAMILIES + 1)], ids=["series", "families"])
def test_more_figures_than_allowed_are_damage(figures: list[Figure]):
    with pytest.raises(ValueError, match="metric"):
        read_figures(message(figures_text(figures)))


@pytest.mark.parametrize(
    "meta",
    [
        {"nv_inference_count": ["counter", "h", []]},
        {"a b": ["counter", "h", []]},
        {"a": ["summary", "h", []]},
        {"a": ["histogram", "h", [[{}, 1]]]},
        {"a": ["histogram", "h", [[{}, 1, []]]]},
        {"a": ["histogram", "h", [[{}, 1, [[1, 2]]]]]},
        {"a": ["histogram", "h", [[{}, 1, [[1, 2], [1, 2], [math.inf, 2]]]]]},
        {"a": ["histogram", "h", [[{}, 1, [[1, 2], [math.inf, 1]]]]]},
        {"a": ["histogram", "h", [[{}, 1, [[1, -1], [math.inf, 1]]]]]},
        {"a": ["histogram", "h", [[{}, 1, [[1, True], [math.inf, 1]]]]]},
        {"a": ["histogram", "h", [[{}, 1, [*([index, 0] for index in range(MAX_BOUNDS + 1)), [math.inf, 0]]]]]},
        {"a": ["gauge", "h", [[{}, 1, [[math.inf, 0]]]]]},
        {"a": ["gauge", "h", [[{"worker": "x"}, 1]]]},
        {"a": ["gauge", "h", [[{"b": 1}, 1]]]},
        {"a": ["gauge", "h", [[{}, "1"]]]},
        {"a": ["gauge", "h", [[{}, True]]]},
    ],
)
def test_metric_that_a_model_cannot_have_is_damage(meta: dict[str, Any]):
    with pytest.raises(ValueError, match=r"metric|label|histogram"):
        read_figures(message(json.dumps(meta).encode()))


@given(strange(json.loads(figures_text(SOME))))
def test_any_description_is_an_error_or_figures(meta: Any):
    try:
        found = read_figures(message(json.dumps(meta).encode()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    assert all(type(figure.value) is float for figure in found)


@given(st.dictionaries(st.text(), st.text(), max_size=3), st.text())
def test_any_labels_are_rejected_or_arrive(labels: dict[str, str], name: str):
    figure = Figure(name=name, help="h", kind="gauge", value=1.0, labels=labels)
    try:
        found = read_figures(message(figures_text([figure])))
    except ValueError:
        return
    assert found == (figure,)
