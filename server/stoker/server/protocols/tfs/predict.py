"""Predict: PredictRequest messages to validated requests, responses to serialised PredictResponse messages.

Memory is reserved before a message is parsed. A small request is parsed at once. A larger one is first scanned in wire format, and long
work runs in a thread. A request of a known structure (the message without its elements) reuses its validated plan.

A TensorProto holds raw bytes (`tensor_content`) or typed values, of which the last one is repeated for all missing ones. Responses hold
typed values, as TensorFlow Serving's do, because clients read `float_val` only. Packed floats and booleans on the wire are the array's own
bytes, so they are copied without conversion.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from stoker.backends.api.errors import InvalidRequest, NotFound, ServingError, Unavailable
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.memo import KEY_BYTES, BoundedCache
from stoker.server.codecs.response_layouts import Layout, Layouts, Part, Variant, map_entry_head
from stoker.server.codecs.tensor_plans import Elements, PredictPlan, read_tensors, take_elements
from stoker.server.codecs.tensor_proto import (
    NUMBERS,
    SMALL_BYTES,
    VALUE_FIELDS,
    TensorFields,
    check_expansion,
    repeated_bytes,
    split_predict_request,
    type_name,
    values_array,
)
from stoker.server.codecs.tensors import (
    INLINE_RAW_BYTES,
    INLINE_STRINGS,
    Raw,
    Serialised,
    array_from_bytes,
    array_pieces,
    serialised,
    strings_cost,
)
from stoker.server.codecs.validation import SignatureCheck, SignatureChecks
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, Servable, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow.core.framework import tensor_pb2, types_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2
from stoker.server.protocols.decoded_call import DecodedCall
from stoker.server.protocols.infer_completion import MessageInference
from stoker.server.protocols.tfs.model_spec import DEFAULT_SIGNATURE, FailedPrecondition, ModelQuery, not_found, read_spec, resolve


class Target:
    """The version that a request addresses, and its signature check: the part of validation that needs the engine.

    Attributes:
        query: The resolved query.
        servable: The addressed version.
        check: The check of its signature.
        received_ns: The time of receipt, in nanoseconds of the engine's monotonic clock.
    """

    __slots__ = ("check", "query", "received_ns", "servable")

    def __init__(self, query: ModelQuery, servable: Servable, check: SignatureCheck, received_ns: int) -> None:
        self.query = query
        self.servable = servable
        self.check = check
        self.received_ns = received_ns


class Targets:
    """Finds the versions that requests address. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._checks = SignatureChecks(engine, limits)

    def find(self, query: ModelQuery) -> Target:
        """The version that a request for `query` currently selects, and its check.

        Raises:
            NotFound: no such model or version, or it is not READY. InvalidRequest: the label is unknown, or there is no name.
        """
        received_ns = self._engine.now_ns()
        resolved = resolve(self._engine, query, self._limits)
        try:
            servable, check = self._checks.find(resolved.name, resolved.version)
        except (NotFound, Unavailable):
            # As in TensorFlow Serving, a version that does not serve is not found.
            raise not_found(resolved) from None
        return Target(resolved, servable, check, received_ns)


def check_signature_name(query: ModelQuery) -> None:
    """Rejects any signature except the one that Predict serves.

    Raises:
        FailedPrecondition: the model has no such signature; the text is TensorFlow Serving's.
    """
    if query.signature_name not in ("", DEFAULT_SIGNATURE):
        raise FailedPrecondition(f'Serving signature key "{query.signature_name[:128]}" not found.')


def check_names(check: SignatureCheck, names: Mapping[str, object]) -> None:
    """Rejects missing and unknown inputs.

    Raises:
        InvalidRequest: the names do not match; the text is TensorFlow Serving's.
    """
    known = check.inputs
    if len(names) == len(known) and all(map(known.__contains__, names)):
        return
    required = {name for name, spec in known.items() if not spec.optional}
    if required <= names.keys() <= known.keys():
        return
    if len(names) == len(known):
        wrong = next(name for name in sorted(names) if name not in known)
        raise InvalidRequest(f"input tensor alias not found in signature: {wrong[:128]}. Inputs expected to be in the set {_set(known)}.")
    raise InvalidRequest(
        f"input size does not match signature: {len(names)}!={len(known)} len({_set(names)}) != len({_set(known)}). "
        f"Sent extra: {_set(set(names) - set(known))}. Missing but required: {_set(required - set(names))}."
    )


