"""`SampleLayout`: how the tensors of requests lie in the memory of a card: sample behind sample, in the order of the engine's tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.api.batch import Share
from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import ModelSignature
from stoker.backends.gcu.program import GcuTensor

Array = npt.NDArray[Any]


def samples_of_a_batch(signature: ModelSignature) -> int:
    """Samples that the largest batch has. Without a batch dimension, what the fixed dims begin with."""
    if signature.is_batched:
        return signature.max_batch_size
    return signature.inputs[0].model_dims[0] if signature.inputs else signature.outputs[0].model_dims[0]


@dataclass(frozen=True, slots=True)
class ServedOutput:
    """An output as clients get it.

    Attributes:
        index: Its place among the engine's outputs.
        sample_bytes: Of one sample.
        dtype: Of its elements.
        dims: Behind the number of rows; where the model is not batched, all of them.
    """

    index: int
    sample_bytes: int
    dtype: "np.dtype[Any]"
    dims: tuple[int, ...]


class SampleLayout:
    """Of one instance; any thread may use it.

    Attributes:
        capacity: Samples of the largest batch.
        inputs, outputs: The engine's, in its order.
    """

    def __init__(self, signature: ModelSignature, inputs: Sequence[GcuTensor], outputs: Sequence[GcuTensor]) -> None:
        """Of an engine of these tensors, which agree with `signature`."""
        self.capacity = samples_of_a_batch(signature)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._is_batched = signature.is_batched
        self._zeros: dict[int, Array] = {}
        self._served: Mapping[str, ServedOutput] = {
            tensor.name: ServedOutput(index, tensor.sample_bytes, tensor.dtype.numpy, spec.dims)
            for index, tensor in enumerate(outputs)
            if (spec := signature.output(tensor.name)) is not None
        }

    def samples(self, item: Share) -> int:
        """How many `item` has."""
        return item.rows if self._is_batched else self.capacity

    def block(self, item: Share, tensor: GcuTensor) -> Array:
        """The values of `item` for one of the engine's inputs, contiguous.

        Raises:
            InvalidRequest: it has none, or not so many bytes as its samples take: what an earlier request left must not be read instead.
        """
        array = item.inputs.get(tensor.name)
        if array is None:
            raise InvalidRequest(f"input '{tensor.name}' is missing")
        expected = self.samples(item) * tensor.sample_bytes
        if array.nbytes != expected or array.dtype != tensor.dtype.numpy:
            raise InvalidRequest(
                f"input '{tensor.name}' is {array.dtype} {list(array.shape)}, {array.nbytes} bytes; {self.samples(item)} samples of "
                f"{tensor.dtype.value} {list(tensor.dims)} have {expected}"
            )
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def output(self, name: str) -> ServedOutput:
        """The output that clients know by that name."""
        return self._served[name]

    def fresh(self, output: ServedOutput, samples: int) -> Array:
        """Memory for `samples` samples of `output`, zeroed: a response never holds what the allocator left."""
        return np.zeros(self._shape(output, samples), output.dtype)

    def zeros(self, output: ServedOutput, samples: int) -> Array:
        """The value of `samples` samples of `output` when nothing is computed: shared and read-only."""
        flat = self._zeros.get(output.index)
        if flat is None:
            flat = np.zeros(self.capacity * output.sample_bytes, np.uint8)
            flat.flags.writeable = False
            self._zeros[output.index] = flat
        return flat[: samples * output.sample_bytes].view(output.dtype).reshape(self._shape(output, samples))

    def _shape(self, output: ServedOutput, samples: int) -> tuple[int, ...]:
        return (samples, *output.dims) if self._is_batched else output.dims
