"""`OutputBinding`: ONNX Runtime writes large outputs into the memory that they are sent from."""

from collections.abc import Sequence
from typing import Any

import onnxruntime as ort

from stoker.backends.api.backend import Arrays
from stoker.backends.api.layout import Array
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.output_memory import OutputMemory
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx_files.runtime import ORT_ERRORS


class OutputBinding:
    """Runs batches with outputs in an `OutputMemory`: those of known shapes. Confined to: the worker that owns the session.

    Attributes:
        has_failed: Whether the last `run` began and failed.
    """

    def __init__(self, session: ort.InferenceSession, signature: ModelSignature, memory: OutputMemory) -> None:
        """REQUIRES: `has_known_outputs(signature)`."""
        self._session = session
        self._memory = memory
        self._is_batched = signature.is_batched
        self._layouts = {spec.name: (spec.model_dims, spec.datatype.numpy) for spec in signature.outputs if spec.is_static}
        #: The type is ONNX Runtime's `IOBinding`.
        self._binding: Any = session.io_binding()
        self.has_failed = False

    def run(self, inputs: Arrays, output_names: Sequence[str], options: ort.RunOptions | None) -> dict[str, Array] | None:
        """Runs a batch; see `Instance.execute`.

        Returns:
            The outputs. None: there is no memory for them, or the run failed. The caller then runs the batch as usual.
        """
        self.has_failed = False
        lead = next(iter(inputs.values())).shape[:1] if self._is_batched else ()
        names = [name for name in output_names if name in self._layouts]
        layouts = [((*lead, *dims), dtype) for dims, dtype in map(self._layouts.__getitem__, names)]
        arrays = self._memory.arrays(layouts)
        if arrays is None:
            return None
        binding = self._binding
        given: set[int] = set()
        try:
            for name, array in inputs.items():
                # By address: the binding would keep a reference to an array, and with it the segment that it lies in.
                binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
                given.add(array.ctypes.data)
            placed = dict(zip(names, arrays, strict=True))
            for name in output_names:
                if name in placed:
                    array = placed[name]
                    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
                else:
                    binding.bind_output(name, "cpu")
            self._session.run_with_iobinding(binding, options)
            outputs: dict[str, Array] = {}
            for name, value in zip(output_names, binding.get_outputs(), strict=True):
                address = value.data_ptr()
                if name in placed and address == placed[name].ctypes.data:
                    outputs[name] = placed[name]
                else:
                    # A graph output that is a graph input, too, is the input's memory, and nothing is written to the bound one.
                    outputs[name] = value.numpy().copy() if address in given else value.numpy()
            return outputs
        except ORT_ERRORS:
            # Where the request is at fault, an ordinary run says so too. Where it is not, the model gives other shapes than it declares.
            self.has_failed = True
            return None
        finally:
            # Later runs of the session must not find addresses of this batch's segments.
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()


def has_known_outputs(signature: ModelSignature) -> bool:
    """Whether the shape of an output follows from the batch size, and all tensors are plain numbers."""
    specs = (*signature.inputs, *signature.outputs)
    if not signature.inputs or signature.is_ragged or any(spec.datatype in (DataType.BYTES, DataType.BF16) for spec in specs):
        return False
    return any(spec.is_static for spec in signature.outputs)
