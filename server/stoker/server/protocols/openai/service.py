"""`OpenAiService`: /v1/embeddings, /v1/completions and /v1/chat/completions at ASGI level."""

import asyncio
import base64
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

import numpy as np
import orjson

from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import InvalidRequest, ServingError
from stoker.server.codecs.strict_json import memory_cost, parse_json
from stoker.server.codecs.validation import SignatureCheck, SignatureChecks, SignatureMismatch
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.openai_contract import CONTRACTS, PROMPT_TOKENS, Endpoint
from stoker.server.core.request import Array, InferRequest, InferResponse, Servable, Via
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.protocols.exchange import Receive, Scope, Send, read_body, reservation_of, send_reserved, send_response
from stoker.server.protocols.openai.bodies import EmbeddingsBody, TextBody, read_chat, read_completions, read_embeddings
from stoker.server.protocols.openai.errors import FieldError, error_object, error_response
from stoker.server.protocols.openai.generation import Job, Piece, pieces
from stoker.server.protocols.openai.models import OpenAiModels
from stoker.server.protocols.openai.printing import DONE, GatheredChoice, Printer, Usage
from stoker.server.protocols.openai.tensors import RequestMaker, check_takes, mismatch, row_element

_JSON: Final = (b"content-type", b"application/json")
# Events are to be shown as they come: a proxy or cache must not hold them back.
_EVENTS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_ID_HEADER: Final = b"x-request-id"


class RequestMetadata(Protocol):
    """Parameters and the trace context of a client's headers."""

    def apply_to(self, request: InferRequest) -> None:
        """Adds them to `request`."""


