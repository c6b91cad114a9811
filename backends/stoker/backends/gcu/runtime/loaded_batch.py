"""`LoadedBatch`: one compiled batch of an engine, ready to compute."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.gcu.program import CompiledBatch, GcuExecutable, GcuTensor
from stoker.backends.gcu.runtime.device_buffer import DeviceBlock, readable_bytes
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.simulated.numerics import GraphRunner, GraphValue, Numerics, NumericsError

Array = npt.NDArray[Any]


class LoadedBatch:
    """One thread at a time.

    Attributes:
        compiled: What it runs.
    """

    def __init__(self, executable: GcuExecutable, compiled: CompiledBatch, numerics: Numerics, threads: int) -> None:
        """Prepares the graph, where it is to be computed.

        Raises:
            StatusError: it cannot be, or is not what the executable says; names the batch size.
        """
        self.compiled = compiled
        self._executable = executable
        self._where = f"engine '{executable.name}', batch {compiled.batch_size}"
        self._runner: GraphRunner | None = None
        if numerics is Numerics.REAL:
            try:
                self._runner = GraphRunner(compiled.onnx, threads, weights=executable.weights)
            except NumericsError as error:
                raise StatusError(Status.TIF_MAPPING_ERROR, f"{self._where}: {error}") from error
            self._check(executable.inputs, self._runner.inputs, "input")
            self._check(executable.outputs, self._runner.outputs, "output")

    @property
    def is_real(self) -> bool:
        """Whether it computes."""
        return self._runner is not None

    def run(self, first: int, samples: int, inputs: Sequence[DeviceBlock], outputs: Sequence[DeviceBlock]) -> None:
        """Runs `samples` samples, from sample `first` of the buffers on; the rest of the batch is zeros, whose outputs are dropped.

        Raises:
            StatusError: an operator failed.
        """
        if self._runner is None:
            for tensor, buffer in zip(self._executable.outputs, outputs, strict=True):
                buffer.write_zeros(first * tensor.sample_bytes, samples * tensor.sample_bytes)
            return
        given = {
            tensor.name: self._rows(tensor, buffer, first, samples) for tensor, buffer in zip(self._executable.inputs, inputs, strict=True)
        }
        try:
            values = self._runner.run(given, [tensor.name for tensor in self._executable.outputs])
        except NumericsError as error:
            raise StatusError(Status.TIF_ENGINE_RUN_FAILED, f"{self._where}: {error}") from error
        for tensor, buffer in zip(self._executable.outputs, outputs, strict=True):
            rows = np.ascontiguousarray(values[tensor.name][:samples])
            buffer.write(first * tensor.sample_bytes, readable_bytes(rows))

    def write_garbage(self, first: int, samples: int, outputs: Sequence[DeviceBlock]) -> None:
        """Sets all bits of the outputs instead: NaN in floats, -1 or the largest number in integers, true."""
        for tensor, buffer in zip(self._executable.outputs, outputs, strict=True):
            value = 0x01 if tensor.dtype.numpy == np.bool_ else 0xFF
            buffer.write(first * tensor.sample_bytes, np.full(samples * tensor.sample_bytes, value, np.uint8))

    def _rows(self, tensor: GcuTensor, buffer: DeviceBlock, first: int, samples: int) -> Array:
        shape = (samples, *tensor.dims)
        rows = buffer.read(first * tensor.sample_bytes, samples * tensor.sample_bytes).view(tensor.dtype.numpy).reshape(shape)
        if samples == self.compiled.batch_size:
            return rows
        padded = np.zeros((self.compiled.batch_size, *tensor.dims), tensor.dtype.numpy)
        padded[:samples] = rows
        return padded

    def _check(self, tensors: Sequence[GcuTensor], values: Mapping[str, GraphValue], kind: str) -> None:
        for tensor in tensors:
            shape = (self.compiled.batch_size, *tensor.dims)
            value = values.get(tensor.name)
            if value is None:
                raise StatusError(Status.TIF_NOT_FOUND, f"{self._where}: its graph has no {kind} '{tensor.name}'")
            if not value.fits(shape, tensor.dtype.numpy):
                expected = f"{tensor.dtype.numpy}{list(shape)}"
                raise StatusError(
                    Status.TIF_MIS_MATCHED_SHAPE_OR_DIM,
                    f"{self._where}: {kind} '{tensor.name}' is {value} in its graph, and {expected} in the executable",
                )
