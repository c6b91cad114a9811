"""`DeviceInstance`: a session whose tensors lie in the memory of a device, in buffers that are bound to the session.

A batch costs one copy to the device for each input and one from it for each output. Buffers are made once for each shape: the inputs of
equal batches land in the same device memory, and ONNX Runtime allocates nothing for them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.layout import Array
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.ragged_batch import RaggedProcessor
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.element_types import BFLOAT16
from stoker.backends.onnx.values import array_of, decoded, encoded
from stoker.backends.onnx_files.runtime import ORT_ERRORS, public_text

#: Shapes of one instance for which device buffers are kept; further ones are allocated for each batch.
MOST_SHAPES: Final = 32

#: ONNX Runtime's Python interface reads outputs of these types on the host only; it copies them there at the end of the run.
_ON_HOST: Final = frozenset({DataType.BYTES, DataType.BF16})

_Key = tuple[tuple[str, tuple[int, ...]], ...]


class DeviceInstance(Instance):
    """A session on a device. Confined to: the one worker that owns it."""

    def __init__(
        self,
        session: ort.InferenceSession,
        signature: ModelSignature,
        *,
        device: tuple[str, int],
        static_batch_size: int | None,
        shrink_arena: str = "",
    ) -> None:
        """Takes over `session`.

        Args:
            session: Its inputs and outputs agree with `signature`.
            signature: The tensors to serve.
            device: Kind and number, such as `("cuda", 0)`.
            static_batch_size: See `Instance`.
            shrink_arena: The arenas that give memory back after every run, such as `cpu:0;gpu:0`; empty: none.
        """
        self.static_batch_size = static_batch_size
        self.batch_processor = RaggedProcessor if signature.is_ragged else None
        self._session: ort.InferenceSession | None = session
        self._device = device
        self._dtypes = {spec.name: spec.datatype for spec in (*signature.inputs, *signature.outputs)}
        self._has_strings = any(spec.datatype is DataType.BYTES for spec in signature.inputs)
        self._options: ort.RunOptions | None = None
        if shrink_arena:
            self._options = ort.RunOptions()
            self._options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrink_arena)
        self._buffers: dict[_Key, Mapping[str, Any]] = {}

    @property
    def buffer_count(self) -> int:
        """Shapes for which device buffers are kept."""
        return len(self._buffers)

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        session = self._session
        if session is None:
            raise BackendFailed("the session is closed")
        try:
            if self._has_strings:
                return self._run_from_host(session, inputs, output_names)
            binding = session.io_binding()
            values = self._on_device(inputs)
            for name, value in values.items():
                binding.bind_ortvalue_input(name, value)
            for name in output_names:
                device = ("cpu", 0) if self._dtypes[name] in _ON_HOST else self._device
                binding.bind_output(name, *device)
            binding.synchronize_inputs()
            session.run_with_iobinding(binding, self._options)
            binding.synchronize_outputs()
            given = {value.data_ptr() for value in values.values()}
            return {
                name: self._array(name, value, is_input=value.data_ptr() in given)
                for name, value in zip(output_names, binding.get_outputs(), strict=True)
            }
        except ORT_ERRORS as error:
            raise BackendFailed(public_text(error)) from error

    def close(self) -> None:
        self._buffers.clear()
        self._session = None

    def _run_from_host(self, session: ort.InferenceSession, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        """Runs inputs with strings among them: ONNX Runtime's Python interface binds none."""
        feeds = {name: decoded(name, array) if self._dtypes[name] is DataType.BYTES else array for name, array in inputs.items()}
        arrays = session.run(output_names, feeds, self._options)
        return {
            name: encoded(array) if self._dtypes[name] is DataType.BYTES else array
            for name, array in zip(output_names, arrays, strict=True)
        }

    def _on_device(self, inputs: Arrays) -> Mapping[str, Any]:
        """`inputs` as values on the device, in the buffers of their shapes."""
        key = tuple((name, array.shape) for name, array in inputs.items())
        buffers = self._buffers.get(key)
        if buffers is None:
            buffers = {name: self._allocated(name, array) for name, array in inputs.items()}
            if len(self._buffers) < MOST_SHAPES:
                self._buffers[key] = buffers
        for name, array in inputs.items():
            if array.size:
                buffers[name].update_inplace(np.ascontiguousarray(array))
        return buffers

    def _allocated(self, name: str, array: Array) -> Any:
        kind: Any = BFLOAT16 if self._dtypes[name] is DataType.BF16 else array.dtype
        return ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), kind, *self._device)

    def _array(self, name: str, value: Any, *, is_input: bool) -> Array:
        """The elements of an output on the host. An output that is an input is the input's buffer, which the next batch overwrites."""
        if self._dtypes[name] is DataType.BYTES:
            return encoded(value.numpy())
        array = array_of(value)
        return array.copy() if is_input else array
