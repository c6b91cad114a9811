"""What an operator sets of TensorFlow Serving's wire interface, with its flags."""

from dataclasses import dataclass
from typing import Annotated, Final

from stoker.server.core.flag import Panel, milliseconds, switch

METRICS_PATH: Final = "/monitoring/prometheus/metrics"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TfsSettings:
    """Settings of TensorFlow Serving's wire interface.

    Attributes:
        rest_timeout_s: How long a REST request may take, from its complete body to its response; None: as long as it does.
        allow_reload: Whether HandleReloadConfigRequest does anything.
        metrics_path: Where the metrics are under TensorFlow Serving's names; None: nowhere.
    """

    rest_timeout_s: Annotated[
        float | None,
        milliseconds("rest-api-timeout-in-ms", 1, _DAY_MS, panel=Panel.TENSORFLOW, text="How long a REST request may take."),
    ] = None
    allow_reload: Annotated[
        bool,
        switch("allow-model-reload", panel=Panel.TENSORFLOW, text="Let clients replace the list of models (HandleReloadConfigRequest)."),
    ] = False
    metrics_path: str | None = METRICS_PATH
