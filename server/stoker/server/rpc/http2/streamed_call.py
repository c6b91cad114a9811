"""Streaming calls, with backpressure in both directions.

The client's flow-control windows are refilled as the method receives messages. Responses wait for the windows, one message at a time. A
method with a reactor needs no task: its messages are passed on within the read that completes them.
"""

import asyncio
from collections import deque
from typing import Final, cast

from google.protobuf.message import Message

from stoker.backends.api.errors import Cancelled, Overloaded, ServingError, TooLarge
from stoker.server.core.byte_budget import response_exceeds
from stoker.server.core.completion import TaskCompletion
from stoker.server.core.tasks import run_off_loop
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.rpc.framing import PREFIX, PREFIX_BYTES, MessageReader, WireMessage
from stoker.server.rpc.http2.call import CARDINALITY, CUT_SHORT, H2Call
from stoker.server.rpc.http2.connection_context import Connection
from stoker.server.rpc.http2.responses import HEADERS, TRAILERS_OK, ok_trailers, ok_without_message
from stoker.server.rpc.method import StreamHandler, StreamReactor
from stoker.server.rpc.rejection import CallFault
from stoker.server.rpc.request_head import RequestHead

_PLAIN_HEADERS: Final = HEADERS[None]
_JOINED_BYTES: Final = 16 * 1024
_MOST_MESSAGE_BYTES: Final = (1 << 32) - 1
#: Memory overhead of a waiting message, in bytes: a window full of empty messages would otherwise take fourteen times the counted memory.
_WAITING_MESSAGE_BYTES: Final = 128


