"""`MetricFamily` and `Metric` of `triton_python_backend_utils`: metrics that a model defines.

Counters and gauges of models in the server's own process are shown by `/metrics` (`PythonBackend.figures`). Those of a model in a worker
process, and histograms, keep their values for the model only.
"""

import enum
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from stoker.backends.api.backend import Figure
from stoker.backends.python.errors import TritonModelException

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Metrics of all models of the process together.
MAX_METRICS: Final = 4096


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
            TritonModelException: the name is not Prometheus', or the family is of another kind.
        """
        if _NAME.fullmatch(name) is None:
            raise TritonModelException(f"'{name}' is no name of a metric: letters, digits, '_' and ':' are allowed")
        with _families_lock:
            known = _families.setdefault(name, _Family(kind, description))
        if known.kind is not kind:
            raise TritonModelException(f"metric '{name}' is a {known.kind.name.lower()} already")
        self._family = known

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:  # noqa: N802 - Triton's name
        """The metric with these labels; the same labels give the same metric.

        Raises:
            TritonModelException: a label's name is not Prometheus', or there are too many metrics.
        """
        wanted = {str(key): str(value) for key, value in (labels or {}).items()}
        for key in wanted:
            if _LABEL.fullmatch(key) is None:
                raise TritonModelException(f"'{key}' is no name of a label")
        identity = tuple(sorted(wanted.items()))
        with _families_lock:
            if identity not in self._family.metrics:
                if sum(len(family.metrics) for family in _families.values()) >= MAX_METRICS:
                    raise TritonModelException(f"the models of this process have {MAX_METRICS} metrics, which is the limit")
                self._family.metrics[identity] = Metric(self._family.kind, wanted)
            return self._family.metrics[identity]


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
