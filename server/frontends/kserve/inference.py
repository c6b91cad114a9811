"""ModelInfer without a transport: serialised request in, message (or, where it is large, serialised message) out.

It takes bytes, not a message, because room for them is reserved before they are parsed. Small requests, which are most, are parsed at
once; from `SMALL_BYTES` on, a request is looked through on the wire first, and what takes long goes to a thread.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from backends.api.errors import InvalidRequest, Overloaded, QueueTimeout, ServingError
from server.core.request import InferResponse
from server.engine.interface import Engine
from server.frontends.kserve.decoded import DecodedRequest
from server.frontends.kserve.extensions import Extensions
from server.frontends.kserve.grpc_codec import GrpcCodec, encode_message, encode_serialised
from server.frontends.kserve.reservation import Reservation
from server.frontends.kserve.shared_tensors import NO_SPANS, Spans, spans_of_message
from server.frontends.kserve.string_elements import INLINE_STRINGS, strings_cost
from server.frontends.kserve.tensor_bytes import Raw
from server.frontends.kserve.validation import with_request_id
from server.frontends.kserve.wire import SMALL_BYTES, split_infer_request
from server.frontends.limits import Limits
from server.frontends.off_loop import run_off_loop
from server.pb import grpc_service_pb2 as pb

#: Raw tensors are views of the message, so only what checks or converts values (booleans) touches every byte.
_INLINE_RAW_BYTES = 4 << 20


class Inference:
    """Answers infer requests. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, extensions: Extensions | None = None) -> None:
        """`extensions` are those of the server; None: with their default settings."""
        self._engine = engine
        self._limits = limits
        self._memory = (extensions or Extensions(limits)).shared_memory
        self._codec = GrpcCodec(engine, limits)
        # Looked up once: these run for every request.
        self._infer = engine.infer
        self._parse = pb.ModelInferRequest.FromString
        self._decode_small = self._codec.decode

    async def model_infer(self, data: bytes, deadline_ns: int | None) -> pb.ModelInferResponse | bytes:
        """Answers the serialised ModelInferRequest `data`; a large answer comes serialised.

        Raises:
            ServingError: see `GrpcCodec.decode` and `Engine.infer`; Overloaded where its bytes do not fit beside those in flight.
        """
        with Reservation(self._engine) as reservation:
            decoded = await self.decode(data, deadline_ns, reservation)
            try:
                response = await self._infer(decoded.request)
            except (Overloaded, QueueTimeout) as error:
                raise in_core_words(error, decoded.request.request_id) from None
            labels = self._codec.labels(response, decoded.classifications)
            if self._is_large(response):
                return await run_off_loop(encode_serialised, response, decoded.classifications, labels, decoded.shared_outputs)
            return encode_message(response, decoded.classifications, labels, decoded.shared_outputs)

    async def decode(self, data: bytes, deadline_ns: int | None, reservation: Reservation) -> DecodedRequest:
        """The request that `data` makes; what it takes in memory is taken from `reservation` before it is made.

        Raises:
            ServingError: as `GrpcCodec.decode`; Overloaded, TooLarge.
        """
        size_bytes = len(data)
        reservation.take(size_bytes)
        if size_bytes > SMALL_BYTES:
            return await self._decode_large(data, deadline_ns, reservation)
        message = self._parsed(data)
        try:
            if self._memory.is_allowed and (spans := spans_of_message(message, self._memory)) is not NO_SPANS:
                return await self._build(message, message.raw_input_contents, size_bytes, deadline_ns, reservation, spans)
            return self._decode_small(message, size_bytes, deadline_ns)
        except ServingError:
            self._engine.count_refused(message.model_name, None)
            raise

    async def encode(self, response: InferResponse, decoded: DecodedRequest) -> pb.ModelInferResponse:
        """The message that answers with `response`; a large one is made in a thread."""
        labels = self._codec.labels(response, decoded.classifications)
        if self._is_large(response):
            return await run_off_loop(encode_message, response, decoded.classifications, labels, decoded.shared_outputs)
        return encode_message(response, decoded.classifications, labels, decoded.shared_outputs)

    async def _decode_large(self, data: bytes, deadline_ns: int | None, reservation: Reservation) -> DecodedRequest:
        limits = self._limits
        wire = split_infer_request(data, limits)
        reservation.take(wire.cost_bytes)
        is_long = len(wire.rest) > limits.decode_inline_bytes
        message = await run_off_loop(self._parsed, wire.rest) if is_long else self._parsed(wire.rest)
        try:
            spans = spans_of_message(message, self._memory) if self._memory.is_allowed else NO_SPANS
            return await self._build(message, wire.raws, len(data), deadline_ns, reservation, spans, is_long=is_long)
        except ServingError:
            self._engine.count_refused(message.model_name, None)
            raise

    async def _build(
        self,
        message: pb.ModelInferRequest,
        raws: Sequence[Raw],
        size_bytes: int,
        deadline_ns: int | None,
        reservation: Reservation,
        spans: Spans,
        *,
        is_long: bool = False,
    ) -> DecodedRequest:
        """The request of a message that is not small, or not all of it."""
        limits, codec = self._limits, self._codec
        target = codec.target(message)
        strings = codec.count_strings(message, raws, spans)
        reservation.take(strings_cost(strings, limits) + spans.input_bytes)
        is_long = is_long or strings > INLINE_STRINGS or size_bytes > _INLINE_RAW_BYTES or spans.input_bytes > limits.decode_inline_bytes
        if is_long:
            return await run_off_loop(codec.build, target, message, raws, size_bytes, deadline_ns, spans)
        return codec.build(target, message, raws, size_bytes, deadline_ns, spans)

    def _parsed(self, data: bytes) -> pb.ModelInferRequest:
        try:
            return self._parse(data)
        except DecodeError:
            raise InvalidRequest("the request is not a valid ModelInferRequest message") from None

    def _is_large(self, response: InferResponse) -> bool:
        most = self._limits.decode_inline_bytes
        # A loop, not `any`: no generator for each small answer.
        for array in response.outputs.values():  # noqa: SIM110
            if array.nbytes > most:
                return True
        return False


def in_core_words(error: ServingError, request_id: str) -> ServingError:
    """`error` from the engine's queue with the request id in front, as Triton's core prints it."""
    return type(error)(with_request_id(error.message, request_id), retry_after_s=error.retry_after_s)
