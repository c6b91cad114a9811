"""`HttpClient` and `AsyncHttpClient`: the HTTP dialect over httpx."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from stoker_client.async_client import AsyncClient
from stoker_client.client import Client
from stoker_client.errors import (
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    InvalidResponse,
    InvalidSetting,
    StokerError,
    TooLarge,
)
from stoker_client.http_dialect import HttpDialect, HttpReply, HttpRequest
from stoker_client.http_errors import error_from_response
from stoker_client.inference import InferRequest, InferResult
from stoker_client.per_process import PerProcess
from stoker_client.retry import AsyncTiming, RetryPolicy, Timing
from stoker_client.settings import MAX_MESSAGE_BYTES, Connection, TlsConfig, make_connection

# Tensors rarely compress, and compression costs the server more than it saves on the network; the caller's headers override this.
_HEADERS = {"accept-encoding": "identity", "user-agent": "stoker-client"}

_IDLE_CONNECTIONS = 64
# Shorter than common keep-alive times of servers, so that a connection is not reused at the moment the server closes it.
_IDLE_S = 4.0
# The beginning of a line of a server-sent event that has data.
_EVENT = b"data:"


def ssl_context(connection: Connection) -> ssl.SSLContext:
    """The TLS files as an SSL context.

    Raises:
        InvalidSetting: a file cannot be read, or has another format.
    """
    tls = connection.tls or TlsConfig()
    try:
        if isinstance(tls.ca, bytes):
            context = ssl.create_default_context(cadata=tls.ca.decode("ascii"))
        else:
            context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        shown = ", ".join(
            f"{name} '{path}'" for name, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)) if isinstance(path, str | Path)
        )
        raise InvalidSetting(f"the TLS settings cannot be used ({shown or 'ca'}): {error}") from error
    return context


def _arguments(connection: Connection, transport: type[httpx.HTTPTransport | httpx.AsyncHTTPTransport]) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS, keepalive_expiry=_IDLE_S)
    headers = {**_HEADERS, **connection.headers}
    if connection.endpoint.socket_path:
        return {"headers": headers, "transport": transport(uds=connection.endpoint.socket_path, limits=limits)}
    verify: ssl.SSLContext | bool = ssl_context(connection) if connection.endpoint.secure else True
    return {"headers": headers, "verify": verify, "limits": limits}


def _error_of(error: httpx.TransportError | httpx.DecodingError | httpx.InvalidURL) -> StokerError:
    text = f"{str(error) or 'the connection broke'} ({type(error).__name__})"
    if isinstance(error, httpx.TimeoutException):
        return DeadlineExceeded(f"the time of the call ran out ({type(error).__name__})")
    if isinstance(error, httpx.ConnectError):
        return ConnectionFailed(text, request_may_have_run=False)
    if isinstance(error, httpx.DecodingError):
        return InvalidResponse(text)
    if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        return ConnectionFailed(text, request_may_have_run=True)
    return InvalidRequest(text)


def _extensions(connection: Connection) -> dict[str, Any]:
    """The extensions of every httpx request: the name that the certificate must have, if it is not that of the address."""
    return {"sni_hostname": connection.tls.server_name} if connection.tls is not None and connection.tls.server_name is not None else {}


class _Body:
    """Collects a response body, up to a bound."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Adds a chunk; raises `TooLarge` above the bound."""
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise TooLarge(f"the response is longer than the {self._max_bytes} bytes this client takes")
        self._chunks.append(chunk)

    def reply(self, response: httpx.Response) -> HttpReply:
        """The complete reply."""
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return HttpReply(response.status_code, response.headers, body)


class _TimeLimit:
    """The time that a response may take as a whole."""

    def __init__(self, timeout_s: float | None, what: str) -> None:
        """`what` names the response in the error."""
        self._timeout_s = timeout_s
        self._ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._what = what

    def check(self) -> None:
        """Raises `DeadlineExceeded` after the time."""
        if self._ends_at_s is not None and time.monotonic() > self._ends_at_s:
            raise DeadlineExceeded(f"the {self._what} did not end within {self._timeout_s:g} s")