class HeaderReader(Protocol):
    """Reads the headers that the operator forwards to models."""

    def read_raw(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestMetadata | None:
        """The request metadata of raw headers; None: there is none."""


class _Call:
    """One HTTP request.

    Attributes:
        model: Its model, as far as is known, for the access log.
        is_started: Whether the head of the response is sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, prefix: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.model = ""
        self.is_started = False

    async def start_events(self) -> None:
        """Sends the head of a stream of events, once."""
        if not self.is_started:
            self.is_started = True
            headers = [*_EVENTS, (_ID_HEADER, self.id.encode())]
            await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, event: bytes) -> None:
        """Sends one event."""
        await self.start_events()
        await self.send({"type": "http.response.body", "body": event, "more_body": True})


class OpenAiService:
    """Handles the requests. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, reader: HeaderReader | None = None, clock: Clock | None = None) -> None:
        """`reader` reads parameters from headers; None: none."""
        self._engine = engine
        self._limits = limits
        self._reader = reader
        self._clock = clock or SystemClock()
        self._checks = SignatureChecks(engine, limits)
        self._models = OpenAiModels(engine, self._clock)

    async def embeddings(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles POST /v1/embeddings.

        Raises:
            ClientGone: the client disconnected.
        """
        await self._respond(_Call(scope, receive, send, "embd"), self._embed)

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles POST /v1/completions.

        Raises:
            ClientGone: the client disconnected.
        """
        await self._respond(_Call(scope, receive, send, "cmpl"), self._complete)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles POST /v1/chat/completions.

        Raises:
            ClientGone: the client disconnected.
        """
        await self._respond(_Call(scope, receive, send, "chatcmpl"), self._chat)

    async def list_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles GET /v1/models."""
        await send_response(send, 200, orjson.dumps(self._models.listed()), [_JSON])

    async def _respond(self, call: _Call, handle: Callable[[_Call, dict[str, Any], Reservation], Awaitable[bytes | None]]) -> None:
        engine, limits = self._engine, self._limits
        try:
            with reservation_of(engine.budget, call.scope) as reservation:
                body = await handle(call, await self._parsed(call, reservation), reservation)
            if body is not None:
                await send_reserved(engine.budget, call.scope, call.send, body, [_JSON, (_ID_HEADER, call.id.encode())], limits)
        except ServingError as error:
            engine.note_failed(Via.OPENAI, error, call.model)
            if call.is_started:
                await call.event(b"data: %b\n\n" % orjson.dumps(error_object(error)))
                await call.send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            status, text, fields = error_response(error)
            await send_response(call.send, status, text, [*fields, (_ID_HEADER, call.id.encode())])

    async def _parsed(self, call: _Call, reservation: Reservation) -> dict[str, Any]:
        limits = self._limits
        body = await read_body(call.receive, dict(call.scope["headers"]), reservation, limits, limits.generate_bytes)
        if not body:
            raise InvalidRequest("the request has no body: send a JSON object with a 'model'")
        if len(body) > limits.decode_inline_bytes:
            reservation.take(await run_off_loop(memory_cost, body, limits))
            given = await run_off_loop(parse_json, body, limits)
        else:
            reservation.take(memory_cost(body, limits))
            given = parse_json(body, limits)
        if not isinstance(given, dict):
            raise InvalidRequest("the body of the request must be a JSON object")
        name = given.get("model")
        call.model = name if isinstance(name, str) else ""
        return given

    def _find(self, model: str, endpoint: Endpoint) -> tuple[Servable, SignatureCheck]:
        self._models.check(model, endpoint)
        return self._checks.find(model, None)

    def _maker(self, call: _Call, servable: Servable, check: SignatureCheck, options: Mapping[str, Any]) -> RequestMaker:
        return RequestMaker(check, servable, call.model, call.id, self._engine.now_ns(), options)

    def _submitted(self, call: _Call, request: InferRequest) -> InferRequest:
        """`request` with what the client's headers add."""
        metadata = None if self._reader is None else self._reader.read_raw(dict(call.scope["headers"]).items())
        if metadata is not None:
            metadata.apply_to(request)
        return request

    # Embeddings

    async def _embed(self, call: _Call, given: dict[str, Any], reservation: Reservation) -> bytes:
        asked = read_embeddings(given)
        servable, check = self._find(asked.model, Endpoint.EMBEDDINGS)
        with servable.borrowed():
            requests = self._rejecting(call, "input", lambda: self._embedding_requests(call, asked, servable, check))
            responses = await _all(self._engine, requests)
        result = CONTRACTS[Endpoint.EMBEDDINGS].result
        arrays = [_rows(response.outputs[result]) for response in responses]
        tokens = sum(_tokens(response.outputs, len(rows)) for response, rows in zip(responses, arrays, strict=True))
        reservation.take(sum(array.nbytes for array in arrays))
        size_bytes = sum(array.nbytes for array in arrays)
        if size_bytes > self._limits.decode_inline_bytes:
            return await run_off_loop(_printed_embeddings, asked, arrays, tokens)
        return _printed_embeddings(asked, arrays, tokens)

    def _embedding_requests(self, call: _Call, asked: EmbeddingsBody, servable: Servable, check: SignatureCheck) -> list[InferRequest]:
        source = CONTRACTS[Endpoint.EMBEDDINGS].source
        check_takes(check, source, "input", has_texts=bool(asked.texts), has_tokens=bool(asked.tokens))
        if "dimensions" in asked.options and "dimensions" not in check.inputs:
            # As a parameter it could be overlooked, and vectors of another size would be stored.
            raise FieldError("dimensions", f"model '{asked.model}' takes no 'dimensions'", "unsupported_parameter")
        maker = self._maker(call, servable, check, asked.options)
        if asked.tokens:
            requests = [maker.of_tokens(tokens) for tokens in asked.tokens]
        else:
            most = _most_rows(check, source)
            requests = [maker.of_texts(source, asked.texts[at : at + most]) for at in range(0, len(asked.texts), most)]
        return [self._submitted(call, request) for request in requests]

    def _rejecting(self, call: _Call, field: str, make: Callable[[], list[Any]]) -> list[Any]:
        """The result of `make`, which rejects what violates the model's signature; a rejection is counted as one of the model."""
        try:
            try:
                return make()
            except SignatureMismatch as error:
                raise mismatch(error, field) from None
        except ServingError as error:
            self._engine.count_rejected(call.model, None, error, Via.OPENAI)
            raise

    # Texts

    async def _complete(self, call: _Call, given: dict[str, Any], reservation: Reservation) -> bytes | None:
        return await self._generate(call, read_completions(given), "prompt", reservation)

    async def _chat(self, call: _Call, given: dict[str, Any], reservation: Reservation) -> bytes | None:
        return await self._generate(call, read_chat(given), "messages", reservation)

    async def _generate(self, call: _Call, asked: TextBody, field: str, reservation: Reservation) -> bytes | None:
        servable, check = self._find(asked.model, asked.endpoint)
        with servable.borrowed():
            jobs = self._rejecting(call, field, lambda: self._jobs(call, asked, field, servable, check))
            created_s = self._clock.wall_ms() // 1000
            printer = Printer(asked.endpoint, call.id, created_s, asked.model, has_usage=asked.includes_usage)
            found = pieces(self._engine, jobs, asked.stops, asked.max_tokens)
            async with aclosing(found):
                if asked.is_stream:
                    await self._send_events(call, asked, printer, found)
                    return None
                return await self._gathered(asked, printer, found, reservation)

    def _jobs(self, call: _Call, asked: TextBody, field: str, servable: Servable, check: SignatureCheck) -> list[Job]:
        source = CONTRACTS[asked.endpoint].source
        check_takes(check, source, field, has_texts=bool(asked.sources), has_tokens=bool(asked.tokens))
        maker = self._maker(call, servable, check, asked.options)
        jobs: list[Job] = []
        if asked.tokens or check.signature.is_decoupled or not check.signature.is_batched or asked.seed is not None:
            for choice in range(asked.prompt_count * asked.n):
                place, number = divmod(choice, asked.n)
                more = {} if asked.seed is None or number == 0 else {"seed": asked.seed + number}
                made = maker.of_tokens(asked.tokens[place], more) if asked.tokens else maker.of_texts(source, (asked.sources[place],), more)
                jobs.append(Job(self._submitted(call, made), (choice,)))
            return jobs
        most = check.signature.max_batch_size
        choices = range(len(asked.sources) * asked.n)
        for at in range(0, len(choices), most):
            these = tuple(choices[at : at + most])
            made = maker.of_texts(source, [asked.sources[choice // asked.n] for choice in these])
            jobs.append(Job(self._submitted(call, made), these))
        return jobs

    async def _send_events(self, call: _Call, asked: TextBody, printer: Printer, found: AsyncGenerator[Piece, None]) -> None:
        """Sends the pieces as events. The first piece decides the status: a request that is rejected gets a status of its own."""
        usage = Usage(asked.n)
        async for piece in found:
            if not call.is_started:
                for event in printer.first(asked.prompt_count * asked.n, _echoes(asked)):
                    await call.event(event)
            for event in printer.event(piece):
                await call.event(event)
            if piece.finish_reason is not None:
                usage.add(piece)
        if asked.includes_usage:
            await call.event(printer.usage(usage))
        await call.event(DONE)
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _gathered(self, asked: TextBody, printer: Printer, found: AsyncGenerator[Piece, None], reservation: Reservation) -> bytes:
        usage = Usage(asked.n)
        count = asked.prompt_count * asked.n
        echoes = _echoes(asked) or [""] * count
        choices = [GatheredChoice(index, echoes[index]) for index in range(count)]
        async for piece in found:
            # A model may produce text without end.
            reservation.take(len(piece.text))
            choices[piece.choice].add(piece)
            if piece.finish_reason is not None:
                usage.add(piece)
        return printer.whole(choices, usage)


def _echoes(asked: TextBody) -> list[str]:
    return [source for source in asked.sources for _ in range(asked.n)] if asked.echo else []


async def _all(engine: Engine, requests: list[InferRequest]) -> list[InferResponse]:
    """The responses to `requests`, which run at once; the first failure cancels the others.

    Raises:
        ServingError: as `Engine.infer`.
    """
    if len(requests) == 1:
        return [await _only(engine, requests[0])]
    tasks = [asyncio.create_task(_only(engine, request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _only(engine: Engine, request: InferRequest) -> InferResponse:
    """The one response to `request`."""
    found: InferResponse | None = None
    async with aclosing(engine.stream(request)) as responses:
        async for response in responses:
            if found is not None:
                raise InvalidRequest(f"model '{request.model_name}' returned more than one response to a request for embeddings")
            found = response
    if found is None:
        raise InvalidRequest(f"model '{request.model_name}' returned no response to a request for embeddings")
    return found


def _most_rows(check: SignatureCheck, source: str) -> int:
    """Texts of one request."""
    signature = check.signature
    if signature.is_decoupled:
        return 1
    if signature.is_batched:
        return signature.max_batch_size
    spec = check.inputs[source]
    return 1 if spec.dims in ((), (1,)) else 1 << 20


def _rows(array: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Vectors of FP32, `[rows, n]`."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]), dtype="<f4")


def _tokens(outputs: Mapping[str, Array], rows: int) -> int:
    return sum(int(row_element(outputs, PROMPT_TOKENS, row) or 0) for row in range(rows))


def _printed_embeddings(asked: EmbeddingsBody, arrays: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]], tokens: int) -> bytes:
    vectors = [row for array in arrays for row in array]
    data = [
        {"object": "embedding", "index": index, "embedding": base64.b64encode(row.tobytes()).decode() if asked.is_base64 else row}
        for index, row in enumerate(vectors)
    ]
    printed = {"object": "list", "data": data, "model": asked.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return orjson.dumps(printed, option=orjson.OPT_SERIALIZE_NUMPY)
