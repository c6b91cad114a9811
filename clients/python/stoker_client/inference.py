"""The request and the result of an inference, independent of the protocol."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker_client.datatypes import Array
from stoker_client.errors import InvalidRequest
from stoker_client.tensors import EncodedTensor, TensorLike, encode_tensor

ParameterValue = bool | int | float | str

_RESERVED = ("priority", "timeout", "binary_data_output", "headers")
_UINT64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """One request, encoded and checked as far as a client can check it.

    Attributes:
        model: Model name.
        version: The requested version; empty: the server chooses.
        inputs: In the caller's order.
        outputs: Names of the requested outputs, in order; empty: all.
        request_id: Echoed by the server.
        parameters: Request parameters, including priority and queue timeout (microseconds).
    """

    model: str
    version: str
    inputs: tuple[EncodedTensor, ...]
    outputs: tuple[str, ...]
    request_id: str
    parameters: Mapping[str, ParameterValue]

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(len(tensor.raw) for tensor in self.inputs)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The datatype and shape of one output as received."""

    datatype: str
    shape: tuple[int, ...]


class InferResult(dict[str, Array]):
    """A dict of the outputs by name; attributes hold the rest of the response.

    If possible, arrays are read-only views of the received message: copy an array to write to it. BYTES outputs are object arrays of
    `bytes`, BF16 outputs bits in uint16.

    Attributes:
        model_name: The model that responded.
        model_version: The version that responded, as text.
        request_id: The id of the request.
        parameters: The response's parameters.
        info: Datatype and shape of each output as received.
    """

    def __init__(self, outputs: Mapping[str, Array], *, model_name: str, model_version: str, request_id: str) -> None:
        super().__init__(outputs)
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        self.parameters: dict[str, ParameterValue] = {}
        self.info: dict[str, TensorInfo] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferOptions:
    """The options of an inference except its tensors; the keyword arguments of `infer` and `stream`.

    Attributes:
        version: Version number; None: the server's choice.
        outputs: Names of the requested outputs; empty: all.
        request_id: Echoed by the server.
        priority: 1: highest; 0: the model's default.
        queue_timeout_s: How long the request may wait in the server's queue (the `timeout` parameter); None: the model's default.
        parameters: Further request parameters.
    """

    version: int | str | None = None
    outputs: tuple[str, ...] = ()
    request_id: str = ""
    priority: int = 0
    queue_timeout_s: float | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)


def build_request(model: str, inputs: Mapping[str, TensorLike], options: InferOptions, *, request_id: str | None = None) -> InferRequest:
    """Encodes the inputs and checks the request without a server. A `request_id` replaces that of the options.

    Raises:
        InvalidRequest: a tensor cannot be encoded, or an option is out of range or reserved.
    """
    if not model:
        raise InvalidRequest("a request needs a model name, got an empty one")
    if not inputs:
        raise InvalidRequest(f"a request for model '{model}' needs at least one input")
    return InferRequest(
        model=model,
        version=version_text(options.version),
        inputs=tuple(encode_tensor(name, value) for name, value in inputs.items()),
        outputs=options.outputs,
        request_id=options.request_id if request_id is None else request_id,
        parameters=_parameters(options),
    )


def version_text(version: int | str | None) -> str:
    """A version as text, as the protocols send it; empty for None.

    Raises:
        InvalidRequest: it is not a whole number >= 0.
    """
    text = "" if version is None else str(version)
    if text and not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"a model version is a whole number, got '{text}'")
    return text


def output_names(outputs: Iterable[str] | None) -> tuple[str, ...]:
    """The `outputs` argument of a call as a tuple; empty for None.

    Raises:
        InvalidRequest: it is a single string, whose letters would be taken as names.
    """
    if isinstance(outputs, str):
        raise InvalidRequest(f"outputs is a list of names, got the string '{outputs}'")
    return tuple(outputs or ())


def time_limit_s(timeout_s: float | None, default_s: float | None) -> float | None:
    """The time limit of a call, seconds: `default_s` if the caller gives none; None (no limit) if the limit is infinite.

    Raises:
        InvalidRequest: it is not above 0.
    """
    limit_s = default_s if timeout_s is None else timeout_s
    if limit_s is None or limit_s == math.inf:
        return None
    if not limit_s > 0:
        raise InvalidRequest(f"timeout_s is {limit_s}; expected more than 0, or math.inf for no limit")
    return limit_s


def _parameters(options: InferOptions) -> dict[str, ParameterValue]:
    for key, value in options.parameters.items():
        if key in _RESERVED:
            raise InvalidRequest(
                f"parameter '{key}' has an argument of its own or is set by this client; it cannot be given in `parameters`"
            )
        if not isinstance(value, bool | int | float | str):
            raise InvalidRequest(f"parameter '{key}' is a {type(value).__name__}; expected bool, int, float or str")
        if isinstance(value, int) and not -(2**63) <= value <= _UINT64_MAX:
            raise InvalidRequest(f"parameter '{key}' is {value}, which no 64-bit integer holds")
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"parameter '{key}' is {value}, which JSON cannot say")
    parameters = dict(options.parameters)
    if options.priority:
        if not 0 < options.priority <= _UINT64_MAX:
            raise InvalidRequest(f"priority is {options.priority}; expected 1 (highest) or more, or 0 for the model's default")
        parameters["priority"] = options.priority
    if options.queue_timeout_s is not None:
        if options.queue_timeout_s <= 0:
            raise InvalidRequest(f"queue_timeout_s is {options.queue_timeout_s}; expected more than 0")
        parameters["timeout"] = max(1, round(options.queue_timeout_s * 1e6))
    return parameters
