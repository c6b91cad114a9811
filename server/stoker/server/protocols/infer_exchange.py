"""Inference requests on the direct route: the body is decoded from its receive buffer, and the encoded response is written to the socket.

`InferExchange` receives the body, submits the request and sends the response or the error, for every dialect. Each dialect has a subclass,
which decodes and encodes.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from stoker.backends.api.errors import Overloaded, ServingError, TooLarge
from stoker.server.core.limits import Limits
from stoker.server.core.request import EngineResult, InferRequest, InferResponse, InFlight, Via
from stoker.server.engine.interface import Engine
from stoker.server.net.http1.direct import Connection
from stoker.server.net.http1.response import HeaderList, HttpResponse, Piece
from stoker.server.net.receive_buffers import message_block
from stoker.server.protocols.exchange import INTERNAL_TEXT, error_body, error_response

#: Bodies of at least this size are received into one block of memory.
_BLOCK_BYTES: Final = 64 * 1024
_log = logging.getLogger(__name__)

Body = bytes | memoryview
"""A request's body; a large one is a view of its receive buffer."""
Reply = tuple[Sequence[Piece], HeaderList]
"""The body of a response, in pieces, and its headers."""


class KeptHead:
    """The head of a route's last response. Most responses of a route have the same fields and length."""

    __slots__ = ("_body_bytes", "_head", "_start")

    def __init__(self) -> None:
        self._start = self._head = b""
        self._body_bytes = -1

    def of(self, start: bytes, body_bytes: int, *, keep_alive: bool) -> bytes:
        """`start` (status line and fields, each with its line end), the remaining fields and the blank line, for a body of `body_bytes`."""
        if not keep_alive:
            return b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (start, body_bytes)
        if body_bytes != self._body_bytes or start != self._start:
            self._head = b"%bcontent-length: %d\r\n\r\n" % (start, body_bytes)
            self._start = start
            self._body_bytes = body_bytes
        return self._head


