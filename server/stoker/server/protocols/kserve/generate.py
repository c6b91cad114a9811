"""POST .../generate and .../generate_stream: one JSON object in; one out, or one server-sent event for each response."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from stoker.backends.api.errors import InvalidRequest, Overloaded, QueueTimeout, ServingError
from stoker.server.codecs.strict_json import memory_cost
from stoker.server.codecs.validation import SignatureChecks, check_model_name
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest, InferResponse, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.protocols.exchange import Receive, Scope, Send, error_body, read_body, reservation_of, send_reserved
from stoker.server.protocols.kserve import generate_codec
from stoker.server.protocols.kserve.extensions import HeaderReader
from stoker.server.protocols.kserve.inference import with_request_id_prefix
from stoker.server.rpc.status import kserve_status

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")


class HttpGenerate:
    """Handles generate requests. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, reader: HeaderReader | None = None) -> None:
        """`reader` reads parameters from headers; None: none."""
        self._reader = reader or HeaderReader()
        self._engine = engine
        self._limits = limits
        self._checks = SignatureChecks(engine, limits)

    async def respond(self, model: str, version: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the request for (`model`, `version`), which must have exactly one response, and sends it.

        Raises:
            ServingError: nothing was sent yet. ClientGone: the client disconnected.
        """
        with reservation_of(self._engine.budget, scope) as reservation:
            request = await self._decode(model, version, scope, receive, reservation)
            received: list[InferResponse] = []
            async with aclosing(self._responses(request)) as responses:
                async for response in responses:
                    received.append(response)
                    if len(received) > 1:
                        break
            if len(received) != 1:
                raise InvalidRequest(generate_codec.EXACTLY_ONE)
            body = await self._encode(received[0])
        await send_reserved(self._engine.budget, scope, send, body, [_JSON], self._limits)

    async def respond_streaming(self, model: str, version: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the request for (`model`, `version`) and sends each response as it arrives; the first one decides the status.

        Raises:
            ServingError: the request was rejected before it ran. ClientGone: the client disconnected.
        """
        with reservation_of(self._engine.budget, scope) as reservation:
            request = await self._decode(model, version, scope, receive, reservation)
            is_started = False
            status = 200
            async with aclosing(self._responses(request)) as responses:
                try:
                    async for response in responses:
                        event = b"data: %b\n\n" % await self._encode(response)
                        if not is_started:
                            await _start(send, status)
                            is_started = True
                        await send({"type": "http.response.body", "body": event, "more_body": True})
                except ServingError as error:
                    if not is_started:
                        await _start(send, kserve_status(error).http)
                        is_started = True
                    event = b"data: %b\n\n" % error_body(error.message)
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            if not is_started:
                await _start(send, status)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _decode(self, model: str, version: int | None, scope: Scope, receive: Receive, reservation: Reservation) -> InferRequest:
        try:
            return await self._decoded(model, version, scope, receive, reservation)
        except ServingError as error:
            self._engine.note_failed(Via.GENERATE, error, model, version)
            raise

    async def _decoded(self, model: str, version: int | None, scope: Scope, receive: Receive, reservation: Reservation) -> InferRequest:
        engine, limits = self._engine, self._limits
        received_ns = engine.now_ns()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity"):
            raise InvalidRequest(f"Unsupported Content-Encoding '{encoding.decode('latin-1')[:40]}', only 'identity' is supported")
        check_model_name(model)
        # Before the body is read: a model that does not serve is rejected at once.
        engine.resolve(model, version)
        body = await read_body(receive, headers, reservation, limits, limits.generate_bytes)
        target = generate_codec.Target(model, version, received_ns)
        is_long = len(body) > limits.decode_inline_bytes
        try:
            reservation.take(await run_off_loop(memory_cost, body, limits) if is_long else memory_cost(body, limits))
            servable, check = self._checks.find(model, version)
            if is_long:
                request = await run_while_borrowed(servable, generate_codec.decode, check, target, body, limits)
            else:
                request = generate_codec.decode(check, target, body, limits)
            request.servable = servable
        except ServingError as error:
            engine.count_rejected(model, version, error, Via.GENERATE)
            raise
        if (request_metadata := self._reader.read_raw(headers.items())) is not None:
            request_metadata.apply_to(request)
        return request

    async def _responses(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        try:
            async with aclosing(self._engine.stream(request)) as responses:
                async for response in responses:
                    yield response
        except (Overloaded, QueueTimeout) as error:
            raise with_request_id_prefix(error, request.request_id) from None

    async def _encode(self, response: InferResponse) -> bytes:
        if sum(array.nbytes for array in response.outputs.values()) > self._limits.decode_inline_bytes:
            return await run_off_loop(generate_codec.encode, response)
        return generate_codec.encode(response)


async def _start(send: Send, status: int) -> None:
    # Events are to be shown as they come: a proxy or cache must not hold them back.
    headers = [_EVENTS, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
