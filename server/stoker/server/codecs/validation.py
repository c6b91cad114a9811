"""The only place that validates a request against a model's signature: tensors, parameters, names and versions.

Sizes are exact Python integers. They are compared with the bytes received before numpy sees any of them: no declared shape can overflow or
allocate. Error texts follow Triton's, because clients match fragments of them.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from stoker.backends.api.errors import InvalidRequest, Unsupported
from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.server.codecs.memo import BoundedCache
from stoker.server.codecs.shared_memory import DISABLED
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, ParameterValue, Servable
from stoker.server.core.sequence import SequenceMark
from stoker.server.engine.interface import Engine

UNKNOWN_ID: Final = "<id_unknown>"


class SignatureMismatch(InvalidRequest):
    """The request does not fit the model; in Triton the core reports it, with the request's id as a prefix (`with_request_id`)."""


def with_request_id(message: str, request_id: str) -> str:
    """`message` with the id prefix of Triton's core."""
    return message if message.startswith("[request id: ") else f"[request id: {request_id or UNKNOWN_ID}] {message}"


class SignatureCheck:
    """The rules that every request for one served version must satisfy, looked up once and kept.

    Attributes:
        signature: The signature requests are checked against.
        inputs: Inputs by name.
        default_outputs: All outputs in signature order, for requests that name none.
    """

    __slots__ = (
        "_is_batched",
        "_limits",
        "_max_batch_size",
        "_model",
        "_most_rows",
        "_outputs",
        "_required",
        "default_outputs",
        "inputs",
        "signature",
    )

    def __init__(self, model_name: str, signature: ModelSignature, limits: Limits) -> None:
        self.signature = signature
        self.inputs: dict[str, TensorSpec] = {spec.name: spec for spec in signature.inputs}
        self.default_outputs = tuple(spec.name for spec in signature.outputs)
        self._outputs = frozenset(self.default_outputs)
        self._required = frozenset(spec.name for spec in signature.inputs if not spec.optional)
        self._is_batched = signature.is_batched
        self._max_batch_size = signature.max_batch_size
        self._most_rows = signature.request_rows
        self._model = model_name
        self._limits = limits

    def input(self, name: str, taken: Collection[str]) -> TensorSpec:
        """The input called `name`, which must not be among those `taken` already."""
        spec = self.inputs.get(name)
        if spec is None:
            raise SignatureMismatch(f"unexpected inference input '{_cut(name)}' for model '{self._model}'; it has {_quoted(self.inputs)}")
        if name in taken:
            raise SignatureMismatch(f"input '{name}' already exists in request")
        return spec

    def count_elements(self, spec: TensorSpec, datatype: str, shape: Sequence[int]) -> int:
        """Checks `datatype` and `shape` (with rows, where the model is batched) and returns the number of elements."""
        if datatype != spec.datatype.value:
            raise SignatureMismatch(
                f"inference input '{spec.name}' data-type is '{_cut(datatype)}', but model '{self._model}' expects "
                f"'{spec.datatype.value}'; convert the values to {spec.datatype.value}"
            )
        dims = spec.dims
        if self._is_batched:
            if not shape:
                raise SignatureMismatch(
                    f"input '{spec.name}' has no shape but model requires batch dimension for '{self._model}', "
                    f"expected {self._expected(spec)}"
                )
            if tuple(shape[1:]) == dims and VARIABLE not in shape and 0 < shape[0] <= self._most_rows:
                return math.prod(shape)
        elif tuple(shape) == dims and VARIABLE not in shape:
            return math.prod(shape)
        return self._count_uncommon(spec, shape)

    def _count_uncommon(self, spec: TensorSpec, shape: Sequence[int]) -> int:
        """Counts the elements of a shape with variable dimensions, or rejects a wrong shape."""
        if len(shape) > self._limits.dims_count:
            raise SignatureMismatch(f"input '{spec.name}' has {len(shape)} dimensions, more than the {self._limits.dims_count} allowed")
        wanted = (VARIABLE, *spec.dims) if self._is_batched else spec.dims
        if len(shape) != len(wanted) or any(size != dim and dim != VARIABLE for size, dim in zip(shape, wanted, strict=True)):
            raise SignatureMismatch(
                f"unexpected shape for input '{spec.name}' for model '{self._model}'. Expected {self._expected(spec)}, got {_shown(shape)}."
                + self._batch_hint(spec, shape)
            )
        if any(size < 0 for size in shape) or (self._is_batched and shape[0] == 0):
            # A variable dimension may be 0, but a request must have rows.
            least = "; the first, the number of rows, must be at least 1" if self._is_batched else ""
            raise SignatureMismatch(f"input '{spec.name}' has shape {_shown(shape)}; dimensions must not be negative{least}")
        if self._is_batched and shape[0] > self._most_rows:
            split = "" if self._most_rows > self._max_batch_size else "the parameter split_oversized_requests, or "
            raise SignatureMismatch(
                f"inference request batch-size must be <= {self._most_rows} for '{self._model}'; send the {shape[0]} rows in several "
                f"requests, or write into the model's config.pbtxt {split}max_batch_size: {shape[0]} if its file takes such batches"
            )
        return math.prod(shape)

    def complete(self, arrays: dict[str, Array]) -> int:
        """Checks that no required input is missing and all have the same rows; returns the rows (1 where the model is not batched)."""
        if len(arrays) != len(self.inputs) and not self._required <= arrays.keys():
            required, most = len(self._required), len(self.inputs)
            expected = f"{most} inputs" if required == most else f"number of inputs between {required} and {most}"
            missing = [spec.name for spec in self.signature.inputs if not spec.optional and spec.name not in arrays]
            raise SignatureMismatch(
                f"expected {expected} but got {len(arrays)} inputs for model '{self._model}'. Got input(s) {_bracketed(arrays)}, "
                f"but missing required input(s) {_bracketed(missing)}. Please provide all required input(s)."
            )
        if not self._is_batched:
            return 1
        rows = 0
        for name, array in arrays.items():
            if rows and array.shape[0] != rows:
                raise SignatureMismatch(
                    f"input '{name}' batch size does not match other inputs for '{self._model}': it has {array.shape[0]} rows, "
                    f"others {rows}"
                )
            rows = array.shape[0]
        if not rows:
            raise SignatureMismatch(f"a request for '{self._model}' needs at least one input to tell its batch size")
        return rows

    def input_count(self, count: int) -> None:
        """Checks the number of inputs before any of them is read."""
        if count > self._limits.tensor_count:
            raise SignatureMismatch(f"request has {count} inputs, more than the {self._limits.tensor_count} allowed")
        if count > len(self.inputs):
            raise SignatureMismatch(
                f"expected {len(self.inputs)} inputs but got {count} inputs for model '{self._model}'. It takes {_quoted(self.inputs)}."
            )

    def output(self, name: str, taken: Collection[str]) -> None:
        """Checks that `name` is an output and not among those `taken` already."""
        if name not in self._outputs:
            raise SignatureMismatch(
                f"unexpected inference output '{_cut(name)}' for model '{self._model}'; it has {_quoted(self.default_outputs)}"
            )
        if name in taken:
            raise SignatureMismatch(f"output '{name}' already exists in request")

    def output_count(self, count: int) -> None:
        """Checks the number of requested outputs before any of them is read."""
        if count > self._limits.output_count:
            raise SignatureMismatch(f"request asks for {count} outputs, more than the {self._limits.output_count} allowed")

    def byte_size(self, spec: TensorSpec, expected: int, got: int) -> SignatureMismatch:
        """The error for a tensor of `got` bytes whose shape needs `expected`."""
        return SignatureMismatch(
            f"input byte size mismatch for input '{spec.name}' for model '{self._model}'. Expected {expected}, got {got}"
        )

    def element_count(self, spec: TensorSpec, expected: int, got: int | str) -> SignatureMismatch:
        """The error for a tensor of `got` elements whose shape has `expected`."""
        kind = "string elements" if spec.datatype.is_bytes else "elements"
        return SignatureMismatch(f"expected {expected} {kind} for inference input '{spec.name}' for model '{self._model}', got {got}")

    def _expected(self, spec: TensorSpec) -> str:
        return _shown((VARIABLE, *spec.dims) if self._is_batched else spec.dims)

    def _batch_hint(self, spec: TensorSpec, shape: Sequence[int]) -> str:
        if self._is_batched and len(shape) == len(spec.dims):
            row = f"; for one row, send {_shown((1, *shape))}" if _fits(shape, spec.dims) else ""
            return f" The model is batched (max_batch_size {self._max_batch_size}): the first dimension is the number of rows{row}."
        return ""


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return all(size == dim or dim == VARIABLE for size, dim in zip(shape, dims, strict=True))