def wanted_outputs(check: SignatureCheck, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The requested outputs; all of them if none is named.

    Raises:
        InvalidRequest: an output is unknown, or named twice.
    """
    check.output_count(len(wanted))
    seen: set[str] = set()
    for name in wanted:
        if name not in check.default_outputs:
            raise InvalidRequest(
                f"output tensor alias not found in signature: {name[:128]} Outputs expected to be in the set {_set(check.default_outputs)}."
            )
        if name in seen:
            raise InvalidRequest(f"duplicate output tensor alias: {name[:128]}")
        seen.add(name)
    return wanted or check.default_outputs


def infer_request(
    target: Target, inputs: dict[str, Array], outputs: tuple[str, ...], *, size_bytes: int, deadline_ns: int | None, via: Via
) -> InferRequest:
    """The engine's request. Safe in a thread.

    Raises:
        InvalidRequest: the inputs have different numbers of rows.
    """
    check = target.check
    return InferRequest(
        model_name=target.query.name,
        model_version=target.query.version,
        inputs=inputs,
        rows=check.complete(inputs),
        output_names=outputs,
        signature=check.signature,
        deadline_ns=deadline_ns,
        received_ns=target.received_ns,
        size_bytes=size_bytes,
        via=via,
        servable=target.servable,
    )


def _set(names: object) -> str:
    listed = sorted(str(name)[:128] for name in names) if isinstance(names, (set, Mapping, tuple)) else []
    return "{" + ",".join(listed[:64]) + "}"


_FIELDS: Final = tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name
_VALUES: Final = frozenset(VALUE_FIELDS.values())
_NOTHING: Final[Mapping[str, Any]] = {}
#: Types whose packed values are the array's bytes.
_AS_BYTES: Final = frozenset({DataType.FP32, DataType.FP64, DataType.BOOL})


def read_tensor(tensor: tensor_pb2.TensorProto, content: Raw) -> TensorFields:
    """Reads `tensor`; `content` is its raw bytes if they were cut out before it was parsed."""
    raw = content if len(content) else tensor.tensor_content
    values = _NOTHING if len(raw) else {field.name: value for field, value in tensor.ListFields() if field.name in _VALUES}
    return TensorFields(tensor.dtype, tuple(dim.size for dim in tensor.tensor_shape.dim), raw, values)


def filled_count(spec: TensorSpec, fields: TensorFields) -> int:
    """The number of elements for which the last value of a tensor is repeated."""
    came = 0 if len(fields.content) else len(fields.values.get(VALUE_FIELDS[spec.datatype], ()))
    return max(0, math.prod(max(size, 0) for size in fields.shape or ()) - came) if came else 0


def array_of(check: SignatureCheck, spec: TensorSpec, fields: TensorFields) -> Array:
    """Decodes `fields` to the array of the input `spec`. Safe in a thread.

    REQUIRES: the memory of repeated values is reserved, see `filled_count`.

    Raises:
        InvalidRequest: element type, shape or number of elements do not match the model.
    """
    datatype = spec.datatype
    if fields.dtype != NUMBERS[datatype]:
        known = types_pb2.DataType.DESCRIPTOR.values_by_number.get(fields.dtype)
        came = str(fields.dtype) if known is None else known.name.removeprefix("DT_").lower()
        raise InvalidRequest(f"Expects input '{spec.name}' to be {type_name(datatype)} but {came} is provided")
    shape = fields.shape or ()
    count = check.count_elements(spec, datatype.value, shape)
    if len(fields.content):
        if datatype is DataType.BYTES:
            raise InvalidRequest(f"input '{spec.name}' of type string must come in string_val, not in tensor_content")
        if len(fields.content) != count * datatype.item_bytes:
            raise InvalidRequest(
                f"input '{spec.name}' of shape {list(shape)} takes {count * datatype.item_bytes} bytes of tensor_content, "
                f"not {len(fields.content)}"
            )
        return array_from_bytes(check, spec, shape, count, fields.content)
    name = VALUE_FIELDS[datatype]
    given = fields.values.get(name, ())
    if not 0 < len(given) <= count:
        others = ", ".join(sorted(fields.values)) or "no values"
        raise InvalidRequest(
            f"input '{spec.name}' of shape {list(shape)} takes {count} values in {name}, not {len(given)}; it has {others}"
        )
    array = values_array(spec, name, given)
    if len(given) == count:
        return array.reshape(shape)
    filled: Array = np.full(count, array[-1], dtype=array.dtype)
    filled[: len(given)] = array
    return filled.reshape(shape)


def tensor_pieces(array: Array, datatype: DataType) -> list[bytes | memoryview]:
    """The serialised TensorProto of `array`, in pieces to be joined. Safe in a thread."""
    tensor = tensor_pb2.TensorProto()
    if datatype not in _AS_BYTES or not array.size:
        fill_tensor(tensor, array, datatype)
        return [tensor.SerializeToString()]
    _describe(tensor, array, datatype)
    return [tensor.SerializeToString(), *length_delimited(_FIELDS[VALUE_FIELDS[datatype]].number, array_pieces(array, datatype))]


def fill_tensor(tensor: tensor_pb2.TensorProto, array: Array, datatype: DataType) -> None:
    """Fills the empty `tensor` with `array`, value by value. Safe in a thread."""
    _describe(tensor, array, datatype)
    flat = array.reshape(-1)
    values = (flat.view(np.uint16) if datatype is DataType.FP16 else flat).tolist()
    if datatype is DataType.BYTES:
        values = [value.encode() if isinstance(value, str) else value for value in values]
    getattr(tensor, VALUE_FIELDS[datatype]).extend(values)


def _describe(tensor: tensor_pb2.TensorProto, array: Array, datatype: DataType) -> None:
    tensor.dtype = NUMBERS[datatype]
    add_dim = tensor.tensor_shape.dim.add
    for size in array.shape:
        add_dim(size=size)


def length_delimited(number: int, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The field `number` with the content `pieces`, in pieces."""
    return [encoded_varint(number << 3 | LENGTH), encoded_varint(sum(map(len, pieces))), *pieces]


#: Outputs up to this size are serialised through the message, value by value.
_WHOLE_BYTES: Final = 1024
_OUTPUT_FILTER: Final = predict_pb2.PredictRequest.OUTPUT_FILTER_FIELD_NUMBER
_OUTPUTS: Final = predict_pb2.PredictResponse.OUTPUTS_FIELD_NUMBER


class _MessageCall(DecodedCall):
    """A decoded PredictRequest."""

    __slots__ = ("_layouts", "_limits", "_query")

    def __init__(self, request: InferRequest, query: ModelQuery, limits: Limits, layouts: Layouts) -> None:
        self.request = request
        self._query = query
        self._limits = limits
        self._layouts = layouts

    def encode(self, response: InferResponse) -> Serialised | None:
        message = self._layouts.encode(response)
        if message is not None:
            return message
        return None if is_large(response, self._limits) else print_response(response, self._query)

    async def encode_slowly(self, response: InferResponse) -> Serialised:
        return await run_off_loop(print_response, response, self._query)


class Predict(MessageInference):
    """Handles Predict. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, targets: Targets) -> None:
        super().__init__(engine)
        self._limits = limits
        self._targets = targets
        self._plans: BoundedCache[bytes, PredictPlan[ModelQuery]] = BoundedCache()
        self._layouts = Layouts(self._describe)

    def _describe(self, response: InferResponse, _variant: Variant) -> Layout | None:
        return None if is_large(response, self._limits) else layout_of(response)

    def _decode(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedCall | None:
        limits = self._limits
        size_bytes = len(data)
        reservation.take(size_bytes)
        contents: dict[str, memoryview] = {}
        if size_bytes > SMALL_BYTES:
            if size_bytes > INLINE_RAW_BYTES:
                return None
            rest, contents, cost, lead_bytes = split_predict_request(data, limits, _OUTPUT_FILTER)
            self._note_lead(data, lead_bytes)
            if len(rest) > limits.decode_inline_bytes:
                return None
            reservation.take(cost)
        else:
            rest = bytes(data)
        message = _parsed(rest)
        key = b""
        if len(rest) <= SMALL_BYTES:
            taken = take_elements(message.inputs, contents)
            if taken is not None:
                key = message.SerializeToString()
                known = self._known(key, taken, size_bytes, deadline_ns, reservation)
                if known is not None:
                    return known
            # Its elements were removed.
            message = _parsed(rest)
        query = read_spec(message.model_spec)
        try:
            found = self._checked(message, contents, query, reservation)
            if found.is_long:
                return None
            return self._call(found, _arrays(found.target, found.fields), query, size_bytes, deadline_ns, key)
        except ServingError as error:
            self._engine.count_rejected(query.name, query.version, error, Via.TFS_GRPC)
            raise

    async def _decode_slowly(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedCall:
        reservation.take(len(data))
        contents: dict[str, memoryview] = {}
        if len(data) > SMALL_BYTES:
            rest, contents, cost, lead_bytes = split_predict_request(data, self._limits, _OUTPUT_FILTER)
            self._note_lead(data, lead_bytes)
            reservation.take(cost)
        else:
            rest = bytes(data)
        message = await run_off_loop(_parsed, rest) if len(rest) > self._limits.decode_inline_bytes else _parsed(rest)
        query = read_spec(message.model_spec)
        try:
            found = self._checked(message, contents, query, reservation)
            arrays = await run_while_borrowed(found.target.servable, _arrays, found.target, found.fields)
            return self._call(found, arrays, query, len(data), deadline_ns, b"")
        except ServingError as error:
            self._engine.count_rejected(query.name, query.version, error, Via.TFS_GRPC)
            raise

    def _known(
        self, key: bytes, taken: dict[str, Elements], size_bytes: int, deadline_ns: int | None, reservation: Reservation
    ) -> DecodedCall | None:
        """The call of a message with the structure `key` and the elements `taken`; None if it must be decoded in full."""
        plan = self._plans.entries.get(key)
        if plan is None:
            return None
        try:
            target = self._targets.find(plan.query)
            inputs = read_tensors(plan.tensors, target.check, taken) if target.check is plan.check else None
            if inputs is None:
                return None
            if plan.strings_cost:
                reservation.take(plan.strings_cost)
        except ServingError:
            return None
        query = target.query
        request = plan.request(
            query.name, query.version, target.servable, inputs, target.received_ns, size_bytes, deadline_ns, Via.TFS_GRPC
        )  # fmt: skip
        return _MessageCall(request, plan.query, self._limits, self._layouts)

    def _checked(
        self, message: predict_pb2.PredictRequest, contents: Mapping[str, memoryview], query: ModelQuery, reservation: Reservation
    ) -> "_Checked":
        """Checks all of `message` but its tensors, and reserves their memory."""
        target = self._targets.find(query)
        check_signature_name(query)
        target.check.input_count(len(message.inputs))
        check_names(target.check, message.inputs)
        fields = {name: read_tensor(tensor, contents.get(name, b"")) for name, tensor in message.inputs.items()}
        strings, grown_bytes = _reserve(target, fields, reservation, self._limits)
        outputs = wanted_outputs(target.check, tuple(message.output_filter))
        return _Checked(target, fields, outputs, strings > INLINE_STRINGS or grown_bytes > self._limits.decode_inline_bytes)

    def _call(
        self, found: "_Checked", inputs: dict[str, Array], query: ModelQuery, size_bytes: int, deadline_ns: int | None, key: bytes
    ) -> DecodedCall:
        """The call with the arrays `inputs`; its plan is kept for the structure `key` (empty: none)."""
        request = infer_request(found.target, inputs, found.outputs, size_bytes=size_bytes, deadline_ns=deadline_ns, via=Via.TFS_GRPC)
        if 0 < len(key) <= KEY_BYTES:
            self._plans.put(key, PredictPlan(query, found.target.check, request, self._limits))
        return _MessageCall(request, query, self._limits, self._layouts)


class _Checked:
    """A message whose tensors are still to be read; `is_long`: in a thread."""

    __slots__ = ("fields", "is_long", "outputs", "target")

    def __init__(self, target: Target, fields: Mapping[str, TensorFields], outputs: tuple[str, ...], is_long: bool) -> None:
        self.target = target
        self.fields = fields
        self.outputs = outputs
        self.is_long = is_long


def is_large(response: InferResponse, limits: Limits) -> bool:
    """Whether serialising `response` needs a thread."""
    for array in response.outputs.values():
        if array.nbytes > limits.decode_inline_bytes or (array.dtype.kind != "f" and array.size > INLINE_STRINGS):
            return True
    return False


def print_response(response: InferResponse, query: ModelQuery) -> Serialised:
    """The serialised PredictResponse. Safe in a thread."""
    reply = predict_pb2.PredictResponse()
    query.fill_response(reply.model_spec, response.model_version)
    pieces: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        if array.nbytes <= _WHOLE_BYTES:
            fill_tensor(reply.outputs[name], array, spec.datatype)
        else:
            # Serialised directly, not through a message: at most one copy instead of a conversion value by value.
            entry = [*length_delimited(1, [name.encode()]), *length_delimited(2, tensor_pieces(array, spec.datatype))]
            pieces += length_delimited(_OUTPUTS, entry)
    return serialised((*pieces, reply.SerializeToString())) if pieces else reply.SerializeToString()


def layout_of(response: InferResponse) -> Layout | None:
    """The layout of the PredictResponse; None if an output has values of varying length on the wire, or none."""
    parts: list[Part] = []
    for name, array in response.outputs.items():
        datatype = response.output_spec(name).datatype
        if datatype not in _AS_BYTES or not array.size:
            return None
        tensor = tensor_pb2.TensorProto()
        _describe(tensor, array, datatype)
        tag = encoded_varint(_FIELDS[VALUE_FIELDS[datatype]].number << 3 | LENGTH)
        before = map_entry_head(_OUTPUTS, name, [tensor.SerializeToString() + tag], array.nbytes)
        parts.append(Part(name, array, before))
    # The only signature is `serving_default`.
    spec = ModelQuery(response.model_name).response_spec(response.model_version)
    message = predict_pb2.PredictResponse(model_spec=spec)
    return Layout(response, message.SerializeToString(), parts)


def _parsed(rest: bytes) -> predict_pb2.PredictRequest:
    try:
        return predict_pb2.PredictRequest.FromString(rest)
    except DecodeError:
        raise InvalidRequest("the request is not a valid PredictRequest message") from None


def _reserve(target: Target, fields: Mapping[str, TensorFields], reservation: Reservation, limits: Limits) -> tuple[int, int]:
    """Reserves the memory of the arrays beyond their message; returns the number of their strings and their repeated bytes."""
    strings = grown_bytes = 0
    for name, tensor in fields.items():
        # Arrays of raw bytes, the usual case, are views of the message.
        if tensor.values:
            spec = target.check.inputs[name]
            values = tensor.values.get(VALUE_FIELDS[spec.datatype], ())
            strings += len(values) if spec.datatype.is_bytes else 0
            if count := filled_count(spec, tensor):
                # The error names a shape that the model does not take.
                target.check.count_elements(spec, spec.datatype.value, tensor.shape or ())
                strings += count if spec.datatype.is_bytes else 0
                grown_bytes += repeated_bytes(spec, values[-1], count)
                check_expansion(grown_bytes, name, limits)
    if strings or grown_bytes:
        reservation.take(strings_cost(strings, limits) + grown_bytes)
    return strings, grown_bytes


def _arrays(target: Target, fields: Mapping[str, TensorFields]) -> dict[str, Array]:
    return {name: array_of(target.check, target.check.inputs[name], tensor) for name, tensor in fields.items()}
