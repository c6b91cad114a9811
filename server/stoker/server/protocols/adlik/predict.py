"""PredictService.predict over gRPC and REST, without a transport.

Memory is reserved before a request is parsed. A small request is parsed at once. A larger one is first scanned in wire format, and long
work runs in a thread. A request of a known structure (the message or the body without its elements) reuses its validated plan.

Large outputs are serialised directly, not through a message, which saves two of three copies.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from stoker.backends.api.errors import InvalidRequest, NotFound, ServingError
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.memo import KEY_BYTES, BoundedCache, trimmed
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_plans import read_tensors, take_elements
from stoker.server.codecs.tensor_proto import NUMBERS, SMALL_BYTES, VALUE_FIELDS, TensorFields, split_predict_request
from stoker.server.codecs.tensors import INLINE_RAW_BYTES, INLINE_STRINGS, Raw, array_pieces
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.adlik import predict_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2
from stoker.server.protocols.adlik import json_codec
from stoker.server.protocols.adlik.request import (
    ModelQuery,
    PredictionResponse,
    PredictPlan,
    PredictQuery,
    PredictReader,
    ResponseOutput,
    make_response,
    plan_of,
    read_spec,
)

_VALUE_FIELDS = frozenset(VALUE_FIELDS.values()) | {"scomplex_val", "dcomplex_val"}
_NOTHING: Mapping[str, Any] = {}
#: Outputs up to this size are serialised through the message.
_WHOLE_BYTES = 65_536
# Tags on the wire.
_OUTPUTS = encoded_varint(predict_pb2.PredictResponse.OUTPUTS_FIELD_NUMBER << 3 | LENGTH)
_KEY, _VALUE = encoded_varint(1 << 3 | LENGTH), encoded_varint(2 << 3 | LENGTH)
_TENSOR = encoded_varint(predict_pb2.PredictResponse.Output.TENSOR_FIELD_NUMBER << 3 | LENGTH)
_CONTENT = encoded_varint(tensor_pb2.TensorProto.TENSOR_CONTENT_FIELD_NUMBER << 3 | LENGTH)


def read_request(message: predict_pb2.PredictRequest, contents: Mapping[str, Raw]) -> PredictQuery:
    """Reads `message`; `contents` holds, by input, the raw bytes that were cut out before the message was parsed."""
    return PredictQuery(
        read_spec(message.model_spec),
        message.batch_size,
        {name: _tensor(tensor, contents.get(name, b"")) for name, tensor in message.inputs.items()},
        {name: output.cls.count for name, output in message.output_filter.items()},
    )


def print_response(response: PredictionResponse) -> bytes:
    """The serialised PredictResponse. Safe in a thread."""
    message = predict_pb2.PredictResponse(model_spec=response.model.echo)
    pieces: list[Raw] = []
    for output in response.outputs:
        if output.array.nbytes > _WHOLE_BYTES and not output.datatype.is_bytes:
            pieces += _in_pieces(output)
        else:
            target = message.outputs[output.name]
            _describe(target.tensor, output)
            if not output.datatype.is_bytes:
                target.tensor.tensor_content = output.array.tobytes()
            _add_classes(target, output)
    return b"".join((message.SerializeToString(), *pieces)) if pieces else message.SerializeToString()


def _tensor(tensor: tensor_pb2.TensorProto, content: Raw) -> TensorFields:
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    raw = content if len(content) else tensor.tensor_content
    # Raw bytes take precedence over typed values, which are then not read.
    values = _NOTHING if len(raw) else {field.name: value for field, value in tensor.ListFields() if field.name in _VALUE_FIELDS}
    return TensorFields(tensor.dtype, shape or None, raw, values)


def _describe(tensor: tensor_pb2.TensorProto, output: ResponseOutput) -> None:
    """Sets all fields of `tensor` except its content."""
    tensor.dtype = NUMBERS[output.datatype]
    add_dim = tensor.tensor_shape.dim.add
    for size in output.array.shape:
        add_dim(size=size)
    if output.datatype.is_bytes:
        tensor.string_val.extend(value.encode() if isinstance(value, str) else value for value in output.array.reshape(-1).tolist())


def _add_classes(target: predict_pb2.PredictResponse.Output, output: ResponseOutput) -> None:
    for sample in output.classes:
        target.batch_classes.add(
            cls=[predict_pb2.PredictResponse.Class(idx=best.class_index, score=best.score, label=best.label) for best in sample]
        )


def _in_pieces(output: ResponseOutput) -> list[Raw]:
    """Serialises one entry of the map `outputs` in pieces, without copying its content into a message."""
    tensor, classes = tensor_pb2.TensorProto(), predict_pb2.PredictResponse.Output()
    _describe(tensor, output)
    _add_classes(classes, output)
    pieces = array_pieces(output.array, output.datatype)
    content = [_CONTENT, encoded_varint(sum(map(len, pieces))), *pieces]
    body = [*_field(_TENSOR, [tensor.SerializeToString(), *content]), classes.SerializeToString()]
    return _field(_OUTPUTS, [*_field(_KEY, [output.name.encode()]), *_field(_VALUE, body)])


def _field(tag: bytes, pieces: Sequence[Raw]) -> list[Raw]:
    return [tag, encoded_varint(sum(map(len, pieces))), *pieces]


#: Approximate memory of one named class as objects and text, in bytes.
_CLASS_BYTES = 300


class Predict:
    """Handles predict requests of both protocols. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._reader = PredictReader(engine, limits)
        #: Plans by the message without its elements, or by the URL's model and the body without its elements.
        self._plans: BoundedCache[_Key, PredictPlan] = BoundedCache()

    async def from_message(self, data: bytes, deadline_ns: int | None) -> bytes:
        """Handles a serialised PredictRequest; returns a serialised PredictResponse.

        Raises:
            ServingError: the request violates the protocol, the limits or the model's signature, no READY model matches, or the engine
                fails.
        """
        with Reservation(self._engine.budget) as reservation:
            reservation.take(len(data))
            contents: dict[str, memoryview] = {}
            rest = data
            if len(data) > SMALL_BYTES:
                rest, contents, cost = split_predict_request(data, self._limits)
                reservation.take(cost)
            arrival = _Arrival(len(data), deadline_ns, reservation, Via.ADLIK_GRPC)
            key: _Key | None = None
            known: _Known | None = None
            if len(rest) <= SMALL_BYTES and len(data) <= INLINE_RAW_BYTES:
                message = _message(rest)
                taken = take_elements(message.inputs, contents)
                if taken is not None:
                    key = message.SerializeToString()
                    known = self._known(key, arrival, lambda plan: read_tensors(plan.tensors, plan.check, taken))
            if known is None:
                if len(rest) > self._limits.decode_inline_bytes:
                    query = await run_off_loop(_parsed, rest, contents)
                else:
                    query = _parsed(rest, contents)
                known = query, await self._request(query, arrival, key)
            reply = await self._respond(*known, reservation)
            if _is_large(reply, self._limits):
                return await run_off_loop(print_response, reply)
            return print_response(reply)

    async def from_json(self, model: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> bytes:
        """Handles the parsed JSON body `given` (`size_bytes` as text) of a request for `model`; returns the text of a PredictResponse.

        Raises:
            ServingError: as `from_message`.
        """
        # The decoded bytes are in memory together with their base64 text.
        reservation.take(size_bytes)
        arrival = _Arrival(size_bytes, None, reservation, Via.ADLIK_HTTP)
        key: _Key | None = None
        known: _Known | None = None
        is_long = size_bytes > self._limits.decode_inline_bytes
        if not is_long and (structure := json_codec.take_elements(given)) is not None:
            text, taken = structure
            key = model, text
            known = self._known(key, arrival, lambda plan: json_codec.read_tensors(plan.tensors, plan.check, taken))
        if known is None:
            if is_long:
                query = await run_off_loop(json_codec.read_request, given, model, self._limits)
            else:
                query = json_codec.read_request(given, model, self._limits)
            known = query, await self._request(query, arrival, key)
        reply = await self._respond(*known, reservation)
        if _is_large(reply, self._limits):
            return await run_off_loop(json_codec.print_response, reply)
        return json_codec.print_response(reply)

    def _known(self, key: "_Key", arrival: "_Arrival", read: Callable[[PredictPlan], dict[str, Array] | None]) -> "_Known | None":
        """The request of the structure `key`, whose inputs `read` decodes; None if it must be decoded in full."""
        plan = self._plans.get(key)
        if plan is None:
            return None
        try:
            target = self._reader.target(plan.query.model)
            inputs = read(plan) if target.check is plan.check else None
            if inputs is None:
                return None
            if plan.strings_cost:
                arrival.reservation.take(plan.strings_cost)
        except ServingError:
            return None
        return plan.query, plan.request(target, inputs, arrival.size_bytes, arrival.deadline_ns, arrival.via)

    async def _request(self, query: PredictQuery, arrival: "_Arrival", key: "_Key | None") -> InferRequest:
        """Validates `query`, whose structure is `key`; None: its plan is not cached."""
        engine, limits = self._engine, self._limits
        size_bytes, deadline_ns, reservation, via = arrival
        try:
            target = self._reader.target(query.model)
            strings, grown_bytes = self._reader.reserve(target, query, reservation)
            if size_bytes > INLINE_RAW_BYTES or strings > INLINE_STRINGS or grown_bytes > limits.decode_inline_bytes:
                request = await run_while_borrowed(target.servable, self._reader.build, target, query, size_bytes, deadline_ns, via)
            else:
                request = self._reader.build(target, query, size_bytes, deadline_ns, via)
        except NotFound as error:
            # Adlik's status for an unknown model or version here; a request for its metadata gets NOT_FOUND.
            engine.count_rejected(query.model.name, query.model.version, error, via)
            raise InvalidRequest(error.message) from None
        except ServingError as error:
            engine.count_rejected(query.model.name, query.model.version, error, via)
            raise
        if key is not None and len(key if isinstance(key, bytes) else key[1]) <= KEY_BYTES:
            kept = trimmed(key) if isinstance(key, bytes) else (key[0], trimmed(key[1]))
            self._plans.put(kept, plan_of(query, target, request, limits))
        return request

    async def _respond(self, query: PredictQuery, request: InferRequest, reservation: Reservation) -> PredictionResponse:
        engine, limits = self._engine, self._limits
        try:
            response = await engine.infer(request)
        except NotFound as error:
            raise InvalidRequest(error.message) from None
        top = {name: count for name, count in query.output_filter.items() if count}
        if not top:
            return make_response(query.model, response, top, {}, limits)
        labels = {name: engine.labels(response.model_name, response.model_version, name) for name in top}
        reservation.take(_CLASS_BYTES * min(limits.class_count, _classes(response, top)))
        if _values(response, top) > INLINE_STRINGS:
            return await run_off_loop(make_response, query.model, response, top, labels, limits)
        return make_response(query.model, response, top, labels, limits)


#: The part that requests with the same plan share.
_Key = bytes | tuple[ModelQuery, bytes]
_Known = tuple[PredictQuery, InferRequest]


class _Arrival(NamedTuple):
    """A request's bytes, deadline, memory and protocol."""

    size_bytes: int
    deadline_ns: int | None
    reservation: Reservation
    via: Via


def _message(rest: bytes) -> predict_pb2.PredictRequest:
    try:
        return predict_pb2.PredictRequest.FromString(rest)
    except DecodeError:
        raise InvalidRequest("the request is not a valid PredictRequest message") from None


def _parsed(rest: bytes, contents: dict[str, memoryview]) -> PredictQuery:
    raws: dict[str, Raw] = dict(contents)
    return read_request(_message(rest), raws)


def _classes(response: InferResponse, top: dict[str, int]) -> int:
    """An upper bound of the number of named classes."""
    count = 0
    for name, most in top.items():
        array = response.outputs[name]
        rows = array.shape[0] if response.signature.is_batched else 1
        count += min(array.size, rows * most)
    return count


def _values(response: InferResponse, top: dict[str, int]) -> int:
    return sum(response.outputs[name].size for name in top)


def _is_large(reply: PredictionResponse, limits: Limits) -> bool:
    for output in reply.outputs:
        if output.array.nbytes > limits.decode_inline_bytes or (output.classes and sum(map(len, output.classes)) > INLINE_STRINGS):
            return True
    return False
