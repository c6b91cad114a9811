"""`MetricFamily` and `Metric` of `triton_python_backend_utils`: metrics that a model defines.

`/metrics` shows counters and gauges (`PythonBackend.figures`); a worker process sends its own to the server. Histograms keep their values
for the model only.
"""

import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from stoker.backends.api.backend import Figure
from stoker.backends.api.model_metrics import MAX_FAMILIES, MAX_SERIES, check_family, check_labels
from stoker.backends.python.errors import TritonModelException


class MetricKind(enum.Enum):
    """Prometheus' kinds of metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """One metric of a family. Safe to use from several threads."""

    def __init__(self, kind: MetricKind, labels: Mapping[str, str]) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._value = 0.0
        self.labels = dict(labels)

    def increment(self, value: float) -> None:
        """Adds `value`, which must not be negative for a counter.

        Raises:
            TritonModelException: the value is negative, or the metric is a histogram.
        """
        if self._kind is MetricKind.HISTOGRAM or (self._kind is MetricKind.COUNTER and value < 0):
            raise TritonModelException(f"a {self._kind.name.lower()} cannot be incremented by {value}")
        with self._lock:
            self._value += float(value)

    def set(self, value: float) -> None:
        """Sets a gauge.

        Raises:
            TritonModelException: the metric is no gauge.
        """
        if self._kind is not MetricKind.GAUGE:
            raise TritonModelException(f"a {self._kind.name.lower()} cannot be set")
        with self._lock:
            self._value = float(value)

    def observe(self, value: float) -> None:
        """Adds an observation to a histogram, of which only the sum is kept.

        Raises:
            TritonModelException: the metric is no histogram.
        """
        if self._kind is not MetricKind.HISTOGRAM:
            raise TritonModelException(f"a {self._kind.name.lower()} takes no observations")
        with self._lock:
            self._value += float(value)

    def value(self) -> float:
        """The value of a counter or a gauge.

        Raises:
            TritonModelException: the metric is a histogram.
        """
        if self._kind is MetricKind.HISTOGRAM:
            raise TritonModelException("a histogram has no single value")
        return self._value


class MetricFamily:
    """Metrics of one name that differ in their labels."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Makes a family, or joins the one of that name in this process.

        Raises:
            TritonModelException: the name is not Prometheus' or one of the server's own, the family is of another kind, or there are too
                many families.
        """
        _check(check_family, name, description)
        with _families_lock:
            if name not in _families and len(_families) >= MAX_FAMILIES:
                raise TritonModelException(f"the models of this process have {MAX_FAMILIES} families of metrics, which is the limit")
            known = _families.setdefault(name, _Family(kind, description))
        if known.kind is not kind:
            raise TritonModelException(f"metric '{name}' is a {known.kind.name.lower()} already")
        self._family = known

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:  # noqa: N802 - Triton's name
        """The metric with these labels; the same labels give the same metric.

        Raises:
            TritonModelException: a label is not allowed, or there are too many metrics.
        """
        wanted = {str(key): str(value) for key, value in (labels or {}).items()}
        _check(check_labels, wanted)
        identity = tuple(sorted(wanted.items()))
        with _families_lock:
            if identity not in self._family.metrics:
                if sum(len(family.metrics) for family in _families.values()) >= MAX_SERIES:
                    raise TritonModelException(f"the models of this process have {MAX_SERIES} metrics, which is the limit")
                self._family.metrics[identity] = Metric(self._family.kind, wanted)
            return self._family.metrics[identity]


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
_SHOWN: Mapping[MetricKind, Literal["counter", "gauge"]] = {MetricKind.COUNTER: "counter", MetricKind.GAUGE: "gauge"}


def figures() -> Iterator[Figure]:
    """The counters and gauges of the models of this process."""
    with _families_lock:
        shown: list[Any] = [(name, family, metric) for name, family in _families.items() for metric in family.metrics.values()]
    for name, family, metric in shown:
        if family.kind in _SHOWN:
            yield Figure(name=name, help=family.description, kind=_SHOWN[family.kind], value=metric.value(), labels=metric.labels)
