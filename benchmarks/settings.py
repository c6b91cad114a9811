"""The measurements of a run, and their length."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.requests import PROTOCOLS

LIGHT_MODELS = ("tiny", "tiny-inline", "mlp")
HEAVY_MODEL = "resnet50"
CONCURRENCIES = (1, 8, 32)
#: Offered rates of the open loops, as parts of the capacity that the closed loop just found.
LOAD_FACTORS = (0.5, 0.8)
RAW_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes:
        models: Which models.
        protocols: Which protocols.
        repeats: Rounds; every round measures every closed-loop cell once, next to what it is compared with.
        duration_s: Window of the light models.
        heavy_duration_s: Window of ResNet-50.
        output: Where results go.
        is_quick: A smoke test: fewer cells.
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
        """Batch sizes of raw onnxruntime; the quick run leaves out those that take longest and gain least."""
        return (1, 4, 8) if self.is_quick else RAW_BATCHES
