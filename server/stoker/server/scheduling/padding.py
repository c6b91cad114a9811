"""`PaddingScheduler`: pads the inputs of requests to common sizes, so that requests of different sizes share batches, and cuts the outputs
to each request's own size.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stoker.backends.api.errors import BackendFailed, InvalidRequest, ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.server.core.padding import Padding
from stoker.server.core.request import Array, Done, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.wrapped import ModelScheduler, WrappedScheduler


class PaddedInputs:
    """The padded inputs of one request.

    Attributes:
        arrays: By name.
        sizes: By group: the request's own size and the padded one.
        useful: Elements of the request in padded inputs.
        computed: Elements of these inputs with the padding.
    """

    __slots__ = ("arrays", "computed", "sizes", "useful")

    def __init__(self, arrays: dict[str, Array], sizes: list[tuple[int, int]]) -> None:
        self.arrays = arrays
        self.sizes = sizes
        self.useful = 0
        self.computed = 0


class Padder:
    """Pads the inputs of requests of one model, and cuts outputs. Pure."""

    def __init__(self, padding: Padding, signature: ModelSignature) -> None:
        """`signature` is the one of the model."""
        self._padding = padding
        self._specs: dict[str, TensorSpec] = {spec.name: spec for spec in signature.inputs}
        self._values = {name: _value(self._specs[name], text) for name, text in padding.values.items()}
        #: By input, the axes with their groups.
        self._axes: dict[str, list[tuple[int, int]]] = {}
        for number, group in enumerate(padding.groups):
            for axis in group.axes:
                self._axes.setdefault(axis.name, []).append((axis.axis, number))

    def pad(self, inputs: Mapping[str, Array], rows: int) -> PaddedInputs:
        """Pads the inputs of a request, and makes the mask that it left out.

        Raises:
            InvalidRequest: inputs of a group have different sizes.
        """
        sizes = [self._size(number, inputs) for number in range(len(self._padding.groups))]
        padded = PaddedInputs(dict(inputs), sizes)
        mask = self._padding.mask
        if mask is not None and mask not in inputs:
            own, size = sizes[self._axes[mask][0][1]]
            array = np.zeros((rows, size), self._specs[mask].datatype.numpy)
            array[:, :own] = 1
            padded.arrays[mask] = array
        for name, axes in self._axes.items():
            if name not in inputs:
                continue
            array = inputs[name]
            shape = list(array.shape)
            for axis, number in axes:
                shape[axis + 1] = sizes[number][1]
            if tuple(shape) != array.shape:
                whole = np.full(shape, self._fill(name, array), array.dtype)
                whole[tuple(slice(0, size) for size in array.shape)] = array
                padded.arrays[name] = whole
            if name != mask:
                padded.useful += array.size
                padded.computed += padded.arrays[name].size
        return padded

    def crop(self, outputs: Mapping[str, Array], sizes: list[tuple[int, int]]) -> dict[str, Array] | BackendFailed:
        """The outputs cut to the request's own sizes; or the error of an output that does not have the padded size."""
        found = dict(outputs)
        for crop in self._padding.crops:
            name, axis = crop.output.name, crop.output.axis + 1
            array = found.get(name)
            own, size = sizes[crop.group]
            if array is None or own == size:
                continue
            if array.ndim <= axis or array.shape[axis] != size:
                return BackendFailed(
                    f"output '{name}' has shape {list(array.shape)}, and the inputs are padded to {size}: it cannot be cut to {own}; "
                    "remove it from pad_crop_outputs"
                )
            found[name] = np.ascontiguousarray(array[(slice(None),) * axis + (slice(0, own),)])
        return found

    def _size(self, number: int, inputs: Mapping[str, Array]) -> tuple[int, int]:
        group = self._padding.groups[number]
        own: int | None = None
        for axis in group.axes:
            array = inputs.get(axis.name)
            if array is None:
                continue
            size = array.shape[axis.axis + 1]
            if own is not None and size != own:
                raise InvalidRequest(
                    f"input '{axis.name}' has size {size} on axis {axis.axis + 1}, but must have {own}, as input '{group.axes[0].name}'"
                )
            own = size
        return (0, 0) if own is None else (own, group.bucket(own))

    def _fill(self, name: str, array: Array) -> Any:
        if name in self._values:
            return self._values[name]
        if name != self._padding.mask and self._padding.repeats_first and array.size:
            return array.reshape(-1)[0]
        return b"" if array.dtype.hasobject else 0


def _value(spec: TensorSpec, text: str) -> Any:
    if spec.datatype.is_bytes:
        return text.encode()
    return int(text) if spec.datatype.numpy.kind in "iu" else float(text)


class PaddingScheduler(WrappedScheduler[ModelScheduler]):
    """Pads requests in front of the scheduler of one loaded version. Confined to: the event loop."""

    def __init__(
        self, inner: ModelScheduler, padding: Padding, signature: ModelSignature, inner_signature: ModelSignature, recorder: VersionRecorder
    ) -> None:
        """`signature` is the one that clients see, `inner_signature` that of the model, whose mask is required."""
        super().__init__(inner)
        self._padder = Padder(padding, inner_signature)
        self._signature = signature
        self._inner_signature = inner_signature
        self._recorder = recorder

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """Submits a request as `Scheduler.submit` does.

        Raises:
            InvalidRequest: inputs that must have one size have different ones. And as `Scheduler.submit`.
        """
        try:
            padded = self._padder.pad(request.inputs, request.rows)
        except InvalidRequest:
            self._recorder.failed(FailureReason.REJECTED, request_ns=0)
            raise
        inner = copy.copy(request)
        inner.inputs = padded.arrays
        inner.signature = self._inner_signature

        def finished(result: EngineResult) -> None:
            done(result if isinstance(result, ServingError) else self._cropped(result, padded))

        flight = self.inner.submit(inner, finished, ended)
        request.received_ns = inner.received_ns
        return flight

    def _cropped(self, response: InferResponse, padded: PaddedInputs) -> EngineResult:
        self._recorder.padded(useful=padded.useful, computed=padded.computed)
        outputs = self._padder.crop(response.outputs, padded.sizes)
        if isinstance(outputs, ServingError):
            return outputs
        return InferResponse(
            response.model_name, response.model_version, response.request_id, outputs, self._signature, response.parameters
        )
