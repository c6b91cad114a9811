"""A model on OpenVINO as an `Instance`: one compiled model for each batch size, or one for all.

Each has an infer request for each batch in flight.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import Array
from stoker.backends.api.errors import BackendFailed, InvalidRequest
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.output_memory import OutputMemory
from stoker.backends.api.tensor import DataType
from stoker.backends.openvino.integers import EXACT_BELOW
from stoker.backends.openvino.parameters import bucket_for
from stoker.backends.openvino.runtime import NARROWED, OPENVINO_ERRORS, public_text

log = logging.getLogger("stoker.backends.openvino")

# The first use of `data` makes OpenVINO's table of numpy's types, a static variable. A thread that waits for it keeps the GIL, which the
# thread that makes it may need: first loads at the same time could block each other for good. Here the import's lock keeps others away.
_ = ov.Tensor(ov.Type.f32, ov.Shape([1])).data

#: From here on an input is handed to OpenVINO where it lies, instead of being copied to the request's own memory: handing over costs about
#: 5 us, as much as copying some tens of kilobytes.
SHARED_FROM_BYTES = 64 * 1024
#: From here on OpenVINO writes an output into a new array, instead of its own memory, from which it is copied. It saves 15 % of the CPU of
#: a batch that only writes 1 MiB, and nothing below 256 KiB, where the tensors of the infer request (`CompiledModel.bound`) save more.
SHARED_OUTPUT_FROM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output.

    Attributes:
        index: Its number on the compiled model.
        dtype: As numpy has it; bfloat16 as uint16.
        shape: Its shape where all of it is fixed; None otherwise.
        is_shared: Whether its tensors are handed over where they lie.
        element: OpenVINO's type, where numpy cannot name it; None otherwise.
    """

    index: int
    dtype: "np.dtype[np.generic]"
    shape: tuple[int, ...] | None
    is_shared: bool
    element: ov.Type | None

    @classmethod
    def of(cls, index: int, port: ov.Output, dtype: "np.dtype[np.generic]", shared_from_bytes: float) -> "Port":
        """The port of a compiled model, whose tensors are handed over if they have at least `shared_from_bytes` bytes."""
        shape = port.get_partial_shape()
        fixed = None if shape.is_dynamic else tuple(int(size.get_length()) for size in shape)
        is_large = fixed is not None and int(np.prod(fixed)) * dtype.itemsize >= shared_from_bytes
        kind = port.get_element_type()
        return cls(index, dtype, fixed, is_large, kind if kind == ov.Type.bf16 else None)

    def tensor(self, array: Array) -> ov.Tensor:
        """`array`, which must be writable and outlive the run, as a tensor without a copy."""
        if self.element is not None:
            return ov.Tensor(array, ov.Shape(list(array.shape)), self.element)
        return ov.Tensor(array, shared_memory=True)

    def view(self, tensor: ov.Tensor) -> Array:
        """The memory of `tensor` as an array."""
        array: Array = tensor.data
        return array.view(self.dtype) if self.element is not None else array


def unchanged_inputs(compiled: ov.CompiledModel) -> set[int]:
    """The numbers of the outputs that are inputs of the model, unchanged: OpenVINO reads the input from the memory that is set for such an
    output. The compiled graph says it, from which the identities of the file are removed.
    """
    # The nodes of `compiled.outputs` themselves say nothing: each is a result of a parameter.
    results = {result.get_friendly_name(): result for result in compiled.get_runtime_model().get_results()}
    names = [port.get_node().get_friendly_name() for port in compiled.outputs]
    if results.keys() != set(names) or len(results) < len(names):
        return set(range(len(names)))  # the two cannot be matched: each may be an input
    return {index for index, name in enumerate(names) if results[name].input_value(0).get_node().get_type_name() == "Parameter"}


#: What the CPU plugin calls nodes that run a graph of their own; it has one kind for all loops.
_LOOPING = ("TensorIterator", "Loop", "If")


