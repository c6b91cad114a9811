"""Triton's classification extension: the classes with the highest scores as text instead of the tensor."""

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import object_array
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferResponse


def check_classes(response: InferResponse, classifications: Mapping[str, int], limits: Limits) -> None:
    """Rejects classifications that name too many classes for one response: each class takes an object and a text.

    Raises:
        TooLarge: there are too many classes.
    """
    left = limits.class_count
    for name, count in classifications.items():
        array = response.outputs[name]
        rows = array.shape[0] if response.signature.is_batched else 1
        left -= min(array.size, rows * count)
        if left < 0:
            raise TooLarge(
                f"classification of output '{name}' with {count} classes for each of {rows} rows names more than the "
                f"{limits.class_count} classes that one response may hold"
            )


def classify(array: Array, datatype: DataType, count: int, labels: Sequence[str], *, is_batched: bool, output: str) -> Array:
    """The `count` highest values of each row (of the whole array, where it is not batched) as `value:index[:label]`.

    Returns:
        BYTES array `[rows, n]`, or `[n]` where not batched; `n` is `count`, at most the elements there are. Best first, equal
        values by index.

    Raises:
        InvalidRequest: the output has no order (BYTES, BF16 as raw bits).
    """
    if datatype in (DataType.BYTES, DataType.BF16):
        raise InvalidRequest(f"classification of output '{output}' is not possible for data-type {datatype.value}")
    rows = array.reshape(array.shape[0] if is_batched else 1, -1)
    chosen = min(count, rows.shape[1])
    found = [_describe(row, index, labels) for row in rows for index in _best(row, chosen)]
    return object_array(found, (rows.shape[0], chosen) if is_batched else (chosen,))


def _best(row: Array, count: int) -> list[int]:
    # Sorting the reversed row keeps equal values in index order once the order is reversed back. NaN sorts last in numpy: keep it worst.
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    order = row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1]
    best: list[int] = order[:count].tolist()
    return best


def _describe(row: Array, index: int, labels: Sequence[str]) -> bytes:
    value = row[index].item()
    text = f"{value:f}" if isinstance(value, float) else f"{int(value)}"
    return (f"{text}:{index}:{labels[index]}" if index < len(labels) else f"{text}:{index}").encode()
