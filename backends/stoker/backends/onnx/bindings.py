"""`Bindings`: small tensors stay in buffers that are bound to ONNX Runtime, one set for each batch size.

`InferenceSession.run` makes a value of ONNX Runtime's own for each tensor of each call; with places bound beforehand a tiny model runs in
about half the time (2.5 us against 5.3). What is paid for that is a copy in and a copy out, so it pays for small tensors only.
"""

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from stoker.backends.api.backend import Arrays
from stoker.backends.api.layout import Array
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType, element_count

#: Largest sum of a batch's tensors, in bytes, inputs and outputs: copying them must cost nothing beside 2 us.
MOST_BYTES = 16 << 10
#: Batch sizes that places are kept for.
MOST_SIZES = 64


class _Buffers:
    """The tensors of one batch size."""

    __slots__ = ("binding", "inputs", "is_checked", "outputs")

    def __init__(self, session: ort.InferenceSession, signature: ModelSignature, rows: int) -> None:
        self.binding = session.io_binding()
        self.is_checked = False
        self.inputs: dict[str, Array] = {}
        self.outputs: dict[str, Array] = {}
        for specs, buffers, bind in (
            (signature.inputs, self.inputs, self.binding.bind_input),
            (signature.outputs, self.outputs, self.binding.bind_output),
        ):
            for spec in specs:
                # Zeros, not what the allocator gives: outputs are answers to clients.
                array = np.zeros((rows, *spec.model_dims), spec.datatype.numpy)
                buffers[spec.name] = array
                bind(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def are_written(self) -> bool:
        """Whether ONNX Runtime writes its outputs into the bound memory. REQUIRES: the binding has been run.

        It does not where a graph output is a graph input, too: it then returns the input's memory and leaves the bound memory as it is.
        This follows from the graph, not from the values, so one check for each batch size is enough.
        """
        values = zip(self.binding.get_outputs(), self.outputs.values(), strict=True)
        return all(value.data_ptr() == array.ctypes.data for value, array in values)


class Bindings:
    """The places of one session. Confined to: the one worker that owns it."""

    def __init__(self, session: ort.InferenceSession, signature: ModelSignature) -> None:
        """REQUIRES: `are_worth_it(signature)`."""
        self._session = session
        self._signature = signature
        self._names = frozenset(spec.name for spec in signature.outputs)
        self._buffers: dict[int, _Buffers] = {}
        self._are_usable = True

    def __len__(self) -> int:
        """Batch sizes that places are kept for."""
        return len(self._buffers)

    def run(self, inputs: Arrays, output_names: Sequence[str], options: ort.RunOptions | None) -> dict[str, Array] | None:
        """The outputs; None where this batch is no case for bindings, or the model is none.

        Raises:
            Exception: as `InferenceSession.run`; so too where the model makes an output of another shape than its signature says.
        """
        if not self._are_usable:
            return None
        rows = next(iter(inputs.values())).shape[0]
        buffers = self._buffers.get(rows)
        if buffers is None:
            if len(self._buffers) >= MOST_SIZES:
                return None
            buffers = self._buffers[rows] = _Buffers(self._session, self._signature, rows)
        if len(inputs) != len(buffers.inputs) or not self._names.issubset(output_names):
            return None
        for name, array in inputs.items():
            buffers.inputs[name][...] = array
        self._session.run_with_iobinding(buffers.binding, options)
        if not buffers.is_checked:
            buffers.is_checked = True
            if not buffers.are_written():
                self._are_usable = False
                self._buffers.clear()
                return None
        # Copies: the places hold the next batch soon, and answers are read later.
        return {name: array.copy() for name, array in buffers.outputs.items()}


def are_worth_it(signature: ModelSignature) -> bool:
    """Whether a model of this signature runs faster with bindings: batched, every shape known, plain numbers, and few of them."""
    specs = (*signature.inputs, *signature.outputs)
    if not signature.is_batched or not signature.inputs or any(spec.datatype in (DataType.BYTES, DataType.BF16) for spec in specs):
        return False
    if not all(spec.is_static for spec in specs):
        return False
    row_bytes = sum(element_count(spec.model_dims) * spec.datatype.item_bytes for spec in specs)
    return row_bytes * signature.max_batch_size <= MOST_BYTES
