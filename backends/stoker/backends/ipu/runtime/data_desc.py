"""`DataDesc`: one input or output as a runner's user sees it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.backends.ipu.popef.schema import Anchor, DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDesc:
    """One input or output.

    Attributes:
        name: As `execute` takes it.
        size_in_bytes: Of one compiled batch.
        shape: Of one compiled batch, the rows of all replicas of a replicated executable together. A list of its own, as PopRT's is:
            scripts put the rows that they mean into it.
        data_type: Element type.
        popef_contains_tensor_data: Whether the file holds data for it, so that `execute` may leave it out.
    """

    name: str
    size_in_bytes: int
    shape: list[int]
    data_type: DataType
    popef_contains_tensor_data: bool = False

    def numpy_data_type(self) -> "np.dtype[Any]":
        """The element type in numpy; 8-bit floats are their codes in uint8."""
        return self.data_type.numpy


def user_shape(anchor: Anchor) -> tuple[int, ...]:
    """Shape of one compiled batch of `anchor`; a leading replica dimension is merged into the batch: [replicas, rows, ...] has
    replicas x rows rows.
    """
    shape = anchor.tensor_info.shape
    if anchor.is_per_replica and len(shape) > 1:
        return (shape[0] * shape[1], *shape[2:])
    return shape


def describe(anchor: Anchor, *, has_data: bool) -> DataDesc:
    """`anchor` as a user sees it."""
    info = anchor.tensor_info
    return DataDesc(
        name=anchor.name,
        size_in_bytes=info.size_in_bytes,
        shape=list(user_shape(anchor)),
        data_type=info.data_type,
        popef_contains_tensor_data=has_data,
    )
