"""KServe v2's infer requests on the direct route."""

import re
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from stoker.backends.api.errors import Overloaded, QueueTimeout, RestrictedCall, ServingError, Unauthenticated
from stoker.server.core.request import InferRequest, InferResponse, Via
from stoker.server.net.http1.direct import Connection
from stoker.server.net.http1.head import RequestHead
from stoker.server.net.http1.response import Piece, joined
from stoker.server.protocols.exchange import header_of
from stoker.server.protocols.infer_exchange import Body, InferExchange, KeptHead, Reply
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.infer import HttpInfer, InferCall, infer_call
from stoker.server.protocols.kserve.inference import with_request_id_prefix
from stoker.server.rpc.restricted import NO_RESTRICTIONS, Category, Restrictions

_TARGET: Final = re.compile(rb"/v2/models/([A-Za-z0-9_.\-]+)(?:/versions/([0-9]{1,18}))?/infer(?:\?.*)?\Z")
_JSON: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_BINARY: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
#: Larger responses may be written in several pieces.
_SMALL_BYTES: Final = 64 * 1024


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
        text_bytes: Bytes of the body before its binary tensors; 0: unknown, or there are none.
        head: The head of the last response.
    """

    __slots__ = ("_binary", "_header_length", "call", "head", "infer", "length", "text_bytes")

    def __init__(self, infer: HttpInfer, call: InferCall, length: int | None) -> None:
        self.infer = infer
        self.call = call
        self.length = length
        self.text_bytes = max(0, call.header_bytes or 0)
        self.head = KeptHead()
        #: The start of the last binary response, and the length that it gives.
        self._binary = b""
        self._header_length = -1

    def response_start(self, header_length: int | None) -> bytes:
        """Status line and fields of a response, whose JSON part has `header_length` bytes (None: it is all JSON)."""
        if header_length is None:
            return _JSON
        if header_length != self._header_length:
            self._header_length = header_length
            self._binary = _BINARY % header_length
        return self._binary

    def exchange(self, connection: Connection) -> "KServeExchange":
        return KServeExchange(self, connection)


class KServeExchange(InferExchange):
    """One infer request. Confined to: the event loop."""

    __slots__ = ("_decoded", "_route")

    def __init__(self, route: InferRoute, connection: Connection) -> None:
        infer = route.infer
        super().__init__(connection, infer.engine, infer.limits, route.length, route.text_bytes)
        self._route = route
        self._decoded: DecodedRequest | None = None

    def _decode(self, body: Body) -> InferRequest | None:
        route = self._route
        call = route.call
        if call.content_encoding is not None:
            return None
        decoded = route.infer.decode_now(call, body, self._received_ns, self._reservation)
        if decoded is None:
            return None
        if call.metadata is not None:
            call.metadata.apply_to(decoded.request)
        self._decoded = decoded
        return decoded.request

    def _reply(self, body: Body) -> Coroutine[Any, Any, Reply]:
        route = self._route
        return route.infer.reply(route.call, body, self._received_ns, self._reservation)

    def _encode(self, response: InferResponse) -> Sequence[Piece] | None:
        decoded, route = self._decoded, self._route
        assert decoded is not None
        encoded = route.infer.encode_now(route.call, decoded, response)
        if encoded is None:
            return None
        keep_alive = self._connection.keep_alive
        start = route.response_start(encoded.header_length)
        if encoded.size_bytes > _SMALL_BYTES:
            return joined(start, encoded.pieces, keep_alive=keep_alive)
        return [b"".join([route.head.of(start, encoded.size_bytes, keep_alive=keep_alive), *encoded.pieces])]

    def _encode_slowly(self, response: InferResponse) -> Coroutine[Any, Any, Reply]:
        decoded, route = self._decoded, self._route
        assert decoded is not None
        return route.infer.encode(route.call, decoded, response)

    def _reported(self, error: ServingError) -> ServingError:
        decoded = self._decoded
        if decoded is not None and isinstance(error, Overloaded | QueueTimeout):
            return with_request_id_prefix(error, decoded.request.request_id)
        return error

    def _target(self) -> tuple[Via, str, int | None]:
        call = self._route.call
        return Via.KSERVE_HTTP, call.model, call.version

    def _forget(self) -> None:
        decoded, self._decoded = self._decoded, None
        if decoded is not None and decoded.request.trace is not None:
            self._route.infer.note_sent(decoded.request.trace, self._received_ns)
