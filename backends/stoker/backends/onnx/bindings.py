"""`Bindings`: small tensors stay in memory that is bound to ONNX Runtime, one set for each batch size.

`InferenceSession.run` makes a value of ONNX Runtime's own for each tensor of each call. With tensors bound beforehand, a tiny model runs in
about half the time (2.5 us against 5.3). The cost is a copy of the outputs, so this pays for small tensors only.
"""

from typing import Any, Final

import numpy as np
import onnxruntime as ort

from stoker.backends.api.backend import Arrays
from stoker.backends.api.layout import Array
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType, element_count
from stoker.backends.onnx_files.runtime import ORT_ERRORS

#: Largest sum of a batch's tensors, in bytes, inputs and outputs: copying them must cost nothing beside 2 us.
MOST_BYTES: Final = 16 << 10
#: Batch sizes that tensors are kept for.
MOST_SIZES: Final = 64


class BoundTensors:
    """The tensors of one batch size, as a `BoundBatch`.

    Attributes:
        inputs: See `BoundBatch`.
        has_failed: Whether the last `run` returned None.
    """

    __slots__ = ("_binding", "_is_checked", "_options", "_outputs", "_session", "_views", "has_failed", "inputs")

    def __init__(self, session: ort.InferenceSession, signature: ModelSignature, options: ort.RunOptions | None, rows: int) -> None:
        self._session: ort.InferenceSession | None = session
        self._options = options
        #: None: closed. The type is ONNX Runtime's `IOBinding`.
        self._binding: Any = session.io_binding()
        self._is_checked = False
        self.has_failed = False
        lead = (rows,) if signature.is_batched else ()
        #: In the shapes that clients know.
        self.inputs: dict[str, Array] = {}
        self._views: dict[str, Array] = {}
        #: In the shapes that the model knows.
        self._outputs: list[Array] = []
        for spec in signature.inputs:
            # Zeros, not what the allocator gives: clients read the outputs.
            array = np.zeros((*lead, *spec.model_dims), spec.datatype.numpy)
            self._binding.bind_input(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self.inputs[spec.name] = array.reshape((*lead, *spec.dims))
        for spec in signature.outputs:
            array = np.zeros((*lead, *spec.model_dims), spec.datatype.numpy)
            self._binding.bind_output(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self._outputs.append(array)
            self._views[spec.name] = array.reshape((*lead, *spec.dims))

    def run(self) -> Arrays | None:
        session = self._session
        if session is None:
            return None
        try:
            session.run_with_iobinding(self._binding, self._options)
        except ORT_ERRORS:
            # Where the request is at fault, `execute` says so too. Where it is not, the model gives other shapes than it declares.
            self.has_failed = True
            return None
        if not self._is_checked:
            if not self._are_written():
                self.has_failed = True
                return None
            self._is_checked = True
        # Copies: the bound memory holds the next batch soon, and responses are read later.
        outputs: dict[str, Array] = {}
        for name, array in self._views.items():
            outputs[name] = array.copy()
        return outputs

    def close(self) -> None:
        """Releases the session: a later `run` returns None."""
        self._session = None
        self._binding = None

    def _are_written(self) -> bool:
        """Whether ONNX Runtime writes its outputs into the bound memory. REQUIRES: the binding has been run.

        It does not where a graph output is a graph input, too: it then returns the input's memory and leaves the bound memory as it is.
        This follows from the graph, not from the values, so one check for each batch size is enough.
        """
        values = zip(self._binding.get_outputs(), self._outputs, strict=True)
        return all(value.data_ptr() == array.ctypes.data for value, array in values)


class Bindings:
    """The bound tensors of one session. Confined to: the one worker that owns it."""

    def __init__(self, session: ort.InferenceSession, signature: ModelSignature, options: ort.RunOptions | None) -> None:
        """REQUIRES: `are_worth_it(signature)`."""
        self._session = session
        self._signature = signature
        self._options = options
        self._by_rows: dict[int, BoundTensors] = {}

    def __len__(self) -> int:
        """Batch sizes that tensors are kept for."""
        return len(self._by_rows)

    def tensors(self, rows: int) -> BoundTensors | None:
        """The tensors of a batch of `rows` rows; None: there are enough batch sizes."""
        tensors = self._by_rows.get(rows)
        if tensors is None and len(self._by_rows) < MOST_SIZES:
            tensors = self._by_rows[rows] = BoundTensors(self._session, self._signature, self._options, rows)
        return tensors

    def take_failure(self) -> bool:
        """Whether a run has failed since the last call. To be called when the batch runs again without bound tensors."""
        has_failed = False
        for tensors in self._by_rows.values():
            has_failed = has_failed or tensors.has_failed
            tensors.has_failed = False
        return has_failed

    def close(self) -> None:
        """Releases the session: batch processors may keep the tensors."""
        for tensors in self._by_rows.values():
            tensors.close()


def are_worth_it(signature: ModelSignature) -> bool:
    """Whether a model of this signature runs faster with bindings: every shape known, plain numbers, and few of them."""
    specs = (*signature.inputs, *signature.outputs)
    if not signature.inputs or any(spec.datatype in (DataType.BYTES, DataType.BF16) for spec in specs):
        return False
    if not all(spec.is_static for spec in specs):
        return False
    row_bytes = sum(element_count(spec.model_dims) * spec.datatype.item_bytes for spec in specs)
    return row_bytes * max(1, signature.max_batch_size) <= MOST_BYTES
