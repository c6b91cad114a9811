"""From the values of OpenAI's requests to the tensors of a model, and back."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.validation import SignatureCheck, read_parameters
from stoker.server.core.openai_contract import TOKENS
from stoker.server.core.request import Array, InferRequest, ParameterValue, Servable, Via
from stoker.server.protocols.openai.errors import FieldError

_INTEGERS: Final = frozenset(
    {
        DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64, DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64,
    }
)  # fmt: skip
_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})


class RequestMaker:
    """Makes the requests of one HTTP request for one model. REQUIRES: the caller borrows `servable` until it submits them."""

    def __init__(
        self, check: SignatureCheck, servable: Servable, model: str, request_id: str, received_ns: int, options: Mapping[str, Any]
    ) -> None:
        """Reads `options`: those that are inputs of the model become tensors, other scalars become parameters.

        Raises:
            FieldError: the model takes no such option. InvalidRequest: a parameter is reserved.
        """
        self._check = check
        self._servable = servable
        self._model = model
        self._request_id = request_id
        self._received_ns = received_ns
        self._options: dict[str, Any] = {}
        custom: dict[str, ParameterValue] = {}
        for key, value in options.items():
            if key in check.inputs:
                self._options[key] = value
            elif isinstance(value, bool | int | float | str):
                custom[key] = value
            elif key != "stop":
                # The server itself ends texts at stop sequences.
                text = f"model '{model}' takes no '{key[:64]}': it has no input of that name"
                raise FieldError(key[:64], text, "unsupported_parameter")
        self._parameters = read_parameters(custom)

    def of_texts(self, source: str, texts: Sequence[str], more: Mapping[str, ParameterValue] | None = None) -> InferRequest:
        """A request whose input `source` holds `texts`; a model without batch dimension takes several in a variable dim.

        Raises:
            FieldError: an option has a wrong type. InvalidRequest: the request violates the signature.
        """
        spec = self._check.inputs[source]
        rows = len(texts)
        values = np.empty(rows, np.object_)
        values[:] = [text.encode(errors="surrogatepass") for text in texts]
        if self._check.signature.is_batched:
            array = values.reshape(rows, *(1 for _ in spec.dims))
        else:
            array = values.reshape(rows if spec.dims else ())
        return self._request({source: array}, rows, more)

    def of_tokens(self, tokens: Sequence[int], more: Mapping[str, ParameterValue] | None = None) -> InferRequest:
        """A request of one row of token numbers.

        Raises:
            As `of_texts`.
        """
        spec = self._check.inputs[TOKENS]
        lead = (1,) if self._check.signature.is_batched else ()
        return self._request({TOKENS: np.asarray(tokens, spec.datatype.numpy).reshape(*lead, len(tokens))}, 1, more)

    def _request(self, inputs: dict[str, Array], rows: int, more: Mapping[str, ParameterValue] | None) -> InferRequest:
        check, parameters = self._check, self._parameters
        custom = dict(parameters.custom)
        options = dict(self._options)
        for key, value in (more or {}).items():
            (options if key in check.inputs else custom)[key] = value
        for key, value in options.items():
            inputs[key] = _tensor(check.inputs[key], value, rows if check.signature.is_batched else None)
        for key, array in inputs.items():
            check.count_elements(check.inputs[key], check.inputs[key].datatype.value, array.shape)
        # `rows` of the request: 1 where the model is not batched.
        count = check.complete(inputs)
        return InferRequest(
            self._model,
            inputs,
            check.default_outputs,
            check.signature,
            request_id=self._request_id,
            rows=count,
            priority=parameters.priority,
            timeout_us=parameters.timeout_us,
            sequence=parameters.sequence,
            parameters=custom,
            received_ns=self._received_ns,
            size_bytes=sum([_size_bytes(array) for array in inputs.values()]),
            via=Via.OPENAI,
            servable=self._servable,
        )


def _tensor(spec: TensorSpec, value: Any, rows: int | None) -> Array:
    """`value`, a scalar or a flat list, as the tensor `spec`, repeated for each of `rows` rows (None: the model is not batched)."""
    values = value if isinstance(value, list) and spec.dims == (VARIABLE,) else [value]
    elements = [_element(spec, each) for each in values]
    flat = np.empty(len(elements), spec.datatype.numpy)
    flat[:] = elements
    row = flat.reshape(() if not spec.dims else (1,) * (len(spec.dims) - 1) + (len(elements),))
    return row if rows is None else np.repeat(row[np.newaxis], rows, axis=0)


def _size_bytes(array: Array) -> int:
    texts: Any = array
    return sum([len(each) for each in texts.flat]) if array.dtype == np.object_ else array.nbytes


def _element(spec: TensorSpec, value: Any) -> Any:
    kind = spec.datatype
    if kind is DataType.BYTES:
        return value.encode(errors="surrogatepass") if isinstance(value, str) else orjson.dumps(value)
    if kind is DataType.BOOL and isinstance(value, bool):
        return value
    if kind in _INTEGERS and type(value) is int:
        limits = np.iinfo(kind.numpy)
        if limits.min <= value <= limits.max:
            return value
    elif kind in _FLOATS and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    shown = orjson.dumps(value).decode(errors="replace")[:40]
    raise FieldError(spec.name, f"'{spec.name}' takes {kind.value} for this model, not {shown}", "invalid_type")


def text_of(element: Any) -> bytes:
    """An element of a BYTES output as bytes."""
    return element if isinstance(element, bytes) else str(element).encode(errors="surrogatepass")


def row_element(outputs: Mapping[str, Array], name: str, row: int) -> Any | None:
    """The element of the scalar output `name` in `row`; None: the response has none."""
    array = outputs.get(name)
    if array is None or array.size <= row:
        return None
    return array.reshape(-1)[row]


def check_takes(check: SignatureCheck, source: str, field: str, *, has_texts: bool, has_tokens: bool) -> None:
    """Rejects texts or token numbers that the model has no input for.

    Raises:
        FieldError: names the field.
    """
    if has_tokens and TOKENS not in check.inputs:
        raise FieldError(field, f"this model takes texts in '{field}', not token numbers: send the text itself", "unsupported_value")
    if has_texts and source not in check.inputs:
        raise FieldError(field, f"this model takes token numbers in '{field}', not texts", "unsupported_value")


def mismatch(error: InvalidRequest, field: str) -> InvalidRequest:
    """`error` of the signature's check, as an error of `field`."""
    return error if isinstance(error, FieldError) else FieldError(field, error.message)
