"""Plans of requests that carry TensorProtos, or JSON in their place: how to read the elements of a tensor whose name, datatype and shape
were validated in an earlier request.

A plan decodes only elements that are certainly valid. Otherwise it returns None, and the full decoder finds the error.
"""

from collections.abc import Mapping, MutableMapping
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import numpy as np

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensor_proto import NUMBERS, VALUE_FIELDS
from stoker.server.codecs.tensors import UNPACKABLE, Packer, Raw, array_from_bytes, object_array, packer, strings_cost
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, Servable, Via

Q = TypeVar("Q")

#: The field of TensorProto with raw bytes; each other field has values of one type.
CONTENT: Final = "tensor_content"
_FIELDS: Final[Mapping[int, str]] = {NUMBERS[datatype]: field for datatype, field in VALUE_FIELDS.items()}
_VALUES: Final = frozenset(VALUE_FIELDS.values())
_HALVES: Final = frozenset({DataType.FP16, DataType.BF16})
_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})
_INTEGERS, _REALS, _BOOLEANS = frozenset({int}), frozenset({int, float}), frozenset({bool})

Elements = tuple[str, Any]
"""The field and the elements that were removed from a TensorProto: bytes if the field is `CONTENT`, else a list."""


class TensorPlan:
    """One input.

    Attributes:
        spec: The input's specification.
        dtype: The dtype of its array.
        is_float: Whether its elements are FP16, FP32 or FP64.
        shape: The shape, with the batch dimension if the model is batched.
        elements: The number of elements.
        field: The field of TensorProto with values of this type.
        pack: Converts values to the elements' bytes; None: the elements are strings.
        kinds: The Python types of valid JSON values.
    """

    __slots__ = ("dtype", "elements", "field", "is_float", "kinds", "pack", "shape", "spec")

    def __init__(self, spec: TensorSpec, array: Array) -> None:
        """The plan of `array`, which `spec` describes."""
        datatype = spec.datatype
        self.spec = spec
        # Looked up for each request.
        self.dtype: np.dtype[Any] = datatype.numpy
        self.is_float = datatype in _FLOATS
        self.shape: tuple[int, ...] = array.shape
        self.elements: int = array.size
        self.field = VALUE_FIELDS[datatype]
        self.pack: Packer | None = packer(DataType.UINT16 if datatype in _HALVES else datatype, array.size)
        self.kinds: frozenset[type] = (
            _BOOLEANS if datatype is DataType.BOOL else _REALS if datatype in (DataType.FP32, DataType.FP64) else _INTEGERS
        )

    def read(self, check: SignatureCheck, elements: Elements) -> Array | None:
        """The array of a message's `elements`; None if the field does not match."""
        field, given = elements
        if field == CONTENT:
            return self.of_content(check, given)
        # An empty tensor has no field of values.
        return self.of_values(given) if given and field == self.field else None

    def of_content(self, check: SignatureCheck, content: Raw) -> Array | None:
        """The array of raw bytes."""
        if self.pack is None:
            return None
        try:
            return array_from_bytes(check, self.spec, self.shape, self.elements, content)
        except SignatureMismatch:
            return None

    def of_values(self, values: list[Any]) -> Array | None:
        """The array of values of the input's field."""
        if self.pack is None:
            return object_array(values, self.shape) if len(values) == self.elements else None
        try:
            array: Array = np.ndarray(self.shape, self.dtype, self.pack(*values))
        except UNPACKABLE:
            return None
        return array

    def of_numbers(self, values: list[Any]) -> Array | None:
        """The array of JSON values, which may have any type."""
        return self.of_values(values) if self.pack is not None and self.kinds.issuperset(map(type, values)) else None


class PredictPlan(Generic[Q]):
    """The meaning of requests of one structure.

    Attributes:
        query: What the requests name beside their tensors, in the terms of their protocol.
        check: The check that validated the structure.
        tensors: The inputs.
        strings_cost: Memory overhead of the strings in addition to their bytes.
    """

    __slots__ = ("_outputs", "_rows", "check", "query", "strings_cost", "tensors")

    def __init__(self, query: Q, check: SignatureCheck, request: InferRequest, limits: Limits) -> None:
        """The plan of `request`, which `query` addresses and `check` has validated."""
        strings = 0
        for array in request.inputs.values():
            strings += array.size if array.dtype.kind == "O" else 0
        self.query = query
        self.check = check
        self.tensors: dict[str, TensorPlan] = {name: TensorPlan(check.inputs[name], array) for name, array in request.inputs.items()}
        self.strings_cost = strings_cost(strings, limits)
        self._outputs = request.output_names
        self._rows = request.rows

    def request(
        self,
        model: str,
        version: int | None,
        servable: Servable,
        inputs: dict[str, Array],
        received_ns: int,
        size_bytes: int,
        deadline_ns: int | None,
        via: Via,
    ) -> InferRequest:
        """The engine's request with `inputs`, which have the shapes of the plan."""
        return InferRequest(
            model, inputs, self._outputs, self.check.signature, version, "", self._rows, deadline_ns, None, received_ns, size_bytes, via,
            servable=servable,
        )  # fmt: skip


def read_tensors(plans: dict[str, TensorPlan], check: SignatureCheck, taken: dict[str, Elements]) -> dict[str, Array] | None:
    """The arrays of a message's elements; None if the message must be decoded in full."""
    arrays: dict[str, Array] = {}
    for name, elements in taken.items():
        array = plans[name].read(check, elements)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def take_elements(inputs: MutableMapping[str, Any], contents: Mapping[str, Raw]) -> dict[str, Elements] | None:
    """Removes the elements from the TensorProtos of `inputs`; those in `contents` were cut out before.

    None: a tensor has no datatype, or not exactly one field of values. The messages are changed even then.
    """
    taken: dict[str, Elements] = {}
    for name in inputs:
        tensor = inputs[name]
        content = contents.get(name) or tensor.tensor_content
        if content:
            tensor.tensor_content = b""
            taken[name] = CONTENT, content
            continue
        field = _FIELDS.get(tensor.dtype)
        if field is None:
            fields = [each.name for each, _ in tensor.ListFields() if each.name in _VALUES]
            if len(fields) != 1:
                return None
            field = fields[0]
        values = getattr(tensor, field)
        taken[name] = field, list(values)
        del values[:]
    return taken


def nested_dims(value: Any) -> tuple[int, ...]:
    """The lengths of the nested lists of `value`, by the first list of each level."""
    dims: list[int] = []
    while type(value) is list:
        dims.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(dims)


def flat_elements(value: Any, dims: tuple[int, ...]) -> list[Any] | None:
    """The elements of `value`, whose `nested_dims` are `dims`; None if a list has another length, or a level mixes lists and elements."""
    if not dims:
        return [value]
    elements: list[Any] = value
    for size in dims[1:]:
        if len(elements) == 1:
            elements = elements[0]
        elif set(map(type, elements)) == {list} and set(map(len, elements)) == {size}:
            elements = list(chain.from_iterable(elements))
        else:
            return None
    return elements