class HttpTransport:
    """A pool of HTTP/1.1 connections. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._origin = connection.endpoint.origin
        self._max_bytes = connection.max_message_bytes
        self._extensions = _extensions(connection)
        self._pool = PerProcess(lambda: httpx.Client(**_arguments(connection, httpx.HTTPTransport)))

    def send(self, request: HttpRequest, timeout_s: float | None) -> HttpReply:
        """Sends one request; raises a `StokerError` if there is no reply.

        `timeout_s` bounds each wait for the network, and is checked at every chunk of the body.
        """
        body = _Body(self._max_bytes)
        limit = _TimeLimit(timeout_s, "response")
        with self._response(request, timeout_s) as response:
            for chunk in response.iter_bytes():
                body.add(chunk)
                limit.check()
        return body.reply(response)

    def events(self, request: HttpRequest, timeout_s: float | None) -> Iterator[bytes]:
        """Sends one request and yields the data of each server-sent event as it comes.

        `timeout_s` bounds the whole stream. Raises as `send`, and the error of a status other than 200.
        """
        limit = _TimeLimit(timeout_s, "stream")
        with self._response(request, timeout_s) as response:
            rest = b""
            for chunk in response.iter_bytes():
                limit.check()
                rest += chunk
                if response.status_code == 200:
                    *lines, rest = rest.split(b"\n")
                    yield from (line.removeprefix(_EVENT).strip() for line in lines if line.startswith(_EVENT))
                if len(rest) > self._max_bytes:
                    raise TooLarge(f"an event is longer than the {self._max_bytes} bytes this client takes")
            if response.status_code != 200:
                # The error is the body, or the first event if the model failed.
                raise error_from_response(response.status_code, response.headers, rest.removeprefix(_EVENT))

    @contextmanager
    def _response(self, request: HttpRequest, timeout_s: float | None) -> Iterator[httpx.Response]:
        """Sends one request; the context has its response, whose body is read there. Errors of httpx become `StokerError`s."""
        try:
            with self._pool.get().stream(
                request.method,
                self._origin + request.path,
                content=request.body,
                headers=dict(request.headers),
                timeout=timeout_s,
                follow_redirects=False,
                extensions=self._extensions,
            ) as response:
                yield response
        except (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL) as error:
            raise (ClientClosed() if self._pool.is_closed else _error_of(error)) from error
        except RuntimeError as error:  # the exception of httpx for a client that was closed meanwhile
            if self._pool.is_closed:
                raise ClientClosed from error
            raise

    def close(self) -> None:
        """Closes every connection."""
        for client in self._pool.close():
            client.close()


class AsyncHttpTransport:
    """A pool of HTTP/1.1 connections. Confined to: the event loop of the first call."""

    def __init__(self, connection: Connection) -> None:
        self._origin = connection.endpoint.origin
        self._max_bytes = connection.max_message_bytes
        self._extensions = _extensions(connection)
        self._pool = PerProcess(lambda: httpx.AsyncClient(**_arguments(connection, httpx.AsyncHTTPTransport)))

    async def send(self, request: HttpRequest, timeout_s: float | None) -> HttpReply:
        """Sends one request within `timeout_s`; raises a `StokerError` if there is no reply."""
        body = _Body(self._max_bytes)
        url = self._origin + request.path
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._pool.get().stream(
                    request.method,
                    url,
                    content=request.body,
                    headers=dict(request.headers),
                    timeout=None,
                    follow_redirects=False,
                    extensions=self._extensions,
                ) as response,
            ):
                async for chunk in response.aiter_bytes():
                    body.add(chunk)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the call did not end within {timeout_s:g} s") from error
        except (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL) as error:
            raise (ClientClosed() if self._pool.is_closed else _error_of(error)) from error
        except RuntimeError as error:  # the exception of httpx for a client that was closed meanwhile
            if self._pool.is_closed:
                raise ClientClosed from error
            raise
        return body.reply(response)

    async def close(self) -> None:
        """Closes every connection."""
        for client in self._pool.close():
            await client.aclose()


class HttpClient(Client):
    """A client over HTTP with binary tensors. See `Client`.

    Args:
        url: `http://host:port`, `https://host:port` or `host:port`, with a path prefix if a proxy needs one.
        timeout_s: Default limit of a call, in seconds, retries included; None: no limit.
        retry: When and how often failed calls are sent again.
        tls: Certificates; None with `https://`: the system's.
        api_key: Sent as `authorization: Bearer <key>`.
        headers: Headers of every call.
        max_message_bytes: Bound on one message, in each direction.
        timing: The clock; for tests.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8501",
        *,
        timeout_s: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),
        tls: TlsConfig | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timing: Timing = Timing(),
    ) -> None:
        connection = make_connection(url, "http", tls=tls, api_key=api_key, headers=headers, max_message_bytes=max_message_bytes)
        super().__init__(HttpDialect(max_message_bytes), HttpTransport(connection), timeout_s=timeout_s, retry=retry, timing=timing)

    def _stream(self, requests: Iterator[InferRequest], limit_s: float | None) -> Iterator[InferResult]:
        ends_at_s = None if limit_s is None else self._timing.now_s() + limit_s
        for request in requests:
            call = self._dialect.infer(request)
            yield call.parse(self._transport.send(call.request, _left_s(ends_at_s, self._timing.now_s())))


class AsyncHttpClient(AsyncClient):
    """An asyncio client over HTTP with binary tensors. See `AsyncClient`; the arguments are those of `HttpClient`."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8501",
        *,
        timeout_s: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),
        tls: TlsConfig | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timing: AsyncTiming = AsyncTiming(),
    ) -> None:
        connection = make_connection(url, "http", tls=tls, api_key=api_key, headers=headers, max_message_bytes=max_message_bytes)
        super().__init__(HttpDialect(max_message_bytes), AsyncHttpTransport(connection), timeout_s=timeout_s, retry=retry, timing=timing)

    async def _stream(self, requests: AsyncIterator[InferRequest], limit_s: float | None) -> AsyncIterator[InferResult]:
        ends_at_s = None if limit_s is None else self._timing.now_s() + limit_s
        async for request in requests:
            call = self._dialect.infer(request)
            yield call.parse(await self._transport.send(call.request, _left_s(ends_at_s, self._timing.now_s())))


def _left_s(ends_at_s: float | None, now_s: float) -> float | None:
    if ends_at_s is None:
        return None
    if now_s >= ends_at_s:
        raise DeadlineExceeded("the time of the stream ran out")
    return ends_at_s - now_s
