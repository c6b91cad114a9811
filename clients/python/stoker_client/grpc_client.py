"""`GrpcClient` and `AsyncGrpcClient`: the gRPC dialect over grpcio. There are no stubs: methods are called by their path."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from stoker_client._pb import messages as pb
from stoker_client.async_client import AsyncClient
from stoker_client.client import Client
from stoker_client.dialect import T
from stoker_client.errors import Cancelled, ClientClosed, ForkedClient, InvalidSetting, StokerError
from stoker_client.grpc_dialect import STREAM_METHOD, GrpcDialect, GrpcRequest, read_message, stream_result
from stoker_client.grpc_errors import error_from_status
from stoker_client.inference import InferRequest, InferResult
from stoker_client.retry import AsyncTiming, RetryPolicy, Timing
from stoker_client.settings import MAX_MESSAGE_BYTES, Connection, TlsConfig, make_connection

# Makes the server end a failed stream with a status; otherwise it would send only the error's text in a message.
_STREAM_ERRORS_AS_STATUS = ("triton_grpc_error", "true")

# grpc.aio's text for a request that could not be sent, and the time, in seconds, in which the real status may arrive.
_SENDING_FAILED = "Internal error from Core"
_STATUS_PATIENCE_S = 1.0

_RECONNECT_FIRST_MS = 100
_RECONNECT_MAX_MS = 5000


_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def channel_options(connection: Connection) -> list[tuple[str, Any]]:
    """The options of every gRPC channel."""
    server_name = connection.tls.server_name if connection.tls is not None else None
    return [
        *([] if server_name is None else [("grpc.ssl_target_name_override", server_name)]),
        ("grpc.max_send_message_length", connection.max_message_bytes),
        ("grpc.max_receive_message_length", connection.max_message_bytes),
        # A forked process must not share the connections of its parent's channels to the same server.
        *([("grpc.use_local_subchannel_pool", 1)] if _is_forked else []),
        # gRPC's first backoff of 1 s would make quick retries of a refused connection fail without an attempt.
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_FIRST_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MAX_MS),
    ]


def channel_credentials(tls: TlsConfig | None) -> grpc.ChannelCredentials:
    """The TLS files as gRPC credentials; None: the system's certificates."""
    tls = tls or TlsConfig()
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def _read(pem: str | Path | bytes | None) -> bytes | None:
    if pem is None or isinstance(pem, bytes):
        return pem
    try:
        return Path(pem).read_bytes()
    except OSError as error:
        raise InvalidSetting(f"the TLS file '{pem}' cannot be read: {error.strerror or error}") from error


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _error_of(error: grpc.RpcError) -> StokerError:
    return error_from_status(error.code(), error.details(), error.trailing_metadata())


class _Feed(Iterator[Message]):
    """The messages of a stream. gRPC would only log an exception of the caller's iterator; this class ends the stream and keeps the
    exception.
    """

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages = messages
        self.error: Exception | None = None

    def __next__(self) -> Message:
        try:
            return next(self._messages)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, in the thread that reads the responses
            self.error = error
            raise StopIteration from None

    def raise_error(self) -> None:
        """Raises the exception of the caller's iterator, if there was one."""
        if self.error is not None:
            raise self.error


class _AsyncFeed:
    """`_Feed` for asyncio."""

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        self._messages = messages
        self.error: Exception | None = None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, in the task that reads the responses
            self.error = error
            raise StopAsyncIteration from None

    def raise_error(self) -> None:
        """Raises the exception of the caller's iterator, if there was one."""
        if self.error is not None:
            raise self.error


class _Ending:
    """The error with which the server ended an asyncio stream.

    If the server ends the stream while a request is being sent, grpc.aio reports the failed send instead of the server's status, before or
    after the status arrives. Callbacks report both; this class keeps the server's status.
    """

    def __init__(self, call: Any) -> None:
        self._error: StokerError | None = None
        self._is_known = asyncio.Event()
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        details = _at_once(call.details())
        if details != _SENDING_FAILED:
            self._error = error_from_status(_at_once(call.code()), details, _at_once(call.trailing_metadata()))
            self._is_known.set()

    async def error_for(self, error: grpc.RpcError) -> StokerError:
        """The server's error if `error` only reports a failed send; else `error`."""
        if error.details() == _SENDING_FAILED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_known.wait(), _STATUS_PATIENCE_S)
            if self._error is not None:
                return self._error
        return _error_of(error)


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("grpc.aio announced the end of a call before it knew its status")


