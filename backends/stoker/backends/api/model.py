"""The tensors that a model takes and returns, as a client sees them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stoker.backends.api.ragged import BatchInput, BatchOutput
from stoker.backends.api.tensor import DataType

VARIABLE = -1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: As in the model file.
        datatype: Element type.
        dims: Shape without the batch dimension; -1 where the size varies.
        reshape: What the model itself takes or gives instead of `dims` (again without batch); None if the same. Triton's
            `reshape`: a model that wants a bare `[batch]` vector is offered to clients as `[batch, 1]`.
        optional: Whether a request may leave this input out.
        is_ragged: Whether requests whose rows differ in shape may share a batch; the model gets all elements as one vector.
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    is_ragged: bool = False

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The dims that the model file itself knows."""
        return self.dims if self.reshape is None else self.reshape

    @property
    def is_static(self) -> bool:
        """Whether every dim is known."""
        return VARIABLE not in self.dims and VARIABLE not in self.model_dims


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Inputs, outputs and batching of one loaded version.

    Attributes:
        inputs: In config order.
        outputs: In config order.
        max_batch_size: 0: tensors have no batch dimension. n > 0: a leading dimension of 1..n rows precedes `dims`.
        is_decoupled: Whether a request may have any number of responses (`model_transaction_policy.decoupled`).
        most_split_rows: Most rows of a request, where the server splits one that has more than `max_batch_size`; 0: it splits none.
        batch_inputs: Inputs of the model that are made from the batch.
        batch_outputs: Outputs that are cut into requests by the shapes of an input.
        is_iterative: Whether the model may ask for a further execution of a request (`sequence_batching.iterative_sequence`). Then requests
            of a decoupled model share batches, too.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    is_decoupled: bool = False
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: tuple[BatchOutput, ...] = ()
    most_split_rows: int = 0
    is_iterative: bool = False

    @property
    def request_rows(self) -> int:
        """Most rows of one request."""
        return self.most_split_rows or self.max_batch_size

    @property
    def is_batched(self) -> bool:
        """Whether tensors have a leading batch dimension."""
        return self.max_batch_size > 0

    @property
    def is_ragged(self) -> bool:
        """Whether batches must be laid out as `stoker.backends.api.ragged_batch` does it."""
        return bool(self.batch_inputs or self.batch_outputs) or any(spec.is_ragged for spec in self.inputs)

    def input(self, name: str) -> TensorSpec | None:
        """The input of that name, or None."""
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """The output of that name, or None."""
        return next((spec for spec in self.outputs if spec.name == name), None)


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor as a model file declares it.

    Attributes:
        name: As in the file.
        datatype: Element type.
        shape: Full shape including any batch dimension, -1 where the file leaves it open; None where the file tells no rank.
        optional: Whether the file gives a default for it.
        casts: Further element types in which it may be served: the backend converts at the border.
        labels: Names of the elements of the last dim, where the file has them; a `label_filename` goes before.
        aliases: Further names by which a configuration may call it; it is then served by that name.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...] | None
    optional: bool = False
    casts: tuple[DataType, ...] = ()
    labels: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The result of `Backend.inspect`, which reads a version's files without a device.

    Attributes:
        inputs: In file order; None where this format does not tell (the config must then say all).
        outputs: In file order; None as above.
        notes: One line a remark for `stoker check`, such as the file's IR version and opset.
        max_batch_size: The largest batch the file was made for, where its batch dimensions are open; 0: it does not tell.
    """

    inputs: tuple[FileTensor, ...] | None
    outputs: tuple[FileTensor, ...] | None
    notes: tuple[str, ...] = field(default=())
    max_batch_size: int = 0

    def named_as(self, inputs: Iterable[str], outputs: Iterable[str]) -> "ModelFacts":
        """The same facts, in which a tensor has its alias as its name where the alias, and not its name, is among `inputs` or `outputs`."""
        return replace(self, inputs=_named_as(self.inputs, frozenset(inputs)), outputs=_named_as(self.outputs, frozenset(outputs)))


def _named_as(tensors: tuple[FileTensor, ...] | None, names: frozenset[str]) -> tuple[FileTensor, ...] | None:
    if tensors is None:
        return None
    return tuple(
        tensor if tensor.name in names else replace(tensor, name=next((alias for alias in tensor.aliases if alias in names), tensor.name))
        for tensor in tensors
    )
