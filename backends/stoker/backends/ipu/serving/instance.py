"""`PoplarInstance`: serves one model with an executable on a device (`GraphRunner`), and casts and pads tensors between client and device.

The casts are those of `popef.served_types`. Among floats, a value beyond the narrower type's range becomes infinite, as on the device;
among integers it is rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.errors import BackendFailed, InvalidRequest
from stoker.backends.api.model import ModelSignature
from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.serving.served_graph import ServedGraph, ServedStream

Array = npt.NDArray[Any]


class GraphRunner(Protocol):
    """An executable on a device, simulated or real. Any thread may use it."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Runs one call of the main program and waits for its end.

        Args:
            inputs: Inputs by anchor, in the shape of a whole call; for a fused executable including its index.

        Returns:
            The outputs by anchor, in the shape of a whole call, in new memory.

        Raises:
            ServingError: the device or the program failed; UNAVAILABLE if a retry or another device may help.
        """


class PoplarInstance(Instance):
    """Runs batches of 1 to max_batch_size rows. The device always computes a whole call, so batches are padded with zeros and outputs of
    the padding are cut off.

    Padding happens here instead of in the batch processor, because a single copy can cast and pad a tensor. Up to `pipeline_depth` threads
    may execute at once.
    """

    def __init__(
        self,
        loaded: GraphRunner,
        graph: ServedGraph,
        signature: ModelSignature,
        *,
        index_anchor: Anchor | None,
        pipeline_depth: int,
        on_close: Callable[[], None],
    ) -> None:
        """Creates an instance that serves `graph`.

        Args:
            loaded: The executable.
            graph: The sub-graph to serve.
            signature: The served tensors; they agree with `graph`.
            index_anchor: The input that selects the sub-graph of a fused executable; None if there is only one sub-graph.
            pipeline_depth: Most batches in flight.
            on_close: Ends the lease of the executable.
        """
        self.pipeline_depth = pipeline_depth
        self._loaded = loaded
        self._is_batched = signature.is_batched
        self._inputs = {stream.name: stream for stream in graph.inputs}
        self._outputs = {stream.name: (stream, spec.datatype.numpy) for stream in graph.outputs if (spec := signature.output(stream.name))}
        self._index: dict[str, Array] = {}
        if index_anchor is not None:
            info = index_anchor.tensor_info
            self._index[index_anchor.name] = np.full(info.shape, graph.index, info.data_type.numpy)
        self._on_close = on_close

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        fed: dict[str, Array] = {
            self._inputs[name].anchor.name: self._call_block(self._inputs[name], array) for name, array in inputs.items()
        }
        rows = next((array.shape[0] for array in inputs.values()), 0) if self._is_batched else 0
        found = self._loaded.run({**fed, **self._index})
        return {name: self._output(name, found, rows) for name in output_names}

    def close(self) -> None:
        self._on_close()

    def _call_block(self, stream: ServedStream, array: Array) -> Array:
        """Returns `array` in the executable's type, padded with zeros to a whole call; `array` itself if neither is needed."""
        dtype = stream.anchor.tensor_info.data_type.numpy
        if array.dtype == dtype and array.shape == stream.call_shape:
            return array
        block = np.zeros(stream.call_shape, dtype)
        violation = cast_into(_head(block, array.shape), array)
        if violation:
            raise InvalidRequest(f"input '{stream.name}' {violation}")
        return block

    def _output(self, name: str, found: Mapping[str, Array], rows: int) -> Array:
        stream, dtype = self._outputs[name]
        block = found[stream.anchor.name]
        shape = (rows, *stream.call_shape[1:]) if self._is_batched else stream.tensor.shape or ()
        part = _head(block, shape)
        if part.dtype == dtype:
            return part
        output = np.zeros(shape, dtype)
        violation = cast_into(output, part)
        if violation:
            raise BackendFailed(f"output '{name}' {violation}")
        return output


def _head(block: Array, shape: tuple[int, ...]) -> Array:
    """Returns the first rows of a call's memory in `shape`; for scalars the first one."""
    if block.ndim > len(shape):
        return block[0, ...]
    return block[: shape[0]] if shape else block


def cast_into(target: Array, source: Array) -> str:
    """Writes `source` to `target`, which has the same shape and a castable type.

    Returns:
        A text on the values that do not fit; empty if all values fit.
    """
    if target.dtype.kind == "i" and source.dtype.itemsize > target.dtype.itemsize:
        limits = np.iinfo(target.dtype)
        wrong = (source < limits.min) | (source > limits.max)
        if wrong.any():
            value = int(source[wrong].flat[0])
            return f"holds {value}, which is outside {limits.min} to {limits.max}, the range of the device's {target.dtype}"
    with np.errstate(over="ignore"):  # overflow to infinity, see the module's docstring
        np.copyto(target, source, casting="same_kind")
    return ""
