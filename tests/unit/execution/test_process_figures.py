"""Metrics of models in worker processes beside those of the processes themselves."""

import math
from collections.abc import Sequence

from stoker.backends.api.backend import Figure
from stoker.server.execution.process_figures import ProcessFigures
from stoker.server.observability.families import BackendFamilies
from stoker.server.observability.series import write_exposition


class Worker:
    """A supervised process without a number."""

    pid = None

    def __init__(self, worker: str, version: str, figures: Sequence[Figure]) -> None:
        self.labels = {"model": "m", "version": version, "worker": worker}
        self.is_closed = False
        self.model_figures = figures


def counter(value: float, kind: str = "counter", **labels: str) -> Figure:
    return Figure(name="requests", help="Requests.", kind="gauge" if kind == "gauge" else "counter", value=value, labels=labels)


def histogram(**labels: str) -> Figure:
    buckets = ((0.5, 1), (10.0, 1), (math.inf, 2))
    return Figure(name="requests", help="Requests.", kind="histogram", value=20.25, labels=labels, buckets=buckets)


def shown(*workers: Worker) -> list[str]:
    figures = ProcessFigures()
    for worker in workers:
        figures.add(worker)
    text = write_exposition(BackendFamilies(lambda: [figures]).collect()).decode()
    return [line for line in text.splitlines() if line.startswith("requests")]


def test_each_process_has_series_of_its_own_and_labels_of_the_model_come_first():
    assert shown(Worker("m_0", "1", [counter(1, version="own")]), Worker("m_1", "1", [counter(2)])) == [
        'requests{model="m",version="own",worker="m_0"} 1',
        'requests{model="m",version="1",worker="m_1"} 2',
    ]


def test_histogram_has_its_buckets_its_sum_and_its_count():
    assert shown(Worker("m_0", "1", [histogram(kind="a")])) == [
        'requests_bucket{kind="a",le="0.5",model="m",version="1",worker="m_0"} 1',
        'requests_bucket{kind="a",le="10.0",model="m",version="1",worker="m_0"} 1',
        'requests_bucket{kind="a",le="+Inf",model="m",version="1",worker="m_0"} 2',
        'requests_sum{kind="a",model="m",version="1",worker="m_0"} 20.25',
        'requests_count{kind="a",model="m",version="1",worker="m_0"} 2',
    ]


def test_series_with_equal_labels_is_shown_once():
    assert len(shown(Worker("m_0", "1", [counter(1, version="own")]), Worker("m_0", "2", [counter(2, version="own")]))) == 1


def test_metric_of_another_kind_than_that_of_an_earlier_model_is_left_out():
    assert shown(Worker("m_0", "1", [counter(1)]), Worker("m_1", "1", [counter(2, kind="gauge")])) == [
        'requests{model="m",version="1",worker="m_0"} 1'
    ]


def test_metrics_of_a_closed_worker_are_gone():
    worker = Worker("m_0", "1", [counter(1)])
    worker.is_closed = True
    assert shown(worker) == []
