"""One input tensor as Adlik's clients send it, judged against the model and made an array.

A TensorProto holds raw bytes (`tensor_content`), or typed values in the field that belongs to its element type. Raw bytes win where both
are there. A single typed value stands for every element. Element type and shape may be left to the model's configuration; where they are
given, they must be right.
"""

import math

import numpy as np

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensor_bytes import array_from_bytes
from stoker.server.codecs.tensor_proto import NUMBERS, UNSAID, VALUE_FIELDS, TensorFields, shown_type, values_array
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.request import Array


def array_of(check: SignatureCheck, spec: TensorSpec, fields: TensorFields, batch_size: int) -> Array:
    """The array `[batch_size, *dims]` (`dims` alone where the model is not batched) that `fields` hold for the input `spec`.

    REQUIRES: `batch_size` is between 1 and the model's max_batch_size, and what is filled was paid for, see `filled_count`. Safe in a
    thread.

    Raises:
        InvalidRequest: element type, shape or number of elements are not those of the model, or no values are there.
    """
    number = NUMBERS[spec.datatype]
    if fields.dtype not in (UNSAID, number):
        raise InvalidRequest(f"input '{spec.name}' has dtype {shown_type(fields.dtype)}, but the model expects {shown_type(number)}")
    shape = _shape(check, spec, fields, batch_size)
    count = check.count_elements(spec, spec.datatype.value, shape)
    if len(fields.content):
        if spec.datatype is DataType.BYTES:
            raise InvalidRequest(f"input '{spec.name}' of dtype DT_STRING must come in string_val, not in tensor_content")
        wanted = count * spec.datatype.item_bytes
        if len(fields.content) != wanted:
            raise InvalidRequest(
                f"input '{spec.name}' has {len(fields.content)} bytes of tensor_content, "
                f"but {_dims(shape)} of {shown_type(number)} takes {wanted}"
            )
        return array_from_bytes(check, spec, shape, count, fields.content)
    return _typed(spec, fields, shape, count)


def filled_count(check: SignatureCheck, spec: TensorSpec, fields: TensorFields, batch_size: int) -> int:
    """Elements of an array whose single given value stands for every one of them; 0 for any other tensor.

    Raises:
        InvalidRequest: the shape is not the model's.
    """
    values = fields.values.get(VALUE_FIELDS[spec.datatype], ())
    if len(fields.content) or len(values) != 1:
        return 0
    count = check.count_elements(spec, spec.datatype.value, _shape(check, spec, fields, batch_size))
    return count if count > 1 else 0


def _shape(check: SignatureCheck, spec: TensorSpec, fields: TensorFields, batch_size: int) -> tuple[int, ...]:
    is_batched = check.signature.is_batched
    if fields.shape is not None:
        if is_batched and fields.shape and fields.shape[0] != batch_size:
            raise InvalidRequest(
                f"input '{spec.name}' has shape {_dims(fields.shape)}, but the request's batch_size is {batch_size}: "
                "the first dimension must be equal to it"
            )
        return fields.shape
    shape = (batch_size, *spec.dims) if is_batched else spec.dims
    open_dims = shape.count(VARIABLE)
    if not open_dims:
        return shape
    # One open dimension follows from what came; more cannot be told.
    known = math.prod(size for size in shape if size != VARIABLE)
    if len(fields.content) and spec.datatype.item_bytes:
        came = len(fields.content) // spec.datatype.item_bytes
    else:
        came = len(fields.values.get(VALUE_FIELDS[spec.datatype], ()))
    if open_dims > 1 or not known or not came or came % known:
        raise InvalidRequest(
            f"input '{spec.name}' needs a tensor_shape: the model's shape {_dims(shape)} is open, and {came} elements do not tell it"
        )
    return tuple(came // known if size == VARIABLE else size for size in shape)


def _typed(spec: TensorSpec, fields: TensorFields, shape: tuple[int, ...], count: int) -> Array:
    datatype = spec.datatype
    name = VALUE_FIELDS[datatype]
    given = fields.values.get(name)
    if given is None:
        others = ", ".join(sorted(fields.values))
        raise InvalidRequest(
            f"input '{spec.name}' has no values: neither tensor_content nor {name}"
            + (f"; it has {others}, which {shown_type(NUMBERS[datatype])} does not use" if others else "")
        )
    if len(given) not in (1, count):
        raise InvalidRequest(
            f"input '{spec.name}' has {len(given)} values in {name}, but {_dims(shape)} takes {count} (or 1 that stands for all)"
        )
    array = values_array(spec, name, given)
    if len(given) != count:
        filled: Array = np.full(shape, array[0], dtype=array.dtype)
        return filled
    return array.reshape(shape)


def _dims(shape: tuple[int, ...]) -> str:
    shown = ",".join(str(size) for size in shape[:32])
    return f"[{shown},...]" if len(shape) > 32 else f"[{shown}]"