class InferExchange:
    """One inference request. Confined to: the event loop.

    INVARIANT: its reservation is released when it completes or is abandoned.

    Attributes:
        is_responded: Whether the response was written, or nothing waits for it.
    """

    # fmt: off
    __slots__ = (
        "_block", "_connection", "_engine", "_filled", "_flight", "_length", "_limits", "_pieces", "_received_ns", "_reservation", "_task",
        "_text_bytes", "is_responded",
    )
    # fmt: on

    def __init__(self, connection: Connection, engine: Engine, limits: Limits, length: int | None, text_bytes: int = 0) -> None:
        """The body has `length` bytes (None: it is chunked), of which `text_bytes` precede the binary tensors."""
        self._connection = connection
        self._engine = engine
        self._limits = limits
        self._length = length
        self._text_bytes = text_bytes
        self._reservation = connection.reservation(engine.budget)
        self._received_ns = engine.now_ns()
        self._block: memoryview | None = None
        self._filled = 0
        self._pieces: bytearray | None = None
        self._flight: InFlight | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_responded = False

    # What a dialect implements.

    def _decode(self, body: Body) -> InferRequest | None:
        """Decodes `body`; None: that needs a task, see `_reply`.

        Raises:
            ServingError: the request is invalid.
        """
        raise NotImplementedError

    def _reply(self, body: Body) -> Coroutine[Any, Any, Reply]:
        """Decodes `body` in threads, runs the request, and encodes the response.

        Raises:
            ServingError: the response is an error.
        """
        raise NotImplementedError

    def _encode(self, response: InferResponse) -> Sequence[Piece] | None:
        """The complete response, head included; None: that needs a task, see `_encode_slowly`.

        Raises:
            ServingError: `response` cannot be encoded in the requested form.
        """
        raise NotImplementedError

    def _encode_slowly(self, response: InferResponse) -> Coroutine[Any, Any, Reply]:
        """As `_encode`, in threads."""
        raise NotImplementedError

    def _reported(self, error: ServingError) -> ServingError:
        """The engine's `error` in the words of the dialect."""
        return error

    def _status(self, error: ServingError, status: int) -> int:
        """The HTTP status of `error`, whose usual one is `status`."""
        return status

    def _target(self) -> tuple[Via, str, int | None]:
        """Protocol, model and version, as far as they are known, for the access log."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Drops the decoded request. The connection may keep this exchange until its next request."""

    # What the connection calls.

    @property
    def has_begun(self) -> bool:
        return self.is_responded

    def receive(self, piece: bytes, is_last: bool) -> None:
        if self.is_responded:
            return
        try:
            self._reservation.take(len(piece))
            if is_last and not self._filled:
                self._start(piece)
                return
            self._keep(piece)
            if is_last:
                self._start(self._whole())
        except ServingError as error:
            self._fail(error)

    def receive_buffer(self) -> memoryview | None:
        if self.is_responded or (self._length or 0) < _BLOCK_BYTES:
            return None
        if self._block is None:
            try:
                self._block = self._new_block()
            except ServingError as error:
                self._fail(error)
                return None
        return self._block[self._filled :]

    def received(self, size: int, is_last: bool) -> None:
        self._filled += size
        try:
            self._reservation.take(size)
            if is_last:
                self._start(self._whole())
        except ServingError as error:
            self._fail(error)

    def disconnect(self) -> None:
        self.is_responded = True
        if self._flight is not None:
            self._flight.cancel()
        if self._task is not None:
            # The task releases the reservation once its threads have ended.
            self._task.cancel()
        else:
            self._reservation.release()

    def fail(self, error: ServingError) -> None:
        self._fail(error)

    # The body.

    def _new_block(self) -> memoryview:
        """Memory for the body, aligned for its binary tensors. The system commits a page when it is first written.

        Raises:
            Overloaded: the host has not enough memory.
        """
        length = self._length or 0
        try:
            return message_block(length, self._text_bytes)
        except MemoryError:
            raise Overloaded(f"the server has no memory for a body of {length} bytes now: try again", retry_after_s=1.0) from None

    def _keep(self, piece: bytes) -> None:
        """Stores a piece of the body."""
        self._filled += len(piece)
        most = self._limits.http_body_bytes
        if self._filled > most:
            raise TooLarge(f"the body exceeds the limit of {most} bytes")
        if self._pieces is None:
            self._pieces = bytearray()
        self._pieces += piece

    def _whole(self) -> Body:
        """The complete body."""
        block, pieces = self._block, self._pieces
        self._block = self._pieces = None
        if block is not None:
            return block.toreadonly()
        # A large chunked body is a view, which saves a copy.
        pieces = pieces or bytearray()
        return bytes(pieces) if len(pieces) < _BLOCK_BYTES else memoryview(pieces).toreadonly()

    # The request.

    def _start(self, body: Body) -> None:
        """Decodes and submits the request; a large one in a task."""
        try:
            request = self._decode(body)
            if request is None:
                self._begin_task(self._reply_in_task(body))
                return
            # A connection has one request at a time, and all bytes of this one have arrived.
            engine = self._engine
            reads = engine.reads
            reads.begin(self._connection)
            try:
                self._flight = engine.submit(request, self._done)
            except ServingError as error:
                raise self._reported(error) from None
            finally:
                reads.end()
        except ServingError:
            raise
        except Exception:  # noqa: BLE001 - any defect: logged, the status is 500
            self._fail_unexpectedly()

    def _done(self, reply: EngineResult) -> None:
        """Sends the engine's result."""
        self._flight = None
        try:
            if isinstance(reply, ServingError):
                self._fail(self._reported(reply))
                return
            parts = self._encode(reply)
            if parts is None:
                self._begin_task(self._encode_in_task(reply))
            else:
                self._finish(parts)
        except ServingError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - as above
            self._fail_unexpectedly()

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` in a task. The reservation is released at the latest when the task has ended."""
        self._task = self._connection.begin_task(work)
        # A callback, not `finally` in `work`: a task that is cancelled before its first step runs no code of its coroutine.
        self._task.add_done_callback(lambda _: self._reservation.release())

    # The coroutines of the dialect are made inside a task: one that never begins would have to be closed.

    async def _reply_in_task(self, body: Body) -> None:
        await self._send_slowly(self._reply(body))

    async def _encode_in_task(self, response: InferResponse) -> None:
        await self._send_slowly(self._encode_slowly(response))

    async def _send_slowly(self, making: Coroutine[Any, Any, Reply]) -> None:
        """Awaits `making` and sends its response."""
        try:
            pieces, headers = await making
            self._finish(HttpResponse(200, headers, pieces).parts(keep_alive=self._connection.keep_alive))
        except ServingError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - any defect: logged, the status is 500
            self._fail_unexpectedly()

    def _fail(self, error: ServingError) -> None:
        self._finish(self._failure(error))

    def _failure(self, error: ServingError) -> Sequence[Piece]:
        """Notes the error; returns its response."""
        via, model, version = self._target()
        self._engine.note_failed(via, error, model, version)
        status, body, headers = error_response(error)
        return HttpResponse(self._status(error, status), headers, [body]).parts(keep_alive=self._connection.keep_alive)

    def _fail_unexpectedly(self) -> None:
        _log.exception("inference request for model '%s' failed unexpectedly", self._target()[1])
        reply = HttpResponse(500, [(b"content-type", b"application/json")], [error_body(INTERNAL_TEXT)])
        self._finish(reply.parts(keep_alive=self._connection.keep_alive))

    def _finish(self, parts: Sequence[Piece]) -> None:
        if self.is_responded:
            return
        self.is_responded = True
        self._block = self._pieces = None
        self._reservation.release()
        self._forget()
        if len(parts) == 1:
            self._connection.write_response(parts)
        else:
            self._write_large(parts)

    def _write_large(self, parts: Sequence[Piece]) -> None:
        """Writes a response that counts against the byte budget until its client has received it."""
        unflushed = self._connection.reservation(self._engine.budget)
        try:
            unflushed.take_response(sum(map(len, parts)))
        except ServingError as error:
            parts = self._failure(error)
        self._connection.write_response(parts)
        self._connection.release_when_sent(unflushed)
