"""Calls on an HTTP/2 connection: the base class of unary and streamed calls, and unary calls.

Nearly all calls are unary, so that the code is optimised for them. Most requests arrive in one piece, and their method starts within the
same read. The method's `Completion` passes the response to the call; the transport creates no task.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from stoker.backends.api.errors import Cancelled, Overloaded, ServingError, TooLarge
from stoker.server.core.admission import Outcome, Ticket
from stoker.server.core.byte_budget import Reservation, evicted, response_exceeds, too_much
from stoker.server.core.completion import Completion
from stoker.server.core.tasks import run_off_loop
from stoker.server.net.progress import Progress
from stoker.server.rpc.framing import PREFIX, PREFIX_BYTES, MessageReader, WireMessage, decompressed
from stoker.server.rpc.http2.connection_context import Connection
from stoker.server.rpc.http2.responses import HEADERS, TRAILERS_OK, ok_trailers, rejection_block
from stoker.server.rpc.method import Result
from stoker.server.rpc.rejection import CallFault, Rejection, rejection_of
from stoker.server.rpc.request_head import RequestHead
from stoker.server.rpc.status import DEADLINE_EXCEEDED, INTERNAL, UNIMPLEMENTED

_NS_PER_S: Final = 1_000_000_000
_TOO_LATE: Final = Rejection(DEADLINE_EXCEEDED, "Deadline Exceeded")
CARDINALITY: Final = Rejection(UNIMPLEMENTED, "the method takes exactly one message")
CUT_SHORT: Final = Rejection(INTERNAL, "the request ends inside a message")


class H2Call:
    """One RPC. Confined to: the event loop.

    Attributes:
        stream_id: Id of the HTTP/2 stream.
        head: The parsed header fields.
        deadline_ns: See `Call`.
        is_over: Whether the response was sent, or the client no longer waits for it.
        has_ended: Whether the client has ended its side of the stream.
        progress: The transfer rate of the incomplete message; None: there is none. While it is set, the call is an `Upload`.
    """

    __slots__ = (
        "_completion",
        "_connection",
        "_has_responded",
        "_is_admitted",
        "_message",
        "_reader",
        "_reservation",
        "_share_bytes",
        "_task",
        "_ticket",
        "_timer",
        "_trailers",
        "deadline_ns",
        "has_ended",
        "head",
        "is_over",
        "progress",
        "stream_id",
    )

    def __init__(self, connection: Connection, stream_id: int, head: RequestHead, deadline_ns: int | None) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.head = head
        self.deadline_ns = deadline_ns
        self.is_over = False
        self.has_ended = False
        self._has_responded = False
        self.progress: Progress | None = None
        self._reservation: Reservation | None = None
        self._reader: MessageReader | None = None
        #: The message of a unary call, until its method begins; and the bytes of the connection's share that the call holds from then on.
        self._message: WireMessage | None = None
        self._share_bytes = 0
        #: Whether all bytes of that message are reserved; and its place in the queue while it waits for that.
        self._is_admitted = False
        self._ticket: Ticket | None = None
        #: The completion of a unary call's method, once it has begun.
        self._completion: Completion[Result] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._trailers: list[tuple[str, str | bytes]] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.head.metadata

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        return self.head.binary_metadata

    def cancelled(self) -> bool:
        return self.is_over

    def add_trailer(self, name: str, value: str | bytes) -> None:
        if self._trailers is None:
            self._trailers = []
        self._trailers.append((name, value))

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        """Takes the next bytes of the request."""
        raise NotImplementedError

    def note_written(self, count: int, has_ended: bool) -> None:
        """Notes that more bytes of the request were written into `receive_buffer`."""
        raise NotImplementedError

    @property
    def receive_buffer(self) -> memoryview | None:
        """The unfilled remainder of the message's buffer, see `MessageReader.receive_buffer`; None: there is none."""
        return None if self._reader is None else self._reader.receive_buffer

    @property
    def missing_bytes(self) -> int:
        """How many bytes are missing of the incomplete message."""
        return 0 if self._reader is None else self._reader.missing_bytes

    def settle(self) -> None:
        """Starts the deadline timer; most calls complete before it is needed."""
        context = self._connection.context
        if self.deadline_ns is not None:
            self._timer = context.loop.call_later(max(0, self.deadline_ns - context.engine.now_ns()) / _NS_PER_S, self._expire)

    def fail(self, error: Exception) -> None:
        """Ends the call with the status of `error` and cancels its work."""
        self.reject(rejection_of(error, self.head.method))

    def reject(self, rejection: Rejection) -> None:
        """Ends the call with `rejection` and cancels its work."""
        if self.is_over:
            return
        self._connection.send_end(self.stream_id, rejection_block(rejection, self._trailers or (), is_first=not self._has_responded))
        self._finish()
        self._cancel_work()

    def abandon(self) -> None:
        """Cancels the work without a response: the client has disconnected or cancelled the call."""
        if not self.is_over:
            self.is_over = True
            self._release_message()
            self._cancel_work()

    def _finish(self) -> None:
        """Notes that the end of the response was sent."""
        self.is_over = True
        if self._timer is not None or self._reservation is not None or self._reader is not None:
            self._release_message()
        self._connection.responded(self)

    def _release_message(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_arrival()
        if self._reservation is not None:
            self._reservation.release()
            # It refers to the call: this ends the cycle.
            self._reservation = None
        if self._reader is not None:
            self._connection.calls.receiving.pop(self.stream_id, None)
            self._reader = None

    def _cancel_work(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task(self._connection.context.loop):
            self._task.cancel()

    def _expire(self) -> None:
        self._timer = None
        self.reject(_TOO_LATE)

    def _own_reservation(self) -> Reservation:
        """The reservation for incomplete messages."""
        if self._reservation is None:
            self._reservation = Reservation(self._connection.context.engine.budget, self._connection.share, self)
        return self._reservation

    def _hold(self, size_bytes: int) -> None:
        """Reserves bytes of an incomplete message.

        Raises:
            Overloaded: there is none.
        """
        self._own_reservation().take(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        if self._reservation is not None:
            self._reservation.give_back(min(size_bytes, self._reservation.held_bytes))

    def _begin_arrival(self) -> None:
        """Begins to measure the transfer rate of an incomplete message."""
        context = self._connection.context
        self.progress = Progress(context.limits, context.loop.time())
        context.engine.budget.watch(self)

    def _end_arrival(self) -> None:
        if self.progress is not None:
            self.progress = None
            self._connection.context.engine.budget.unwatch(self)

    def held_bytes(self) -> int:
        return 0 if self._reservation is None else self._reservation.held_bytes

    def rate(self) -> float | None:
        return None if self.progress is None else self.progress.rate(self._connection.context.loop.time())

    def evict(self) -> None:
        self.fail(evicted())

    async def _decompressed(self, data: bytes) -> bytes:
        """Decompresses the message `data`. Its bytes are reserved step by step, and a large message is decompressed in a thread.

        The caller holds the reservation for `data`. The reservation for the result is released at the end, because the method makes its
        own.

        Raises:
            CallFault: see `decompressed`; or the call's headers name no compression. Overloaded: the budget is exhausted.
        """
        encoding = self.head.encoding
        if encoding is None:
            raise CallFault(Rejection(INTERNAL, "a message is flagged as compressed, but the call has no grpc-encoding"))
        limits = self._connection.context.limits
        most_bytes = min(self.head.method.most_bytes, limits.grpc_inflated_bytes)
        taken_bytes = 0

        def take(size_bytes: int) -> None:
            nonlocal taken_bytes
            self._hold(size_bytes)
            taken_bytes += size_bytes

        try:
            return await decompressed(encoding, data, most_bytes, take, limits.decode_inline_bytes)
        finally:
            self._give_back(taken_bytes)


_read_prefix: Final = PREFIX.unpack_from
_prefix: Final = PREFIX.pack
_PLAIN_HEADERS: Final = HEADERS[None]
#: A larger response is not copied behind its prefix, but sent in a separate DATA frame.
_JOINED_BYTES: Final = 16 * 1024
_MOST_MESSAGE_BYTES: Final = (1 << 32) - 1
#: A larger message does not start its method in the read that it arrives in: it may have to wait for space.
_DIRECT_BYTES: Final = 64 * 1024
#: A message up to this size reserves all its bytes when its prefix has arrived, a larger one when this share of it has, or as much: a
#: client must send something before others wait for it.
_ADMITTED_AT_ONCE_BYTES: Final = 1 << 20
_ADMITTED_SHARE: Final = 16


class UnaryCall(H2Call):
    """A large message waits in the queue of the byte budget until all of it fits. Confined to: the event loop."""

    __slots__ = ()

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        if self._reader is None and has_ended and PREFIX_BYTES <= len(data) <= _DIRECT_BYTES:
            # Declared, as `struct` declares Any.
            prefix: tuple[int, int] = _read_prefix(data)
            flag, size = prefix
            method = self.head.method
            if size + PREFIX_BYTES == len(data) and not flag and size <= method.most_bytes:
                self.has_ended = True
                self._start(bytes(data[PREFIX_BYTES:]))
                return
        try:
            self._feed_piece(data, has_ended)
        except (CallFault, ServingError) as error:
            self.fail(error)

    def _feed_piece(self, data: bytes | memoryview, has_ended: bool) -> None:
        """Handles a request that arrives in several pieces, is compressed, or is invalid."""
        reader = self._reader or self._await_message()
        had_buffer = reader.has_buffer
        self._note(len(data), has_ended)
        for message in reader.feed(data):
            if self._message is not None:
                raise CallFault(CARDINALITY)
            self._message = message
        self._reserve(reader, len(data))
        if self._message is not None and reader.expected_bytes is not None:
            # A second message is rejected by its prefix: its bytes are neither stored nor counted.
            raise CallFault(CARDINALITY)
        if reader.has_buffer and not had_buffer:
            self._connection.calls.expect_zero_copy(self)
        self._connection.core.consumed(self.stream_id, len(data))
        if has_ended and (self._ticket is None or not reader.is_between_messages):
            self._begin_whole(reader)

    def note_written(self, count: int, has_ended: bool) -> None:
        reader = self._reader
        assert reader is not None
        try:
            self._note(count, has_ended)
            for message in reader.buffer_written(count):
                self._message = message
            self._reserve(reader, count)
            self._connection.core.consumed(self.stream_id, count)
            if has_ended and (self._ticket is None or not reader.is_between_messages):
                self._begin_whole(reader)
        except (CallFault, ServingError) as error:
            self.fail(error)

    def _note(self, size_bytes: int, has_ended: bool) -> None:
        """Notes that bytes have arrived."""
        self.has_ended = has_ended
        if self.progress is not None:
            self.progress.note(size_bytes, self._connection.context.loop.time())

    # ---- admission

    @property
    def is_waiting(self) -> bool:
        """Whether the message waits for space in the byte budget."""
        return self._ticket is not None

    def _reserve(self, reader: MessageReader, size_bytes: int) -> None:
        """Reserves `size_bytes` that have arrived, or all bytes of a large message as soon as enough of it has.

        Raises:
            TooLarge: the message is larger than any request may be. Overloaded: there is no space, and no place in the queue.
        """
        if self._is_admitted or self._ticket is not None:
            return
        declared_bytes = reader.expected_bytes
        if declared_bytes is None:
            declared_bytes = 0 if self._message is None else len(self._message.data)
        if declared_bytes <= _DIRECT_BYTES:
            self._hold(size_bytes)
            return
        most_bytes = self._connection.context.engine.budget.most_request_bytes
        if declared_bytes + PREFIX_BYTES > most_bytes:
            raise too_much(declared_bytes + PREFIX_BYTES, most_bytes)
        is_early = self.held_bytes() + size_bytes < min(declared_bytes // _ADMITTED_SHARE, _ADMITTED_AT_ONCE_BYTES)
        if is_early and declared_bytes > _ADMITTED_AT_ONCE_BYTES:
            try:
                self._hold(size_bytes)
                return
            except Overloaded:
                # It waits for space now.
                pass
        self._apply(declared_bytes + PREFIX_BYTES)

    def _apply(self, size_bytes: int) -> None:
        """Reserves all bytes of the message, or waits for them in the queue.

        Raises:
            Overloaded: there is no space, and no place in the queue.
        """
        connection = self._connection
        context = connection.context
        # While it waits it holds nothing: two requests that are half received would wait for each other.
        self._own_reservation().release()
        ticket = Ticket(self, size_bytes, context.loop.time(), context.limits.admission_wait_s)
        if context.engine.budget.queue.enter(ticket, context.loop.call_soon):
            self._is_admitted = True
        else:
            self._ticket = ticket
            connection.core.hold_back(self.stream_id, is_held_back=True)

    def try_admit(self, size_bytes: int, slower_than: float) -> Outcome:
        """See `Applicant`."""
        return self._own_reservation().admit(size_bytes, slower_than)

    def admitted(self) -> None:
        """See `Applicant`."""
        reader = self._reader
        if self._ticket is None or reader is None:
            return
        self._ticket = None
        self._is_admitted = True
        connection = self._connection
        if self.progress is not None:
            self.progress.pause(connection.context.loop.time())
        connection.core.hold_back(self.stream_id, is_held_back=False)
        connection.notice_output()
        if self.has_ended:
            try:
                self._begin_whole(reader)
            except (CallFault, ServingError) as error:
                self.fail(error)

    def not_admitted(self, error: Overloaded) -> None:
        """See `Applicant`."""
        self._ticket = None
        self.fail(error)

    # ---- the method

    def _begin_whole(self, reader: MessageReader) -> None:
        """Begins the method: the request is complete."""
        self._connection.calls.receiving.pop(self.stream_id, None)
        if not reader.is_between_messages:
            raise CallFault(CUT_SHORT)
        if self._message is None:
            raise CallFault(CARDINALITY)
        message, self._message, self._reader = self._message, None, None
        data = message.data
        self._end_arrival()
        if message.is_compressed:
            assert isinstance(data, bytes)
            self._task = self._connection.context.loop.create_task(self._start_compressed(data))
            return
        self._start_message(data, self.held_bytes())

    def _start_message(self, data: bytes | memoryview, share_bytes: int) -> None:
        """Starts the method.

        The handler reserves the message's `share_bytes` itself; they also still count against the connection's share.
        """

        def start() -> None:
            share = self._connection.share
            self._share_bytes = share.counted(share_bytes)
            share.held_bytes += self._share_bytes
            self._start(data)

        self._connection.context.engine.budget.hand_over(self._own_reservation(), start)

    def settle(self) -> None:
        super().settle()
        if self._reader is None and not self.has_ended:
            self._await_message()

    def _await_message(self) -> MessageReader:
        method = self.head.method
        self._reader = MessageReader(method.path, method.most_bytes, method.lead_bytes)
        self._begin_arrival()
        self._connection.calls.receiving[self.stream_id] = self
        return self._reader

    def _start(self, data: bytes | memoryview) -> None:
        start = self.head.method.start
        assert start is not None
        try:
            completion = start(data, self)
        except Exception as error:  # noqa: BLE001 - any defect: logged, the status is INTERNAL
            self.fail(error)
            return
        self._completion = completion
        completion.then(self._on_result)

    def _on_result(self, result: Result | Exception) -> None:
        # The completion refers to the call: without this, the reference cycle would keep both in memory.
        self._completion = None
        if type(result) is bytes and self.head.response_encoding is None and not self.is_over:
            self._send(result, 0, _PLAIN_HEADERS)
        elif isinstance(result, Exception):
            self.fail(result)
        else:
            self._respond(result)

    async def _start_compressed(self, data: bytes) -> None:
        try:
            data = await self._decompressed(data)
        except asyncio.CancelledError:
            self._cancelled_elsewhere()
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)
        else:
            self._task = None
            self._start_message(data, len(data))

    def _release_message(self) -> None:
        if self._ticket is not None:
            self._connection.context.engine.budget.queue.leave(self._ticket)
            self._ticket = None
        super()._release_message()
        if self._share_bytes:
            self._connection.share.held_bytes -= self._share_bytes
            self._share_bytes = 0
            # Another message of the connection may wait for its share.
            self._connection.context.engine.budget.queue.released()

    def _cancel_work(self) -> None:
        if self._completion is not None:
            completion, self._completion = self._completion, None
            completion.cancel()
        super()._cancel_work()

    def _cancelled_elsewhere(self) -> None:
        """Sends an error response if something other than the client has cancelled the handler."""
        if not self.is_over:
            self.fail(Cancelled("the call was cancelled by the server"))

    def _respond(self, response: Result) -> None:
        if self.is_over:
            return
        data = response if isinstance(response, (bytes, list)) else response.SerializeToString()
        size = len(data) if isinstance(data, bytes) else sum(map(len, data))
        encoding = self.head.response_encoding
        if encoding is None or size < self._connection.context.limits.compress_min_bytes:
            self._send(data, 0, _PLAIN_HEADERS)
        elif size <= self._connection.context.limits.decode_inline_bytes:
            self._send(encoding.compress(data), 1, HEADERS[encoding])
        else:
            self._task = self._connection.context.loop.create_task(self._respond_compressed(data))

    async def _respond_compressed(self, data: bytes | list[bytes | memoryview]) -> None:
        encoding = self.head.response_encoding
        assert encoding is not None
        try:
            data = await run_off_loop(encoding.compress, data)
        except asyncio.CancelledError:
            self._cancelled_elsewhere()
        else:
            if not self.is_over:
                self._send(data, 1, HEADERS[encoding])

    def _send(self, data: bytes | list[bytes | memoryview], flag: int, headers: bytes) -> None:
        """REQUIRES: the call is not over."""
        size = len(data) if isinstance(data, bytes) else sum(map(len, data))
        if size > _MOST_MESSAGE_BYTES:
            self.fail(TooLarge(f"the response of {size} bytes is more than a gRPC message can hold"))
            return
        connection, stream_id = self._connection, self.stream_id
        core = connection.core
        trailers = TRAILERS_OK if self._trailers is None else ok_trailers(self._trailers)
        if isinstance(data, bytes) and size <= _JOINED_BYTES:
            waiting = core.send_response(stream_id, headers, _prefix(flag, size) + data, trailers)
            if waiting:
                connection.hold_unflushed(stream_id, waiting, is_unary=True)
        else:
            # Before anything is sent: the client then gets a status if there is no space.
            if not connection.has_response_space(size):
                self.fail(response_exceeds(size))
                return
            core.send_headers(stream_id, headers)
            waiting = core.send_pieces(stream_id, (_prefix(flag, size), *((data,) if isinstance(data, bytes) else data)))
            core.send_headers(stream_id, trailers, end_stream=True)
            if waiting:
                connection.hold_unflushed(stream_id, waiting, is_unary=True)
        self._finish()
