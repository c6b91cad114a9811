"""The interface between protocols and gRPC transports: `Call`, one RPC in progress, and `Method`, one entry of a method table."""

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from google.protobuf.message import Message

from stoker.backends.api.errors import ServingError
from stoker.server.core.completion import Completion, TaskCompletion
from stoker.server.rpc.status import Status


class Call(Protocol):
    """One RPC in progress.

    A disconnected client or an expired deadline cancels the task of the method, so that a method needs no check while it waits.
    """

    @property
    def metadata(self) -> Mapping[str, str]:
        """Textual metadata, names in lower case; the last one of several of a name."""

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        """Metadata whose names end in `-bin`, decoded."""

    @property
    def deadline_ns(self) -> int | None:
        """The client's deadline in nanoseconds of the engine's monotonic clock; None: there is none."""

    def cancelled(self) -> bool:
        """Whether the client no longer waits for the response."""

    def add_trailer(self, name: str, value: str | bytes) -> None:
        """Adds trailing metadata; `name` is in lower case, and ends in `-bin` if `value` is bytes."""


class ReactorCall(Call, Protocol):
    """A stream as its `StreamReactor` sees it. Confined to: the event loop."""

    def write(self, message: bytes | list[bytes | memoryview]) -> bool:
        """Sends one serialised response, possibly in pieces; returns whether the next one may follow at once. If not, `sent` is called.

        REQUIRES: the response before it was sent.
        """

    def write_last(self, message: bytes | list[bytes | memoryview]) -> bool:
        """Sends the last response and ends the call with the status OK, if both can be one step. False: see `write` and `finish`.

        REQUIRES: as `write`.
        """

    def read_on(self) -> None:
        """Passes on more messages: the reactor takes them again."""

    def finish(self) -> None:
        """Ends the call with the status OK. The reactor is not called again."""

    def fail(self, error: Exception) -> None:
        """Ends the call with the status of `error`. The reactor is not called again, but for `cancel`."""


class StreamReactor(Protocol):
    """Handles one stream by callbacks, without a task, as the reactors of gRPC's callback API do.

    Attributes:
        is_reading: Whether it takes another message; if not, it calls `ReactorCall.read_on` later.
    """

    is_reading: bool

    def received(self, data: bytes | memoryview) -> None:
        """Takes the next serialised message, as `Start` gets it. REQUIRES: `is_reading`."""

    def ended(self, error: Exception | None) -> None:
        """Notes that no message follows: the client has sent its last one, or the next one is invalid (`error`)."""

    def sent(self) -> None:
        """Notes that the next response may be sent, after a `write` that returned False."""

    def cancel(self) -> None:
        """Cancels all work: the call is over. May be called more than once."""


class StreamCall(Call, Protocol):
    """A `Call` that receives and sends messages one by one.

    `receive` and `send` may wait at the same time in two tasks, but each of them in one task only.
    """

    async def receive(self) -> bytes | memoryview | None:
        """Returns the next serialised message, as `Start` gets it; None: the client has sent its last one.

        Raises:
            ServingError: the client sent an invalid or too large message. The method must not catch it, so that it ends the call.
        """

    async def send(self, message: bytes | Message | list[bytes | memoryview]) -> None:
        """Sends one response, possibly serialised in pieces; returns when the transport accepts the next one."""


Result = bytes | Message | list[bytes | memoryview]
"""The one response message of a unary call; a large one may be serialised in pieces, whose views nothing writes to."""

Start = Callable[[Any, Call], Completion[Result]]
"""Begins a unary call, given its serialised message; raises `ServingError` where it rejects at once. The message is `bytes`, or, where the
method has `lead_bytes`, a read-only `memoryview` if it is large."""

UnaryHandler = Callable[[bytes, Call], Awaitable[Result]]
"""A unary call as a coroutine; raises `ServingError`."""

Failed = Callable[[ServingError], None]
"""Takes what a call failed by."""

StreamHandler = Callable[[StreamCall], Awaitable[None]]
"""Receives and sends on the call until it returns; raises `ServingError`."""

Begin = Callable[[Any], StreamReactor]
"""Begins a stream, given its `ReactorCall`; raises `ServingError`. The transport may begin a stream when its first message arrives."""


