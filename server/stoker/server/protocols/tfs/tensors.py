"""TensorProto to arrays and back, by TensorFlow's rules.

In: raw bytes (`tensor_content`), or typed values, of which the last one stands for all that are missing. Out: typed values, as TensorFlow
Serving answers, because clients read `float_val` without looking for anything else. Packed floats and booleans on the wire are the array's
own bytes, so that they are copied and not converted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.tensor_bytes import Raw, array_from_bytes, array_pieces
from stoker.server.codecs.tensor_proto import NUMBERS, VALUE_FIELDS, TensorFields, type_name, values_array
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.request import Array
from stoker.server.pb.tensorflow.core.framework import tensor_pb2, types_pb2

_FIELDS: Final = tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name
_VALUES: Final = frozenset(VALUE_FIELDS.values())
_NOTHING: Final[Mapping[str, Any]] = {}
#: Types whose packed values are the array's bytes.
_AS_BYTES: Final = frozenset({DataType.FP32, DataType.FP64, DataType.BOOL})


def read_tensor(tensor: tensor_pb2.TensorProto, content: Raw) -> TensorFields:
    """What `tensor` holds; `content` is its raw bytes where they were cut out before it was parsed."""
    raw = content if len(content) else tensor.tensor_content
    values = _NOTHING if len(raw) else {field.name: value for field, value in tensor.ListFields() if field.name in _VALUES}
    return TensorFields(tensor.dtype, tuple(dim.size for dim in tensor.tensor_shape.dim), raw, values)


def filled_count(spec: TensorSpec, fields: TensorFields) -> int:
    """Elements of an array for which the last value that came stands."""
    came = 0 if len(fields.content) else len(fields.values.get(VALUE_FIELDS[spec.datatype], ()))
    return max(0, math.prod(max(size, 0) for size in fields.shape or ()) - came) if came else 0


def array_of(check: SignatureCheck, spec: TensorSpec, fields: TensorFields) -> Array:
    """The array that `fields` hold for the input `spec`. Safe in a thread.

    REQUIRES: what is filled was paid for, see `filled_count`.

    Raises:
        InvalidRequest: element type, shape or number of elements are not those of the model.
    """
    datatype = spec.datatype
    if fields.dtype != NUMBERS[datatype]:
        known = types_pb2.DataType.DESCRIPTOR.values_by_number.get(fields.dtype)
        came = str(fields.dtype) if known is None else known.name.removeprefix("DT_").lower()
        raise InvalidRequest(f"Expects input '{spec.name}' to be {type_name(datatype)} but {came} is provided")
    shape = fields.shape or ()
    count = check.count_elements(spec, datatype.value, shape)
    if len(fields.content):
        if datatype is DataType.BYTES:
            raise InvalidRequest(f"input '{spec.name}' of type string must come in string_val, not in tensor_content")
        if len(fields.content) != count * datatype.item_bytes:
            raise InvalidRequest(
                f"input '{spec.name}' of shape {list(shape)} takes {count * datatype.item_bytes} bytes of tensor_content, "
                f"not {len(fields.content)}"
            )
        return array_from_bytes(check, spec, shape, count, fields.content)
    name = VALUE_FIELDS[datatype]
    given = fields.values.get(name, ())
    if not 0 < len(given) <= count:
        others = ", ".join(sorted(fields.values)) or "no values"
        raise InvalidRequest(
            f"input '{spec.name}' of shape {list(shape)} takes {count} values in {name}, not {len(given)}; it has {others}"
        )
    array = values_array(spec, name, given)
    if len(given) == count:
        return array.reshape(shape)
    filled: Array = np.full(count, array[-1], dtype=array.dtype)
    filled[: len(given)] = array
    return filled.reshape(shape)


def tensor_pieces(array: Array, datatype: DataType) -> list[bytes | memoryview]:
    """The serialised TensorProto of `array`, in pieces to be joined. Safe in a thread."""
    tensor = tensor_pb2.TensorProto()
    if datatype not in _AS_BYTES or not array.size:
        fill_tensor(tensor, array, datatype)
        return [tensor.SerializeToString()]
    _describe(tensor, array, datatype)
    return [tensor.SerializeToString(), *length_delimited(_FIELDS[VALUE_FIELDS[datatype]].number, array_pieces(array, datatype))]


def fill_tensor(tensor: tensor_pb2.TensorProto, array: Array, datatype: DataType) -> None:
    """Makes the empty `tensor` hold `array`, value by value. Safe in a thread."""
    _describe(tensor, array, datatype)
    flat = array.reshape(-1)
    values = (flat.view(np.uint16) if datatype is DataType.FP16 else flat).tolist()
    if datatype is DataType.BYTES:
        values = [value.encode() if isinstance(value, str) else value for value in values]
    getattr(tensor, VALUE_FIELDS[datatype]).extend(values)


def _describe(tensor: tensor_pb2.TensorProto, array: Array, datatype: DataType) -> None:
    tensor.dtype = NUMBERS[datatype]
    add_dim = tensor.tensor_shape.dim.add
    for size in array.shape:
        add_dim(size=size)


def length_delimited(number: int, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The field `number` with the content `pieces`, in pieces."""
    return [encoded_varint(number << 3 | LENGTH), encoded_varint(sum(map(len, pieces))), *pieces]
