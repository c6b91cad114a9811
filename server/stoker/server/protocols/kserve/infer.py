"""POST .../infer: decodes, runs and encodes infer requests without a web framework.

Most requests and responses are small: they are decoded and encoded on the event loop without a task (`infer_exchange.py`). Large ones need
a task and threads (`HttpInfer.reply`). A request whose path has an unusual form is routed by FastAPI to the same code.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.backends.api.errors import Overloaded, QueueTimeout, ServingError, UnknownModel
from stoker.server.codecs.strict_json import memory_cost
from stoker.server.codecs.tensors import INLINE_RAW_BYTES, INLINE_STRINGS, strings_cost
from stoker.server.codecs.validation import SignatureCheck, SignatureChecks, check_model_name
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferResponse, Via
from stoker.server.core.tasks import run_off_loop
from stoker.server.core.trace import RequestTrace
from stoker.server.engine.interface import Engine
from stoker.server.net.http1.response import HeaderList, Piece
from stoker.server.net.inflation import joined
from stoker.server.protocols.compression import choose_encoding, compress, decompress
from stoker.server.protocols.exchange import Receive, Scope, Send, read_body, reservation_of, send_reserved
from stoker.server.protocols.kserve import http_codec
from stoker.server.protocols.kserve.decoded import DecodedRequest, Encoded
from stoker.server.protocols.kserve.extensions import Extensions, HeaderReader, RequestMetadata
from stoker.server.protocols.kserve.http_codec import Body
from stoker.server.protocols.kserve.inference import with_request_id_prefix
from stoker.server.protocols.kserve.request_memo import RequestMemo
from stoker.server.protocols.kserve.shared_tensors import NO_SPANS, Spans, spans_of_head

HEADER_LENGTH: Final = b"inference-header-content-length"
_JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")

#: JSON up to this size is parsed without estimating its memory first: even in the worst case it is small.
_SMALL_JSON_BYTES: Final = 4096


class InferCall:
    """The facts of infer requests from their path and headers.

    Attributes:
        model: The name in the path, not yet checked.
        version: The version in the path; None: the default version.
        header_length: Inference-Header-Content-Length as sent; None: absent.
        header_bytes: The same as a number; None: absent; -1: it must be parsed and probably rejected.
        content_encoding: The request's Content-Encoding as sent; None: absent.
        response_encoding: The supported encoding that the client prefers; None: no compression.
        metadata: The request metadata of other headers; None: there is none.
    """

    __slots__ = ("content_encoding", "header_bytes", "header_length", "metadata", "model", "response_encoding", "version")

    def __init__(
        self,
        model: str,
        version: int | None,
        header_length: str | None,
        content_encoding: str | None,
        response_encoding: str | None,
        metadata: RequestMetadata | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.header_length = header_length
        self.header_bytes: int | None = None
        if header_length is not None:
            is_usual = header_length.isascii() and header_length.isdigit() and len(header_length) < 10
            self.header_bytes = int(header_length) if is_usual else -1
        self.content_encoding = content_encoding
        self.response_encoding = response_encoding
        self.metadata = metadata


def infer_call(model: str, version: int | None, headers: Mapping[bytes, bytes], reader: HeaderReader) -> InferCall:
    """Reads the path and the `headers` (names in lower case)."""
    length, encoding, accepted = headers.get(HEADER_LENGTH), headers.get(b"content-encoding"), headers.get(b"accept-encoding")
    return InferCall(
        model,
        version,
        None if length is None else length.decode("latin-1"),
        None if encoding is None else encoding.decode("latin-1"),
        None if accepted is None else choose_encoding(accepted.decode("latin-1")),
        reader.read_raw(headers.items()) if reader.is_on else None,
    )


class HttpInfer:
    """Decodes, runs and encodes infer requests. Confined to: the event loop.

    Attributes:
        engine: Runs the requests.
        limits: Bounds on what clients send.
        headers: Reads request metadata from headers.
        request_memo: The memo of request plans.
    """

    def __init__(self, engine: Engine, limits: Limits, extensions: Extensions | None = None) -> None:
        """`extensions` are those of the server; None: with their default settings."""
        self.engine = engine
        self.limits = limits
        extensions = extensions or Extensions(limits)
        self._memory = extensions.shared_memory
        self.headers = extensions.http_headers
        self._checks = SignatureChecks(engine, limits)
        self.request_memo = RequestMemo()

    async def respond(self, model: str, version: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request for (`model`, `version`) that FastAPI has routed.

        Raises:
            ServingError: nothing was sent yet. ClientGone: the client disconnected.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        received_ns = self.engine.now_ns()
        with reservation_of(self.engine.budget, scope) as reservation:
            # `read_body` decompresses it.
            body = await read_body(receive, headers, reservation, self.limits)
            call = infer_call(model, version, headers, self.headers)
            call.content_encoding = None
            pieces, response_headers = await self.reply(call, body, received_ns, reservation)
        reply = await joined(pieces, self.limits.decode_inline_bytes)
        await send_reserved(self.engine.budget, scope, send, reply, response_headers, self.limits)

    async def reply(self, call: InferCall, body: Body, received_ns: int, reservation: Reservation) -> tuple[Sequence[Piece], HeaderList]:
        """The response's body, in pieces, and its headers. Slow steps run in threads.

        Raises:
            ServingError: the response is an error.
        """
        if call.content_encoding is not None:
            limits = self.limits
            body = await decompress(body, call.content_encoding, reservation.take, limits, limits.http_body_bytes)
        decoded = self.decode_now(call, body, received_ns, reservation)
        if decoded is None:
            decoded = await self._decode(call, body, received_ns, reservation)
        if call.metadata is not None:
            call.metadata.apply_to(decoded.request)
        try:
            response = await self.engine.infer(decoded.request)
        except (Overloaded, QueueTimeout) as error:
            raise with_request_id_prefix(error, decoded.request.request_id) from None
        reply = await self.encode(call, decoded, response)
        if decoded.request.trace is not None:
            self.note_sent(decoded.request.trace, received_ns)
        return reply

    def note_sent(self, trace: RequestTrace, received_ns: int) -> None:
        """Records the times of a traced request. Decoding counts as receiving; sending ends when the transport takes the response."""
        now_ns = self.engine.now_ns()
        trace.mark("HTTP_RECV_START", received_ns)
        trace.mark("HTTP_RECV_END", trace.begun_ns)
        trace.mark("HTTP_SEND_START", now_ns)
        trace.mark("HTTP_SEND_END", now_ns)

    def decode_now(self, call: InferCall, body: Body, received_ns: int, reservation: Reservation) -> DecodedRequest | None:
        """Decodes `body`, which is not compressed; None: it is too large for the event loop.

        Raises:
            ServingError: the request is invalid.
        """
        limits = self.limits
        text_cost = 0
        try:
            try:
                servable, check = self._checks.find(call.model, call.version)
            except UnknownModel:
                # An invalid name is a different error.
                check_model_name(call.model)
                raise
            size = len(body)
            header_length = call.header_bytes
            if header_length is not None and not 0 <= header_length <= size:
                header_length = http_codec.parse_header_length(call.header_length, size)
            text_bytes = size if header_length is None else header_length
            if text_bytes > limits.decode_inline_bytes or size > INLINE_RAW_BYTES:
                return None
            if text_bytes > _SMALL_JSON_BYTES:
                text_cost = memory_cost(http_codec.json_text(body, header_length), limits)
                reservation.take(text_cost)
            text = http_codec.json_text(body, header_length)
            parsed = None if header_length == 0 else self.request_memo.parse(text, limits, is_binary=header_length is not None)
            if parsed is None:
                head = http_codec.parse_head(body, header_length, limits)
            else:
                plan = self.request_memo.find(call.model, call.version, parsed.key)
                if plan is not None and (known := plan.decode(check, parsed, body, received_ns)) is not None:
                    known.request.servable = servable
                    return known
                head = parsed.restored(limits)
            spans, strings = self._measured(head, body, header_length)
            if strings > INLINE_STRINGS or spans.input_bytes > limits.decode_inline_bytes:
                # The thread parses the text again and reserves its cost.
                reservation.give_back(text_cost)
                return None
            if spans.input_bytes:
                reservation.take(spans.input_bytes)
            target = http_codec.Target(call.model, call.version, received_ns)
            decoded = http_codec.decode(check, target, head, body, header_length, limits, spans)
            if parsed is not None and spans is NO_SPANS:
                decoded = self.request_memo.remember(parsed, check, decoded, limits)
            decoded.request.servable = servable
            return decoded
        except ServingError as error:
            self.engine.count_rejected(call.model, call.version, error, Via.KSERVE_HTTP)
            raise

    async def _decode(self, call: InferCall, body: Body, received_ns: int, reservation: Reservation) -> DecodedRequest:
        """As `decode_now`, in threads; the version stays loaded meanwhile."""
        servable, check = self._checks.find(call.model, call.version)
        with servable.borrowed():
            decoded = await self._decode_for(check, call, body, received_ns, reservation)
            decoded.request.servable = servable
            return decoded

    async def _decode_for(
        self, check: SignatureCheck, call: InferCall, body: Body, received_ns: int, reservation: Reservation
    ) -> DecodedRequest:
        limits = self.limits
        header_length = None if call.header_length is None else http_codec.parse_header_length(call.header_length, len(body))
        try:
            if not isinstance(body, bytes) and header_length is None:
                # The whole body is JSON text, which is searched and counted as bytes.
                reservation.take(len(body))
                body = await run_off_loop(bytes, body)
            text = http_codec.json_text(body, header_length)
            reservation.take(await run_off_loop(memory_cost, text, limits))
            head = await run_off_loop(http_codec.parse_head, body, header_length, limits)
            spans, strings = self._measured(head, body, header_length)
            reservation.take(spans.input_bytes + strings_cost(strings, limits))
            target = http_codec.Target(call.model, call.version, received_ns)
            return await run_off_loop(http_codec.decode, check, target, head, body, header_length, limits, spans)
        except ServingError as error:
            self.engine.count_rejected(call.model, call.version, error, Via.KSERVE_HTTP)
            raise

    def _measured(self, head: Mapping[str, Any], body: Body, header_length: int | None) -> tuple[Spans, int]:
        """The bytes of a request in shared memory, and the upper bound of its decoded strings."""
        limits = self.limits
        # Only requests whose text contains the parameter's name are searched.
        is_shared = self._memory.is_allowed and b"shared_memory_region" in http_codec.json_text(body, header_length)
        spans = spans_of_head(head, self._memory, limits) if is_shared else NO_SPANS
        return spans, http_codec.count_strings(head, len(body) + spans.input_bytes, limits)

    def encode_now(self, call: InferCall, decoded: DecodedRequest, response: InferResponse) -> Encoded | None:
        """Encodes `response`; None: it is too large for the event loop.

        Raises:
            ServingError: `response` cannot be encoded in the requested form.
        """
        if call.response_encoding is not None:
            return None
        plan = decoded.form.plan
        # A plan has the text around outputs of the same shapes, which were small.
        if plan is not None and (encoded := plan.encode(response)) is not None:
            return encoded
        most = self.limits.decode_inline_bytes
        # A loop, not `any`: no generator for each small response.
        for array in response.outputs.values():
            if array.nbytes > most:
                return None
        labels = http_codec.labels_for(self.engine, response, decoded, self.limits) if decoded.form.classifications else {}
        encoded = http_codec.encode(response, decoded, labels)
        if plan is not None:
            plan.learn(response)
        return encoded

    async def encode(self, call: InferCall, decoded: DecodedRequest, response: InferResponse) -> tuple[Sequence[Piece], HeaderList]:
        """As `encode_now`, in threads: the response's body, in pieces, and its headers.

        Raises:
            ServingError: `response` cannot be encoded in the requested form.
        """
        limits = self.limits
        labels = http_codec.labels_for(self.engine, response, decoded, limits)
        if sum(array.nbytes for array in response.outputs.values()) > limits.decode_inline_bytes:
            encoded = await run_off_loop(http_codec.encode, response, decoded, labels)
        else:
            encoded = http_codec.encode(response, decoded, labels)
        body, headers = encoded.pieces, _headers(encoded)
        if call.response_encoding is not None and sum(map(len, body)) >= limits.compress_min_bytes:
            body = [await compress(body, call.response_encoding, limits)]
            headers.append((b"content-encoding", call.response_encoding.encode()))
        return body, headers


def _headers(encoded: Encoded) -> HeaderList:
    if encoded.header_length is None:
        return [_JSON]
    return [_BINARY, (HEADER_LENGTH, b"%d" % encoded.header_length)]
