"""`Array[...]`: the annotation of a tensor: its dims, then its element type."""

from typing import Any, ClassVar, Final

import numpy as np

from stoker.backends.api.model import VARIABLE
from stoker.backends.api.tensor import DataType

#: The name of the batch dimension.
BATCH: Final = "n"


class bfloat16:  # noqa: N801 - named as numpy names its types
    """The element type BF16, which numpy does not have: the arrays hold its bits as uint16."""


_PYTHON_TYPES: dict[object, DataType] = {
    bool: DataType.BOOL,
    int: DataType.INT64,
    float: DataType.FP64,
    str: DataType.BYTES,
    bytes: DataType.BYTES,
    bfloat16: DataType.BF16,
}
_DTYPES = {datatype.numpy: datatype for datatype in DataType if datatype not in (DataType.BF16, DataType.BYTES)}


def datatype_of(element: object) -> DataType | None:
    """The element type that an annotation means: a numpy type or dtype, or bool, int, float, str, bytes; None: none of them."""
    try:
        if element in _PYTHON_TYPES:
            return _PYTHON_TYPES[element]
        if isinstance(element, np.dtype) or (isinstance(element, type) and issubclass(element, np.generic)):
            return _DTYPES.get(np.dtype(element))
    except TypeError:
        pass
    return None


class Array:
    """A tensor: `Array["n", 8, 8, float32]`.

    A dim is a number, or a name of a dim that varies; dims of one name have one size in a request. The leading "n" of a model with
    `@batched` is the batch dimension. The element type is numpy's, or bool, int (INT64), float (FP64), str or bytes (BYTES), bfloat16.

    Attributes:
        dims: The numbers and names.
        element: The element type as written.
        datatype: The element type.
    """

    dims: ClassVar[tuple[int | str, ...]] = ()
    element: ClassVar[object] = None
    datatype: ClassVar[DataType | None] = None

    def __class_getitem__(cls, items: Any) -> type["Array"]:
        """The annotation for `items`.

        Raises:
            TypeError: no dims, no element type, or a dim that is neither a number above 0 nor a name.
        """
        *dims, element = items if isinstance(items, tuple) else (items,)
        datatype = datatype_of(element)
        if datatype is None:
            raise TypeError(f"Array[...] ends with its element type, such as float32, int64 or str, not {_shown(element)}")
        if not dims:
            raise TypeError(f'Array[...] needs dims before its element type, such as Array["n", 8, {_shown(element)}]')
        for dim in dims:
            is_size = isinstance(dim, int) and not isinstance(dim, bool) and dim > 0
            if not is_size and not (isinstance(dim, str) and dim.isidentifier()):
                raise TypeError(f'a dim of Array[...] is a number above 0, or a name such as "n" where the size varies, not {_shown(dim)}')
        return type("Array", (Array,), {"dims": tuple(dims), "element": element, "datatype": datatype})

    @classmethod
    def shape(cls) -> tuple[int, ...]:
        """The dims; -1 where the size varies."""
        return tuple(VARIABLE if isinstance(dim, str) else dim for dim in cls.dims)


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
