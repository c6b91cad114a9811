"""Infer requests on the direct route: the body is decoded from its receive buffer, and the encoded response is written to the socket."""

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from stoker.backends.api.errors import Overloaded, QueueTimeout, RestrictedCall, ServingError, TooLarge, Unauthenticated
from stoker.server.core.request import EngineResult as EngineResponse
from stoker.server.core.request import InferResponse, InFlight, Via
from stoker.server.net.http1.direct import Connection
from stoker.server.net.http1.head import RequestHead
from stoker.server.net.http1.response import HeaderList, HttpResponse, Piece, joined
from stoker.server.net.receive_buffers import message_block
from stoker.server.protocols.exchange import INTERNAL_TEXT, error_body, error_response, header_of
from stoker.server.protocols.kserve.decoded import DecodedRequest, Encoded
from stoker.server.protocols.kserve.http_codec import Body
from stoker.server.protocols.kserve.infer import HttpInfer, InferCall, infer_call
from stoker.server.protocols.kserve.inference import with_request_id_prefix
from stoker.server.rpc.restricted import NO_RESTRICTIONS, Category, Restrictions

_TARGET: Final = re.compile(rb"/v2/models/([A-Za-z0-9_.\-]+)(?:/versions/([0-9]{1,18}))?/infer(?:\?.*)?\Z")
#: Bodies of at least this size are received into one block of memory.
_BLOCK_BYTES: Final = 64 * 1024
_JSON: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_BINARY: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
_log = logging.getLogger(__name__)


class InferRoutes:
    """The infer route of every model, as `DirectRoutes`."""

    def __init__(self, infer: HttpInfer, restrictions: Restrictions = NO_RESTRICTIONS) -> None:
        """`restrictions` are those of the port."""
        self._infer = infer
        self._restrictions = restrictions

    def find(self, head: RequestHead) -> "InferRoute | None":
        route = _TARGET.match(head.target) if head.method == "POST" else None
        if route is None:
            return None
        try:
            self._restrictions.require(Category.INFERENCE, header_of(head.headers))
        except (RestrictedCall, Unauthenticated):
            # The general route checks the key again and sends the error.
            return None
        version = None if route[2] is None else int(route[2])
        return InferRoute(self._infer, infer_call(route[1].decode("ascii"), version, dict(head.headers), self._infer.headers), head.length)


class InferRoute:
    """Infer requests that begin with the same head.

    Attributes:
        infer: Decodes and encodes the requests.
        call: The facts from the request head.
        length: Bytes of the body; None: it is chunked.
    """

    __slots__ = ("call", "infer", "length")

    def __init__(self, infer: HttpInfer, call: InferCall, length: int | None) -> None:
        self.infer = infer
        self.call = call
        self.length = length

    def exchange(self, connection: Connection) -> "InferExchange":
        return InferExchange(self, connection)

    def block(self) -> memoryview:
        """Memory for one body, aligned for its binary tensors. The system commits a page when it is first written.

        Raises:
            Overloaded: the host has not enough memory.
        """
        length, text = self.length or 0, self.call.header_length
        text_bytes = int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0
        try:
            return message_block(length, text_bytes)
        except MemoryError:
            raise Overloaded(f"the server has no memory for a body of {length} bytes now: try again", retry_after_s=1.0) from None


