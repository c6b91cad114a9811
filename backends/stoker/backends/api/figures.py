"""`Figure`: one number that a backend shows in the server's metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One sample of a metric; figures of one name share kind and help, and differ in their labels.

    Attributes:
        name: In Prometheus' form, such as `stoker_ipu_busy_seconds_total`: prefix `stoker_`, base units, counters end in `_total`.
        help: One sentence.
        kind: `counter` only rises, `gauge` does as it likes.
        value: Now.
        labels: Such as `{"device": "0"}`.
    """

    name: str
    help: str
    kind: Literal["counter", "gauge"]
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
