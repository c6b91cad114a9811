"""ModelInfer without a transport: serialised request in, serialised message out.

It takes serialised bytes because memory is reserved before they are parsed. Most requests have the structure of an earlier one and are
decoded by its template. Other small ones are parsed at once. From `SMALL_BYTES` on, a request is scanned in wire format first, and long
work runs in a thread.
"""

from collections.abc import Awaitable, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from stoker.backends.api.errors import InvalidRequest, Overloaded, QueueTimeout, ServingError
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.tensors import INLINE_RAW_BYTES, INLINE_STRINGS, Raw, Serialised, strings_cost, whole
from stoker.server.codecs.validation import parse_version, with_request_id
from stoker.server.core.byte_budget import Reservation, budget_exhausted
from stoker.server.core.completion import Completion, TaskCompletion
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest, InferResponse, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.infer_completion import InferCompletion
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.extensions import Extensions, RequestMetadata
from stoker.server.protocols.kserve.grpc_codec import GrpcCodec, ResponseLayouts, encode_serialised
from stoker.server.protocols.kserve.request_templates import RequestTemplates
from stoker.server.protocols.kserve.shared_tensors import NO_SPANS, Spans, spans_of_message
from stoker.server.rpc.message_cost import SMALL_BYTES, split_infer_request
from stoker.server.rpc.method import Call

#: The parameter of a streamed response that no other follows.
FINAL_RESPONSE: Final = "triton_final_response"


def _finality(is_final: bool) -> bytes:
    return pb.ModelInferResponse(parameters={FINAL_RESPONSE: pb.InferParameter(bool_param=is_final)}).SerializeToString()


_FINAL: Final = _finality(True)
_NOT_FINAL: Final = _finality(False)
#: A larger message is not copied behind the tag of its stream's message.
_COPIED_BYTES: Final = 8192
_STREAMED: Final = encoded_varint(pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | LENGTH)