class CompiledModel:
    """Runs batches of up to its batch size. Several threads may, as many as there are requests."""

    def __init__(self, compiled: ov.CompiledModel, inputs: Mapping[str, Port], outputs: Mapping[str, Port], requests: int) -> None:
        """Makes `requests` infer requests, and with them their memory.

        Args:
            compiled: The model.
            inputs: Its inputs by served name.
            outputs: Its outputs by served name, likewise.
            requests: Batches at once.
        """
        self._compiled = compiled
        self._inputs = inputs
        self._outputs = outputs
        self._is_growing = any(port.shape is None for port in (*inputs.values(), *outputs.values()))
        #: Where outputs are copied to; None: into arrays of their own.
        self.memory: OutputMemory | None = None
        #: Bytes of the largest batch, in or out, since memory was given back.
        self.largest_bytes = 0
        # Taking and giving back are single operations of a deque, which threads may mix.
        self._idle = deque(_Request(compiled.create_infer_request(), inputs) for _ in range(requests))

    def run(self, inputs: Arrays, rows: int | None, output_names: Sequence[str]) -> dict[str, Array]:
        """Runs one batch, and waits for it.

        Args:
            inputs: By name, C-contiguous; with fewer rows than the model is compiled for, zeros are put below them.
            rows: Rows that the outputs are cut to; None: all rows of the batch.
            output_names: Outputs that are wanted.

        Returns:
            The outputs, in arrays of their own or of `memory`.
        """
        request = self._idle.pop()
        try:
            fresh = request.run(inputs, self._outputs, output_names, self.memory)
        finally:
            self._idle.append(request)
        if self._is_growing:
            self.largest_bytes = max(self.largest_bytes, *[array.nbytes for side in (inputs, fresh) for array in side.values()])
        return {name: array[:rows] if rows is not None and len(array) > rows else array for name, array in fresh.items()}

    def bound(self, shapes: Mapping[str, tuple[int, ...]]) -> "BoundRequest | None":
        """The tensors of the only infer request, which stay its own while no shape varies.

        None: a tensor has another shape than in `shapes`, by name, or is handed over where it lies, which saves more.
        """
        ports = {**self._inputs, **self._outputs}
        if len(self._idle) != 1 or any(port.is_shared or port.shape != shapes[name] for name, port in ports.items()):
            return None
        return BoundRequest(self._idle[0], self._outputs)

    def give_memory_back(self) -> None:
        """Of shapes that vary: puts new infer requests in the places of those that hold the largest batch. Any thread may call it.

        What is left in the compiled model goes when a smaller batch runs: so this runs zeros, with 1 for each size that varies. A model
        with a loop keeps that: on zeros, which no client has sent, it may never end.
        """
        if not self.largest_bytes:
            return
        self.largest_bytes = 0
        for _ in range(len(self._idle)):
            # First the new one: a thread that comes for one must find it.
            self._idle.append(_Request(self._compiled.create_infer_request(), self._inputs))
            self._idle.popleft()
        self._compiled.release_memory()
        if _has_loop(self._compiled):
            return
        sizes = {name: self._compiled.inputs[port.index].get_partial_shape() for name, port in self._inputs.items()}
        zeros = {
            name: np.zeros([size.get_length() if size.is_static else 1 for size in shape], self._inputs[name].dtype)
            for name, shape in sizes.items()
        }
        try:
            _Request(self._compiled.create_infer_request(), self._inputs).run(zeros, {}, ())
        except OPENVINO_ERRORS as error:
            log.debug("memory is kept: zeros in the smallest shapes do not run: %s", public_text(error))


def _has_loop(compiled: ov.CompiledModel) -> bool:
    return any(node.get_rt_info()["layerType"] in _LOOPING for node in compiled.get_runtime_model().get_ops())