class InferExchange:
    """One infer request. Confined to: the event loop. INVARIANT: its reservation is released when it completes or is abandoned."""

    # fmt: off
    __slots__ = (
        "_block", "_connection", "_decoded", "_filled", "_flight", "_pieces", "_received_ns", "_reservation", "_route", "_task",
        "is_responded",
    )
    # fmt: on

    def __init__(self, route: InferRoute, connection: Connection) -> None:
        self._route = route
        self._connection = connection
        self._reservation = connection.reservation(route.infer.engine.budget)
        self._received_ns = route.infer.engine.now_ns()
        self._block: memoryview | None = None
        self._filled = 0
        self._pieces: bytearray | None = None
        self._decoded: DecodedRequest | None = None
        self._flight: InFlight | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_responded = False

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
        if self.is_responded or (self._route.length or 0) < _BLOCK_BYTES:
            return None
        if self._block is None:
            try:
                self._block = self._route.block()
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

    def _keep(self, piece: bytes) -> None:
        """Stores a piece of the body."""
        self._filled += len(piece)
        most = self._route.infer.limits.http_body_bytes
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

    def _start(self, body: Body) -> None:
        """Decodes and submits the request; a large one in a task."""
        route = self._route
        infer, call = route.infer, route.call
        try:
            decoded = None
            if call.content_encoding is None:
                decoded = infer.decode_now(call, body, self._received_ns, self._reservation)
            if decoded is None:
                self._begin_task(self._respond_async(body))
                return
            if call.metadata is not None:
                call.metadata.apply_to(decoded.request)
            self._decoded = decoded
            # A connection has one request at a time, and all bytes of this one have arrived.
            reads = infer.engine.reads
            reads.begin(self._connection)
            try:
                self._flight = infer.engine.submit(decoded.request, self._done)
            except (Overloaded, QueueTimeout) as error:
                raise with_request_id_prefix(error, decoded.request.request_id) from None
            finally:
                reads.end()
        except ServingError:
            raise
        except Exception:  # noqa: BLE001 - any defect: logged, the status is 500
            self._fail_unexpectedly()

    def _done(self, reply: EngineResponse) -> None:
        """Sends the engine's result."""
        decoded, route = self._decoded, self._route
        assert decoded is not None
        self._flight = None
        try:
            if isinstance(reply, ServingError):
                if isinstance(reply, Overloaded | QueueTimeout):
                    reply = with_request_id_prefix(reply, decoded.request.request_id)
                self._fail(reply)
                return
            encoded = route.infer.encode_now(route.call, decoded, reply)
            if encoded is None:
                self._begin_task(self._encode_slowly(decoded, reply))
            else:
                self._write(encoded)
        except ServingError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - as above
            self._fail_unexpectedly()

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` in a task. The reservation is released at the latest when the task has ended."""
        self._task = self._connection.begin_task(work)
        # A callback, not `finally` in `work`: a task that is cancelled before its first step runs no code of its coroutine.
        self._task.add_done_callback(lambda _: self._reservation.release())

    async def _respond_async(self, body: Body) -> None:
        """Decodes in threads, then waits for the response in the same task."""
        route = self._route
        await self._send_slowly(route.infer.reply(route.call, body, self._received_ns, self._reservation))

    async def _encode_slowly(self, decoded: DecodedRequest, response: InferResponse) -> None:
        route = self._route
        await self._send_slowly(route.infer.encode(route.call, decoded, response))

    async def _send_slowly(self, making: Coroutine[Any, Any, tuple[Sequence[Piece], HeaderList]]) -> None:
        """Awaits `making` and sends its response."""
        try:
            pieces, headers = await making
            self._finish(HttpResponse(200, headers, pieces).parts(keep_alive=self._connection.keep_alive))
        except ServingError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - any defect: logged, the status is 500
            self._fail_unexpectedly()

    def _write(self, encoded: Encoded) -> None:
        start = _JSON if encoded.header_length is None else _BINARY % encoded.header_length
        self._finish(joined(start, encoded.pieces, keep_alive=self._connection.keep_alive))

    def _fail(self, error: ServingError) -> None:
        call = self._route.call
        self._route.infer.engine.note_failed(Via.KSERVE_HTTP, error, call.model, call.version)
        status, body, headers = error_response(error)
        self._finish(HttpResponse(status, headers, [body]).parts(keep_alive=self._connection.keep_alive))

    def _fail_unexpectedly(self) -> None:
        call = self._route.call
        _log.exception("inference request for model '%s' failed unexpectedly", call.model)
        reply = HttpResponse(500, [(b"content-type", b"application/json")], [error_body(INTERNAL_TEXT)])
        self._finish(reply.parts(keep_alive=self._connection.keep_alive))

    def _finish(self, parts: Sequence[Piece]) -> None:
        if self.is_responded:
            return
        self.is_responded = True
        self._block = self._pieces = None
        self._reservation.release()
        # Released: the connection may keep this exchange until its next request.
        decoded, self._decoded = self._decoded, None
        if decoded is not None and decoded.request.trace is not None:
            self._route.infer.note_sent(decoded.request.trace, self._received_ns)
        if len(parts) == 1:
            self._connection.write_response(parts)
        else:
            self._write_large(parts)

    def _write_large(self, parts: Sequence[Piece]) -> None:
        """Writes a response that counts against the byte budget until its client has received it."""
        unflushed = self._connection.reservation(self._route.infer.engine.budget)
        try:
            unflushed.take(sum(map(len, parts)))
        except ServingError as error:
            status, body, headers = error_response(error)
            parts = HttpResponse(status, headers, [body]).parts(keep_alive=self._connection.keep_alive)
        self._connection.write_response(parts)
        self._connection.release_when_sent(unflushed)
