"""Predict without a transport: a serialised message or a JSON body in, a serialised answer out.

Room is reserved before anything is parsed. Small requests are parsed at once; a larger one is looked through on the wire first, and what
takes long goes to a thread.
"""

from google.protobuf.message import DecodeError

from stoker.backends.api.errors import InvalidRequest, NotFound, ServingError
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.string_elements import INLINE_STRINGS
from stoker.server.codecs.tensor_bytes import INLINE_RAW_BYTES, Raw
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferResponse, Via
from stoker.server.core.servable import run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.adlik import predict_pb2
from stoker.server.protocols.adlik import json_codec, message_codec
from stoker.server.protocols.adlik.model_spec import ModelQuery
from stoker.server.protocols.adlik.request import PredictQuery, PredictReader
from stoker.server.protocols.adlik.response import PredictionResponse, make_response
from stoker.server.protocols.adlik.wire import SMALL_BYTES, split_predict_request

#: What one named class takes as objects and as text, roundly.
_CLASS_BYTES = 300


class Predict:
    """Answers predict requests of both protocols. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._reader = PredictReader(engine, limits)

    async def from_message(self, data: bytes, deadline_ns: int | None) -> bytes:
        """Answers a serialised PredictRequest by a serialised PredictResponse.

        Raises:
            ServingError: it contradicts the protocol, the limits or the model, reaches no READY model, or fails in the engine.
        """
        with Reservation(self._engine.budget) as reservation:
            reservation.take(len(data))
            contents: dict[str, memoryview] = {}
            rest = data
            if len(data) > SMALL_BYTES:
                rest, contents, cost = split_predict_request(data, self._limits)
                reservation.take(cost)
            if len(rest) > self._limits.decode_inline_bytes:
                ask = await run_off_loop(_parsed, rest, contents)
            else:
                ask = _parsed(rest, contents)
            reply = await self._respond(ask, len(data), deadline_ns, reservation, Via.ADLIK_GRPC)
            if _is_large(reply, self._limits):
                return await run_off_loop(message_codec.print_response, reply)
            return message_codec.print_response(reply)

    async def from_json(self, model: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> bytes:
        """Answers the parsed JSON body `given` (`size_bytes` as text) of a request for `model` by the text of a PredictResponse.

        Raises:
            ServingError: as `from_message`.
        """
        is_long = size_bytes > self._limits.decode_inline_bytes
        # The bytes of base64 stand beside the text that they are read from.
        reservation.take(size_bytes)
        if is_long:
            ask = await run_off_loop(json_codec.read_request, given, model, self._limits)
        else:
            ask = json_codec.read_request(given, model, self._limits)
        reply = await self._respond(ask, size_bytes, None, reservation, Via.ADLIK_HTTP)
        if _is_large(reply, self._limits):
            return await run_off_loop(json_codec.print_response, reply)
        return json_codec.print_response(reply)

    async def _respond(
        self, ask: PredictQuery, size_bytes: int, deadline_ns: int | None, reservation: Reservation, via: Via
    ) -> PredictionResponse:
        engine, limits = self._engine, self._limits
        try:
            target = self._reader.target(ask.model)
            strings, grown_bytes = self._reader.reserve(target, ask, reservation)
            if size_bytes > INLINE_RAW_BYTES or strings > INLINE_STRINGS or grown_bytes > limits.decode_inline_bytes:
                request = await run_while_borrowed(target.servable, self._reader.build, target, ask, size_bytes, deadline_ns, via)
            else:
                request = self._reader.build(target, ask, size_bytes, deadline_ns, via)
        except NotFound as error:
            # Adlik answers so for an unknown model or version here, and with NOT_FOUND only where its metadata is asked for.
            engine.count_refused(ask.model.name, ask.model.version, error, via)
            raise InvalidRequest(error.message) from None
        except ServingError as error:
            engine.count_refused(ask.model.name, ask.model.version, error, via)
            raise
        try:
            response = await engine.infer(request)
        except NotFound as error:
            raise InvalidRequest(error.message) from None
        top = {name: count for name, count in ask.output_filter.items() if count}
        if not top:
            return make_response(ask.model, response, top, {}, limits)
        labels = {name: engine.labels(response.model_name, response.model_version, name) for name in top}
        reservation.take(_CLASS_BYTES * min(limits.class_count, _classes(response, top)))
        if _values(response, top) > INLINE_STRINGS:
            return await run_off_loop(make_response, ask.model, response, top, labels, limits)
        return make_response(ask.model, response, top, labels, limits)


def _parsed(rest: bytes, contents: dict[str, memoryview]) -> PredictQuery:
    try:
        message = predict_pb2.PredictRequest.FromString(rest)
    except DecodeError:
        raise InvalidRequest("the request is not a valid PredictRequest message") from None
    raws: dict[str, Raw] = dict(contents)
    return message_codec.read_request(message, raws)


def _classes(response: InferResponse, top: dict[str, int]) -> int:
    """How many classes will be named, at most."""
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
