"""ModelStreamInfer without a transport.

The requests of one stream run concurrently, and responses keep the order of their requests: each request has a short queue, which its task
fills and which the sender empties in order. The responses of decoupled models are sent as they arrive: such a request may never end, and no
other request waits for it. The requests in work and the unsent responses of each are bounded. Above the bounds the server stops reading the
stream and the model waits, so that flow control reaches the client.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from stoker.backends.api.errors import Internal, Overloaded, QueueTimeout, ServingError
from stoker.server.codecs.tensors import Raw
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.completion import TaskCompletion
from stoker.server.core.limits import Limits
from stoker.server.core.request import EngineResult, InferResponse, InFlight, Via
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.extensions import Call, HeaderReader
from stoker.server.protocols.kserve.inference import FINAL_RESPONSE, Inference, with_request_id_prefix
from stoker.server.rpc.message_cost import request_id_of

#: Metadata that requests a gRPC error status at the first failure instead of `error_message`.
GRPC_ERROR_METADATA = "triton_grpc_error"
_log = logging.getLogger(__name__)


class _Packed(NamedTuple):
    """One serialised ModelStreamInferResponse, and its reservation of the byte budget until it is sent."""

    data: bytes
    held_bytes: int


_StreamResponse = _Packed | ServingError
"""One response; an error ends the stream."""


class _ResponseSlot:
    """A position in the send order: some responses, ended by None, and the semaphore that bounds the positions of its kind."""

    def __init__(self, most: int, permits: asyncio.Semaphore) -> None:
        self.responses: asyncio.Queue[_StreamResponse | None] = asyncio.Queue(most)
        self.permits = permits


class _SingleSlot:
    """A position in the send order with exactly one response, and the semaphore that bounds the positions of its kind."""

    __slots__ = ("_response", "_waiter", "permits")

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self.permits = permits
        self._response: _StreamResponse | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, response: _StreamResponse) -> None:
        """Sets the response."""
        self._response = response
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def response(self) -> _StreamResponse:
        """Waits for the response."""
        if self._response is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        assert self._response is not None
        return self._response


class _SingleRequest:
    """A request with exactly one response, in work without a task. INVARIANT: its bytes are released once."""

    __slots__ = ("_decoded", "_flight", "_size_bytes", "_slot", "_stream")

    def __init__(self, stream: "_Stream", decoded: DecodedRequest, slot: _SingleSlot, size_bytes: int) -> None:
        self._stream = stream
        self._decoded = decoded
        self._slot = slot
        self._size_bytes = size_bytes
        self._flight: InFlight | None = None

    def submit(self, engine: Engine) -> None:
        """Submits the request."""
        try:
            self._flight = engine.submit(self._decoded.request, self._responded)
        except ServingError as error:
            self._responded(error)

    def cancel(self) -> None:
        """Cancels the request."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.cancel()
        if isinstance(flight, TaskCompletion):
            # A thread still reads the tensors.
            flight.when_ended(self._release)
        else:
            self._release()

    def _release(self) -> None:
        self._stream.engine.budget.release(self._size_bytes)

    def _responded(self, outcome: EngineResult) -> None:
        stream, decoded = self._stream, self._decoded
        self._flight = None
        if isinstance(outcome, Exception):
            self._end(outcome)
            return
        try:
            encoded = stream.inference.encode_final(outcome, decoded)
        except Exception as error:  # noqa: BLE001 - a defect, or values that have no such form
            self._end(error)
            return
        if encoded is None:
            encoding = TaskCompletion(lambda: stream.final_message(decoded, outcome))
            self._flight = encoding
            encoding.then(self._end)
        else:
            self._end(encoded)

    def _end(self, outcome: bytes | Exception) -> None:
        self._flight = None
        self._slot.put(self._stream.single_response(outcome, self._decoded.request.request_id))
        self._release()
        self._stream.single_ended(self)


class _ResponseSink(Protocol):
    """Takes the responses to one request."""

    async def put(self, reply: _StreamResponse) -> None:
        """Queues a response; waits while too many are unsent."""

    async def end(self) -> None:
        """Marks the end of the responses."""


class _Ordered:
    """Sends the responses of one request together, when its turn has come."""

    def __init__(self, slot: _ResponseSlot) -> None:
        self._slot = slot

    async def put(self, reply: _StreamResponse) -> None:
        await self._slot.responses.put(reply)

    async def end(self) -> None:
        await self._slot.responses.put(None)


class _Unordered:
    """Sends each response of one request at once. The request leaves the order of responses."""

    def __init__(self, stream: "_Stream", slot: _ResponseSlot, most: int) -> None:
        self._order = stream.order
        self._requests = slot.permits
        # The released position counts as one response until the sender has reached it.
        self._permits = slot.permits = asyncio.Semaphore(most - 1)
        slot.responses.put_nowait(None)

    async def put(self, reply: _StreamResponse) -> None:
        await self._permits.acquire()
        slot = _ResponseSlot(2, self._permits)
        slot.responses.put_nowait(reply)
        slot.responses.put_nowait(None)
        self._order.put_nowait(slot)

    async def end(self) -> None:
        self._requests.release()