class _Request:
    """An infer request and views on its own input memory."""

    def __init__(self, request: ov.InferRequest, inputs: Mapping[str, Port]) -> None:
        self._request = request
        self._inputs = inputs
        self._own = {name: request.get_input_tensor(port.index) for name, port in inputs.items() if port.shape is not None}
        self._windows = {name: inputs[name].view(tensor) for name, tensor in self._own.items()}

    @property
    def windows(self) -> Mapping[str, Array]:
        """Its own memory, by input of a fixed shape."""
        return self._windows

    def run_own(self, outputs: Mapping[str, Port]) -> dict[str, Array]:
        """Runs on what its own memory holds; returns all `outputs`, none of which is handed over where it lies."""
        request = self._request
        request.start_async(share_inputs=True)
        request.wait()
        fresh: dict[str, Array] = {}
        for name, port in outputs.items():
            fresh[name] = port.view(request.get_output_tensor(port.index)).copy()
        return fresh

    def run(
        self, inputs: Arrays, outputs: Mapping[str, Port], output_names: Sequence[str], memory: OutputMemory | None = None
    ) -> dict[str, Array]:
        request = self._request
        for name, array in inputs.items():
            self._feed(name, array)
        fresh: dict[str, Array] = {}
        for name, port in outputs.items():
            # All large outputs, wanted or not: the memory that an earlier run wrote into belongs to an earlier response.
            if memory is None and port.is_shared and port.shape is not None:
                fresh[name] = np.zeros(port.shape, port.dtype)
                request.set_output_tensor(port.index, port.tensor(fresh[name]))
        request.start_async(share_inputs=True)
        request.wait()
        own = {name: outputs[name].view(request.get_output_tensor(outputs[name].index)) for name in output_names if name not in fresh}
        arrays = None if memory is None else memory.arrays([(array.shape, array.dtype) for array in own.values()])
        for position, (name, array) in enumerate(own.items()):
            if arrays is None:
                fresh[name] = array.copy()
            else:
                fresh[name] = arrays[position]
                fresh[name][...] = array
        return {name: fresh[name] for name in output_names}

    def _feed(self, name: str, array: Array) -> None:
        port = self._inputs[name]
        # OpenVINO takes no memory that may not be written. A request alone in its batch is such: a view of the bytes that arrived.
        is_writable = array.flags.writeable
        if port.shape is None:
            self._request.set_input_tensor(port.index, port.tensor(array if is_writable else array.copy()))
            return
        is_whole = array.shape == port.shape
        if port.is_shared and is_whole and is_writable:
            self._request.set_input_tensor(port.index, port.tensor(array))
            return
        window = self._windows[name]
        if is_whole:
            np.copyto(window, array)
        else:
            window[: len(array)] = array
            window[len(array) :] = 0
        if port.is_shared:
            self._request.set_input_tensor(port.index, self._own[name])


class BoundRequest:
    """The tensors of an infer request, as a `BoundBatch`: of a batch of 8 that takes 10 us, it saves 9 of 29 us.

    Attributes:
        inputs: See `BoundBatch`.
    """

    __slots__ = ("_outputs", "_request", "inputs")

    def __init__(self, request: _Request, outputs: Mapping[str, Port]) -> None:
        self._request: _Request | None = request
        self._outputs = outputs
        self.inputs: Arrays = request.windows

    def run(self) -> Arrays | None:
        if self._request is None:
            return None
        try:
            return self._request.run_own(self._outputs)
        except OPENVINO_ERRORS:
            return None  # `execute` says why

    def close(self) -> None:
        """Releases the infer request: a later `run` returns None."""
        self._request = None


#: Batches of less are not worth a rest of their own.
LARGE_BYTES = 8 << 20
_LOWEST, _HIGHEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


