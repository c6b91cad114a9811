"""What a predict request is answered with, before either protocol prints it: outputs, and the highest values of those asked for so."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stoker.backends.api.errors import TooLarge
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferResponse
from stoker.server.protocols.adlik.model_spec import ModelQuery

Labels = Mapping[str, Sequence[str]]


class BestClass(NamedTuple):
    """One of the highest values of a sample: where it stands in the flattened sample, the value, its label (empty: none)."""

    place: int
    score: float
    label: str


class ResponseOutput(NamedTuple):
    """One output.

    Attributes:
        name: The output's.
        datatype: Of `array`.
        array: `[rows, *dims]`.
        classes: For each sample its highest values, best first; empty where they were not asked for.
    """

    name: str
    datatype: DataType
    array: Array
    classes: list[list[BestClass]]


class PredictionResponse(NamedTuple):
    """A PredictResponse."""

    model: ModelQuery
    outputs: list[ResponseOutput]


def make_response(model: ModelQuery, response: InferResponse, top: Mapping[str, int], labels: Labels, limits: Limits) -> PredictionResponse:
    """The answer to a request for `model`; `top` says how many highest values of which output. Safe in a thread.

    Raises:
        TooLarge: more highest values than one answer may hold.
    """
    signature = response.signature
    outputs: list[ResponseOutput] = []
    left = limits.class_count
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        classes: list[list[BestClass]] = []
        if count := top.get(name, 0):
            rows = array.reshape(array.shape[0] if signature.is_batched else 1, -1)
            left -= rows.shape[0] * min(count, rows.shape[1])
            if left < 0:
                raise TooLarge(
                    f"output '{name}': cls.count {count} for {rows.shape[0]} samples is more than the {limits.class_count} classes "
                    "that one answer may hold"
                )
            classes = [_best(row, count, labels.get(name, ())) for row in rows]
        outputs.append(ResponseOutput(name, spec.datatype, array, classes))
    return PredictionResponse(model, outputs)


def _best(row: Array, count: int, labels: Sequence[str]) -> list[BestClass]:
    """The `count` highest values of `row` in falling order; equal ones by index; what is not a number last."""
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    order = (row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1])[:count]
    indices: list[int] = order.tolist()
    # Adlik's message holds scores as float32.
    scores: list[float] = row[order].astype(np.float32).tolist()
    return [BestClass(index, score, labels[index] if index < len(labels) else "") for index, score in zip(indices, scores, strict=True)]
