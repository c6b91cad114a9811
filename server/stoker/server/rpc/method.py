"""`Call`, one RPC as its method sees it, and `Method`, one line of the table that a protocol offers and that every transport serves."""

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

    A client that goes away, and a deadline that passes, cancel the task its method runs in, so that a method needs no check while it
    waits.
    """

    @property
    def metadata(self) -> Mapping[str, str]:
        """Textual metadata, names in lower case; the last one of several of a name."""

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        """Metadata whose names end in `-bin`, decoded."""

    @property
    def deadline_ns(self) -> int | None:
        """When the client stops waiting, on the engine's monotonic scale; None = never."""

    def cancelled(self) -> bool:
        """Whether the client needs the response no more."""

    def add_trailer(self, name: str, value: str | bytes) -> None:
        """Metadata that goes with the status; `name` in lower case, ending in `-bin` where `value` is bytes."""


class StreamCall(Call, Protocol):
    """A `Call` that delivers messages and takes responses one by one.

    `receive` and `send` may wait at the same time, in two tasks; each of them in one task only.
    """

    async def receive(self) -> bytes | None:
        """The next serialised message; None once the client has sent its last.

        Raises:
            ServingError: the client sent what is no message, or one too large; let it through, so that it ends the call.
        """

    async def send(self, message: bytes | Message) -> None:
        """Sends one response; returns when there is room for the next."""


Result = bytes | Message
"""The one response message of a unary call."""

Start = Callable[[Any, Call], Completion[Result]]
"""Begins a unary call, given its serialised message; raises `ServingError` where it rejects at once. The message is `bytes`, or, where the
method has `lead_bytes`, a read-only `memoryview` if it is large."""

UnaryHandler = Callable[[bytes, Call], Awaitable[Result]]
"""A unary call as a coroutine; raises `ServingError`."""

Failed = Callable[[ServingError], None]
"""Takes what a call failed by."""

StreamHandler = Callable[[StreamCall], Awaitable[None]]
"""Receives and sends on the call until it returns; raises `ServingError`."""


class Kind(enum.Enum):
    """How many messages go each way."""

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
        kind: Its shape.
        status: What its protocol responds to an error with; only the gRPC code counts.
        most_bytes: Largest message a client may send. A transport that sees the length first rejects before it holds the message.
        start: The body of a unary method; None for streams.
        handle: The body of a stream; None for unary methods.
        lead_bytes: Has a transport receive large messages into a buffer of their own, so aligned that what begins so many bytes into a
            message of a given size is aligned. None: all messages are `bytes`.
        failed: Gets every error that the call ends by; None: there is no such callback.
        require: Rejects a call that has not the key it needs, given what gives the value of a metadata name; None: it needs none. The
            bodies check it, too: it is for transports that can reject before a message has come.
    """

    path: str
    kind: Kind
    status: Callable[[ServingError], Status]
    most_bytes: int
    start: Start | None = None
    handle: StreamHandler | None = None
    lead_bytes: Callable[[int], int] | None = None
    failed: Failed | None = None
    require: Callable[[Callable[[str], str | None]], None] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if it has not exactly the one body that its kind takes."""
        is_unary = self.kind is Kind.UNARY
        if is_unary is (self.start is None) or is_unary is (self.handle is not None):
            raise ValueError(f"{self.path}: a unary method has `start`, any other has `handle`")

    @property
    def service(self) -> str:
        """The full name of its service."""
        return self.path[1:].partition("/")[0]


MethodTable = Mapping[str, Method]
"""Methods by their path."""


def method_table(methods: Iterable[Method]) -> MethodTable:
    """The table of `methods`.

    Raises:
        ValueError: two have the same path, or one's path is none.
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
    """The unary method of protobuf's `descriptor`. `response` gets the message and the call's deadline and returns the response.

    `response` runs up to its first wait without a task: see `TaskCompletion`.
    """

    def start(data: bytes, call: Call) -> Completion[Result]:
        return TaskCompletion(lambda: response(data, call.deadline_ns), is_inline=True)

    return Method(path=path_of(descriptor), kind=Kind.UNARY, start=start, status=status, most_bytes=most_bytes, failed=failed)


def in_task(handler: UnaryHandler, *, is_inline: bool = False) -> Start:
    """`handler` as the body of a unary method, run in a task; `is_inline` as for `TaskCompletion`."""
    return lambda data, call: TaskCompletion(lambda: handler(data, call), is_inline=is_inline)


def path_of(descriptor: Any) -> str:
    """The path of a method, from its protobuf descriptor."""
    return f"/{descriptor.containing_service.full_name}/{descriptor.name}"


def kind_of(descriptor: Any) -> Kind:
    """The shape of a method, from its protobuf descriptor."""
    return Kind((descriptor.client_streaming, descriptor.server_streaming))
