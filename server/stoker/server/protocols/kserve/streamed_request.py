"""A request of a stream that has a task: its model is decoupled, or decoding it needs a thread."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from stoker.backends.api.errors import Overloaded, QueueTimeout
from stoker.server.codecs.tensors import Raw, Serialised
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferResponse
from stoker.server.engine.interface import Engine
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.extensions import RequestMetadata
from stoker.server.protocols.kserve.inference import Inference, with_request_id_prefix


class Stream(Protocol):
    """The stream of the request, see `stream.Stream`; a slot is a position in its send order."""

    engine: Engine
    inference: Inference
    limits: Limits
    deadline_ns: int | None
    request_metadata: RequestMetadata | None

    def put(self, slot: Any, data: Serialised) -> None:
        """Adds a serialised response; raises Overloaded."""

    def put_error(self, slot: Any, error: Exception, request_id: str | None, data: Raw) -> None:
        """Adds an error."""

    def end(self, slot: Any) -> None:
        """Ends the request of `slot`."""

    def flush(self) -> None:
        """Sends what may be sent."""

    def release(self, slot: Any, permits: asyncio.Semaphore) -> None:
        """Takes the request of `slot` out of the order."""

    def slot_of(self, permits: asyncio.Semaphore) -> Any:
        """A new position at the end of the order."""

    def end_released(self) -> None:
        """Ends the request of a slot that was released."""


class _Sink(Protocol):
    """Takes the responses to one request."""

    async def put(self, data: Serialised) -> None:
        """Adds a response; waits while too many are unsent."""

    async def fail(self, error: Exception, request_id: str | None, data: Raw) -> None:
        """Adds the error of the request `data`."""

    def end(self) -> None:
        """Ends the responses."""


class _Ordered:
    """Sends the responses of one request together, when its turn has come. A model that is not decoupled has one."""

    def __init__(self, stream: Stream, slot: Any) -> None:
        self._stream = stream
        self._slot = slot

    async def put(self, data: Serialised) -> None:
        self._stream.put(self._slot, data)
        self._stream.flush()

    async def fail(self, error: Exception, request_id: str | None, data: Raw) -> None:
        self._stream.put_error(self._slot, error, request_id, data)

    def end(self) -> None:
        self._stream.end(self._slot)


class _Unordered:
    """Sends each response of one request at once. The request leaves the order of responses."""

    def __init__(self, stream: Stream, slot: Any) -> None:
        self._stream = stream
        # The released position counts as one response until the sender has reached it.
        self._permits = asyncio.Semaphore(stream.limits.stream_responses - 1)
        stream.release(slot, self._permits)

    async def put(self, data: Serialised) -> None:
        await self._permits.acquire()
        slot = self._stream.slot_of(self._permits)
        try:
            self._stream.put(slot, data)
        finally:
            slot.has_ended = True
            self._stream.flush()

    async def fail(self, error: Exception, request_id: str | None, data: Raw) -> None:
        await self._permits.acquire()
        slot = self._stream.slot_of(self._permits)
        self._stream.put_error(slot, error, request_id, data)
        slot.has_ended = True
        self._stream.flush()

    def end(self) -> None:
        self._stream.end_released()


async def respond(stream: Stream, data: Raw, slot: Any) -> None:
    """Handles the request `data` of `stream`, whose position in the order is `slot`."""
    sink: _Sink = _Ordered(stream, slot)
    reservation = Reservation(stream.engine.budget)
    request_id: str | None = None
    try:
        decoded = await stream.inference.decode(data, stream.deadline_ns, reservation)
        request_id = decoded.request.request_id
        if stream.request_metadata is not None:
            stream.request_metadata.apply_to(decoded.request)
        if decoded.request.signature.is_decoupled:
            sink = _Unordered(stream, slot)
        async with aclosing(stream.engine.stream(decoded.request)) as responses:
            await _send_each(stream, decoded, responses, sink)
    except (Overloaded, QueueTimeout) as error:
        await sink.fail(error if request_id is None else with_request_id_prefix(error, request_id), request_id, data)
    except Exception as error:  # noqa: BLE001 - whatever a defect raises, the stream and its other requests must go on
        await sink.fail(error, request_id, data)
    finally:
        reservation.release()
        sink.end()


async def _send_each(stream: Stream, decoded: DecodedRequest, responses: AsyncGenerator[InferResponse, None], sink: _Sink) -> None:
    """Sends each response at once; marks it final if it is already known to be the last."""
    inference, request = stream.inference, decoded.request
    held: InferResponse | None = await anext(responses, None)
    is_final_sent = False
    version = request.model_version
    while held is not None:
        version = held.model_version
        following = asyncio.ensure_future(anext(responses, None))
        try:
            # A model that is not decoupled ends the stream at once; a longer stream must not wait for its next response.
            await asyncio.wait({following}, timeout=0)
            is_final_sent = following.done() and following.exception() is None and following.result() is None
            await sink.put(await inference.encode_streamed(held, decoded, is_final=is_final_sent))
            held = await following
        finally:
            if not following.done():
                following.cancel()
                # A generator that runs cannot be closed.
                await asyncio.wait({following})
    if not is_final_sent and decoded.form.wants_empty_final:
        if version is None:
            version = stream.engine.describe(request.model_name, request.model_version).version
        await sink.put(inference.empty_final(request, version))
