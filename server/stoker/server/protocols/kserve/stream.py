"""ModelStreamInfer without a transport.

The requests of one stream run concurrently, and responses keep the order of their requests: each request has a slot in that order, which
its completion fills. The responses of decoupled models are sent as they arrive: such a request may never end, and no other request waits
for it. The requests in work and the unsent responses of each are bounded. Above the bounds the server stops reading the stream and the
model waits, so that flow control reaches the client.

Most requests are decoded, submitted and encoded by callbacks. The others have a task, see `streamed_request`.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from stoker.backends.api.errors import Internal, Overloaded, ServingError
from stoker.server.codecs.tensors import Raw, Serialised
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.extensions import HeaderReader
from stoker.server.protocols.kserve.inference import Inference, StreamedCompletion, with_request_id_prefix
from stoker.server.protocols.kserve.streamed_request import respond
from stoker.server.rpc.message_cost import request_id_of
from stoker.server.rpc.method import ReactorCall, StreamCall
from stoker.server.rpc.pump import pumped

#: Metadata that requests a gRPC error status at the first failure instead of `error_message`.
GRPC_ERROR_METADATA: Final = "triton_grpc_error"
_log = logging.getLogger(__name__)


class StreamInference:
    """Handles streams. Confined to: the event loop."""

    def __init__(self, engine: Engine, inference: Inference, limits: Limits, reader: HeaderReader | None = None) -> None:
        """`reader` reads the parameters of requests from the metadata of the stream; None: none."""
        self._reader = reader or HeaderReader()
        self._engine = engine
        self._inference = inference
        self._limits = limits

    def begin(self, call: ReactorCall) -> "Stream":
        """Begins to handle the requests of one stream; it ends with the client's last one.

        With the metadata `triton_grpc_error`, it ends with the status of the first error.
        """
        return Stream(self._engine, self._inference, self._limits, call, self._reader)

    async def model_stream_infer(self, call: StreamCall) -> None:
        """As `begin`, as a coroutine.

        Raises:
            ServingError: a request failed, and the client has requested a gRPC error status.
        """
        await pumped(self.begin, call)


class _Packed:
    """One serialised ModelStreamInferResponse, and its reservation of the byte budget until it is sent."""

    __slots__ = ("data", "held_bytes")

    def __init__(self, data: Serialised, held_bytes: int) -> None:
        self.data = data
        self.held_bytes = held_bytes


class Slot:
    """A position in the send order.

    Attributes:
        responses: Unsent responses; an error ends the stream.
        has_ended: Whether no more responses follow.
        permits: Bounds the positions of its kind; None: the requests of the stream do.
        completion: The completion of a request without a task; None: it has a task, or its response.
        data: The message of such a request.
    """

    __slots__ = ("completion", "data", "has_ended", "permits", "responses", "stream")

    def __init__(self, stream: "Stream", permits: asyncio.Semaphore | None = None, data: Raw = b"") -> None:
        self.stream = stream
        self.responses: list[_Packed | ServingError] = []
        self.has_ended = False
        self.permits = permits
        self.completion: StreamedCompletion | None = None
        self.data = data

    def responded(self, outcome: Serialised | Exception) -> None:
        """Takes the only response to a request without a task."""
        completion, self.completion = self.completion, None
        data, self.data = self.data, b""
        stream = self.stream
        assert completion is not None
        if not isinstance(outcome, Exception):
            try:
                stream.put(self, outcome)
            except ServingError as error:
                outcome = with_request_id_prefix(error, completion.request_id or "") if isinstance(error, Overloaded) else error
            else:
                stream.end(self)
                return
        stream.put_error(self, outcome, completion.request_id, data)
        stream.end(self)


class Stream:
    """A `StreamReactor`: one stream in progress.

    Attributes:
        engine: Runs the requests.
        inference: Decodes and encodes them.
        limits: Bounds on what clients send.
        deadline_ns: The client's deadline, see `Call`.
        request_metadata: What the metadata of the call adds to each request; None: nothing.
        is_reading: Whether another request may begin.
    """

    __slots__ = (
        "_call",
        "_can_write",
        "_free",
        "_in_work",
        "_invalid",
        "_is_closed",
        "_is_flushing",
        "_is_read",
        "_order",
        "_raises",
        "_sending_held",
        "_tasks",
        "_unsent",
        "_unsent_held",
        "deadline_ns",
        "engine",
        "inference",
        "is_reading",
        "limits",
        "request_metadata",
    )

    def __init__(self, engine: Engine, inference: Inference, limits: Limits, call: ReactorCall, reader: HeaderReader) -> None:
        metadata = call.metadata
        self.request_metadata = reader.read(metadata) if reader.is_on else None
        self.engine = engine
        self.inference = inference
        self.limits = limits
        self.deadline_ns = call.deadline_ns
        self.is_reading = True
        self._call = call
        self._raises = metadata.get(GRPC_ERROR_METADATA, "").lower() == "true"
        #: How many requests may begin, and how many are in work: a request is in work until its last response is in the order.
        self._free = limits.stream_requests
        self._in_work = 0
        self._order: deque[Slot] = deque()
        self._is_read = False
        #: The error of an invalid message, which ends the stream after the responses to the requests before it.
        self._invalid: Exception | None = None
        self._can_write = True
        self._is_flushing = False
        self._is_closed = False
        #: The number of unsent responses, and their reserved bytes; and those of the response that the transport is sending.
        self._unsent = 0
        self._unsent_held = Reservation(engine.budget)
        self._sending_held = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- called by the transport

    def received(self, data: Raw) -> None:
        """Begins the request `data`."""
        self._free -= 1
        self.is_reading = self._free > 0
        self._in_work += 1
        slot = Slot(self, None, data)
        self._order.append(slot)
        completion = self.inference.start_streamed(data, self.deadline_ns, self.request_metadata)
        if completion is not None:
            slot.completion = completion
            completion.then(slot.responded)
            return
        slot.data = b""
        task = asyncio.get_running_loop().create_task(respond(self, data, slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ended(self, error: Exception | None) -> None:
        """Notes that no request follows."""
        self._is_read = True
        self._invalid = error
        self._flush()

    def sent(self) -> None:
        """Notes that the transport has sent the response."""
        self._note_sent()
        self._can_write = True
        self._flush()

    def cancel(self) -> None:
        """Cancels the requests in work and drops unsent responses."""
        if self._is_closed:
            return
        self._is_closed = True
        self.is_reading = False
        for task in self._tasks:
            task.cancel()
        for slot in self._order:
            if slot.completion is not None:
                slot.completion.cancel()
                slot.completion = None
        self._order.clear()
        self._unsent_held.release()

    # ---- called for each request

    def put(self, slot: Slot, data: Serialised) -> None:
        """Adds the serialised response `data` to `slot`. Reserves bytes for all but the first unsent response, which the transport may
        accept at once.

        Raises:
            Overloaded: the byte budget is exhausted: the client reads more slowly than it sends requests. TooLarge: as `Reservation.take`.
        """
        if self._is_closed:
            return
        held_bytes = 0
        if self._unsent:
            held_bytes = len(data) if isinstance(data, bytes) else sum(map(len, data))
            try:
                self._unsent_held.take(held_bytes)
            except Overloaded:
                raise Overloaded(
                    f"the server holds as many bytes as it may, no room for {held_bytes} more of unread responses: try again",
                    retry_after_s=1.0,
                ) from None
        self._unsent += 1
        slot.responses.append(_Packed(data, held_bytes))

    def put_error(self, slot: Slot, error: Exception, request_id: str | None, data: Raw) -> None:
        """Adds `error` to `slot`; a `request_id` that is not decoded (None) is read from the request's `data`."""
        if self._is_closed:
            return
        if not isinstance(error, ServingError):
            _log.error("a streamed request failed unexpectedly", exc_info=error)
            error = Internal("internal error: see the server's log")
        self.engine.note_failed(Via.KSERVE_GRPC, error)
        if self._raises:
            slot.responses.append(error)
            return
        message = pb.ModelStreamInferResponse(error_message=error.message)
        message.infer_response.id = request_id_of(data, self.limits) if request_id is None else request_id
        # Small, and always sent: nothing is reserved for it.
        self._unsent += 1
        slot.responses.append(_Packed(message.SerializeToString(), 0))

    def end(self, slot: Slot) -> None:
        """Ends the responses of the request of `slot`."""
        slot.has_ended = True
        self._in_work -= 1
        self._flush()

    def flush(self) -> None:
        """Sends what may be sent."""
        self._flush()

    def release(self, slot: Slot, permits: asyncio.Semaphore) -> None:
        """Takes the request of `slot` out of the order; its position counts against `permits` until the sender has reached it."""
        slot.permits = permits
        slot.has_ended = True
        self._flush()

    def slot_of(self, permits: asyncio.Semaphore) -> Slot:
        """A new position at the end of the order, which counts against `permits`."""
        slot = Slot(self, permits)
        self._order.append(slot)
        return slot

    def end_released(self) -> None:
        """Ends the request of a slot that was released."""
        self._in_work -= 1
        self._permit_request()
        self._flush()

    # ---- sending

    def _flush(self) -> None:
        """Sends responses in their order while the transport takes them; ends the call behind the last."""
        if self._is_flushing:
            return
        self._is_flushing = True
        try:
            while self._can_write and not self._is_closed:
                if not self._order:
                    if self._is_read and not self._in_work:
                        self._finish()
                    return
                slot = self._order[0]
                if slot.responses:
                    self._send(slot.responses.pop(0))
                elif not slot.has_ended:
                    return
                else:
                    self._order.popleft()
                    if slot.permits is None:
                        self._permit_request()
                    else:
                        slot.permits.release()
        finally:
            self._is_flushing = False

    def _send(self, response: _Packed | ServingError) -> None:
        if isinstance(response, ServingError):
            self.cancel()
            self._call.fail(response)
            return
        self._sending_held = response.held_bytes
        if self._is_read and not self._in_work and self._invalid is None and self._is_last() and self._call.write_last(response.data):
            self._note_sent()
            self._is_closed = True
            # The slot refers to the stream: a cycle would leave the connection, too, to the garbage collector.
            self._order.clear()
            return
        self._can_write = False
        if self._call.write(response.data):
            self._note_sent()
            self._can_write = True

    def _is_last(self) -> bool:
        """Whether no response is left."""
        return len(self._order) == 1 and not self._order[0].responses

    def _note_sent(self) -> None:
        self._unsent -= 1
        if self._sending_held and not self._is_closed:
            self._unsent_held.give_back(self._sending_held)
        self._sending_held = 0

    def _permit_request(self) -> None:
        self._free += 1
        if not self.is_reading and not self._is_closed:
            self.is_reading = True
            self._call.read_on()

    def _finish(self) -> None:
        self._is_closed = True
        if self._invalid is None:
            self._call.finish()
        else:
            self._call.fail(self._invalid)