class OpenVinoInstance(Instance):
    """Runs batches, padded to the next compiled size.

    Confined to: its worker, whose threads, up to `pipeline_depth`, may execute at once.
    """

    def __init__(
        self,
        models: Mapping[int, CompiledModel],
        signature: ModelSignature,
        *,
        static_batch_size: int | None,
        pipeline_depth: int,
        are_integers_inexact: bool = False,
    ) -> None:
        """Takes over `models`.

        Args:
            models: By batch size; 0: the one that takes any batch, or tensors without a batch dimension.
            signature: What is served.
            static_batch_size: The batch size the file itself is made for; None: open.
            pipeline_depth: Infer requests of each model.
            are_integers_inexact: Whether it computes integers in single precision, so that inputs beyond 2**24 are rejected.
        """
        #: What was found of its outputs when it was loaded, for an operator.
        self.findings: tuple[str, ...] = ()
        self.static_batch_size = static_batch_size
        self.pipeline_depth = pipeline_depth
        self._models: Mapping[int, CompiledModel] | None = models
        self._buckets = sorted(size for size in models if size)
        #: The compiled batch sizes, ascending; empty if one model takes all sizes.
        self.batch_sizes: Sequence[int] = tuple(self._buckets)
        self._first_input = signature.inputs[0].name if signature.inputs else ""
        narrowed = NARROWED | ({DataType.INT32} if are_integers_inexact else frozenset())
        self._narrowed = tuple(spec.name for spec in signature.inputs if spec.datatype in narrowed)
        self._bounds = (-EXACT_BELOW, EXACT_BELOW) if are_integers_inexact else (_LOWEST, _HIGHEST)
        self._is_batched = signature.is_batched
        self._dims = {spec.name: spec.dims for spec in (*signature.inputs, *signature.outputs)}
        self._bound: dict[int, BoundRequest | None] = {}

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        models = self._models
        if models is None:
            raise BackendFailed("the model is closed")
        for name in self._narrowed:
            _check_range(name, inputs[name], *self._bounds)
        rows, size = None, 0
        if self._buckets:
            rows = len(inputs[self._first_input])
            size = bucket_for(rows, self._buckets)
        try:
            return models[size].run(inputs, rows, output_names)
        except OPENVINO_ERRORS as error:
            raise BackendFailed(public_text(error)) from error

    def bound(self, rows: int) -> BoundRequest | None:
        models = self._models
        # The range of inputs is checked by `execute`.
        if models is None or self._narrowed or self.pipeline_depth > 1 or (self._is_batched and not self._buckets):
            return None
        size = bucket_for(rows, self._buckets) if self._is_batched else 0
        if size not in self._bound:
            lead = (size,) if self._is_batched else ()
            self._bound[size] = models[size].bound({name: (*lead, *dims) for name, dims in self._dims.items()})
        return self._bound[size]

    def place_outputs(self, memory: OutputMemory) -> None:
        for model in (self._models or {}).values():
            model.memory = memory

    @property
    def has_memory_to_release(self) -> bool:
        """Whether a batch of more than `LARGE_BYTES` has run, on a model of variable shapes, since `give_memory_back`."""
        return any(model.largest_bytes > LARGE_BYTES for model in (self._models or {}).values())

    def give_memory_back(self) -> None:
        """Releases what models of variable shapes hold for their largest batch. Any thread may call it, beside a batch."""
        for model in (self._models or {}).values():
            model.give_memory_back()

    def close(self) -> None:
        self._models = None
        for each in self._bound.values():
            if each is not None:
                each.close()
        self.findings = ()


def _check_range(name: str, array: Array, lowest: int, highest: int) -> None:
    """OpenVINO's CPU plugin keeps the lower 32 bits of wider integers, or 24 in single precision, and says nothing.

    Raises:
        InvalidRequest: a value does not fit.
    """
    if array.size and (int(array.max()) > highest or int(array.min()) < lowest):
        bits = "32 bits" if highest == _HIGHEST else "single precision for this model"
        raise InvalidRequest(
            f"input '{name}' holds {int(array.min())} to {int(array.max())}; on this backend integers are computed in {bits}, "
            f"{lowest} to {highest}"
        )
