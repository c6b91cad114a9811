"""The settings of a run."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.requests import PROTOCOLS

LIGHT_MODELS = ("tiny", "tiny-inline", "mlp")
HEAVY_MODEL = "resnet50"
CONCURRENCIES = (1, 8, 32)
#: Offered rates of the open loops, as shares of the capacity that the closed loop has measured.
LOAD_FACTORS = (0.5, 0.8)
RAW_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes:
        models: Names of the models.
        protocols: Names of the protocols.
        repeats: Number of rounds; each measures every closed-loop cell once.
        duration_s: Length of a window of the light models, seconds.
        heavy_duration_s: Length of a window of ResNet-50, seconds.
        output: Folder for the results.
        is_quick: Whether to run a smoke test with fewer cells.
    """

    models: tuple[str, ...] = (*LIGHT_MODELS, HEAVY_MODEL)
    protocols: tuple[str, ...] = PROTOCOLS
    repeats: int = 3
    duration_s: float = 1.5
    heavy_duration_s: float = 5.0
    output: Path = Path("benchmarks/results")
    is_quick: bool = False

    @property
    def light_models(self) -> tuple[str, ...]:
        return tuple(each for each in self.models if each in LIGHT_MODELS)

    @property
    def has_heavy(self) -> bool:
        return HEAVY_MODEL in self.models

    @property
    def raw_batches(self) -> tuple[int, ...]:
        """Batch sizes of raw onnxruntime; the quick run omits the slowest ones."""
        return (1, 4, 8) if self.is_quick else RAW_BATCHES
