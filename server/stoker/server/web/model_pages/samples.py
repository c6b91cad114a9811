"""A request to a model, as calls to paste show it: that of a user, or zeros of the model's names, types and shapes.

Without a user's request, there is one row, and one element where a size is open. The elements of a user's tensor are values, or they are in
a file that the user has saved.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import BINARY_ONLY
from stoker.server.core.sequence import ControlKind
from stoker.server.core.state import ModelDescription

#: Elements of one request up to which they are printed one by one: two lines of numbers.
PRINTED_ELEMENTS = 32
#: What every element of a BYTES tensor holds.
TEXT = "text"


@dataclass(frozen=True, slots=True)
class SampleTensor:
    """One input of the request.

    Attributes:
        shape: With the batch dimension, if the model has one.
        values: Its elements; None: all are `element`.
        file: The file with its elements; empty: there is none.
        is_raw: Whether its elements are bytes that are no text.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    values: tuple[bool | int | float | str, ...] | None = None
    file: str = ""
    is_raw: bool = False

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def element(self) -> bool | int | float | str:
        """The value of every element without a value of its own."""
        if self.datatype.is_bytes:
            return TEXT
        return {"b": False, "f": 0.0}.get(self.datatype.numpy.kind, 0)

    @property
    def flat(self) -> list[bool | int | float | str]:
        """The elements in order."""
        return [self.element] * self.count if self.values is None else list(self.values)

    @property
    def nested(self) -> Any:
        """The elements of the tensor in lists, one level for each dimension; a scalar without a list."""
        if self.values is None:
            value: Any = self.element
            for size in reversed(self.shape):
                value = [value] * size
            return value
        return nested_lists(self.flat, self.shape)

    @property
    def size_bytes(self) -> int:
        """Length of its binary form without values of its own: a BYTES element has its length in four bytes before it."""
        return self.count * (4 + len(TEXT) if self.datatype.is_bytes else self.datatype.item_bytes)


def nested_lists(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """The elements in lists, one level for each dimension of `shape`; a scalar without a list."""
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return list(flat)
    size = math.prod(shape[1:])
    return [nested_lists(flat[at * size : (at + 1) * size], shape[1:]) for at in range(shape[0])]


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """One input of a user's request.

    Attributes:
        shape: With the batch dimension, if the model has one.
        values: Its elements in order; None: they are in a file.
        is_raw: Whether its elements are bytes that are no text.
    """

    name: str
    shape: tuple[int, ...]
    values: tuple[bool | int | float | str, ...] | None
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """A request for one model.

    Attributes:
        version: None: the server's choice.
        inputs: Those that a request must have, in the model's order.
        first_output: A name to print.
        is_decoupled: Whether the model returns any number of responses to a request.
        is_sequence: Whether requests belong to sequences.
        sequence_id: Of the type that the model takes.
        is_response_binary: Whether JSON cannot hold its response.
        is_given: Whether it is that of a user.
        head_bytes: Length of the JSON in front of the tensors of a binary request that is in a file.
    """

    model: str
    version: int | None
    inputs: tuple[SampleTensor, ...]
    first_output: str
    is_decoupled: bool
    is_sequence: bool
    sequence_id: int | str
    is_response_binary: bool
    is_given: bool = False
    head_bytes: int = 0

    @property
    def is_printed(self) -> bool:
        """Whether its elements are few enough to be printed."""
        return not self.is_in_files and sum(tensor.count for tensor in self.inputs) <= PRINTED_ELEMENTS

    @property
    def is_in_files(self) -> bool:
        """Whether elements are in files: then a call reads its whole body from one."""
        return any(tensor.file for tensor in self.inputs)

    @property
    def has_raw_bytes(self) -> bool:
        """Whether an element is no text, which JSON holds only in base64."""
        return any(tensor.is_raw for tensor in self.inputs)

    @property
    def fits_json(self) -> bool:
        """Whether JSON can hold it."""
        return not any(tensor.datatype in BINARY_ONLY for tensor in self.inputs)


def sample(description: ModelDescription, version: int | None, given: Sequence[GivenTensor] | None = None, head_bytes: int = 0) -> Sample:
    """The request for a model; `version` is the one asked for.

    `given` are the inputs of a user's request, which are inputs of the model; None: zeros. `head_bytes` is as in `Sample`.

    Raises:
        InvalidRequest: the number of values of an input is not that of its shape.
    """
    signature = description.config.signature
    lead = (1,) if signature.is_batched else ()
    sequences = description.config.sequences
    controls = () if sequences is None else sequences.controls
    has_text_id = any(control.kind is ControlKind.ID and control.datatype.is_bytes for control in controls)
    return Sample(
        model=description.config.name,
        version=version,
        inputs=tuple(_tensor(spec, lead) for spec in signature.inputs if not spec.optional)
        if given is None
        else _given(given, {spec.name: spec for spec in signature.inputs}),
        first_output=signature.outputs[0].name if signature.outputs else "",
        is_decoupled=signature.is_decoupled,
        is_sequence=sequences is not None and not sequences.is_iterative,
        sequence_id="1" if has_text_id else 1,
        is_response_binary=any(tensor.datatype in BINARY_ONLY for tensor in signature.outputs),
        is_given=given is not None,
        head_bytes=head_bytes,
    )


_NOT_IN_A_FILE_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


def _given(given: Sequence[GivenTensor], specs: Mapping[str, TensorSpec]) -> tuple[SampleTensor, ...]:
    tensors = []
    for position, each in enumerate(given):
        datatype = specs[each.name].datatype
        file = ""
        if each.values is None:
            stem = _NOT_IN_A_FILE_NAME.sub("_", each.name)[:64].strip("_") or f"input{position}"
            ending = "npy" if not datatype.is_bytes else "bin" if each.is_raw else "json"
            file = f"{stem}.{ending}"
        elif len(each.values) != math.prod(each.shape):
            raise InvalidRequest(
                f"input '{each.name}' has {len(each.values)} values: expected {math.prod(each.shape)} for {list(each.shape)}"
            )
        tensors.append(SampleTensor(each.name, datatype, each.shape, each.values, file, each.is_raw))
    return tuple(tensors)


def _tensor(spec: TensorSpec, lead: tuple[int, ...]) -> SampleTensor:
    dims = tuple(1 if size == VARIABLE else size for size in spec.dims)
    return SampleTensor(spec.name, spec.datatype, (*lead, *dims))
