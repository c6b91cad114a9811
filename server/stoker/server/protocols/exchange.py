"""One HTTP exchange at ASGI level: reads the body under the limits, and sends the response or error."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from stoker.backends.api.errors import ErrorCode, ServingError, TooLarge
from stoker.server.core.byte_budget import ByteBudget, Reservation
from stoker.server.core.limits import Limits
from stoker.server.net.http1.asgi import RELEASE_WHEN_SENT, RESERVATION, RESPONSE_RESERVATION
from stoker.server.net.http1.response import HeaderList
from stoker.server.net.inflation import joined
from stoker.server.protocols.compression import ENCODINGS, UnsupportedEncoding, decompress
from stoker.server.rpc.status import kserve_status, retry_after_seconds

Receive = Any
Send = Any
Scope = Any
#: Set in the scope of a HEAD request, which the application serves as GET.
IS_HEAD: Final = "stoker.is_head"
INTERNAL_TEXT: Final = "internal error: see the server's log"


class ClientGone(Exception):
    """The client closed the connection before its request was complete. No response is possible."""


class HttpCall:
    """An HTTP request as the `Call` of the services. When its client disconnects, the task of the request is cancelled."""

    __slots__ = ("_headers", "_metadata")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._metadata: dict[str, str] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        if self._metadata is None:
            self._metadata = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        return self._metadata

    @property
    def deadline_ns(self) -> int | None:
        return None

    def cancelled(self) -> bool:
        return False


def reservation_of(budget: ByteBudget, scope: Scope) -> Reservation:
    """The reservation of the request of `scope`."""
    make = scope.get(RESERVATION)
    return Reservation(budget) if make is None else make(budget)


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], reservation: Reservation, limits: Limits, most: int | None = None
) -> bytes:
    """Reads the whole body and decompresses it. Bytes are reserved as they arrive, so that a client holds only the bytes it has sent.

    Args:
        receive: The request's ASGI `receive`.
        headers: The request's headers as a mapping.
        reservation: The request's reservation of the byte budget.
        limits: `http_body_bytes` limits the body as sent and decompressed.
        most: A lower limit, in bytes.

    Raises:
        TooLarge: the body or its Content-Length exceeds the limit. Overloaded: it exceeds the byte budget. UnsupportedEncoding,
            InvalidRequest: see `decompress`.
        ClientGone: the client disconnected before the end of the body.
    """
    most = limits.http_body_bytes if most is None else min(most, limits.http_body_bytes)
    # The parser has checked that it is a decimal number.
    declared = int(headers.get(b"content-length", b"0"))
    if declared > most:
        raise TooLarge(f"the body of {declared} bytes exceeds the limit of {most} bytes")
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise TooLarge(f"the body exceeds the limit of {most} bytes")
        reservation.take(len(piece))
        pieces.append(piece)
        if not message.get("more_body", False):
            break
    body = await joined(pieces, limits.decode_inline_bytes)
    encoding = headers.get(b"content-encoding")
    return body if encoding is None else await decompress(body, encoding.decode("latin-1"), reservation.take, limits, most)


def header_of(headers: Iterable[tuple[bytes, bytes]]) -> Callable[[str], str | None]:
    """A function that returns a header's value by its name in lower case; the last of several."""
    given = dict(headers)

    def value(name: str) -> str | None:
        found = given.get(name.encode("latin-1"))
        return None if found is None else found.decode("latin-1")

    return value


async def send_response(send: Send, status: int, body: bytes, headers: HeaderList) -> None:
    """Sends a complete response; its length is added to `headers`."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_reserved(budget: ByteBudget, scope: Scope, send: Send, body: bytes, headers: HeaderList, limits: Limits) -> None:
    """Sends a complete response of status 200. A large one counts against the byte budget until its client has received it.

    REQUIRES: the request's reservation is released, so that request and response are not counted together.

    Raises:
        Overloaded: it exceeds the byte budget; nothing was sent.
    """
    make: Callable[[ByteBudget], Reservation] | None = scope.get(RESPONSE_RESERVATION)
    if make is None or len(body) <= limits.decode_inline_bytes:
        await send_response(send, 200, body, headers)
        return
    unflushed = make(budget)
    unflushed.take_response(len(body))
    try:
        await send_response(send, 200, body, headers)
    except BaseException:
        unflushed.release()
        raise
    scope[RELEASE_WHEN_SENT](unflushed)


def error_response(error: ServingError) -> tuple[int, bytes, HeaderList]:
    """Status, body and headers of the response for `error`."""
    headers: HeaderList = [(b"content-type", b"application/json")]
    after = retry_after_seconds(error)
    if after is not None:
        headers.append((b"retry-after", after.encode()))
    if isinstance(error, UnsupportedEncoding):
        headers.append((b"accept-encoding", ", ".join(ENCODINGS).encode()))
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    return kserve_status(error).http, error_body(error.message), headers


def error_body(text: str) -> bytes:
    """The body of every error."""
    # A text may quote what a client sent, lone surrogates included; those have no UTF-8 form.
    return orjson.dumps({"error": text.encode(errors="backslashreplace").decode()})
