"""One message in, one message out: the shape of nearly every call, and so the one whose cost counts.

The common call came whole in one piece, and its method is started within the read that contains it. The method's `Completion` gives the
response to the call when it is there; the transport makes no task for it.
"""

import asyncio
from typing import Final, cast

from google.protobuf.message import Message

from stoker.backends.api.errors import Cancelled, ServingError, TooLarge
from stoker.server.core.tasks import run_off_loop
from stoker.server.rpc.framing import PREFIX, PREFIX_BYTES, MessageReader
from stoker.server.rpc.http2.call import CARDINALITY, CUT_SHORT, H2Call
from stoker.server.rpc.http2.responses import HEADERS, TRAILERS_OK, ok_trailers
from stoker.server.rpc.refusal import CallFault

_read_prefix = PREFIX.unpack_from
_prefix = PREFIX.pack
_PLAIN_HEADERS: Final = HEADERS[None]
#: Above it, a response is not copied to stand behind its prefix, but sent in a frame of its own.
_JOINED_BYTES: Final = 16 * 1024
_MOST_MESSAGE_BYTES: Final = (1 << 32) - 1


class UnaryCall(H2Call):
    """Confined to: the event loop."""

    __slots__ = ()

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        if self._reader is None and has_ended and len(data) >= PREFIX_BYTES:
            flag, size = _read_prefix(data)
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
            self._task = self._connection.context.loop.create_task(self._start_compressed(data))
            return
        self._start_message(self.held_bytes())
        self._start(data)

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
        self._reader = MessageReader(method.path, method.most_bytes, method.lead_bytes)
        self._begin_arrival()
        self._connection.calls.receiving[self.stream_id] = self
        return self._reader

    def _start(self, data: bytes | memoryview) -> None:
        start = self.head.method.start
        assert start is not None
        try:
            completion = start(data, self)
        except Exception as error:  # noqa: BLE001 - the last stop of any defect: logged; the status is INTERNAL
            self.fail(error)
            return
        self._completion = completion
        completion.then(self._on_result)

    def _on_result(self, result: bytes | Message | Exception) -> None:
        # The completion refers to the call: neither is to keep the other in memory.
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
            self._start_message(len(data))
            self._start(data)

    def _release_message(self) -> None:
        super()._release_message()
        self._connection.share.held_bytes -= self._share_bytes
        self._share_bytes = 0

    def _cancel_work(self) -> None:
        if self._completion is not None:
            completion, self._completion = self._completion, None
            completion.cancel()
        super()._cancel_work()

    def _cancelled_elsewhere(self) -> None:
        """Whatever cancelled the handler, its client gets a response, if it still waits for one."""
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
            self.fail(TooLarge(f"the response of {size} bytes is more than a gRPC message can hold"))
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