def _shown(shape: Sequence[int]) -> str:
    shown = ",".join(str(size) for size in shape[:32])
    return f"[{shown},...]" if len(shape) > 32 else f"[{shown}]"


def _cut(text: str) -> str:
    return text if len(text) <= 128 else f"{text[:128]}..."


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _bracketed(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


class SignatureChecks:
    """A cache of checks by model and requested version. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._kept: BoundedCache[tuple[str, int | None], SignatureCheck] = BoundedCache()

    def find(self, name: str, version: int | None) -> tuple[Servable, SignatureCheck]:
        """The version that a request for (`name`, `version`) currently selects, and the check of its signature.

        Raises:
            InvalidRequest: `name` is too long. Also the exceptions of `Engine.describe`.
        """
        kept = self._kept.entries.get((name, version))
        if kept is None and len(name) > self._limits.name_length:
            raise InvalidRequest(f"model name has {len(name)} characters, more than the {self._limits.name_length} allowed")
        servable = self._engine.resolve(name, version)
        signature = servable.signature
        if kept is None or kept.signature is not signature:
            kept = self._kept.put((name, version), SignatureCheck(name, signature, self._limits))
        return servable, kept


#: The parameter of a stream's request that asks for a separate final marker after the last response.
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_SHARED_MEMORY: Final = frozenset({"shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"})
#: Names that client libraries reserve: they cannot be custom parameters.
_RESERVED: Final = frozenset({"headers", "binary_data_output"})
#: Triton's bound on sequence ids that are text.
_SEQUENCE_ID_LENGTH: Final = 128
_MODEL_NAME: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.\-]{1,128}\Z")
_VERSION: Final = re.compile(r"[0-9]{1,18}\Z", re.ASCII)
_UINT64_MAX: Final = (1 << 64) - 1
_UINT64_DIGITS: Final = 20


class RequestParameters:
    """A request's parameters by their meaning.

    Attributes:
        priority: 0 = the model's default.
        timeout_us: 0 = none.
        wants_empty_final: Whether a stream must end with a final marker.
        sequence: The request's position in its sequence; None: it has no sequence.
        custom: The client's custom parameters.
    """

    __slots__ = ("custom", "priority", "sequence", "timeout_us", "wants_empty_final")

    def __init__(self) -> None:
        self.priority = 0
        self.timeout_us = 0
        self.wants_empty_final = False
        self.sequence: SequenceMark | None = None
        self.custom: dict[str, ParameterValue] = {}


#: Shared by all requests without parameters. REQUIRES: no caller changes it.
NO_PARAMETERS: Final = RequestParameters()


def read_parameters(given: Mapping[str, ParameterValue]) -> RequestParameters:
    """Reads a request's parameters.

    Raises:
        InvalidRequest: a key is reserved, or a value has a wrong type or range.
    """
    read = RequestParameters()
    sequence_id: int | str = 0
    is_start = is_end = False
    for key, value in given.items():
        if key == "priority":
            read.priority = _unsigned(key, value)
        elif key == "timeout":
            read.timeout_us = _unsigned(key, value)
        elif key == EMPTY_FINAL_RESPONSE:
            read.wants_empty_final = _boolean(key, value)
        elif key == "sequence_id":
            sequence_id = _sequence_id(value)
        elif key == "sequence_start":
            is_start = _boolean(key, value)
        elif key == "sequence_end":
            is_end = _boolean(key, value)
        elif key.startswith("triton_"):
            raise InvalidRequest(
                f"parameter '{key[:128]}': parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified"
            )
        elif key == "version_label":
            raise InvalidRequest(
                "parameter 'version_label' selects no version in KServe v2: name the version's number, or use TensorFlow Serving's "
                "protocol for labels"
            )
        elif key in _RESERVED:
            raise InvalidRequest(f"parameter '{key}' is reserved for Triton usage and should not be specified")
        else:
            read.custom[key] = value
    if sequence_id or is_start or is_end:
        read.sequence = SequenceMark(sequence_id, is_start, is_end)
    return read


def reject_shared_memory(keys: Mapping[str, object], tensor: str) -> None:
    """Rejects a tensor in shared memory.

    Raises:
        Unsupported: one of `keys` names shared memory.
    """
    if not _SHARED_MEMORY.isdisjoint(keys):
        raise Unsupported(f"tensor '{tensor[:128]}' refers to shared memory: {DISABLED}")


def classification_count(value: object, output: str) -> int:
    """The value of an output's `classification` parameter: how many classes to name, at least 1.

    Raises:
        InvalidRequest: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < (1 << 31):
        raise InvalidRequest(f"parameter 'classification' of output '{output[:128]}' must be an integer of at least 1")
    return value


def parse_version(text: str, model: str) -> int | None:
    """Parses a version number; None for an empty text.

    Raises:
        InvalidRequest: not a decimal number.
    """
    if not text:
        return None
    if _VERSION.match(text) is None:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text[:64]}' for model '{model[:128]}': it must be decimal digits"
        )
    return int(text)


def check_model_name(name: str) -> str:
    """Returns `name` if it is a valid model name: letters, digits, `_`, `.`, `-`, at most 128 characters, not only dots.

    Raises:
        InvalidRequest: the name is not valid.
    """
    if _MODEL_NAME.match(name) is None:
        shown = name[:128].encode("ascii", "backslashreplace").decode()
        raise InvalidRequest(f"invalid model name '{shown}': expected 1 to 128 letters, digits, '_', '.' or '-', and not only dots")
    return name


def _boolean(key: str, value: ParameterValue) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter '{key}' must be a boolean")
    return value


def _sequence_id(value: ParameterValue) -> int | str:
    if isinstance(value, str):
        if len(value) > _SEQUENCE_ID_LENGTH:
            raise InvalidRequest(f"parameter 'sequence_id' has {len(value)} characters, more than the {_SEQUENCE_ID_LENGTH} allowed")
        return value or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT64_MAX:
        raise InvalidRequest("parameter 'sequence_id' must be a string or an unsigned 64-bit integer")
    return value


def _unsigned(key: str, value: ParameterValue) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _UINT64_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT64_MAX:
        raise InvalidRequest(f"parameter '{key}' must be an unsigned 64-bit integer")
    return value
