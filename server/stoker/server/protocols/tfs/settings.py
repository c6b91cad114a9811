"""What an operator sets of TensorFlow Serving's wire interface."""

from dataclasses import dataclass

METRICS_PATH = "/monitoring/prometheus/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class TfsSettings:
    """Settings of TensorFlow Serving's wire interface.

    Attributes:
        rest_timeout_s: How long a REST request may take, from its complete body to its answer; None: as long as it does.
        allow_reload: Whether HandleReloadConfigRequest does anything.
        metrics_path: Where the metrics are under TensorFlow Serving's names; None: nowhere.
    """

    rest_timeout_s: float | None = None
    allow_reload: bool = False
    metrics_path: str | None = METRICS_PATH
