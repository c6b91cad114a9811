"""A model on OpenVINO as an `Instance`: one compiled model for each batch size, or one for all."""

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import Array
from stoker.backends.api.errors import BackendFailed, InvalidRequest
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.backends.openvino.buckets import bucket_for
from stoker.backends.openvino.compiled import CompiledModel
from stoker.backends.openvino.element_types import NARROWED
from stoker.backends.openvino.errors import OPENVINO_ERRORS
from stoker.backends.openvino.integers import EXACT_BELOW
from stoker.backends.openvino.messages import public_text

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
            are_integers_inexact: Whether it computes integers in single precision, so that inputs beyond 2**24 are refused.
        """
        #: What was found of its outputs when it was loaded, for an operator.
        self.findings: tuple[str, ...] = ()
        self.static_batch_size = static_batch_size
        self.pipeline_depth = pipeline_depth
        self._models: Mapping[int, CompiledModel] | None = models
        self._buckets = sorted(size for size in models if size)
        #: The compiled ones, ascending; empty where one model takes all.
        self.batch_sizes: Sequence[int] = tuple(self._buckets)
        self._first_input = signature.inputs[0].name if signature.inputs else ""
        narrowed = NARROWED | ({DataType.INT32} if are_integers_inexact else frozenset())
        self._narrowed = tuple(spec.name for spec in signature.inputs if spec.datatype in narrowed)
        self._bounds = (-EXACT_BELOW, EXACT_BELOW) if are_integers_inexact else (_LOWEST, _HIGHEST)

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