class StreamedCall(H2Call):
    """A `StreamCall` and a `ReactorCall`. Confined to: the event loop."""

    __slots__ = (
        "_count",
        "_inflating",
        "_is_end_passed",
        "_is_in_write",
        "_is_passing",
        "_messages",
        "_pending_update_bytes",
        "_reactor",
        "_receiver",
        "_sending",
        "_unsent_bytes",
    )

    def __init__(self, connection: Connection, stream_id: int, head: RequestHead, deadline_ns: int | None) -> None:
        super().__init__(connection, stream_id, head, deadline_ns)
        self._messages: deque[WireMessage] = deque()
        self._count = 0
        self._pending_update_bytes = 0
        self._unsent_bytes = 0
        self._receiver: asyncio.Future[None] | None = None
        #: The reactor of a method that has one, from the first message on; what is passed to it; and what it waits for.
        self._reactor: StreamReactor | None = None
        self._is_passing = False
        self._is_end_passed = False
        self._is_in_write = False
        self._inflating: TaskCompletion[bytes] | None = None
        self._sending: TaskCompletion[bool] | None = None
        if head.method.begin is None:
            self._task = connection.context.loop.create_task(self._run())

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        try:
            if not self._passed_whole(data, has_ended):
                self._feed(data, has_ended)
        except (CallFault, ServingError) as error:
            self.fail(error)

    def note_written(self, count: int, has_ended: bool) -> None:
        reader = self._reader
        assert reader is not None
        try:
            self._hold(count)
            self._take(count, reader.buffer_written(count), has_ended)
        except (CallFault, ServingError) as error:
            self.fail(error)

    async def receive(self) -> bytes | memoryview | None:
        while not self._messages:
            if self.has_ended or self.is_over:
                return None
            self._receiver = self._connection.context.loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message = self._next_message()
        return await self._inflated(message) if message.is_compressed else message.data

    def _next_message(self) -> WireMessage:
        """Takes the first message. Its bytes are no longer reserved, unless it is compressed."""
        message = self._messages.popleft()
        size_bytes = len(message.data) + PREFIX_BYTES
        if not message.is_compressed:
            self._give_back(size_bytes + _WAITING_MESSAGE_BYTES)
        self._refund(min(size_bytes, self._pending_update_bytes) if self._messages else self._pending_update_bytes)
        return message

    async def _inflated(self, message: WireMessage) -> bytes:
        try:
            # A compressed message is never a view.
            return await self._decompressed(cast("bytes", message.data))
        finally:
            self._give_back(len(message.data) + PREFIX_BYTES + _WAITING_MESSAGE_BYTES)

    async def send(self, message: bytes | Message | list[bytes | memoryview]) -> None:
        data = message if isinstance(message, (bytes, list)) else message.SerializeToString()
        size = len(data) if isinstance(data, bytes) else sum(map(len, data))
        if size > _MOST_MESSAGE_BYTES:
            raise TooLarge(f"a response of {size} bytes is more than a gRPC message can hold")
        encoding, limits = self.head.response_encoding, self._connection.context.limits
        is_compressed = encoding is not None and size >= limits.compress_min_bytes
        if encoding is not None and is_compressed:
            is_long = size > limits.decode_inline_bytes
            data = await run_off_loop(encoding.compress, data) if is_long else encoding.compress(data)
            size = len(data)
        if self.is_over:
            return
        connection, stream_id, core = self._connection, self.stream_id, self._connection.core
        is_large = size > _JOINED_BYTES
        if is_large and not connection.has_response_space(size):
            # Before any of it is sent: the client then gets a status.
            raise response_exceeds(size)
        if not self._has_responded:
            core.send_headers(stream_id, HEADERS[encoding])
            self._has_responded = True
        prefix = PREFIX.pack(is_compressed, size)
        if isinstance(data, bytes) and not is_large:
            self._unsent_bytes = core.send_data(stream_id, prefix + data)
        else:
            self._unsent_bytes = core.send_pieces(stream_id, (prefix, *((data,) if isinstance(data, bytes) else data)))
        connection.streamed()
        if self._unsent_bytes:
            await self._sent()

    async def _sent(self) -> None:
        """Returns when the data that waits for the client's windows was sent; it counts against the byte budget meanwhile.

        Raises:
            Overloaded: the budget cannot hold it; the stream is reset.
        """
        waiting_bytes = self._unsent_bytes
        try:
            self._own_reservation().take_response(waiting_bytes)
        except Overloaded:
            # To a gRPC client this is RESOURCE_EXHAUSTED.
            self._connection.core.reset_stream(self.stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            self._unsent_bytes = 0
            raise
        await self._connection.drained(self.stream_id)
        self._unsent_bytes = 0
        self._give_back(waiting_bytes)

    # ---- with a reactor

    def write(self, message: bytes | list[bytes | memoryview]) -> bool:
        if self.is_over:
            return False
        sending: TaskCompletion[bool]
        if type(message) is bytes and self.head.response_encoding is None and len(message) <= _JOINED_BYTES:
            connection, stream_id = self._connection, self.stream_id
            core = connection.core
            if not self._has_responded:
                core.send_headers(stream_id, _PLAIN_HEADERS)
                self._has_responded = True
            waiting_bytes = core.send_data(stream_id, PREFIX.pack(0, len(message)) + message)
            connection.streamed()
            if not waiting_bytes:
                return True
            self._unsent_bytes = waiting_bytes
            sending = TaskCompletion(self._drained, is_inline=True)
        else:
            sending = TaskCompletion(lambda: self._send_message(message), is_inline=True)
        self._sending = sending
        self._is_in_write = True
        sending.then(self._on_sent)
        self._is_in_write = False
        # Not `_sending`, which compiled code takes for what was assigned above.
        return sending.is_over

    def write_last(self, message: bytes | list[bytes | memoryview]) -> bool:
        if self._has_responded or self._trailers is not None or self.head.response_encoding is not None or self.is_over:
            return False
        if not isinstance(message, bytes) or len(message) > _JOINED_BYTES:
            return False
        self._reactor = None
        connection, stream_id = self._connection, self.stream_id
        data = PREFIX.pack(0, len(message)) + message
        waiting_bytes = connection.core.send_response(stream_id, _PLAIN_HEADERS, data, TRAILERS_OK)
        if waiting_bytes:
            connection.hold_unflushed(stream_id, waiting_bytes, is_unary=False)
        self._finish()
        return True

    async def _drained(self) -> bool:
        await self._sent()
        return True

    async def _send_message(self, message: bytes | list[bytes | memoryview]) -> bool:
        await self.send(message)
        return True

    def _on_sent(self, result: bool | Exception) -> None:
        self._sending = None
        if isinstance(result, Exception):
            self.fail(result)
        elif not self._is_in_write and self._reactor is not None:
            self._reactor.sent()

    def read_on(self) -> None:
        self._pass_on()

    def finish(self) -> None:
        self._reactor = None
        self._end()

    def _passed_whole(self, data: bytes | memoryview, has_ended: bool) -> bool:
        """Passes on a message that arrives in one piece, or the end of the stream, with nothing to store; returns whether it did."""
        method = self.head.method
        if method.begin is None or self._messages or self._is_passing or self._inflating is not None:
            return False
        if self._reader is not None and not self._reader.is_between_messages:
            return False
        size = len(data)
        if size < PREFIX_BYTES:
            if size or not has_ended:
                return False
            self.has_ended = True
            self._pass_on()
            return True
        # Declared, as `struct` declares Any.
        prefix: tuple[int, int] = PREFIX.unpack_from(data)
        flag, message_bytes = prefix
        if flag or message_bytes + PREFIX_BYTES != size or message_bytes > method.most_bytes:
            return False
        if self._reactor is None:
            self._reactor = method.begin(self)
        elif not self._reactor.is_reading:
            return False
        self._count += 1
        self.has_ended = has_ended
        if not has_ended:
            # Otherwise the window is refilled when the stream closes.
            self._connection.core.consumed(self.stream_id, size)
            self._connection.notice_output()
        self._is_passing = True
        try:
            self._reactor.received(bytes(data[PREFIX_BYTES:]))
        except Exception as error:  # noqa: BLE001 - any defect: logged, the status is INTERNAL
            self.fail(error)
        finally:
            self._is_passing = False
        if has_ended:
            self._pass_on()
        return True

    def _pass_on(self) -> None:
        """Passes the messages to the reactor while it takes them, and their end."""
        if self._is_passing or self.is_over or self._is_end_passed:
            return
        self._is_passing = True
        try:
            if self._reactor is None:
                begin = self.head.method.begin
                assert begin is not None
                self._reactor = begin(self)
            # The call may end meanwhile.
            while (reactor := self._ready_reactor()) is not None:
                if not self._messages:
                    if self.has_ended:
                        self._is_end_passed = True
                        reactor.ended(None)
                    break
                if not reactor.is_reading:
                    break
                message = self._next_message()
                if message.is_compressed:
                    self._inflate(message)
                else:
                    reactor.received(message.data)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)
        finally:
            self._is_passing = False

    def _ready_reactor(self) -> StreamReactor | None:
        """The reactor, unless nothing may be passed to it now."""
        return None if self._inflating is not None or self._is_end_passed else self._reactor

    def _inflate(self, message: WireMessage) -> None:
        inflating = self._inflating = TaskCompletion(lambda: self._inflated(message), is_inline=True)
        inflating.then(self._on_inflated)

    def _on_inflated(self, result: bytes | Exception) -> None:
        self._inflating = None
        reactor = self._reactor
        if reactor is None:
            return
        if isinstance(result, Exception):
            self._is_end_passed = True
            reactor.ended(result)
        else:
            reactor.received(result)
            self._pass_on()

    def abandon(self) -> None:
        super().abandon()
        self._messages.clear()

    def _cancel_work(self) -> None:
        reactor, self._reactor = self._reactor, None
        if reactor is not None:
            reactor.cancel()
        for completion in (self._sending, self._inflating):
            if completion is not None:
                completion.cancel()
        self._sending = self._inflating = None
        super()._cancel_work()

    # ---- receiving

    def _make_reader(self) -> MessageReader:
        method = self.head.method
        self._reader = MessageReader(method.path, method.most_bytes, method.lead_bytes)
        return self._reader

    def _feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        reader = self._reader or self._make_reader()
        had_buffer = reader.has_buffer
        self._hold(len(data))
        messages = reader.feed(data)
        calls = self._connection.calls
        if not reader.has_buffer:
            calls.receiving.pop(self.stream_id, None)
        elif messages or not had_buffer:
            calls.receiving[self.stream_id] = self
            calls.expect_zero_copy(self)
        self._take(len(data), messages, has_ended)

    def _take(self, size_bytes: int, messages: list[WireMessage], has_ended: bool) -> None:
        """Notes that `size_bytes` have arrived, which complete `messages`."""
        assert self._reader is not None
        self._pending_update_bytes += size_bytes
        self._hold(_WAITING_MESSAGE_BYTES * len(messages))
        self._messages += messages
        self._count += len(messages)
        self._note_arrival(size_bytes, has_begun_anew=bool(messages))
        self.has_ended = has_ended
        if messages and not self._reader.has_buffer:
            self._connection.calls.receiving.pop(self.stream_id, None)
        if has_ended and not self._reader.is_between_messages:
            raise CallFault(CUT_SHORT)
        if not self.head.method.kind.is_client_streaming and (self._count > 1 or (has_ended and not self._count)):
            raise CallFault(CARDINALITY)
        if not self._messages:
            # The method waits for this incomplete message, or may do so: the client must be able to send the rest.
            self._refund(self._pending_update_bytes)
        if messages or has_ended:
            if self._receiver is not None:
                if not self._receiver.done():
                    self._receiver.set_result(None)
            elif self.head.method.begin is not None:
                self._pass_on()

    def _note_arrival(self, size_bytes: int, *, has_begun_anew: bool) -> None:
        """Starts or stops the transfer rate check: a stream may pause between messages, but not inside one."""
        assert self._reader is not None
        arriving = self._connection.calls.arriving
        if has_begun_anew or self._reader.is_between_messages:
            self._end_arrival()
            arriving.pop(self.stream_id, None)
        if self._reader.is_between_messages:
            return
        if self.progress is None:
            self._begin_arrival()
            arriving[self.stream_id] = self
        elif size_bytes:
            self.progress.note(size_bytes, self._connection.context.loop.time())

    def is_held_back(self) -> bool:
        """Whether the client's window is withheld because the method has not received the earlier messages."""
        return bool(self._messages)

    def _release_message(self) -> None:
        super()._release_message()
        self._connection.calls.arriving.pop(self.stream_id, None)

    def _refund(self, size_bytes: int) -> None:
        if size_bytes:
            self._pending_update_bytes -= size_bytes
            self._connection.core.consumed(self.stream_id, size_bytes)
            self._connection.notice_output()

    async def _run(self) -> None:
        handle = cast("StreamHandler", self.head.method.handle)
        try:
            await handle(self)
        except asyncio.CancelledError:
            if not self.is_over:
                self.fail(Cancelled("the call was cancelled by the server"))
        except Exception as error:  # noqa: BLE001 - any defect: logged, the status is INTERNAL
            self.fail(error)
        else:
            self._end()

    def _end(self) -> None:
        if self.is_over:
            return
        if not self._has_responded:
            block = ok_without_message(self._trailers or ())
        else:
            block = TRAILERS_OK if self._trailers is None else ok_trailers(self._trailers)
        self._connection.send_end(self.stream_id, block)
        self._finish()

    def _finish(self) -> None:
        if self._unsent_bytes:
            # Counted once: until now by the call, from now on by the connection.
            self._give_back(self._unsent_bytes)
            self._connection.hold_unflushed(self.stream_id, self._unsent_bytes, is_unary=False)
        self._messages.clear()
        super()._finish()
