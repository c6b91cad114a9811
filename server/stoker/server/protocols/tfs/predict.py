"""PredictionService.Predict: a serialised message in, a serialised answer out.

Room is reserved before anything is parsed. Small requests are parsed at once; a larger one is looked through on the wire first, and what
takes long goes to a thread.
"""

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from stoker.backends.api.errors import InvalidRequest, ServingError
from stoker.server.codecs.expansion import check_expansion, repeated_bytes
from stoker.server.codecs.string_elements import INLINE_STRINGS, strings_cost
from stoker.server.codecs.tensor_bytes import INLINE_RAW_BYTES
from stoker.server.codecs.tensor_proto import VALUE_FIELDS, TensorFields
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, Via
from stoker.server.core.servable import run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow_serving.apis import predict_pb2
from stoker.server.protocols.adlik.wire import SMALL_BYTES, split_predict_request
from stoker.server.protocols.tfs.model_spec import ModelQuery, read_spec
from stoker.server.protocols.tfs.request import Target, Targets, check_names, check_signature_name, infer_request, wanted_outputs
from stoker.server.protocols.tfs.tensors import array_of, fill_tensor, filled_count, length_delimited, read_tensor, tensor_pieces

#: Outputs up to this size are put into the message value by value.
_WHOLE_BYTES = 1024
_OUTPUT_FILTER = predict_pb2.PredictRequest.OUTPUT_FILTER_FIELD_NUMBER
_OUTPUTS = predict_pb2.PredictResponse.OUTPUTS_FIELD_NUMBER


class Predict:
    """Answers Predict. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, targets: Targets) -> None:
        self._engine = engine
        self._limits = limits
        self._targets = targets

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
                rest, contents, cost = split_predict_request(data, self._limits, _OUTPUT_FILTER)
                reservation.take(cost)
            if len(rest) > self._limits.decode_inline_bytes:
                message = await run_off_loop(_parsed, rest)
            else:
                message = _parsed(rest)
            ask = read_spec(message.model_spec)
            request = await self._request(message, contents, ask, len(data), deadline_ns, reservation)
            response = await self._engine.infer(request)
            if is_large(response, self._limits):
                return await run_off_loop(print_response, response, ask)
            return print_response(response, ask)

    async def _request(
        self,
        message: predict_pb2.PredictRequest,
        contents: Mapping[str, memoryview],
        ask: ModelQuery,
        size_bytes: int,
        deadline_ns: int | None,
        reservation: Reservation,
    ) -> InferRequest:
        try:
            target = self._targets.find(ask)
            check_signature_name(ask)
            target.check.input_count(len(message.inputs))
            check_names(target.check, message.inputs)
            fields = {name: read_tensor(tensor, contents.get(name, b"")) for name, tensor in message.inputs.items()}
            strings, grown_bytes = _reserve(target, fields, reservation, self._limits)
            outputs = wanted_outputs(target.check, tuple(message.output_filter))
            if size_bytes > INLINE_RAW_BYTES or strings > INLINE_STRINGS or grown_bytes > self._limits.decode_inline_bytes:
                inputs = await run_while_borrowed(target.servable, _arrays, target, fields)
            else:
                inputs = _arrays(target, fields)
            return infer_request(target, inputs, outputs, size_bytes=size_bytes, deadline_ns=deadline_ns, via=Via.TFS_GRPC)
        except ServingError as error:
            self._engine.count_refused(ask.name, ask.version, error, Via.TFS_GRPC)
            raise


def is_large(response: InferResponse, limits: Limits) -> bool:
    """Whether printing `response` is work for a thread."""
    for array in response.outputs.values():
        if array.nbytes > limits.decode_inline_bytes or (array.dtype.kind != "f" and array.size > INLINE_STRINGS):
            return True
    return False


def print_response(response: InferResponse, ask: ModelQuery) -> bytes:
    """The serialised PredictResponse. Safe in a thread."""
    reply = predict_pb2.PredictResponse()
    ask.fill_response(reply.model_spec, response.model_version)
    pieces: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        if array.nbytes <= _WHOLE_BYTES:
            fill_tensor(reply.outputs[name], array, spec.datatype)
        else:
            # Put together as bytes, not as a message: copied once instead of converted value by value.
            entry = [*length_delimited(1, [name.encode()]), *length_delimited(2, tensor_pieces(array, spec.datatype))]
            pieces += length_delimited(_OUTPUTS, entry)
    return b"".join((*pieces, reply.SerializeToString())) if pieces else reply.SerializeToString()


def _parsed(rest: bytes) -> predict_pb2.PredictRequest:
    try:
        return predict_pb2.PredictRequest.FromString(rest)
    except DecodeError:
        raise InvalidRequest("the request is not a valid PredictRequest message") from None


def _reserve(target: Target, fields: Mapping[str, TensorFields], reservation: Reservation, limits: Limits) -> tuple[int, int]:
    """Takes what the arrays need beside the bytes they came in; returns how many strings they hold, and what is repeated in them."""
    strings = grown_bytes = 0
    for name, tensor in fields.items():
        # Raw bytes, which are the rule, are viewed where they are.
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
