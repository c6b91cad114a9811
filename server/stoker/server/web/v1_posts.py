"""POST below /v1: from the body to the response, in the protocol that `rest_choice` selects."""

from typing import Final

from stoker.backends.api.errors import DeadlineExceeded, InvalidRequest, ServingError, TooLarge
from stoker.server.codecs.strict_json import Json, memory_cost, parse_json
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.core.tasks import in_time, run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.net.http1.response import HeaderList
from stoker.server.protocols.adlik import rest_choice
from stoker.server.protocols.adlik.long_elements import decode_long_elements, find_long_elements, put_back
from stoker.server.protocols.adlik.request import ModelQuery as AdlikQuery
from stoker.server.protocols.adlik.rest_choice import Dialect
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.compression import compress
from stoker.server.protocols.decoded_call import DecodedCall
from stoker.server.protocols.settings import RestV1
from stoker.server.protocols.tfs import json_codec as tfs_json
from stoker.server.protocols.tfs.model_spec import ModelQuery, tfs_status
from stoker.server.protocols.tfs.rest import TfsRest
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.rpc.status import adlik_status

PREDICT: Final = "predict"


class PostedRequest:
    """One request.

    Attributes:
        query: The model in the URL, in TensorFlow Serving's terms, which have labels too.
        verb: The text after the colon in the URL, in lower case.
        forced: The protocol that the URL or the operator has chosen; None: the body decides.
        dialect: The protocol, as far as is known: errors have that protocol's status.
    """

    __slots__ = ("dialect", "forced", "query", "verb")

    def __init__(self, query: ModelQuery, verb: str, forced: Dialect | None, dialect: Dialect) -> None:
        self.query = query
        self.verb = verb
        self.forced = forced
        self.dialect = dialect

    @property
    def via(self) -> Via:
        """The protocol of the access log."""
        return Via.ADLIK_HTTP if self.dialect is Dialect.ADLIK else Via.TFS_HTTP

    def status(self, error: ServingError) -> int:
        """The HTTP status of `error`."""
        return (adlik_status if self.dialect is Dialect.ADLIK else tfs_status)(error).http


