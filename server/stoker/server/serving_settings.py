"""`ServingStart`: what is set in TensorFlow Serving's words. Imports nothing of the server, so that flags are read without it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStart:
    """What was set in TensorFlow Serving's words.

    Attributes:
        model_name: The one model, whose folder is the first repository; None: repositories hold many.
        model_config_file: The list of models; None: there is none.
        config_poll_s: Seconds between looks at the list; None: it is read once.
        enable_batching: Whether models that leave it open are batched as `batching_file` says.
        batching_file: A BatchingParameters file; None: TensorFlow Serving's defaults.
        monitoring_file: A MonitoringConfig file; None: metrics are at their usual path.
        allow_reload: Whether clients may replace the list of models.
        reload_root: Below which further folders may lie that they name.
        labels_for_unavailable: Whether a new label may be given to a version that does not serve.
        rest_timeout_s: How long a REST request may take; None: as long as it does.
    """

    model_name: str | None = None
    model_config_file: Path | None = None
    config_poll_s: float | None = None
    enable_batching: bool = False
    batching_file: Path | None = None
    monitoring_file: Path | None = None
    allow_reload: bool = False
    reload_root: Path | None = None
    labels_for_unavailable: bool = False
    rest_timeout_s: float | None = None
