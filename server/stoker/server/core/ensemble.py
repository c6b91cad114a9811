"""Ensembles: the steps of a model that runs other models one after the other. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stoker.backends.api.model import ModelSignature

#: `ModelConfig.backend` and `ModelConfig.platform` of an ensemble.
ENSEMBLE: Final = "ensemble"
#: Steps of one ensemble.
MAX_STEPS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One model that an ensemble runs.

    Attributes:
        model: The model's name.
        version: The version; None: the newest ready one, chosen for each request.
        inputs: Tensor of the ensemble, by the model's input.
        outputs: Tensor of the ensemble, by the model's output.
        namespace: The repository of the model as written; empty: none is written.
        identifier: The model's key, where it is not its name; see `core/model_key.py`.
    """

    model: str
    version: int | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    namespace: str = ""
    identifier: str = ""

    @property
    def key(self) -> str:
        """The model's key."""
        return self.identifier or self.model


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The data flow of an ensemble. Tensors have the ensemble's own names; its inputs and outputs are some of them.

    Attributes:
        steps: In the order of the configuration, which does not matter: a step runs when its inputs are there.
        max_inflight_requests: Requests in flight; of a decoupled ensemble the requests in flight at one step for one request of the
            ensemble, as in Triton. 0: the server's own bound.
    """

    steps: tuple[EnsembleStep, ...]
    max_inflight_requests: int = 0

    @property
    def step_names(self) -> tuple[str, ...]:
        """A distinct name of each step: its model's; for further steps of one model with a number, such as `resize#2`."""
        counts: dict[str, int] = {}
        names: list[str] = []
        for step in self.steps:
            count = counts[step.model] = counts.get(step.model, 0) + 1
            names.append(step.model if count == 1 else f"{step.model}#{count}")
        return tuple(names)


@dataclass(frozen=True, slots=True)
class StepModel:
    """What an ensemble is checked against: the version that a step runs now.

    Attributes:
        version: The version number.
        signature: Its inputs and outputs as clients see them.
    """

    version: int
    signature: ModelSignature
