"""The outputs of a prediction: an array, and the best classes if requested."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from stoker_client._pb import adlik_messages as pb
from stoker_client.adlik.tensor_proto import array_from_proto
from stoker_client.datatypes import Array
from stoker_client.errors import InvalidResponse


class ClassScore(TypedDict):
    """One of the best classes of a sample: its index in the flattened output, its value, and its label ("" without label file)."""

    idx: int
    score: float
    label: str


@dataclass(frozen=True, slots=True)
class PredictOutput:
    """One output of a batch.

    Attributes:
        tensor: Shape [batch, ...]; read-only if it was received as raw content.
        batch_classes: The best classes of each sample, best first; empty if none were requested.
    """

    tensor: Array
    batch_classes: list[list[ClassScore]] = field(default_factory=list)


def read_outputs(names: Iterable[str], response: pb.PredictResponse) -> dict[str, PredictOutput]:
    """Reads the outputs `names` of a response, in that order; all outputs if `names` is empty.

    Raises:
        InvalidResponse: an output is missing or cannot be read.
    """
    wanted = list(names) or sorted(response.outputs)
    missing = [name for name in wanted if name not in response.outputs]
    if missing:
        raise InvalidResponse(
            f"the response lacks output {', '.join(map(repr, missing))}; it has {', '.join(sorted(response.outputs)) or 'none'}"
        )
    return {name: _read(name, response.outputs[name]) for name in wanted}


def _read(name: str, output: pb.PredictResponse.Output) -> PredictOutput:
    classes = [[ClassScore(idx=each.idx, score=each.score, label=each.label) for each in sample.cls] for sample in output.batch_classes]
    return PredictOutput(array_from_proto(name, output.tensor), classes)
