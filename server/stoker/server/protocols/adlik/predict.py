"""PredictService.predict over gRPC and REST, without a transport.

Memory is reserved before a request is parsed. A small request is parsed at once. A larger one is first scanned in wire format, and long
work runs in a thread. A request of a known structure (the message or the body without its elements) reuses its validated plan.

Large outputs are serialised directly, not through a message, which saves two of three copies.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from stoker.backends.api.errors import InvalidRequest, NotFound, ServingError
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.memo import KEY_BYTES, BoundedCache, trimmed
from stoker.server.codecs.response_layouts import Layout, Layouts, Part, Variant, map_entry_head
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_plans import PredictPlan, read_tensors, take_elements
from stoker.server.codecs.tensor_proto import NUMBERS, SMALL_BYTES, VALUE_FIELDS, TensorFields, split_predict_request
from stoker.server.codecs.tensors import INLINE_RAW_BYTES, INLINE_STRINGS, Raw, Serialised, array_pieces, serialised, whole
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.adlik import predict_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2
from stoker.server.protocols.adlik import json_codec
from stoker.server.protocols.adlik.request import (
    Labels,
    ModelQuery,
    PredictionResponse,
    PredictQuery,
    PredictReader,
    PredictTarget,
    ResponseOutput,
    make_response,
    read_spec,
)
from stoker.server.protocols.decoded_call import DecodedCall
from stoker.server.protocols.infer_completion import MessageInference

_VALUE_FIELDS: Final = frozenset(VALUE_FIELDS.values()) | {"scomplex_val", "dcomplex_val"}
_NOTHING: Mapping[str, Any] = {}
#: Outputs up to this size are serialised through the message.
_WHOLE_BYTES: Final = 65_536
# Tags on the wire.
_OUTPUTS: Final = encoded_varint(predict_pb2.PredictResponse.OUTPUTS_FIELD_NUMBER << 3 | LENGTH)
_KEY, _VALUE = encoded_varint(1 << 3 | LENGTH), encoded_varint(2 << 3 | LENGTH)
_TENSOR: Final = encoded_varint(predict_pb2.PredictResponse.Output.TENSOR_FIELD_NUMBER << 3 | LENGTH)
_CONTENT: Final = encoded_varint(tensor_pb2.TensorProto.TENSOR_CONTENT_FIELD_NUMBER << 3 | LENGTH)


def read_request(message: predict_pb2.PredictRequest, contents: Mapping[str, Raw]) -> PredictQuery:
    """Reads `message`; `contents` holds, by input, the raw bytes that were cut out before the message was parsed."""
    return PredictQuery(
        read_spec(message.model_spec),
        message.batch_size,
        {name: _tensor(tensor, contents.get(name, b"")) for name, tensor in message.inputs.items()},
        {name: output.cls.count for name, output in message.output_filter.items()},
    )


def print_response(response: PredictionResponse) -> Serialised:
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
    return serialised((message.SerializeToString(), *pieces)) if pieces else message.SerializeToString()


def layout_of(response: InferResponse, version: Variant) -> Layout | None:
    """The layout of the PredictResponse without classes to a request for `version`; None if an output holds strings, or nothing."""
    parts: list[Part] = []
    for name, array in response.outputs.items():
        datatype = response.output_spec(name).datatype
        if datatype.is_bytes or not array.size:
            return None
        tensor = tensor_pb2.TensorProto()
        _describe(tensor, ResponseOutput(name, datatype, array, []))
        before = map_entry_head(
            predict_pb2.PredictResponse.OUTPUTS_FIELD_NUMBER, name, [_TENSOR, tensor.SerializeToString() + _CONTENT], array.nbytes
        )
        parts.append(Part(name, array, before))
    message = predict_pb2.PredictResponse(model_spec=ModelQuery(response.model_name, version).echo)
    return Layout(response, message.SerializeToString(), parts)


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
_CLASS_BYTES: Final = 300


class Predict(MessageInference):
    """Handles predict requests of both transports. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        super().__init__(engine)
        self._limits = limits
        self._reader = PredictReader(engine, limits)
        #: Plans by the message without its elements, or by the URL's model and the body without its elements.
        self._plans: BoundedCache[_Key, PredictPlan[PredictQuery]] = BoundedCache()
        self._layouts = Layouts(layout_of)

    def _decode(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedCall | None:
        size_bytes = len(data)
        reservation.take(size_bytes)
        contents: dict[str, memoryview] = {}
        if size_bytes > SMALL_BYTES:
            if size_bytes > INLINE_RAW_BYTES:
                return None
            rest, contents, cost, lead_bytes = split_predict_request(data, self._limits)
            self._note_lead(data, lead_bytes)
            if len(rest) > self._limits.decode_inline_bytes:
                return None
            reservation.take(cost)
        else:
            rest = bytes(data)
        arrival = _Arrival(size_bytes, deadline_ns, reservation, Via.ADLIK_GRPC)
        key: bytes | None = None
        if len(rest) <= SMALL_BYTES:
            message = _message(rest)
            taken = take_elements(message.inputs, contents)
            if taken is not None:
                key = message.SerializeToString()
                plan = self._plans.entries.get(key)
                known = None if plan is None else self._known(plan, read_tensors(plan.tensors, plan.check, taken), arrival)
                if known is not None:
                    return _MessageCall(*known, self._engine, self._limits, reservation, self._layouts)
        query = _parsed(rest, contents)
        request = self._request(query, arrival, key)
        return None if request is None else _MessageCall(query, request, self._engine, self._limits, reservation, self._layouts)

    async def _decode_slowly(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedCall:
        reservation.take(len(data))
        contents: dict[str, memoryview] = {}
        if len(data) > SMALL_BYTES:
            rest, contents, cost, lead_bytes = split_predict_request(data, self._limits)
            self._note_lead(data, lead_bytes)
            reservation.take(cost)
        else:
            rest = bytes(data)
        is_long = len(rest) > self._limits.decode_inline_bytes
        query = await run_off_loop(_parsed, rest, contents) if is_long else _parsed(rest, contents)
        request = await self._request_slowly(query, _Arrival(len(data), deadline_ns, reservation, Via.ADLIK_GRPC))
        return _MessageCall(query, request, self._engine, self._limits, reservation, self._layouts)

    async def from_json(
        self, model: ModelQuery, given: Json, size_bytes: int, reservation: Reservation, *, has_arrays: bool = False
    ) -> bytes:
        """Handles the parsed JSON body `given` (`size_bytes` as text) of a request for `model`; returns the text of a PredictResponse.

        `has_arrays`: long tensors are arrays already, `size_bytes` counts these, and all of it is reserved.

        Raises:
            ServingError: as `start`.
        """
        decoded: DecodedCall | None = None
        if size_bytes <= self._limits.decode_inline_bytes:
            decoded = self.decode_json(model, given, size_bytes, reservation)
        if decoded is None:
            decoded = await self._decode_json_slowly(model, given, size_bytes, reservation, has_arrays=has_arrays)
        return whole(await decoded.outcome(self._engine))

    def decode_json(self, model: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> DecodedCall | None:
        """Decodes the parsed body `given`; None: that needs a thread, and nothing was reserved.

        REQUIRES: `size_bytes` is at most `decode_inline_bytes`.

        Raises:
            ServingError: as `_decode`.
        """
        held_bytes = reservation.held_bytes
        # The decoded bytes are in memory together with their base64 text.
        reservation.take(size_bytes)
        arrival = _Arrival(size_bytes, None, reservation, Via.ADLIK_HTTP)
        key: _Key | None = None
        structure = json_codec.take_elements(given)
        if structure is not None:
            text, taken = structure
            key = model, text
            plan = self._plans.entries.get(key)
            known = None if plan is None else self._known(plan, json_codec.read_tensors(plan.tensors, plan.check, taken), arrival)
            if known is not None:
                return _JsonCall(*known, self._engine, self._limits, reservation)
        query = json_codec.read_request(given, model, self._limits)
        request = self._request(query, arrival, key)
        if request is None:
            reservation.give_back(reservation.held_bytes - held_bytes)
            return None
        return _JsonCall(query, request, self._engine, self._limits, reservation)

    async def _decode_json_slowly(
        self, model: ModelQuery, given: Json, size_bytes: int, reservation: Reservation, *, has_arrays: bool
    ) -> DecodedCall:
        if not has_arrays:
            reservation.take(size_bytes)
        if size_bytes > self._limits.decode_inline_bytes:
            query = await run_off_loop(json_codec.read_request, given, model, self._limits)
        else:
            query = json_codec.read_request(given, model, self._limits)
        request = await self._request_slowly(query, _Arrival(size_bytes, None, reservation, Via.ADLIK_HTTP))
        return _JsonCall(query, request, self._engine, self._limits, reservation)

    def _known(
        self, plan: PredictPlan[PredictQuery], inputs: dict[str, Array] | None, arrival: "_Arrival"
    ) -> tuple[PredictQuery, InferRequest] | None:
        """The request with `inputs`, which `plan` has read; None if it must be decoded in full."""
        if inputs is None:
            return None
        query = plan.query
        try:
            target = self._reader.target(query.model)
            if target.check is not plan.check:
                return None
            if plan.strings_cost:
                arrival.reservation.take(plan.strings_cost)
        except ServingError:
            return None
        request = plan.request(
            query.model.name, target.version, target.servable, inputs, target.received_ns, arrival.size_bytes, arrival.deadline_ns,
            arrival.via,
        )  # fmt: skip
        return query, request

    def _request(self, query: PredictQuery, arrival: "_Arrival", key: "_Key | None") -> InferRequest | None:
        """Validates `query`, whose structure is `key` (None: its plan is not kept); None: that needs a thread."""
        size_bytes, deadline_ns, via = arrival.size_bytes, arrival.deadline_ns, arrival.via
        failure: ServingError | None = None
        try:
            target = self._reader.target(query.model)
            if self._is_long(target, query, arrival):
                return None
            request = self._reader.build(target, query, size_bytes, deadline_ns, via)
        except ServingError as error:
            failure = self._rejected(query, error, via)
        if failure is not None:
            raise failure
        if key is not None and len(key if isinstance(key, bytes) else key[1]) <= KEY_BYTES:
            kept = trimmed(key) if isinstance(key, bytes) else (key[0], trimmed(key[1]))
            self._plans.put(kept, PredictPlan(query._replace(inputs={}), target.check, request, self._limits))
        return request

    async def _request_slowly(self, query: PredictQuery, arrival: "_Arrival") -> InferRequest:
        """As `_request`, in a thread."""
        size_bytes, deadline_ns, via = arrival.size_bytes, arrival.deadline_ns, arrival.via
        failure: ServingError | None = None
        try:
            target = self._reader.target(query.model)
            self._is_long(target, query, arrival)
            return await run_while_borrowed(target.servable, self._reader.build, target, query, size_bytes, deadline_ns, via)
        except ServingError as error:
            failure = self._rejected(query, error, via)
        raise failure

    def _is_long(self, target: PredictTarget, query: PredictQuery, arrival: "_Arrival") -> bool:
        """Reserves the memory of the arrays; whether a thread must make them."""
        strings, grown_bytes = self._reader.reserve(target, query, arrival.reservation)
        return arrival.size_bytes > INLINE_RAW_BYTES or strings > INLINE_STRINGS or grown_bytes > self._limits.decode_inline_bytes

    def _rejected(self, query: PredictQuery, error: ServingError, via: Via) -> ServingError:
        """Counts the request that failed by `error`; returns the error for the client."""
        self._engine.count_rejected(query.model.name, query.model.version, error, via)
        return _reported(error)


class _PredictCall(DecodedCall):
    """A decoded request of either transport."""

    __slots__ = ("_engine", "_limits", "_query", "_reservation", "_top")

    def __init__(self, query: PredictQuery, request: InferRequest, engine: Engine, limits: Limits, reservation: Reservation) -> None:
        self.request = request
        self._query = query
        self._engine = engine
        self._limits = limits
        self._reservation = reservation
        #: By output, how many of the highest values to name.
        self._top: dict[str, int] = {name: count for name, count in query.output_filter.items() if count} if query.output_filter else {}

    def reported(self, error: ServingError) -> ServingError:
        return _reported(error)

    def encode(self, response: InferResponse) -> Serialised | None:
        top = self._top
        if top and _values(response, top) > INLINE_STRINGS:
            return None
        return None if self._is_long(response) else self._printed(self._response(response))

    def _is_long(self, response: InferResponse) -> bool:
        """Whether an output is too large for the event loop."""
        for array in response.outputs.values():  # noqa: SIM110 - no generator for each response
            if array.nbytes > self._limits.decode_inline_bytes:
                return True
        return False

    async def encode_slowly(self, response: InferResponse) -> Serialised:
        if self._top and _values(response, self._top) > INLINE_STRINGS:
            labels = self._labels(response)
            reply = await run_off_loop(make_response, self._query.model, response, self._top, labels, self._limits)
        else:
            reply = self._response(response)
        return await run_off_loop(self._printed, reply) if _is_large(reply, self._limits) else self._printed(reply)

    def _response(self, response: InferResponse) -> PredictionResponse:
        return make_response(self._query.model, response, self._top, self._labels(response) if self._top else {}, self._limits)

    def _labels(self, response: InferResponse) -> Labels:
        """The labels of the outputs whose highest values are named, whose memory is reserved."""
        top = self._top
        labels = {name: self._engine.labels(response.model_name, response.model_version, name) for name in top}
        self._reservation.take(_CLASS_BYTES * min(self._limits.class_count, _classes(response, top)))
        return labels

    def _printed(self, reply: PredictionResponse) -> Serialised:
        """`reply` in the encoding of the request. Safe in a thread."""
        raise NotImplementedError


class _MessageCall(_PredictCall):
    __slots__ = ("_layouts",)

    def __init__(
        self, query: PredictQuery, request: InferRequest, engine: Engine, limits: Limits, reservation: Reservation, layouts: Layouts
    ) -> None:
        super().__init__(query, request, engine, limits, reservation)
        self._layouts = layouts

    def encode(self, response: InferResponse) -> Serialised | None:
        if not self._top and not self._is_long(response):
            message = self._layouts.encode(response, self._query.model.version)
            if message is not None:
                return message
        return super().encode(response)

    def _printed(self, reply: PredictionResponse) -> Serialised:
        return print_response(reply)


class _JsonCall(_PredictCall):
    __slots__ = ()

    def _printed(self, reply: PredictionResponse) -> bytes:
        return json_codec.print_response(reply)


def _reported(error: ServingError) -> ServingError:
    """`error` with Adlik's status for an unknown model or version here; a request for its metadata gets NOT_FOUND."""
    if not isinstance(error, NotFound):
        return error
    said = InvalidRequest(error.message)
    said.is_noted = error.is_noted
    return said


#: The part that requests with the same plan share.
_Key = bytes | tuple[ModelQuery, bytes]


class _Arrival:
    """A request's bytes, deadline, memory and protocol."""

    __slots__ = ("deadline_ns", "reservation", "size_bytes", "via")

    def __init__(self, size_bytes: int, deadline_ns: int | None, reservation: Reservation, via: Via) -> None:
        self.size_bytes = size_bytes
        self.deadline_ns = deadline_ns
        self.reservation = reservation
        self.via = via


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