class V1Posts:
    """Handles the requests. Confined to: the event loop.

    Attributes:
        engine: Runs the requests.
        limits: Bounds on what clients send.
        settings: The operator's choice of protocol.
        rest: TensorFlow Serving's REST interface.
        timeout_s: How long a request of TensorFlow Serving's protocol may take from its complete body; None: no limit.
    """

    def __init__(self, engine: Engine, limits: Limits, adlik: AdlikService, tfs: TfsService) -> None:
        self.engine = engine
        self.limits = limits
        self.settings = adlik.settings
        self.rest = TfsRest(engine, limits, tfs)
        self.timeout_s = tfs.settings.rest_timeout_s
        self._adlik = adlik.predicting

    @property
    def default_dialect(self) -> Dialect:
        """The protocol of a request whose own is not known yet."""
        return Dialect.ADLIK if self.settings.rest_v1 is RestV1.ADLIK else Dialect.TFS

    def decode(self, posted: PostedRequest, body: bytes, reservation: Reservation) -> DecodedCall | None:
        """Decodes the `body` of `:predict`; None: that needs a thread, and nothing was reserved.

        REQUIRES: `body` has at most `decode_inline_bytes`.

        Raises:
            ServingError: the request violates the protocol, the limits or the model's signature, or no READY model matches.
        """
        limits, held_bytes = self.limits, reservation.held_bytes
        reservation.take(memory_cost(body, limits))
        given = parse_json(body, limits) if posted.dialect is Dialect.ADLIK else tfs_json.parse(body, limits)
        self._choose(posted, given)
        query = posted.query
        if posted.dialect is Dialect.TFS:
            return self.rest.decode(query, given, len(body), reservation)
        decoded = self._adlik.decode_json(AdlikQuery(query.name, query.version), given, len(body), reservation)
        if decoded is None:
            reservation.give_back(reservation.held_bytes - held_bytes)
        return decoded

    async def response(self, posted: PostedRequest, body: bytes | memoryview, reservation: Reservation) -> bytes:
        """The body of the response.

        Raises:
            ServingError: the response is an error; its status is that of `posted.dialect`.
        """
        query = posted.query
        long = await self._long_adlik(posted, body, reservation)
        if long is not None:
            given, size_bytes = long
            return await self._adlik.from_json(AdlikQuery(query.name, query.version), given, size_bytes, reservation, has_arrays=True)
        text = body if isinstance(body, bytes) else await run_off_loop(bytes, body)
        given = await self._parsed(posted, text, reservation)
        self._choose(posted, given)
        if posted.dialect is Dialect.ADLIK:
            return await self._adlik.from_json(AdlikQuery(query.name, query.version), given, len(body), reservation)
        responses = {PREDICT: self.rest.predict, "classify": self.rest.classify, "regress": self.rest.regress}
        response = responses[posted.verb](query, given, len(body), reservation)
        if self.timeout_s is None:
            return await response
        try:
            return await in_time(response, self.timeout_s)
        except TimeoutError:
            raise DeadlineExceeded(f"the request was not completed within {self.timeout_s:g} s (--rest_api_timeout_in_ms)") from None

    async def compressed(self, response: bytes, encoding: str | None) -> tuple[bytes, HeaderList]:
        """The body of the response as the client prefers it (None: not compressed), and its headers."""
        headers: HeaderList = [(b"content-type", b"application/json")]
        if encoding is not None and len(response) >= self.limits.compress_min_bytes:
            response = await compress([response], encoding, self.limits)
            headers.append((b"content-encoding", encoding.encode()))
        return response, headers

    def _choose(self, posted: PostedRequest, given: Json) -> None:
        """Sets the protocol of the request with the parsed body `given`."""
        if posted.verb != PREDICT or posted.query.label:
            posted.dialect = Dialect.TFS
        elif posted.forced is None:
            posted.dialect = rest_choice.of_body(self.settings, given)

    async def _long_adlik(self, posted: PostedRequest, body: bytes | memoryview, reservation: Reservation) -> tuple[Json, int] | None:
        """The parsed `body` of an Adlik request with long tensors, which are arrays in it, and the bytes of these and of the remaining
        text, all of which are reserved; None: it is no such request.
        """
        limits = self.limits
        may_be_adlik = posted.verb == PREDICT and not posted.query.label and posted.forced is not Dialect.TFS
        if not may_be_adlik or len(body) <= limits.decode_inline_bytes:
            return None
        view = memoryview(body)
        elements = await run_off_loop(find_long_elements, view)
        if not elements:
            return None
        if len(body) > limits.adlik_json_bytes:
            raise TooLarge(f"JSON of {len(body)} bytes exceeds the limit of {limits.adlik_json_bytes} bytes; send large requests over gRPC")
        held_bytes = reservation.held_bytes
        decoded_bytes = sum(element.decoded_bytes for element in elements)
        reservation.take(decoded_bytes)
        try:
            text, decoded = await run_off_loop(decode_long_elements, view, elements)
        except InvalidRequest:
            if posted.forced is Dialect.ADLIK:
                raise
            # The keys may be the names of something else in TensorFlow Serving's protocol: the parsed body decides.
            reservation.give_back(reservation.held_bytes - held_bytes)
            return None
        given = await self._parsed(posted, text, reservation)
        self._choose(posted, given)
        if posted.dialect is not Dialect.ADLIK:
            # The keys of an Adlik tensor are the names of something else.
            reservation.give_back(reservation.held_bytes - held_bytes)
            return None
        put_back(given, decoded)
        reservation.take(len(text))
        return given, decoded_bytes + len(text)

    async def _parsed(self, posted: PostedRequest, body: bytes, reservation: Reservation) -> Json:
        limits = self.limits
        # Only TensorFlow Serving accepts NaN and Infinity. Invalid JSON is rejected with the text of the selected protocol.
        parse = parse_json if posted.dialect is Dialect.ADLIK else tfs_json.parse
        if len(body) > limits.decode_inline_bytes:
            reservation.take(await run_off_loop(memory_cost, body, limits))
            return await run_off_loop(parse, body, limits)
        reservation.take(memory_cost(body, limits))
        return parse(body, limits)
