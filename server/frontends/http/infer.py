"""POST .../infer at ASGI level, without any framework between the connection and the codec."""

from typing import Final

from backends.api.errors import Overloaded, QueueTimeout, ServingError
from server.engine.interface import Engine
from server.frontends.http.compression import choose_encoding, compress
from server.frontends.http.exchange import HeaderList, Receive, Scope, Send, read_body, send_response
from server.frontends.kserve import http_codec
from server.frontends.kserve.checks import SignatureChecks
from server.frontends.kserve.decoded import DecodedRequest
from server.frontends.kserve.extensions import Extensions
from server.frontends.kserve.inference import in_core_words
from server.frontends.kserve.parameters import check_model_name
from server.frontends.kserve.reservation import Reservation
from server.frontends.kserve.shared_tensors import NO_SPANS, spans_of_head
from server.frontends.kserve.string_elements import INLINE_STRINGS, strings_cost
from server.frontends.kserve.validation import SignatureCheck
from server.frontends.limits import Limits
from server.frontends.off_loop import run_off_loop
from server.frontends.strict_json import memory_cost

HEADER_LENGTH: Final = b"inference-header-content-length"
_JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")

#: Binary tensors are views of the body, so only what checks or converts values (booleans) touches every byte.
_INLINE_BODY_BYTES: Final = 4 << 20


class HttpInfer:
    """Answers infer requests. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, extensions: Extensions | None = None) -> None:
        """`extensions` are those of the server; None: with their default settings."""
        self._engine = engine
        self._limits = limits
        self._memory = (extensions or Extensions(limits)).shared_memory
        self._checks = SignatureChecks(engine, limits)

    async def respond(self, model: str, version: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Reads the request for (`model`, `version`), runs it and sends the answer.

        Raises:
            ServingError: nothing was sent yet. ClientGone: nobody is left to answer.
        """
        engine, limits = self._engine, self._limits
        received_ns = engine.now_ns()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        with Reservation(engine) as reservation:
            body = await read_body(receive, headers, reservation, limits)
            check_model_name(model)
            check = self._checks.find(model, version)
            length = headers.get(HEADER_LENGTH)
            header_length = None if length is None else http_codec.parse_header_length(length.decode("latin-1"), len(body))
            try:
                decoded = await self._decode(check, http_codec.Target(model, version, received_ns), body, header_length, reservation)
            except ServingError:
                engine.count_refused(model, version)
                raise
            try:
                response = await engine.infer(decoded.request)
            except (Overloaded, QueueTimeout) as error:
                raise in_core_words(error, decoded.request.request_id) from None
            labels = http_codec.labels_for(engine, response, decoded)
            if sum(array.nbytes for array in response.outputs.values()) > limits.decode_inline_bytes:
                answer, answer_header_length = await run_off_loop(http_codec.encode, response, decoded, labels)
            else:
                answer, answer_header_length = http_codec.encode(response, decoded, labels)
            answer_headers: HeaderList
            if answer_header_length is None:
                answer_headers = [_JSON]
            else:
                answer_headers = [_BINARY, (HEADER_LENGTH, b"%d" % answer_header_length)]
            accepted = headers.get(b"accept-encoding")
            if accepted is not None and len(answer) >= limits.compress_min_bytes:
                encoding = choose_encoding(accepted.decode("latin-1"))
                if encoding is not None:
                    answer = await compress(answer, encoding, limits)
                    answer_headers.append((b"content-encoding", encoding.encode()))
            await send_response(send, 200, answer, answer_headers)

    async def _decode(
        self, check: SignatureCheck, target: http_codec.Target, body: bytes, header_length: int | None, reservation: Reservation
    ) -> DecodedRequest:
        limits = self._limits
        text = body if header_length is None else body[:header_length]
        is_long = len(text) > limits.decode_inline_bytes
        reservation.take(await run_off_loop(memory_cost, text, limits) if is_long else memory_cost(text, limits))
        if is_long:
            head = await run_off_loop(http_codec.parse_head, body, header_length, limits)
        else:
            head = http_codec.parse_head(body, header_length, limits)
        # Most requests are not searched, and of the others only those whose text has the word.
        is_shared = self._memory.is_allowed and b"shared_memory_region" in text
        spans = spans_of_head(head, self._memory, limits) if is_shared else NO_SPANS
        reservation.take(spans.input_bytes)
        strings = http_codec.count_strings(head, len(body) + spans.input_bytes, limits)
        if strings > INLINE_STRINGS:
            reservation.take(strings_cost(strings, limits))
        is_long = is_long or strings > INLINE_STRINGS or spans.input_bytes > limits.decode_inline_bytes
        if is_long or len(body) > _INLINE_BODY_BYTES:
            return await run_off_loop(http_codec.decode, check, target, head, body, header_length, limits, spans)
        return http_codec.decode(check, target, head, body, header_length, limits, spans)
