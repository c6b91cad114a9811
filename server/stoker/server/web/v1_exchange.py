"""Adlik's and TensorFlow Serving's REST inference on the direct route: `:predict`, `:classify` and `:regress` of a model.

The routes have the usual form of a path only: names of unreserved characters, lower case, no percent-encoding. All other requests below
/v1, those that are rejected because of their head included, go to the ASGI application.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

from stoker.backends.api.errors import InvalidRequest, RestrictedCall, ServingError, Unauthenticated
from stoker.server.codecs.tensors import whole
from stoker.server.core.request import InferRequest, InferResponse, Via
from stoker.server.net.http1.direct import Connection
from stoker.server.net.http1.head import RequestHead
from stoker.server.net.http1.response import Piece
from stoker.server.protocols.adlik import rest_choice
from stoker.server.protocols.adlik.rest_choice import Dialect
from stoker.server.protocols.compression import choose_encoding, decompress
from stoker.server.protocols.decoded_call import DecodedCall
from stoker.server.protocols.exchange import header_of
from stoker.server.protocols.infer_exchange import Body, InferExchange, KeptHead, Reply
from stoker.server.protocols.settings import RestV1
from stoker.server.protocols.tfs.model_spec import ModelQuery
from stoker.server.rpc.restricted import NO_RESTRICTIONS, Category, Restrictions
from stoker.server.web.v1_posts import PREDICT, PostedRequest, V1Posts

_TARGET: Final = re.compile(
    rb"/v1/models/([A-Za-z0-9_.\-]+)(?:/versions/([0-9]{1,18})|/labels/([A-Za-z0-9_.\-]+))?:(predict|classify|regress)(?:\?.*)?\Z"
)
_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


class V1Routes:
    """The routes of every model, as `DirectRoutes`."""

    def __init__(self, posts: V1Posts, restrictions: Restrictions = NO_RESTRICTIONS) -> None:
        """`restrictions` are those of the port."""
        self._posts = posts
        self._restrictions = restrictions

    def find(self, head: RequestHead) -> "V1Route | None":
        found = _TARGET.match(head.target) if head.method == "POST" else None
        if found is None:
            return None
        settings = self._posts.settings
        name, version, label, verb = found.groups()
        if settings.rest_v1 is RestV1.ADLIK and (label or verb != b"predict"):
            return None
        try:
            self._restrictions.require(Category.INFERENCE, header_of(head.headers))
            forced = rest_choice.forced(settings, dict(parse_qsl(head.query.decode("latin-1"))))
        except (RestrictedCall, Unauthenticated, InvalidRequest):
            # The general route checks them again and sends the error.
            return None
        query = ModelQuery(name.decode(), None if version is None else int(version), "" if label is None else label.decode())
        return V1Route(self._posts, query, verb.decode(), forced, head)


class V1Route:
    """Requests that begin with the same head.

    Attributes:
        posts: Decodes and encodes the requests.
        length: Bytes of the body; None: it is chunked.
        content_encoding: The request's Content-Encoding as sent; None: absent.
        response_encoding: The supported encoding that the client prefers; None: no compression.
        needs_task: Whether even small requests need a task.
        head: The head of the last response.
    """

    __slots__ = ("_dialect", "_forced", "_query", "_verb", "content_encoding", "head", "length", "needs_task", "posts", "response_encoding")

    def __init__(self, posts: V1Posts, query: ModelQuery, verb: str, forced: Dialect | None, head: RequestHead) -> None:
        headers = dict(head.headers)
        encoding, accepted = headers.get(b"content-encoding"), headers.get(b"accept-encoding")
        self.posts = posts
        self.length = head.length
        self.head = KeptHead()
        self.content_encoding = None if encoding is None else encoding.decode("latin-1")
        self.response_encoding = None if accepted is None else choose_encoding(accepted.decode("latin-1"))
        self.needs_task = verb != PREDICT or posts.timeout_s is not None or encoding is not None
        self._query = query
        self._verb = verb
        self._forced = forced
        self._dialect = forced or posts.default_dialect

    def posted(self) -> PostedRequest:
        """A new request."""
        return PostedRequest(self._query, self._verb, self._forced, self._dialect)

    def exchange(self, connection: Connection) -> "V1Exchange":
        return V1Exchange(self, connection)


class V1Exchange(InferExchange):
    """One request. Confined to: the event loop."""

    __slots__ = ("_decoded", "_encoded", "_posted", "_route")

    def __init__(self, route: V1Route, connection: Connection) -> None:
        posts = route.posts
        super().__init__(connection, posts.engine, posts.limits, route.length)
        self._route = route
        self._posted = route.posted()
        self._decoded: DecodedCall | None = None
        self._encoded: bytes | None = None

    def _decode(self, body: Body) -> InferRequest | None:
        route = self._route
        if route.needs_task or len(body) > self._limits.decode_inline_bytes:
            return None
        text = body if isinstance(body, bytes) else bytes(body)
        decoded = self._decoded = route.posts.decode(self._posted, text, self._reservation)
        return None if decoded is None else decoded.request

    async def _reply(self, body: Body) -> Reply:
        route, limits = self._route, self._limits
        # What `_decode` has chosen is chosen again.
        posted = self._posted = route.posted()
        if route.content_encoding is not None:
            body = await decompress(body, route.content_encoding, self._reservation.take, limits, limits.http_body_bytes)
        response = await route.posts.response(posted, body, self._reservation)
        response, headers = await route.posts.compressed(response, route.response_encoding)
        return [response], headers

    def _encode(self, response: InferResponse) -> Sequence[Piece] | None:
        decoded, route = self._decoded, self._route
        assert decoded is not None
        message = decoded.encode(response)
        if message is None:
            return None
        encoded = whole(message)
        if route.response_encoding is not None and len(encoded) >= self._limits.compress_min_bytes:
            self._encoded = encoded
            return None
        return [route.head.of(_OK, len(encoded), keep_alive=self._connection.keep_alive) + encoded]

    async def _encode_slowly(self, response: InferResponse) -> Reply:
        decoded, route, encoded = self._decoded, self._route, self._encoded
        assert decoded is not None
        if encoded is None:
            encoded = whole(await decoded.encode_slowly(response))
        encoded, headers = await route.posts.compressed(encoded, route.response_encoding)
        return [encoded], headers

    def _reported(self, error: ServingError) -> ServingError:
        return error if self._decoded is None else self._decoded.reported(error)

    def _status(self, error: ServingError, status: int) -> int:
        return self._posted.status(error)

    def _target(self) -> tuple[Via, str, int | None]:
        query = self._posted.query
        return self._posted.via, query.name, query.version

    def _forget(self) -> None:
        self._decoded = self._encoded = None