class StreamCall(Call, Protocol):
    """A `Call` that receives requests and sends responses one by one."""

    async def receive(self) -> Raw | None:
        """The next serialised request, possibly a view of memory that the transport has filled; None once the client has sent its last."""

    async def send(self, message: bytes) -> None:
        """Sends one serialised response; returns when the transport accepts the next one."""


class StreamInference:
    """Handles streams. Confined to: the event loop."""

    def __init__(self, engine: Engine, inference: Inference, limits: Limits, reader: HeaderReader | None = None) -> None:
        """`reader` reads the parameters of requests from the metadata of the stream; None: none."""
        self._reader = reader or HeaderReader()
        self._engine = engine
        self._inference = inference
        self._limits = limits

    async def model_stream_infer(self, call: StreamCall) -> None:
        """Handles the requests of one stream until the client ends it.

        Raises:
            ServingError: a request failed, and the client has requested a gRPC error status.
        """
        stream = _Stream(self._engine, self._inference, self._limits, call, self._reader)
        try:
            await stream.run()
        finally:
            stream.close()


class _Stream:
    """One stream in progress.

    Attributes:
        engine: Runs the requests.
        inference: Decodes and encodes them.
        order: The queue of responses to send; None ends it.
    """

    def __init__(self, engine: Engine, inference: Inference, limits: Limits, call: StreamCall, reader: HeaderReader) -> None:
        self._request_metadata = reader.read(call.metadata)
        self.engine = engine
        self.inference = inference
        self._call = call
        self._raises = call.metadata.get(GRPC_ERROR_METADATA, "").lower() == "true"
        self._limits = limits
        self._queue_length = limits.stream_responses
        self._permits = asyncio.Semaphore(limits.stream_requests)
        self.order: asyncio.Queue[_ResponseSlot | _SingleSlot | None] = asyncio.Queue()
        self._in_work = 0
        self._is_read = False
        #: The number of unsent responses, and their reserved bytes.
        self._unsent = 0
        self._unsent_held = Reservation(engine.budget)
        self._tasks: set[asyncio.Task[None]] = set()
        self._singles: set[_SingleRequest] = set()
        self._reader: TaskCompletion[bool] | None = None

    async def run(self) -> None:
        # Inline up to its first wait: a stream whose requests have arrived already needs no second task.
        reader = self._reader = TaskCompletion(self._read, is_inline=True)
        while (slot := await self.order.get()) is not None:
            if isinstance(slot, _SingleSlot):
                await self._send(await slot.response())
            else:
                while (reply := await slot.responses.get()) is not None:
                    await self._send(reply)
            slot.permits.release()
        await reader.outcome()

    async def _send(self, reply: _StreamResponse) -> None:
        if isinstance(reply, ServingError):
            raise reply
        await self._call.send(reply.data)
        self._unsent -= 1
        self._unsent_held.give_back(reply.held_bytes)

    def _end_if_idle(self) -> None:
        """Ends the queue once no more responses can be added."""
        if self._is_read and not self._in_work:
            self.order.put_nowait(None)

    def close(self) -> None:
        """Cancels the requests in work and drops unsent responses."""
        if self._reader is not None:
            self._reader.cancel()
        for task in self._tasks:
            task.cancel()
        for request in self._singles:
            request.cancel()
        self._unsent_held.release()

    def _packed(self, data: bytes) -> _Packed:
        """The serialised response `data`. Reserves bytes for all but the first unsent response, which the transport may accept at once.

        Raises:
            Overloaded: the byte budget is exhausted: the client reads more slowly than it sends requests.
        """
        held_bytes = len(data) if self._unsent else 0
        try:
            self._unsent_held.take(held_bytes)
        except Overloaded:
            raise Overloaded(
                f"the server holds as many bytes as it may, no room for {held_bytes} more of unread responses: try again",
                retry_after_s=1.0,
            ) from None
        self._unsent += 1
        return _Packed(data, held_bytes)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self) -> bool:
        """Begins the requests of the stream; returns True after the last, because a completion needs a result."""
        try:
            while (data := await self._call.receive()) is not None:
                await self._permits.acquire()
                if self._began_single(data):
                    continue
                # One more than the responses, so that releasing the position never waits.
                slot = _ResponseSlot(self._queue_length + 1, self._permits)
                self.order.put_nowait(slot)
                self._in_work += 1
                self._start(self._respond(data, slot))
            return True
        finally:
            self._is_read = True
            self._end_if_idle()

    def _began_single(self, data: Raw) -> bool:
        """Begins a request of a known structure to a model that is not decoupled, without a task. False: it needs one."""
        decoded = self.inference.decode_known(data, self._call.deadline_ns)
        # Without room in the budget, the task reports the error.
        if decoded is None or decoded.request.signature.is_decoupled or not self.engine.budget.reserve(len(data)):
            return False
        if self._request_metadata is not None:
            self._request_metadata.apply_to(decoded.request)
        slot = _SingleSlot(self._permits)
        self.order.put_nowait(slot)
        self._in_work += 1
        request = _SingleRequest(self, decoded, slot, len(data))
        self._singles.add(request)
        request.submit(self.engine)
        return True

    def single_response(self, outcome: bytes | Exception, request_id: str) -> _StreamResponse:
        """The response to a request of `_began_single` with `request_id`."""
        if not isinstance(outcome, Exception):
            try:
                return self._packed(outcome)
            except ServingError as error:
                outcome = error
        if isinstance(outcome, (Overloaded, QueueTimeout)):
            outcome = with_request_id_prefix(outcome, request_id)
        elif not isinstance(outcome, ServingError):
            _log.error("a streamed request failed unexpectedly", exc_info=outcome)
            outcome = Internal("internal error: see the server's log")
        return self._failure(outcome, request_id)

    def single_ended(self, request: _SingleRequest) -> None:
        """Notes that a request of `_began_single` has its response."""
        self._singles.discard(request)
        self._in_work -= 1
        self._end_if_idle()

    async def final_message(self, decoded: DecodedRequest, response: InferResponse) -> bytes:
        """The serialised message with the only response to a request."""
        return (await self._message(decoded, response, is_final=True)).SerializeToString()

    async def _respond(self, data: Raw, slot: _ResponseSlot) -> None:
        sink: _ResponseSink = _Ordered(slot)
        reservation = Reservation(self.engine.budget)
        request_id: str | None = None
        try:
            decoded = await self.inference.decode(data, self._call.deadline_ns, reservation)
            request_id = decoded.request.request_id
            if self._request_metadata is not None:
                self._request_metadata.apply_to(decoded.request)
            if decoded.request.signature.is_decoupled:
                sink = _Unordered(self, slot, self._queue_length)
            await self._send_all(decoded, sink)
        except (Overloaded, QueueTimeout) as error:
            await self._fail(
                error if request_id is None else with_request_id_prefix(error, request_id), self._id_of(request_id, data), sink
            )
        except ServingError as error:
            await self._fail(error, self._id_of(request_id, data), sink)
        except Exception:  # noqa: BLE001 - whatever a defect raises, the stream and its other requests must go on
            _log.exception("a streamed request failed unexpectedly")
            await self._fail(Internal("internal error: see the server's log"), self._id_of(request_id, data), sink)
        else:
            await sink.end()
        finally:
            reservation.release()
            self._in_work -= 1
            self._end_if_idle()

    def _id_of(self, request_id: str | None, data: Raw) -> str:
        """The id of a failed request; if it was not decoded, it is read from the bytes."""
        return request_id_of(data, self._limits) if request_id is None else request_id

    async def _send_all(self, decoded: DecodedRequest, sink: _ResponseSink) -> None:
        """Queues each response at once; marks it final if it is already known to be the last."""
        async with aclosing(self.engine.stream(decoded.request)) as responses:
            await self._send_each(decoded, responses, sink)

    async def _send_each(self, decoded: DecodedRequest, responses: AsyncGenerator[InferResponse, None], sink: _ResponseSink) -> None:
        held: InferResponse | None = await anext(responses, None)
        is_final_sent = False
        version = decoded.request.model_version
        while held is not None:
            version = held.model_version
            following = asyncio.ensure_future(anext(responses, None))
            try:
                # A model that is not decoupled ends the stream at once; a longer stream must not wait for its next response.
                await asyncio.wait({following}, timeout=0)
                is_final_sent = following.done() and following.exception() is None and following.result() is None
                await sink.put(self._packed((await self._message(decoded, held, is_final=is_final_sent)).SerializeToString()))
                held = await following
            finally:
                if not following.done():
                    following.cancel()
                    # A generator that runs cannot be closed.
                    await asyncio.wait({following})
        if not is_final_sent and decoded.form.wants_empty_final:
            request = decoded.request
            if version is None:
                version = self.engine.describe(request.model_name, request.model_version).version
            empty = pb.ModelInferResponse(model_name=request.model_name, model_version=str(version), id=request.request_id)
            empty.parameters[FINAL_RESPONSE].bool_param = True
            await sink.put(self._packed(pb.ModelStreamInferResponse(infer_response=empty).SerializeToString()))

    async def _message(self, decoded: DecodedRequest, response: InferResponse, *, is_final: bool) -> pb.ModelStreamInferResponse:
        message = await self.inference.encode(response, decoded)
        message.parameters[FINAL_RESPONSE].bool_param = is_final
        return pb.ModelStreamInferResponse(infer_response=message)

    async def _fail(self, error: ServingError, request_id: str, sink: _ResponseSink) -> None:
        await sink.put(self._failure(error, request_id))
        await sink.end()

    def _failure(self, error: ServingError, request_id: str) -> _StreamResponse:
        """The response to a request that has failed by `error`."""
        self.engine.note_failed(Via.KSERVE_GRPC, error)
        if self._raises:
            return error
        message = pb.ModelStreamInferResponse(error_message=error.message)
        message.infer_response.id = request_id
        # Small, and always sent: nothing is reserved for it.
        self._unsent += 1
        return _Packed(message.SerializeToString(), 0)
