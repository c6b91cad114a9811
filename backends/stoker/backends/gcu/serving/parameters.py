"""`ModelParameters`: config.pbtxt `parameters` of a model on a GCU.

clusters          clusters that each instance runs on, 1 to those of a card; by default the instances of a version share out their card's
pipeline_depth    1 to 8 batches of an instance on their way at once, each with a stream and buffers of its own; default 2, so that one is
                  copied while another runs. Buffers take device memory that many times
timeout_ms        how long a batch may take on the device, in milliseconds of its clock; default 600000, which leaves time for large
                  models that a slow host computes; 0: for ever
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stoker.backends.api.candidate import Violation, parameter_path
from stoker.backends.gcu.serving.settings import CardSettings

MAX_PIPELINE_DEPTH = 8
_DEFAULT_PIPELINE_DEPTH = 2
_DEFAULT_TIMEOUT_MS = 600_000
_MAX_TIMEOUT_MS = 86_400_000

PARAMETER_KEYS = frozenset({"clusters", "pipeline_depth", "timeout_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """All that config.pbtxt may say of one model, read.

    Attributes:
        clusters: Of each instance; None: an even share.
        pipeline_depth: Batches in flight.
        timeout_s: Of a batch; None: for ever.
    """

    clusters: int | None = None
    pipeline_depth: int = _DEFAULT_PIPELINE_DEPTH
    timeout_s: float | None = _DEFAULT_TIMEOUT_MS / 1000


def parameter_violations(parameters: Mapping[str, str], settings: CardSettings) -> Iterator[Violation]:
    """Every parameter whose value cannot be taken."""
    for key, (low, high) in _ranges(settings).items():
        text = parameters.get(key)
        if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
            yield Violation(parameter_path(key), f"takes a whole number from {low} to {high}, not '{text[:40]}'")


def read_parameters(parameters: Mapping[str, str]) -> ModelParameters:
    """What `parameters`, of which `parameter_violations` had no complaint, say."""
    timeout_ms = int(parameters.get("timeout_ms", _DEFAULT_TIMEOUT_MS))
    return ModelParameters(
        clusters=int(parameters["clusters"]) if "clusters" in parameters else None,
        pipeline_depth=int(parameters.get("pipeline_depth", _DEFAULT_PIPELINE_DEPTH)),
        timeout_s=timeout_ms / 1000 or None,
    )


def _ranges(settings: CardSettings) -> Mapping[str, tuple[int, int]]:
    return {"clusters": (1, settings.clusters), "pipeline_depth": (1, MAX_PIPELINE_DEPTH), "timeout_ms": (0, _MAX_TIMEOUT_MS)}