def _settle(future: "Future[T]", call: Any, read: Callable[[bytes], T]) -> None:
    """Sets the future from gRPC's finished call."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(read(call.result()))
    except grpc.FutureCancelledError:
        future.set_exception(Cancelled("the call was cancelled", status="CANCELLED"))
    except grpc.RpcError as error:
        future.set_exception(_error_of(error))
    except Exception as error:  # noqa: BLE001 - raised again where the result is asked for
        future.set_exception(error)


def _is_cancelled() -> bool:
    """Whether the running task was cancelled, rather than only the call that it awaits."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return False
    return task is not None and task.cancelling() > 0


class _ChannelOwner:
    """Checks whether a channel may be used: only by the process that opened it, until it is closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._metadata = tuple(connection.headers.items())
        self._credentials = channel_credentials(connection.tls) if connection.endpoint.secure else None
        self._is_closed = False
        self._pid = 0

    def _check(self) -> None:
        if self._is_closed:
            raise ClientClosed
        if self._pid and self._pid != os.getpid():
            raise ForkedClient(self._pid)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Converts exceptions of gRPC to `StokerError`s."""
        try:
            yield
        except grpc.RpcError as error:
            if self._is_closed:
                raise ClientClosed from error
            raise _error_of(error) from error
        except (
            ValueError,
            grpc.aio.UsageError,
            asyncio.CancelledError,
        ) as error:  # the exception of gRPC for a channel that was closed meanwhile
            if self._is_closed and not _is_cancelled():
                raise ClientClosed from error
            raise


class GrpcTransport(_ChannelOwner):
    """One gRPC channel, opened by the first call. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # No lock: a fork would copy its state. If several threads make a channel at once, the first one is kept.
        self._channels: dict[str, grpc.Channel] = {}
        self._methods: dict[str, Any] = {}

    def send(self, request: GrpcRequest, timeout_s: float | None) -> Message:
        """Makes one unary call; raises a `StokerError` for any status but OK."""
        method = self._method(request.path)
        with self._errors():
            data = method(request.message, timeout=timeout_s, metadata=self._metadata)
        return read_message(request.reply, data)

    def submit(self, path: str, message: Message, read: Callable[[bytes], T], timeout_s: float | None) -> "Future[T]":
        """Starts one unary call. The future holds the result of `read` for the response, or the `StokerError`; cancelling it cancels the
        call.
        """
        method = self._method(path)
        with self._errors():
            call = method.future(message, timeout=timeout_s, metadata=self._metadata)
        future: Future[T] = Future()
        future.add_done_callback(lambda ended: call.cancel() if ended.cancelled() else None)
        call.add_done_callback(lambda ended: _settle(future, ended, read))
        return future

    def _open(self) -> grpc.Channel:
        self._check()
        channel = self._channels.get("")
        if channel is None:
            self._pid = os.getpid()
            target, options = self._connection.endpoint.authority, channel_options(self._connection)
            if self._credentials is None:
                made = grpc.insecure_channel(target, options)
            else:
                made = grpc.secure_channel(target, self._credentials, options)
            channel = self._channels.setdefault("", made)
            if channel is not made:
                made.close()
        return channel

    def _method(self, path: str) -> Any:
        channel = self._open()
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = channel.unary_unary(path, request_serializer=_serialize)
        return method

    def stream(self, messages: Iterator[Message], timeout_s: float | None) -> Iterator[bytes]:
        """Runs one bidirectional call; raises as `send`, and the exceptions of `messages`."""
        feed = _Feed(messages)
        method = self._open().stream_stream(STREAM_METHOD, request_serializer=_serialize)
        with self._errors():
            call = method(feed, timeout=timeout_s, metadata=(*self._metadata, _STREAM_ERRORS_AS_STATUS))
        try:
            yield from call
        except grpc.RpcError as error:
            feed.raise_error()
            raise (ClientClosed() if self._is_closed else _error_of(error)) from error
        finally:
            call.cancel()
        feed.raise_error()

    def close(self) -> None:
        """Closes the channel, unless the parent process opened it."""
        is_forked = self._pid != os.getpid()
        self._is_closed = True
        channel = self._channels.pop("", None)
        if channel is not None and not is_forked:
            channel.close()


class AsyncGrpcTransport(_ChannelOwner):
    """One gRPC channel, opened in the loop of the first call. Confined to: that loop."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._channel: Any = None
        self._methods: dict[str, Callable[..., Any]] = {}

    def _open(self) -> Any:
        self._check()
        if self._channel is None:
            self._pid = os.getpid()
            target, options = self._connection.endpoint.authority, channel_options(self._connection)
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(target, options)
            else:
                self._channel = grpc.aio.secure_channel(target, self._credentials, options)
        return self._channel

    async def send(self, request: GrpcRequest, timeout_s: float | None) -> Message:
        """Makes one unary call; raises a `StokerError` for any status but OK."""
        channel = self._open()
        method = self._methods.get(request.path)
        if method is None:
            method = self._methods[request.path] = channel.unary_unary(request.path, request_serializer=_serialize)
        with self._errors():
            data = await method(request.message, timeout=timeout_s, metadata=self._metadata)
        return read_message(request.reply, data)

    async def stream(self, messages: AsyncIterator[Message], timeout_s: float | None) -> AsyncIterator[bytes]:
        """Runs one bidirectional call; raises as `send`, and the exceptions of `messages`."""
        feed = _AsyncFeed(messages)
        method = self._open().stream_stream(STREAM_METHOD, request_serializer=_serialize)
        with self._errors():
            call = method(feed, timeout=timeout_s, metadata=(*self._metadata, _STREAM_ERRORS_AS_STATUS))
        ending = _Ending(call)
        try:
            async for data in call:
                yield data
        except grpc.RpcError as error:
            feed.raise_error()
            raise (ClientClosed() if self._is_closed else await ending.error_for(error)) from error
        except asyncio.CancelledError as error:
            if self._is_closed and not _is_cancelled():
                raise ClientClosed from error
            raise
        finally:
            call.cancel()
        feed.raise_error()

    async def close(self) -> None:
        """Closes the channel, unless the parent process opened it."""
        is_forked = self._pid != os.getpid()
        self._is_closed = True
        if self._channel is not None and not is_forked:
            await self._channel.close()


