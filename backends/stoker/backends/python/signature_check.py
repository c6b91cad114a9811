"""Between the server's tensors and the model's: what a model gets of a request, and what its outputs must be."""

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.backends.api.batch import Share
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.layout import Array, fits, plain, reshaped
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.python.tensors import as_bytes_array


class SignatureCheck:
    """Converts tensors by the `signature` of a model. Has no state."""

    def __init__(self, signature: ModelSignature) -> None:
        self._signature = signature
        self._lead = 1 if signature.is_batched else 0
        self._outputs = {spec.name: spec for spec in signature.outputs}

    def inputs(self, share: Share) -> list[tuple[TensorSpec, Array]]:
        """The request's inputs in the order of the configuration, each `[rows, *model_dims]` (no rows where the model is not batched)."""
        return [
            (spec, plain(share.inputs[spec.name]) if spec.reshape is None else self._as_model(spec, share.inputs[spec.name]))
            for spec in self._signature.inputs
            if spec.name in share.inputs
        ]

    def _as_model(self, spec: TensorSpec, array: Array) -> Array:
        assert spec.reshape is not None
        return reshaped(array, self._lead, spec.dims, spec.reshape)

    def outputs(
        self, tensors: Mapping[str, tuple[Array, DataType]], wanted: Sequence[str], *, is_whole: bool, rows: int
    ) -> dict[str, Array]:
        """The outputs that the client `wanted`, in that order, of those that the model returned.

        Args:
            tensors: By name, array and element type.
            wanted: Names of the signature.
            is_whole: Whether all of them must be there, with as many rows as the request.
            rows: The rows of the request.

        Raises:
            BackendFailed: one is missing, unknown, or contradicts the signature; the text names it.
        """
        for name in tensors:
            if name not in self._outputs:
                raise BackendFailed(
                    f"the model returned output '{name}', which its configuration does not have: {', '.join(self._outputs)}"
                )
        missing = [name for name in wanted if name not in tensors] if is_whole else []
        if missing:
            raise BackendFailed(f"the model did not return output(s) {', '.join(missing)}; it returned: {', '.join(tensors) or 'none'}")
        outputs = {name: self._output(self._outputs[name], *tensors[name]) for name in wanted if name in tensors}
        if is_whole and self._lead:
            for name, array in outputs.items():
                if len(array) != rows:
                    raise BackendFailed(f"the model returned output '{name}' with {len(array)} rows for a request of {rows}")
        return outputs

    def _output(self, spec: TensorSpec, array: Array, datatype: DataType) -> Array:
        array = _converted(spec, array, datatype)
        if array.ndim < self._lead or not fits(array.shape[self._lead :], spec.model_dims):
            batch = "[batch] and " if self._lead else ""
            raise BackendFailed(
                f"the model returned output '{spec.name}' of shape {list(array.shape)}, expected {batch}{list(spec.model_dims)}"
            )
        return array if spec.reshape is None else reshaped(array, self._lead, spec.reshape, spec.dims)


def _converted(spec: TensorSpec, array: Array, datatype: DataType) -> Array:
    """`array` in the element type of `spec`.

    numpy makes int64 and float64 where a model names no dtype, and Triton does not compare: another width of the same kind is converted, if
    no integer changes its value.
    """
    wanted = spec.datatype
    if datatype is wanted:
        return as_bytes_array(array) if wanted.is_bytes else array
    kinds = {array.dtype.kind, wanted.numpy.kind}
    is_number = DataType.BF16 not in (datatype, wanted) and (kinds <= {"i", "u"} or kinds == {"f"})
    if is_number:
        converted = array.astype(wanted.numpy)
        if kinds == {"f"} or np.array_equal(converted, array):
            return converted
    reason = "; a value does not fit" if is_number else ""
    raise BackendFailed(f"the model returned output '{spec.name}' as {datatype.value}, the configuration says {wanted.value}{reason}")
