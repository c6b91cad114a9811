"""A PredictRequest in neutral form, from a message or JSON: validated against the model, and its response.

A TensorProto holds raw bytes (`tensor_content`), or typed values in the field of its element type. Raw bytes win where both are present. A
single typed value is repeated for all elements. Element type and shape are optional; if given, they must match the model's configuration.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensor_proto import (
    NUMBERS,
    UNSAID,
    VALUE_FIELDS,
    TensorFields,
    check_expansion,
    repeated_bytes,
    shown_type,
    values_array,
)
from stoker.server.codecs.tensors import array_from_bytes, strings_cost
from stoker.server.codecs.validation import SignatureCheck, SignatureChecks, check_model_name
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, Servable, Via
from stoker.server.engine.interface import Engine
from stoker.server.pb.adlik import model_pb2

STABLE: Final = "stable"
_INT64_MAX: Final = (1 << 63) - 1


class ModelQuery(NamedTuple):
    """A ModelSpec.

    Attributes:
        name: The model's name.
        version: The requested number; None: no number is requested.
        label: The requested label; empty: none.
    """

    name: str
    version: int | None = None
    label: str = ""

    @property
    def echo(self) -> model_pb2.ModelSpec:
        """The model spec of the response: the request's name and version number, or 0 without a number (as in Adlik's batching
        runtimes).
        """
        spec = model_pb2.ModelSpec(name=self.name)
        spec.version.value = self.version or 0
        return spec


def read_spec(spec: model_pb2.ModelSpec) -> ModelQuery:
    """Reads `spec`; the signature name, which only TensorFlow models have, is ignored."""
    version = spec.version.value if spec.HasField("version") else None
    return ModelQuery(spec.name, version, spec.version_label)


def served_version(engine: Engine, query: ModelQuery, limits: Limits) -> int | None:
    """The version number that `query` currently selects; None: the highest READY one.

    Raises:
        InvalidRequest: the name is no valid model name, or the version is not positive. Also the exceptions of `Engine.describe`.
    """
    if len(query.name) > limits.name_length:
        raise InvalidRequest(f"model name has {len(query.name)} characters, more than the {limits.name_length} allowed")
    if not query.name:
        raise InvalidRequest("model_spec.name is missing")
    check_model_name(query.name)
    if query.version is not None:
        if not 0 < query.version <= _INT64_MAX:
            raise InvalidRequest(f"model_spec.version {query.version} cannot be a version: they are 1 to {_INT64_MAX}")
        return query.version
    if query.label == STABLE:
        return min(engine.describe(query.name, None).ready_versions, default=None)
    return None


Labels = Mapping[str, Sequence[str]]


class BestClass(NamedTuple):
    """One of the highest values of a sample: its index in the flattened sample, the value, and its label (empty: none)."""

    class_index: int
    score: float
    label: str


class ResponseOutput:
    """One output.

    Attributes:
        name: The output's name.
        datatype: The datatype of `array`.
        array: `[rows, *dims]`.
        classes: For each sample, its highest values in falling order; empty if they were not requested.
    """

    __slots__ = ("array", "classes", "datatype", "name")

    def __init__(self, name: str, datatype: DataType, array: Array, classes: list[list[BestClass]]) -> None:
        self.name = name
        self.datatype = datatype
        self.array = array
        self.classes = classes


class PredictionResponse:
    """A PredictResponse."""

    __slots__ = ("model", "outputs")

    def __init__(self, model: ModelQuery, outputs: list[ResponseOutput]) -> None:
        self.model = model
        self.outputs = outputs


def make_response(model: ModelQuery, response: InferResponse, top: Mapping[str, int], labels: Labels, limits: Limits) -> PredictionResponse:
    """The response to a request for `model`; `top` is the number of highest values by output. Safe in a thread.

    Raises:
        TooLarge: one response may not hold so many highest values.
    """
    signature = response.signature
    outputs: list[ResponseOutput] = []
    left = limits.class_count
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        classes: list[list[BestClass]] = []
        if count := top.get(name, 0):
            rows = array.reshape(array.shape[0] if signature.is_batched else 1, -1)
            left -= rows.shape[0] * min(count, rows.shape[1])
            if left < 0:
                raise TooLarge(
                    f"output '{name}': cls.count {count} for {rows.shape[0]} samples is more than the {limits.class_count} classes "
                    "that one response may hold"
                )
            classes = [_best(row, count, labels.get(name, ())) for row in rows]
        outputs.append(ResponseOutput(name, spec.datatype, array, classes))
    return PredictionResponse(model, outputs)


def _best(row: Array, count: int, labels: Sequence[str]) -> list[BestClass]:
    """The `count` highest values of `row` in falling order; equal ones by index; NaN last."""
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    order = (row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1])[:count]
    indices: list[int] = order.tolist()
    # Adlik's message holds scores as float32.
    scores: list[float] = row[order].astype(np.float32).tolist()
    return [
        BestClass(class_index, score, labels[class_index] if class_index < len(labels) else "")
        for class_index, score in zip(indices, scores, strict=True)
    ]


def array_of(check: SignatureCheck, spec: TensorSpec, fields: TensorFields, batch_size: int) -> Array:
    """Decodes `fields` to the array of the input `spec`: `[batch_size, *dims]`, or `dims` if the model is not batched.

    REQUIRES: `batch_size` is between 1 and the model's max_batch_size, and the memory of repeated values is reserved, see `filled_count`.
    Safe in a thread.

    Raises:
        InvalidRequest: element type, shape or number of elements do not match the model, or there are no values.
    """
    number = NUMBERS[spec.datatype]
    if fields.dtype not in (UNSAID, number):
        raise InvalidRequest(f"input '{spec.name}' has dtype {shown_type(fields.dtype)}, but the model expects {shown_type(number)}")
    shape = _shape(check, spec, fields, batch_size)
    count = check.count_elements(spec, spec.datatype.value, shape)
    if len(fields.content):
        if spec.datatype is DataType.BYTES:
            raise InvalidRequest(f"input '{spec.name}' of dtype DT_STRING must come in string_val, not in tensor_content")
        wanted = count * spec.datatype.item_bytes
        if len(fields.content) != wanted:
            raise InvalidRequest(
                f"input '{spec.name}' has {len(fields.content)} bytes of tensor_content, "
                f"but {_dims(shape)} of {shown_type(number)} takes {wanted}"
            )
        return array_from_bytes(check, spec, shape, count, fields.content)
    return _typed(spec, fields, shape, count)


def filled_count(check: SignatureCheck, spec: TensorSpec, fields: TensorFields, batch_size: int) -> int:
    """The number of elements for which the single value of a tensor is repeated; 0 for any other tensor.

    Raises:
        InvalidRequest: the shape is not the model's.
    """
    values = fields.values.get(VALUE_FIELDS[spec.datatype], ())
    if len(fields.content) or len(values) != 1:
        return 0
    count = check.count_elements(spec, spec.datatype.value, _shape(check, spec, fields, batch_size))
    return count if count > 1 else 0


def _shape(check: SignatureCheck, spec: TensorSpec, fields: TensorFields, batch_size: int) -> tuple[int, ...]:
    is_batched = check.signature.is_batched
    if fields.shape is not None:
        if is_batched and fields.shape and fields.shape[0] != batch_size:
            raise InvalidRequest(
                f"input '{spec.name}' has shape {_dims(fields.shape)}, but the request's batch_size is {batch_size}: "
                "the first dimension must be equal to it"
            )
        return fields.shape
    shape = (batch_size, *spec.dims) if is_batched else spec.dims
    open_dims = shape.count(VARIABLE)
    if not open_dims:
        return shape
    # One variable dimension follows from the number of elements; several cannot be inferred.
    known = math.prod(size for size in shape if size != VARIABLE)
    if len(fields.content) and spec.datatype.item_bytes:
        came = len(fields.content) // spec.datatype.item_bytes
    else:
        came = len(fields.values.get(VALUE_FIELDS[spec.datatype], ()))
    if open_dims > 1 or not known or not came or came % known:
        raise InvalidRequest(
            f"input '{spec.name}' needs a tensor_shape: the model's shape {_dims(shape)} is open, and {came} elements do not determine it"
        )
    return tuple(came // known if size == VARIABLE else size for size in shape)


def _typed(spec: TensorSpec, fields: TensorFields, shape: tuple[int, ...], count: int) -> Array:
    datatype = spec.datatype
    name = VALUE_FIELDS[datatype]
    given = fields.values.get(name)
    if given is None:
        others = ", ".join(sorted(fields.values))
        raise InvalidRequest(
            f"input '{spec.name}' has no values: neither tensor_content nor {name}"
            + (f"; it has {others}, which {shown_type(NUMBERS[datatype])} does not use" if others else "")
        )
    if len(given) not in (1, count):
        raise InvalidRequest(
            f"input '{spec.name}' has {len(given)} values in {name}, but {_dims(shape)} takes {count} (or 1 that stands for all)"
        )
    array = values_array(spec, name, given)
    if len(given) != count:
        filled: Array = np.full(shape, array[0], dtype=array.dtype)
        return filled
    return array.reshape(shape)


def _dims(shape: tuple[int, ...]) -> str:
    shown = ",".join(str(size) for size in shape[:32])
    return f"[{shown},...]" if len(shape) > 32 else f"[{shown}]"


#: Element types that top-k cannot sort (bfloat16 is held as raw bits).
_UNORDERED: Final = frozenset({DataType.BYTES, DataType.BF16, DataType.BOOL})


class PredictQuery(NamedTuple):
    """A parsed PredictRequest that is not validated yet.

    Attributes:
        model: The requested model and version.
        batch_size: Samples in every input.
        inputs: By name.
        output_filter: By output, how many of the highest values to name (0: none); empty: every output.
    """

    model: ModelQuery
    batch_size: int
    inputs: Mapping[str, TensorFields]
    output_filter: Mapping[str, int]


class PredictTarget:
    """The target of a request: all its checks that need the engine."""

    __slots__ = ("check", "received_ns", "servable", "version")

    def __init__(self, version: int | None, servable: Servable, check: SignatureCheck, received_ns: int) -> None:
        self.version = version
        self.servable = servable
        self.check = check
        self.received_ns = received_ns


class PredictReader:
    """Validates parsed requests. Confined to: the event loop, but for `build`."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._checks = SignatureChecks(engine, limits)

    def target(self, model: ModelQuery) -> PredictTarget:
        """The version that a request for `model` currently selects, and its check.

        Raises:
            NotFound: no such model or version. Unavailable: it is not READY. InvalidRequest: the name or version is invalid.
        """
        received_ns = self._engine.now_ns()
        version = served_version(self._engine, model, self._limits)
        servable, check = self._checks.find(model.name, version)
        return PredictTarget(version, servable, check, received_ns)

    def reserve(self, target: PredictTarget, query: PredictQuery, reservation: Reservation) -> tuple[int, int]:
        """Reserves the memory of the arrays of `query` beyond the request's bytes; returns the number of strings, and the bytes of repeated
        values.

        Raises:
            InvalidRequest: the batch size, or the shape of a tensor with a repeated value, does not match the model.
            Overloaded: the byte budget is exhausted. TooLarge: there are too many strings, or too many repeated bytes.
        """
        strings = grown_bytes = 0
        _check_batch_size(target.check, query)
        for name, fields in query.inputs.items():
            spec = target.check.inputs.get(name)
            # Arrays of raw bytes, the usual case, are views of the message.
            if fields.values and spec is not None:
                strings += len(fields.values.get("string_val", ()))
                if count := filled_count(target.check, spec, fields, query.batch_size):
                    strings += count if spec.datatype.is_bytes else 0
                    grown_bytes += repeated_bytes(spec, fields.values[VALUE_FIELDS[spec.datatype]][0], count)
                    check_expansion(grown_bytes, name, self._limits)
        if strings or grown_bytes:
            reservation.take(strings_cost(strings, self._limits) + grown_bytes)
        return strings, grown_bytes

    def build(self, target: PredictTarget, query: PredictQuery, size_bytes: int, deadline_ns: int | None, via: Via) -> InferRequest:
        """The engine's request. REQUIRES: `reserve` was called. Safe in a thread.

        Raises:
            InvalidRequest: names, element types, shapes or sizes do not match the model.
        """
        check, signature = target.check, target.check.signature
        check.input_count(len(query.inputs))
        inputs: dict[str, Array] = {}
        for name, fields in query.inputs.items():
            inputs[name] = array_of(check, check.input(name, ()), fields, query.batch_size)
        rows = check.complete(inputs)
        return InferRequest(
            model_name=query.model.name,
            model_version=target.version,
            inputs=inputs,
            rows=rows,
            output_names=self._outputs(check, query.output_filter),
            signature=signature,
            deadline_ns=deadline_ns,
            received_ns=target.received_ns,
            size_bytes=size_bytes,
            via=via,
            servable=target.servable,
        )

    def _outputs(self, check: SignatureCheck, wanted: Mapping[str, int]) -> tuple[str, ...]:
        if not wanted:
            return check.default_outputs
        check.output_count(len(wanted))
        for name, count in wanted.items():
            spec = check.signature.output(name)
            if spec is None:
                raise InvalidRequest(f"Output {name[:128]} does not exist")
            if count and spec.datatype in _UNORDERED:
                raise InvalidRequest(
                    f"output '{name}' of {shown_type(NUMBERS[spec.datatype])} has no highest values: ask for it without cls"
                )
        return tuple(name for name in check.default_outputs if name in wanted)


def _check_batch_size(check: SignatureCheck, query: PredictQuery) -> None:
    signature, batch_size = check.signature, query.batch_size
    if batch_size < 1:
        raise InvalidRequest("batch_size must be at least 1; it is missing or 0")
    if batch_size > max(1, signature.request_rows):
        limit = f"exceeds the max_batch_size {signature.max_batch_size}" if signature.is_batched else "is not 1, and there is no batching"
        raise InvalidRequest(f"batch_size {batch_size} {limit} of model '{query.model.name}'")