class GrpcClient(Client):
    """A client over gRPC. See `Client`.

    Args:
        url: `grpc://host:port`, `grpcs://host:port` (TLS) or `host:port`.
        timeout_s: Default limit of a call, in seconds, retries included; None: no limit.
        retry: When and how often failed calls are sent again.
        tls: Certificates; None with `grpcs://`: the system's.
        api_key: Sent as `authorization: Bearer <key>`.
        headers: Metadata to send with every call.
        max_message_bytes: Bound on one message, in each direction.
        timing: The clock; for tests.
    """

    _dialect: GrpcDialect
    _transport: GrpcTransport

    def __init__(
        self,
        url: str = "grpc://127.0.0.1:8500",
        *,
        timeout_s: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),
        tls: TlsConfig | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timing: Timing = Timing(),
    ) -> None:
        connection = make_connection(url, "grpc", tls=tls, api_key=api_key, headers=headers, max_message_bytes=max_message_bytes)
        super().__init__(GrpcDialect(max_message_bytes), GrpcTransport(connection), timeout_s=timeout_s, retry=retry, timing=timing)

    def _stream(self, requests: Iterator[InferRequest], limit_s: float | None) -> Iterator[InferResult]:
        messages = map(self._dialect.infer_message, requests)
        for data in self._transport.stream(messages, limit_s):
            yield stream_result(read_message(pb.ModelStreamInferResponse, data))


class AsyncGrpcClient(AsyncClient):
    """An asyncio client over gRPC. See `AsyncClient`; the arguments are those of `GrpcClient`."""

    _dialect: GrpcDialect
    _transport: AsyncGrpcTransport

    def __init__(
        self,
        url: str = "grpc://127.0.0.1:8500",
        *,
        timeout_s: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),
        tls: TlsConfig | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timing: AsyncTiming = AsyncTiming(),
    ) -> None:
        connection = make_connection(url, "grpc", tls=tls, api_key=api_key, headers=headers, max_message_bytes=max_message_bytes)
        super().__init__(GrpcDialect(max_message_bytes), AsyncGrpcTransport(connection), timeout_s=timeout_s, retry=retry, timing=timing)

    async def _stream(self, requests: AsyncIterator[InferRequest], limit_s: float | None) -> AsyncIterator[InferResult]:
        messages = (self._dialect.infer_message(request) async for request in requests)
        async for data in self._transport.stream(messages, limit_s):
            yield stream_result(read_message(pb.ModelStreamInferResponse, data))
