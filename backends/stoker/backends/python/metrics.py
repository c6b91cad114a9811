"""`MetricFamily` and `Metric` of `triton_python_backend_utils`: metrics that a model defines.

`/metrics` shows them (`PythonBackend.figures`); a worker process sends its own to the server. Errors have Triton's texts.
"""

import enum
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from stoker.backends.api.backend import Figure
from stoker.backends.api.model_metrics import (
    HISTOGRAM_SUFFIXES,
    MAX_FAMILIES,
    MAX_SERIES,
    check_bounds,
    check_family,
    check_labels,
    series_count,
)
from stoker.backends.python.errors import TritonModelException


class MetricKind(enum.Enum):
    """Prometheus' kinds of metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """One metric of a family. Safe to use from several threads."""

    def __init__(self, kind: MetricKind, labels: Mapping[str, str], bounds: Sequence[float] | None = None) -> None:
        """`bounds` are the upper bounds of a histogram's buckets, ascending and finite; None for the other kinds."""
        self._kind = kind
        self._lock = threading.Lock()
        self._value = 0.0
        self._bounds = () if bounds is None else (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self.series_count = series_count(bounds)
        self.labels = dict(labels)

    def increment(self, value: float) -> None:
        """Adds `value`, which must not be negative for a counter.

        Raises:
            TritonModelException: the value is negative, or the metric is a histogram.
        """
        if self._kind is MetricKind.HISTOGRAM:
            raise self._unsupported("increment", "Increment")
        if self._kind is MetricKind.COUNTER and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative "
                f"values, not by {value}."
            )
        with self._lock:
            self._value += float(value)

    def set(self, value: float) -> None:
        """Sets a gauge.

        Raises:
            TritonModelException: the metric is no gauge.
        """
        if self._kind is not MetricKind.GAUGE:
            raise self._unsupported("set", "Set")
        with self._lock:
            self._value = float(value)

    def observe(self, value: float) -> None:
        """Adds an observation to a histogram.

        Raises:
            TritonModelException: the metric is no histogram.
        """
        if self._kind is not MetricKind.HISTOGRAM:
            raise self._unsupported("observe", "Observe")
        number = float(value)
        # NaN is at most no bound, so it belongs to the last bucket.
        bucket = len(self._bounds) - 1 if math.isnan(number) else bisect_left(self._bounds, number)
        with self._lock:
            self._counts[bucket] += 1
            self._value += number

    def value(self) -> float:
        """The value of a counter or a gauge.

        Raises:
            TritonModelException: the metric is a histogram.
        """
        if self._kind is MetricKind.HISTOGRAM:
            raise self._unsupported("get", "Value")
        return self._value

    def figure(self, name: str, description: str) -> Figure:
        """The metric for `/metrics`, with the name and the description of its family."""
        with self._lock:
            value, counts = self._value, list(self._counts)
        buckets = tuple(zip(self._bounds, accumulate(counts), strict=True))
        return Figure(name=name, help=description, kind=_SHOWN[self._kind], value=value, labels=self.labels, buckets=buckets)

    def _unsupported(self, verb: str, operation: str) -> TritonModelException:
        return TritonModelException(
            f"Failed to {verb} metric value: TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation}"
        )


class MetricFamily:
    """Metrics of one name that differ in their labels."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Makes a family, or joins the one of that name in this process.

        Raises:
            TritonModelException: the name is not Prometheus' or one of the server's own, the family is of another kind, a histogram has
                series of that name, or there are too many families.
        """
        _check(check_family, name, description)
        with _families_lock:
            for suffix in HISTOGRAM_SUFFIXES:
                if kind is MetricKind.HISTOGRAM and name + suffix in _families:
                    raise TritonModelException(f"histogram '{name}' has series '{name}{suffix}', which is a metric already")
                base = _families.get(name.removesuffix(suffix))
                if name.endswith(suffix) and base is not None and base.kind is MetricKind.HISTOGRAM:
                    raise TritonModelException(f"metric '{name}' has the name of a series of histogram '{name.removesuffix(suffix)}'")
            if name not in _families and len(_families) >= MAX_FAMILIES:
                raise TritonModelException(f"the models of this process have {MAX_FAMILIES} families of metrics, which is the limit")
            known = _families.setdefault(name, _Family(kind, description))
        if known.kind is not kind:
            raise TritonModelException(f"metric '{name}' is a {known.kind.name.lower()} already")
        self._family = known

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:  # noqa: N802 - Triton's name
        """The metric with these labels; the same labels give the same metric.

        Args:
            labels: The labels; values are shown as text.
            buckets: The upper bounds of a histogram's buckets, which ascend; the bucket without a bound is added. None for the other kinds.

        Raises:
            TritonModelException: a label or a bucket is not allowed, a histogram has no buckets or another kind has some, or there are too
                many metrics.
        """
        if labels is not None and not isinstance(labels, Mapping):
            raise TritonModelException(f"Failed to create metric. Labels must be a dictionary, not {type(labels).__name__}.")
        wanted = {str(key): str(value) for key, value in (labels or {}).items()}
        _check(check_labels, wanted)
        bounds = self._bounds(buckets)
        identity = tuple(sorted(wanted.items()))
        with _families_lock:
            if identity not in self._family.metrics:
                metric = Metric(self._family.kind, wanted, bounds)
                if (
                    metric.series_count + sum(each.series_count for family in _families.values() for each in family.metrics.values())
                    > MAX_SERIES
                ):
                    raise TritonModelException(
                        f"the models of this process have more than {MAX_SERIES} series of metrics, which is the limit"
                    )
                self._family.metrics[identity] = metric
            return self._family.metrics[identity]

    def _bounds(self, buckets: Sequence[float] | None) -> list[float] | None:
        if buckets is None:
            if self._family.kind is MetricKind.HISTOGRAM:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            return None
        if not isinstance(buckets, (list, tuple)):
            raise TritonModelException(f"Failed to create metric. Buckets must be a list, not {type(buckets).__name__}.")
        if self._family.kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        bounds = [bound.item() if isinstance(bound, np.generic) else bound for bound in buckets]
        _check(check_bounds, bounds)
        return [float(bound) for bound in bounds]


def _check(check: Callable[..., None], *values: object) -> None:
    try:
        check(*values)
    except ValueError as error:
        raise TritonModelException(str(error)) from None


class _Family:
    def __init__(self, kind: MetricKind, description: str) -> None:
        self.kind = kind
        self.description = description
        self.metrics: dict[tuple[tuple[str, str], ...], Metric] = {}


_families: dict[str, _Family] = {}
_families_lock = threading.Lock()
_SHOWN: Mapping[MetricKind, Literal["counter", "gauge", "histogram"]] = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "histogram",
}


def figures() -> Iterator[Figure]:
    """The metrics of the models of this process."""
    with _families_lock:
        shown: list[Any] = [(name, family, metric) for name, family in _families.items() for metric in family.metrics.values()]
    for name, family, metric in shown:
        yield metric.figure(name, family.description)