class Kind(enum.Enum):
    """The streaming kind of a method: one or many requests, one or many responses."""

    UNARY = (False, False)
    SERVER_STREAM = (False, True)
    CLIENT_STREAM = (True, False)
    BIDI = (True, True)

    @property
    def is_client_streaming(self) -> bool:
        """Whether the client may send any number of messages."""
        return self.value[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One RPC.

    Attributes:
        path: `/package.Service/Name`.
        kind: Whether requests and responses are streams.
        status: Maps an error to the protocol's status, of which only the gRPC code is used.
        most_bytes: Largest message a client may send. A transport that reads the length first rejects the message before it stores it.
        start: The handler of a unary method; None for streaming methods.
        handle: The handler of a streaming method; None for unary methods.
        begin: The same handler as a reactor, for transports that call one; None: there is none. The method is bidirectional.
        lead_bytes: Returns the offset of the first tensor in a message of a given size, both in bytes. A transport receives large messages
            into a buffer in which that offset is aligned. None: all messages are `bytes`.
        failed: Called with every error that ends a call; None: there is no such callback.
        require: Rejects a call without the required key; its argument returns the value of a metadata name. None: no key is required. The
            handlers check the key too; transports use this to reject a call before its message arrives.
    """

    path: str
    kind: Kind
    status: Callable[[ServingError], Status]
    most_bytes: int
    start: Start | None = None
    handle: StreamHandler | None = None
    begin: Begin | None = None
    lead_bytes: Callable[[int], int] | None = None
    failed: Failed | None = None
    require: Callable[[Callable[[str], str | None]], None] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if the method has not exactly the one handler of its kind."""
        is_unary = self.kind is Kind.UNARY
        if is_unary is (self.start is None) or is_unary is (self.handle is not None):
            raise ValueError(f"{self.path}: a unary method has `start`, any other has `handle`")
        if self.begin is not None and self.kind is not Kind.BIDI:
            raise ValueError(f"{self.path}: only a bidirectional method has `begin`")

    @property
    def service(self) -> str:
        """The full name of its service."""
        return self.path[1:].partition("/")[0]


MethodTable = Mapping[str, Method]
"""Methods by their path."""


def method_table(methods: Iterable[Method]) -> MethodTable:
    """The table of `methods`.

    Raises:
        ValueError: two methods have the same path, or a path is malformed.
    """
    table: dict[str, Method] = {}
    for method in methods:
        slash, service, name = [*method.path.split("/"), "", ""][:3]
        if slash or not service or not name or method.path.count("/") != 2:
            raise ValueError(f"the path of a method must be /package.Service/Name, got {method.path!r}")
        if method.path in table:
            raise ValueError(f"two methods have the path {method.path}")
        table[method.path] = method
    return MappingProxyType(table)


def inference_method(
    descriptor: Any,
    response: Callable[[bytes, int | None], Awaitable[Result]],
    status: Callable[[ServingError], Status],
    most_bytes: int,
    failed: Failed | None = None,
) -> Method:
    """Makes the unary method of protobuf's `descriptor`. `response` takes the message and the call's deadline, and returns the response.

    `response` runs without a task up to its first `await` that suspends: see `TaskCompletion`.
    """

    def start(data: bytes, call: Call) -> Completion[Result]:
        return TaskCompletion(lambda: response(data, call.deadline_ns), is_inline=True)

    return unary_method(descriptor, start, status, most_bytes, failed)


def unary_method(
    descriptor: Any,
    start: Start,
    status: Callable[[ServingError], Status],
    most_bytes: int,
    failed: Failed | None = None,
    lead_bytes: Callable[[int], int] | None = None,
) -> Method:
    """The unary method of protobuf's `descriptor`."""
    return Method(
        path=path_of(descriptor),
        kind=Kind.UNARY,
        start=start,
        status=status,
        most_bytes=most_bytes,
        failed=failed,
        lead_bytes=lead_bytes,
    )


def in_task(handler: UnaryHandler, *, is_inline: bool = False) -> Start:
    """Makes a unary method's `start` from the coroutine function `handler`, which runs in a task; `is_inline` as in `TaskCompletion`."""
    return lambda data, call: TaskCompletion(lambda: handler(data, call), is_inline=is_inline)


def path_of(descriptor: Any) -> str:
    """The path of a method, from its protobuf descriptor."""
    return f"/{descriptor.containing_service.full_name}/{descriptor.name}"


def kind_of(descriptor: Any) -> Kind:
    """The streaming kind of a method, from its protobuf descriptor."""
    return Kind((descriptor.client_streaming, descriptor.server_streaming))
