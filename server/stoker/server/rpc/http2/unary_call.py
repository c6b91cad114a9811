"""One message in, one message out: the shape of nearly every call, and so the one whose cost counts.

The common call came whole in one piece and its handler is begun at once, on the connection's own turn. If it finishes without waiting, or
tells its answer by a callback, there never is a task; if it waits, a task takes it over where it stands.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from google.protobuf.message import Message

from stoker.backends.api.errors import Cancelled, ServingError, TooLarge
from stoker.server.core.request import InFlight
from stoker.server.core.tasks import run_off_loop
from stoker.server.rpc.call import Call
from stoker.server.rpc.framing import PREFIX, PREFIX_BYTES, MessageReader, WireMessage
from stoker.server.rpc.http2.call import CARDINALITY, CUT_SHORT, H2Call
from stoker.server.rpc.http2.response_blocks import HEADERS, TRAILERS_OK, ok_trailers
from stoker.server.rpc.method import UnaryHandler
from stoker.server.rpc.refusal import CallFault
from stoker.server.rpc.request_head import RequestHead

if TYPE_CHECKING:
    from stoker.server.rpc.http2.protocol import GrpcProtocol

_read_prefix = PREFIX.unpack_from
_prefix = PREFIX.pack
_PLAIN_HEADERS: Final = HEADERS[None]
#: Above it, an answer is not copied to stand behind its prefix, but sent in a frame of its own.
_JOINED_BYTES: Final = 16 * 1024
_MOST_MESSAGE_BYTES: Final = (1 << 32) - 1


Sent = TypeVar("Sent", bytes, memoryview)


class UnaryCall(H2Call):
    """Confined to: the event loop."""

    __slots__ = ("_flight", "_is_taken_over", "_message", "_share_bytes")

    def __init__(self, connection: "GrpcProtocol", stream_id: int, head: RequestHead, deadline_ns: int | None) -> None:
        super().__init__(connection, stream_id, head, deadline_ns)
        self._message: WireMessage | None = None
        self._is_taken_over = True
        self._flight: InFlight | None = None
        #: What the message holds of the connection's share from its completion to the end of the call.
        self._share_bytes = 0

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        if self._reader is None and has_ended and len(data) >= PREFIX_BYTES:
            flag, size = _read_prefix(data)
            method = self.head.method
            if size + PREFIX_BYTES == len(data) and not flag and size <= method.most_bytes:
                self.has_ended = True
                message = bytes(data[PREFIX_BYTES:])
                if method.submit is not None:
                    self._submit(method.submit, message)
                else:
                    self._begin(message)
                return
        try:
            self._feed_piece(data, has_ended)
        except (CallFault, ServingError) as error:
            self.fail(error)

    def _feed_piece(self, data: bytes | memoryview, has_ended: bool) -> None:
        """The general case: the request comes in several pieces, or is compressed, or wrong."""
        reader = self._reader or self._await_message()
        had_buffer = reader.has_buffer
        self._note(len(data), has_ended)
        for message in reader.feed(data):
            if self._message is not None:
                raise CallFault(CARDINALITY)
            self._message = message
        if self._message is not None and reader.expected_bytes is not None:
            # Its length is all that need come of a second one: it is neither given room nor counted.
            raise CallFault(CARDINALITY)
        if reader.has_buffer and not had_buffer:
            self._connection.calls.expect_zero_copy(self)
        self._connection.core.consumed(self.stream_id, len(data))
        if has_ended:
            self._begin_whole(reader)

    def note_written(self, count: int, has_ended: bool) -> None:
        """So many more bytes of the request have come, and stand where `receive_buffer` said."""
        reader = self._reader
        assert reader is not None
        try:
            self._note(count, has_ended)
            for message in reader.buffer_written(count):
                self._message = message
            self._connection.core.consumed(self.stream_id, count)
            if has_ended:
                self._begin_whole(reader)
        except (CallFault, ServingError) as error:
            self.fail(error)

    @property
    def receive_buffer(self) -> memoryview | None:
        """Where the rest of the request's message goes; None: it has no place yet, or no more."""
        return None if self._reader is None else self._reader.receive_buffer

    def _note(self, size_bytes: int, has_ended: bool) -> None:
        """Counts what has come."""
        self.has_ended = has_ended
        if self.progress is not None:
            self.progress.note(size_bytes, self._connection.context.loop.time())
        self._hold(size_bytes)

    def _begin_whole(self, reader: MessageReader) -> None:
        """The request is complete."""
        self._connection.calls.receiving.pop(self.stream_id, None)
        if not reader.is_between_messages:
            raise CallFault(CUT_SHORT)
        if self._message is None:
            raise CallFault(CARDINALITY)
        (data, is_compressed), self._message, self._reader = self._message, None, None
        self._end_arrival()
        if is_compressed:
            assert isinstance(data, bytes)
            self._task = self._connection.context.loop.create_task(self._run_compressed(data))
            return
        self._start_message(self.held_bytes())
        if isinstance(data, memoryview):
            assert self.head.method.large is not None
            self._submit(self.head.method.large.submit, data)
        else:
            self._begin(data)

    def _start_message(self, share_bytes: int) -> None:
        """The handler takes room for the message of `share_bytes` itself. Of the connection's share, it goes on being held."""
        if self._reservation is not None:
            self._reservation.release()
        share = self._connection.share
        self._share_bytes = share.counted(share_bytes)
        share.held_bytes += self._share_bytes

    def settle(self) -> None:
        super().settle()
        if self._reader is None and not self.has_ended:
            self._await_message()

    def _await_message(self) -> MessageReader:
        method = self.head.method
        self._reader = MessageReader(method.path, method.most_bytes, None if method.large is None else method.large.lead_bytes)
        self._begin_arrival()
        self._connection.calls.receiving[self.stream_id] = self
        return self._reader

    def _begin(self, data: bytes) -> None:
        method = self.head.method
        if method.submit is not None:
            self._submit(method.submit, data)
            return
        handle = cast("UnaryHandler", method.handle)
        if not method.starts_inline:
            self._task = self._connection.context.loop.create_task(self._run(data))
            return
        work = cast("Coroutine[Any, None, bytes | Message]", handle(data, self))
        try:
            awaited = work.send(None)
        except StopIteration as done:
            self._respond(done.value)
        except Exception as error:  # noqa: BLE001 - the last stop of any defect: logged, answered INTERNAL
            self.fail(error)
        else:
            self._is_taken_over = False
            self._task = self._connection.context.loop.create_task(self._continue(work, awaited))

    def _submit(self, submit: Callable[[Sent, Call, Callable[[bytes | Exception], None]], InFlight], data: Sent) -> None:
        try:
            flight = submit(data, self, self._on_result)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)
            return
        if not self.is_over:
            self._flight = flight

    def _on_result(self, response: bytes | Exception) -> None:
        # What is in flight knows the call: neither is to keep the other in memory.
        self._flight = None
        if type(response) is bytes and self.head.response_encoding is None and not self.is_over:
            self._send(response, 0, _PLAIN_HEADERS)
        elif isinstance(response, Exception):
            self.fail(response)
        else:
            self._respond(response)

    async def _run(self, data: bytes) -> None:
        handle = cast("UnaryHandler", self.head.method.handle)
        try:
            self._respond(await handle(data, self))
        except asyncio.CancelledError:
            self._cancelled_elsewhere()
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    async def _run_compressed(self, data: bytes) -> None:
        try:
            data = await self._decompressed(data)
        except asyncio.CancelledError:
            self._cancelled_elsewhere()
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)
        else:
            self._start_message(len(data))
            await self._run(data)

    async def _continue(self, work: Coroutine[Any, None, bytes | Message], awaited: Any) -> None:
        """Goes on with a handler that waits for `awaited`."""
        self._is_taken_over = True
        try:
            self._respond(await _continued(work, awaited, is_cancelled=self.is_over))
        except asyncio.CancelledError:
            self._cancelled_elsewhere()
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    def _release_message(self) -> None:
        super()._release_message()
        self._connection.share.held_bytes -= self._share_bytes
        self._share_bytes = 0

    def _cancel_work(self) -> None:
        if self._flight is not None:
            flight, self._flight = self._flight, None
            flight.cancel()
        # A task that is cancelled before its first step never gets to the handler, which has begun already and has things to put in
        # order: the task looks at `is_over` itself then.
        if self._is_taken_over:
            super()._cancel_work()

    def _cancelled_elsewhere(self) -> None:
        """Whatever cancelled the handler, its client gets an answer, if it still waits for one."""
        if not self.is_over:
            self.fail(Cancelled("the call was cancelled by the server"))

    def _respond(self, response: bytes | Message) -> None:
        if self.is_over:
            return
        data = response if type(response) is bytes else cast("Message", response).SerializeToString()
        encoding = self.head.response_encoding
        if encoding is None or len(data) < self._connection.context.limits.compress_min_bytes:
            self._send(data, 0, _PLAIN_HEADERS)
        elif len(data) <= self._connection.context.limits.decode_inline_bytes:
            self._send(encoding.compress(data), 1, HEADERS[encoding])
        else:
            self._task = self._connection.context.loop.create_task(self._respond_compressed(data))

    async def _respond_compressed(self, data: bytes) -> None:
        encoding = self.head.response_encoding
        assert encoding is not None
        try:
            data = await run_off_loop(encoding.compress, data)
        except asyncio.CancelledError:
            self._cancelled_elsewhere()
        else:
            if not self.is_over:
                self._send(data, 1, HEADERS[encoding])

    def _send(self, data: bytes, flag: int, headers: bytes) -> None:
        """REQUIRES: the call is not over."""
        size = len(data)
        if size > _MOST_MESSAGE_BYTES:
            self.fail(TooLarge(f"the answer of {size} bytes is more than a gRPC message can hold"))
            return
        connection, stream_id = self._connection, self.stream_id
        core = connection.core
        trailers = TRAILERS_OK if self._trailers is None else ok_trailers(self._trailers)
        if size <= _JOINED_BYTES:
            waiting = core.send_response(stream_id, headers, _prefix(flag, size) + data, trailers)
        else:
            core.send_headers(stream_id, headers)
            core.send_data(stream_id, _prefix(flag, size))
            waiting = core.send_data(stream_id, data)
            core.send_headers(stream_id, trailers, end_stream=True)
        if waiting:
            connection.hold_unflushed(stream_id, waiting, is_unary=True)
        self._finish()


@types.coroutine
def _continued(work: Coroutine[Any, None, bytes | Message], awaited: Any, *, is_cancelled: bool) -> Generator[Any, None, bytes | Message]:
    """Drives a coroutine that was begun elsewhere and stands waiting for `awaited`."""
    error: BaseException | None = asyncio.CancelledError() if is_cancelled else None
    while True:
        if error is None:
            try:
                yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - it is the coroutine's to handle
                error = raised
        try:
            if error is None:
                awaited = work.send(None)
            else:
                discarded, error = error, None
                awaited = work.throw(discarded)
        except StopIteration as done:
            return cast("bytes | Message", done.value)
