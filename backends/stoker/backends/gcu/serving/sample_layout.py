"""`SampleLayout`: the layout of request tensors in the memory of a card: contiguous samples, tensors in the order of the engine."""

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
    """Returns the number of samples of the largest batch: max_batch_size, or without a batch dimension the first of the fixed dims."""
    if signature.is_batched:
        return signature.max_batch_size
    return signature.inputs[0].model_dims[0] if signature.inputs else signature.outputs[0].model_dims[0]


@dataclass(frozen=True, slots=True)
class ServedOutput:
    """An output as clients receive it.

    Attributes:
        index: Its index among the engine's outputs.
        sample_bytes: Bytes of one sample.
        dtype: Element type.
        dims: Dimensions after the batch dimension; all dimensions if the model is not batched.
    """

    index: int
    sample_bytes: int
    dtype: "np.dtype[Any]"
    dims: tuple[int, ...]


class SampleLayout:
    """The layout of one instance. Any thread may use it.

    Attributes:
        capacity: Samples of the largest batch.
        inputs, outputs: The engine's tensors, in its order.
    """

    def __init__(self, signature: ModelSignature, inputs: Sequence[GcuTensor], outputs: Sequence[GcuTensor]) -> None:
        """Creates the layout of an engine with these tensors. REQUIRES: they agree with `signature`."""
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
        """Returns the number of samples of `item`."""
        return item.rows if self._is_batched else self.capacity

    def block(self, item: Share, tensor: GcuTensor) -> Array:
        """Returns the contiguous values of `item` for one of the engine's inputs.

        Raises:
            InvalidRequest: the input is missing, or its size does not match its samples. Otherwise the run would read data of an earlier
                request.
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
        """Returns the output that clients call `name`."""
        return self._served[name]

    def fresh(self, output: ServedOutput, samples: int) -> Array:
        """Returns zeroed memory for `samples` samples of `output`, so that a response never holds old data of the allocator."""
        return np.zeros(self.shape(output, samples), output.dtype)

    def zeros(self, output: ServedOutput, samples: int) -> Array:
        """Returns `samples` samples of `output` for an engine that computes nothing. The array is shared and read-only."""
        flat = self._zeros.get(output.index)
        if flat is None:
            flat = np.zeros(self.capacity * output.sample_bytes, np.uint8)
            flat.flags.writeable = False
            self._zeros[output.index] = flat
        return flat[: samples * output.sample_bytes].view(output.dtype).reshape(self.shape(output, samples))

    def shape(self, output: ServedOutput, samples: int) -> tuple[int, ...]:
        """Returns the shape of `samples` samples of `output` as clients receive it."""
        return (samples, *output.dims) if self._is_batched else output.dims
