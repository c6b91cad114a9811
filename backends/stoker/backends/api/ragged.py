"""Ragged batches: requests whose rows differ in shape run together, and inputs made from the batch tell the model where each begins.

Triton's `allow_ragged_batch`, `batch_input` and `batch_output`. A ragged input reaches the model as one vector: all elements of all
requests, one after the other, without a batch dimension.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.backends.api.tensor import DataType

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


class BatchInputKind(enum.Enum):
    """The kinds of inputs that are computed from the requests of a batch, by their names in config.pbtxt."""

    #: `[requests]`: the elements of each.
    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    #: `[requests]`: the elements of each and of all before it.
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    #: `[requests + 1]`: the same, behind a zero.
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    #: `[most elements]`: only its shape says something; it holds zeros.
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    #: `[rows, rank]`: the shape of every row.
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    #: `[rows x rank]`: the same in one vector.
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """An input of the model that no request brings.

    Attributes:
        kind: What it holds.
        name: The model's input.
        datatype: INT32 or FP32.
        source: The input of the requests that it is made from.
    """

    kind: BatchInputKind
    name: str
    datatype: DataType
    source: str

    def made_from(self, arrays: Sequence[Array]) -> Array:
        """The input for a batch in which each request brings one of `arrays`, `[rows, *dims]`, of the source."""
        counts = np.array([array.size for array in arrays], dtype=np.int64)
        match self.kind:
            case BatchInputKind.ELEMENT_COUNT:
                made = counts
            case BatchInputKind.ACCUMULATED_ELEMENT_COUNT:
                made = counts.cumsum()
            case BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
                made = np.concatenate(([0], counts.cumsum()))
            case BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE:
                made = np.zeros(int(counts.max()), dtype=np.int64)
            case BatchInputKind.ITEM_SHAPE:
                made = _shapes(arrays)
            case BatchInputKind.ITEM_SHAPE_FLATTEN:
                made = _shapes(arrays).reshape(-1)
        typed: Array = made.astype(self.datatype.numpy)
        return typed


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """An output that is one vector for the whole batch, to be cut into requests by the shapes of an input.

    Attributes:
        name: The model's output.
        source: The input of the requests whose shape each request's share has.
    """

    name: str
    source: str


def _shapes(arrays: Sequence[Array]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return np.concatenate([np.tile(np.array(array.shape[1:], dtype=np.int64), (array.shape[0], 1)) for array in arrays])
