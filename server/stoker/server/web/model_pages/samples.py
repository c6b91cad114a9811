"""A request that fits a model: zeros of its real names, types and shapes, one row, one element where a size is open."""

import math
from dataclasses import dataclass
from typing import Any

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
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def element(self) -> bool | int | float | str:
        """The value of every element."""
        if self.datatype.is_bytes:
            return TEXT
        return {"b": False, "f": 0.0}.get(self.datatype.numpy.kind, 0)

    @property
    def nested(self) -> Any:
        """The elements of the tensor in lists, one level for each dimension; a scalar without a list."""
        value: Any = self.element
        for size in reversed(self.shape):
            value = [value] * size
        return value

    @property
    def size_bytes(self) -> int:
        """Length of its binary form: a BYTES element has its length in four bytes before it."""
        return self.count * (4 + len(TEXT) if self.datatype.is_bytes else self.datatype.item_bytes)


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
    """

    model: str
    version: int | None
    inputs: tuple[SampleTensor, ...]
    first_output: str
    is_decoupled: bool
    is_sequence: bool
    sequence_id: int | str
    is_response_binary: bool

    @property
    def is_printed(self) -> bool:
        """Whether its elements are few enough to be printed."""
        return sum(tensor.count for tensor in self.inputs) <= PRINTED_ELEMENTS

    @property
    def fits_json(self) -> bool:
        """Whether JSON can hold it."""
        return not any(tensor.datatype in BINARY_ONLY for tensor in self.inputs)


def sample(description: ModelDescription, version: int | None) -> Sample:
    """The request for a model; `version` is the one asked for."""
    signature = description.config.signature
    lead = (1,) if signature.is_batched else ()
    sequences = description.config.sequences
    controls = () if sequences is None else sequences.controls
    has_text_id = any(control.kind is ControlKind.ID and control.datatype.is_bytes for control in controls)
    return Sample(
        model=description.config.name,
        version=version,
        inputs=tuple(_tensor(spec, lead) for spec in signature.inputs if not spec.optional),
        first_output=signature.outputs[0].name if signature.outputs else "",
        is_decoupled=signature.is_decoupled,
        is_sequence=sequences is not None and not sequences.is_iterative,
        sequence_id="1" if has_text_id else 1,
        is_response_binary=any(tensor.datatype in BINARY_ONLY for tensor in signature.outputs),
    )


def _tensor(spec: TensorSpec, lead: tuple[int, ...]) -> SampleTensor:
    dims = tuple(1 if size == VARIABLE else size for size in spec.dims)
    return SampleTensor(spec.name, spec.datatype, (*lead, *dims))
