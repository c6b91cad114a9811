"""The common parts of all senders: the interface, its errors, and opening a connection."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from stoker_client.dialect import Call
from stoker_client.errors import StokerError
from stoker_client.http_client import ssl_context
from stoker_client.inference import InferResult
from stoker_client.settings import Connection

#: Bound on the bytes of one response.
MAX_RESPONSE_BYTES = 2**31 - 1
CLOSED = "the server closed the connection"

_Made = TypeVar("_Made", bound=asyncio.Protocol)


class Trip(NamedTuple):
    """The client's own times in one request, nanoseconds.

    Attributes:
        send_ns: Until the transport has accepted the request.
        receive_ns: From the last byte of the response until it is parsed.
    """

    send_ns: int
    receive_ns: int


class RequestFailed(Exception):
    """A request of the load has failed; `str()` gives the reason."""


class Sender(Protocol):
    """Sends the request of the load. Confined to: the event loop."""

    async def send(self) -> Trip:
        """Sends it once and returns after the response.

        Raises:
            RequestFailed: There is no response, or it is an error.
        """

    async def close(self) -> None:
        """Closes all connections."""


def tls_context(connection: Connection, *protocols: str) -> ssl.SSLContext | None:
    """The TLS settings of `connection`, which offer `protocols` by ALPN; None: the connection is plain."""
    if not connection.endpoint.secure:
        return None
    context = ssl_context(connection)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


async def open_connection(connection: Connection, context: ssl.SSLContext | None, make: Callable[[], _Made]) -> _Made:
    """Connects to the endpoint of `connection`.

    Raises:
        OSError: The server cannot be reached.
    """
    loop, endpoint = asyncio.get_running_loop(), connection.endpoint
    if endpoint.socket_path:
        return (await loop.create_unix_connection(make, endpoint.socket_path))[1]
    server_name = None if connection.tls is None else connection.tls.server_name
    return (await loop.create_connection(make, endpoint.host, endpoint.port, ssl=context, server_hostname=server_name))[1]


def reason_of(error: Exception) -> str:
    """The reason of a failure, without the error number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def send_without_delay(transport: asyncio.BaseTransport) -> None:
    """Switches off Nagle's algorithm on a TCP connection."""
    plain = transport.get_extra_info("socket")
    if plain.family != socket.AF_UNIX:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def check_response(call: Call[InferResult], reply: Any) -> InferResult:
    """Parses a response.

    Raises:
        RequestFailed: It is an error, or malformed.
    """
    try:
        return call.parse(reply)
    except StokerError as error:
        raise RequestFailed(error.message) from error