class Inference:
    """Handles infer requests. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, extensions: Extensions | None = None) -> None:
        """`extensions` are those of the server; None: with their default settings."""
        extensions = extensions or Extensions(limits)
        self._engine = engine
        self._limits = limits
        self._memory = extensions.shared_memory
        self._headers = extensions.grpc_headers
        self._codec = GrpcCodec(engine, limits)
        self._templates = RequestTemplates(engine, limits)
        self._layouts = ResponseLayouts(limits.decode_inline_bytes)
        # Looked up once: these run for every request.
        self._infer = engine.infer
        self._submit = engine.submit
        self._reserve = engine.budget.reserve
        self._parse = pb.ModelInferRequest.FromString
        self._decode_small = self._codec.decode
        self._decode_like = self._templates.decode
        self._most_inline_bytes = limits.decode_inline_bytes

    def lead_bytes(self, size_bytes: int) -> int:
        """The offset of the first tensor in the last message of `size_bytes`, in bytes."""
        return self._templates.lead_bytes(size_bytes)

    def start(self, data: Raw, call: Call | None) -> Completion[Any]:
        """Runs the serialised ModelInferRequest `data` of `call`; completes with the serialised ModelInferResponse.

        A request that is rejected completes at once, with a `ServingError`. `call` None: there is no deadline and no metadata.
        """
        deadline_ns = None if call is None else call.deadline_ns
        request_metadata = self._headers.read(call.metadata) if self._headers.is_on and call is not None else None
        decoded = self._decode_like(data, deadline_ns)
        if decoded is None and self._is_slow(data):
            # It reserves the bytes of the message at once, which `ByteBudget.hand_over` asks for.
            return TaskCompletion(lambda: self._model_infer(data, deadline_ns, request_metadata), is_inline=True)
        completion = _InferCompletion(self, len(data))
        if not self._reserve(len(data)):
            completion.complete(budget_exhausted(len(data)))
            return completion
        try:
            if decoded is None:
                decoded = self._decode_new(data, deadline_ns)
            if request_metadata is not None:
                request_metadata.apply_to(decoded.request)
            completion.decoded = decoded
            completion.running = self._submit(decoded.request, completion.responded)
        except Exception as error:  # noqa: BLE001 - a rejection, or a defect: either is the call's result
            completion.end(_reported_error(error, completion.decoded))
        return completion

    def start_streamed(self, data: Raw, deadline_ns: int | None, request_metadata: RequestMetadata | None) -> "StreamedCompletion | None":
        """As `start`, for a request of a stream; completes with the serialised ModelStreamInferResponse of its only response.

        None: it may have several responses, or decoding it needs a thread. Nothing was begun, see `decode`.
        """
        decoded = self._decode_like(data, deadline_ns)
        if decoded is None and self._is_slow(data):
            return None
        completion = StreamedCompletion(self, len(data))
        if not self._reserve(len(data)):
            completion.complete(budget_exhausted(len(data)))
            return completion
        try:
            if decoded is None:
                decoded = self._decode_new(data, deadline_ns)
            if decoded.request.signature.is_decoupled:
                completion.cancel()
                return None
            if request_metadata is not None:
                request_metadata.apply_to(decoded.request)
            completion.decoded = decoded
            completion.running = self._submit(decoded.request, completion.responded)
        except Exception as error:  # noqa: BLE001 - as above
            completion.end(_reported_error(error, completion.decoded))
        return completion

    def _is_slow(self, data: Raw) -> bool:
        """Whether decoding `data`, of an unknown structure, may need a thread."""
        return len(data) > SMALL_BYTES or (self._memory.is_allowed and b"shared_memory" in data)

    def _decode_new(self, data: Raw, deadline_ns: int | None) -> DecodedRequest:
        message = self._parsed(data)
        try:
            decoded = self._decode_small(message, len(data), deadline_ns)
        except ServingError as error:
            self._count_rejected(message, error)
            raise
        if message.raw_input_contents:
            self._templates.learn(data, decoded)
        return decoded

    async def _model_infer(self, data: Raw, deadline_ns: int | None, request_metadata: RequestMetadata | None) -> Serialised:
        """Handles requests that are scanned first, and may need a thread."""
        with Reservation(self._engine.budget) as reservation:
            decoded = await self.decode(data, deadline_ns, reservation)
            self._templates.learn(data, decoded)
            if request_metadata is not None:
                request_metadata.apply_to(decoded.request)
            try:
                response = await self._infer(decoded.request)
            except (Overloaded, QueueTimeout) as error:
                raise with_request_id_prefix(error, decoded.request.request_id) from None
            return await self._encoded(response, decoded)

    async def _encoded(self, response: InferResponse, decoded: DecodedRequest) -> Serialised:
        if decoded.request.trace is not None:
            self._note_sent(decoded.request)
        try:
            labels = self._codec.labels(response, decoded.form.classifications)
            if self._is_large(response):
                return await run_off_loop(encode_serialised, response, decoded.form.classifications, labels, decoded.form.shared_outputs)
            return encode_serialised(response, decoded.form.classifications, labels, decoded.form.shared_outputs)
        except ServingError as error:
            self._note_unencoded(error, decoded)
            raise

    def _note_sent(self, request: InferRequest) -> None:
        """Records the times of a traced call: received before it is submitted, sent after its response."""
        assert request.trace is not None
        now_ns = self._engine.now_ns()
        request.trace.mark("GRPC_WAITREAD_START", request.received_ns)
        request.trace.mark("GRPC_WAITREAD_END", request.received_ns)
        request.trace.mark("GRPC_SEND_START", now_ns)
        request.trace.mark("GRPC_SEND_END", now_ns)

    async def decode(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedRequest:
        """Decodes `data`; its memory is added to `reservation` first.

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
            decoded = self._decode_small(message, size_bytes, deadline_ns)
        except ServingError as error:
            self._count_rejected(message, error)
            raise
        if message.raw_input_contents:
            self._templates.learn(data, decoded)
        return decoded

    def encoded_final(self, response: InferResponse, decoded: DecodedRequest) -> Serialised | None:
        """The serialised ModelStreamInferResponse with the only response to a request; None: it is large, see `encode_streamed`.

        Raises:
            ServingError: as `encode_serialised`.
        """
        form = decoded.form
        if form.is_plain:
            message = self._layouts.encode(response, _FINAL)
            if message is not None:
                return _streamed(message, b"")
        if self._is_large(response):
            return None
        labels = self._codec.labels(response, form.classifications)
        return _streamed(encode_serialised(response, form.classifications, labels, form.shared_outputs), _FINAL)

    async def encode_streamed(self, response: InferResponse, decoded: DecodedRequest, *, is_final: bool) -> Serialised:
        """The serialised ModelStreamInferResponse with `response`; a large one is encoded in a thread. `is_final`: no other follows.

        Raises:
            ServingError: as `encode_serialised`.
        """
        form = decoded.form
        try:
            labels = self._codec.labels(response, form.classifications)
            if self._is_large(response):
                message = await run_off_loop(encode_serialised, response, form.classifications, labels, form.shared_outputs)
            else:
                message = encode_serialised(response, form.classifications, labels, form.shared_outputs)
        except ServingError as error:
            self._note_unencoded(error, decoded)
            raise
        return _streamed(message, _FINAL if is_final else _NOT_FINAL)

    def empty_final(self, request: InferRequest, version: int) -> bytes:
        """The serialised ModelStreamInferResponse without outputs that says that no other response of `version` to `request` follows."""
        message = pb.ModelInferResponse(model_name=request.model_name, model_version=str(version), id=request.request_id)
        return whole(_streamed(message.SerializeToString(), _FINAL))

    def _note_unencoded(self, error: Exception, decoded: DecodedRequest) -> None:
        """Notes that the outputs do not fit into shared memory, or cannot be classified; the encoder does not know the model."""
        if isinstance(error, ServingError):
            self._engine.note_failed(Via.KSERVE_GRPC, error, decoded.request.model_name, decoded.request.model_version)

    async def _decode_large(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedRequest:
        limits = self._limits
        wire = split_infer_request(data, limits)
        reservation.take(wire.cost_bytes)
        if not isinstance(data, bytes):
            self._templates.note_lead(len(data), wire.lead_bytes)
        is_long = len(wire.rest) > limits.decode_inline_bytes
        message = await run_off_loop(self._parsed, wire.rest) if is_long else self._parsed(wire.rest)
        try:
            spans = spans_of_message(message, self._memory) if self._memory.is_allowed else NO_SPANS
            return await self._build(message, wire.raws, len(data), deadline_ns, reservation, spans, is_long=is_long)
        except ServingError as error:
            self._count_rejected(message, error)
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
        """Decodes a message that is large, or whose raw contents were cut out."""
        limits, codec = self._limits, self._codec
        target = codec.target(message)
        strings = codec.count_strings(message, raws, spans)
        reservation.take(strings_cost(strings, limits) + spans.input_bytes)
        is_long = is_long or strings > INLINE_STRINGS or size_bytes > INLINE_RAW_BYTES or spans.input_bytes > limits.decode_inline_bytes
        if is_long:
            return await run_while_borrowed(target.servable, codec.build, target, message, raws, size_bytes, deadline_ns, spans)
        return codec.build(target, message, raws, size_bytes, deadline_ns, spans)

    def _count_rejected(self, message: pb.ModelInferRequest, error: ServingError) -> None:
        try:
            version = parse_version(message.model_version, message.model_name)
        except InvalidRequest:
            version = None  # not a number: `error` reports it
        self._engine.count_rejected(message.model_name, version, error, Via.KSERVE_GRPC)

    def _parsed(self, data: Raw) -> pb.ModelInferRequest:
        try:
            return self._parse(data if type(data) is bytes else bytes(data))
        except DecodeError:
            raise InvalidRequest("the request is not a valid ModelInferRequest message") from None

    def _is_large(self, response: InferResponse) -> bool:
        most = self._most_inline_bytes
        # A loop, not `any`: no generator for each small response.
        for array in response.outputs.values():  # noqa: SIM110
            if array.nbytes > most:
                return True
        return False


class _InferCompletion(InferCompletion):
    """One request in progress.

    Attributes:
        decoded: The request; None until it is decoded.
    """

    __slots__ = ("_inference", "_size_bytes", "decoded")

    def __init__(self, inference: Inference, size_bytes: int) -> None:
        self._callback = None
        self._result = None
        self.is_over = False
        self.running = None
        self._inference = inference
        self._size_bytes = size_bytes
        self.decoded: DecodedRequest | None = None

    def _encode(self, response: InferResponse) -> Serialised | None:
        inference, decoded = self._inference, self.decoded
        assert decoded is not None
        form = decoded.form
        outcome: Serialised | None = inference._layouts.encode(response) if form.is_plain else None
        if outcome is None:
            if inference._is_large(response):
                return None
            labels = inference._codec.labels(response, form.classifications)
            outcome = encode_serialised(response, form.classifications, labels, form.shared_outputs)
        if decoded.request.trace is not None:
            inference._note_sent(decoded.request)
        return outcome

    def _encode_slowly(self, response: InferResponse) -> Awaitable[Serialised]:
        assert self.decoded is not None
        return self._inference._encoded(response, self.decoded)

    def _reported(self, error: Exception) -> Exception:
        return _reported_error(error, self.decoded)

    def _note_unencoded(self, error: Exception) -> None:
        assert self.decoded is not None
        self._inference._note_unencoded(error, self.decoded)

    def _release(self) -> None:
        self._inference._engine.budget.release(self._size_bytes)


class StreamedCompletion(_InferCompletion):
    """A request of a stream in progress, with exactly one response."""

    __slots__ = ()

    @property
    def request_id(self) -> str | None:
        """The id of the request; None: it was not decoded."""
        return None if self.decoded is None else self.decoded.request.request_id

    def _encode(self, response: InferResponse) -> Serialised | None:
        assert self.decoded is not None
        return self._inference.encoded_final(response, self.decoded)

    def _encode_slowly(self, response: InferResponse) -> Awaitable[Serialised]:
        assert self.decoded is not None
        return self._inference.encode_streamed(response, self.decoded, is_final=True)


def _streamed(message: Serialised, parameters: bytes) -> Serialised:
    """The ModelStreamInferResponse with the serialised ModelInferResponse `message` and its `parameters`; a large one is not copied."""
    if isinstance(message, bytes) and len(message) <= _COPIED_BYTES:
        size = len(message) + len(parameters)
        # A varint of two bytes, without the call.
        length = bytes((size & 0x7F | 0x80, size >> 7)) if 0x7F < size < 0x4000 else encoded_varint(size)
        return _STREAMED + length + parameters + message
    pieces: list[Raw] = [message] if isinstance(message, bytes) else message
    return [_STREAMED + encoded_varint(sum(map(len, pieces)) + len(parameters)) + parameters, *pieces]


def _reported_error(error: Exception, decoded: DecodedRequest | None) -> Exception:
    if decoded is not None and isinstance(error, (Overloaded, QueueTimeout)):
        return with_request_id_prefix(error, decoded.request.request_id)
    return error


def with_request_id_prefix(error: ServingError, request_id: str) -> ServingError:
    """`error` from the engine's queue with the request id in front, as Triton's core prints it."""
    said = type(error)(with_request_id(error.message, request_id), retry_after_s=error.retry_after_s)
    said.is_noted = error.is_noted
    return said
