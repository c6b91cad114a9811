"""`Method`, one line of the table that a protocol offers and that every transport serves."""

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf.message import Message

from stoker.backends.api.errors import ServingError
from stoker.server.core.request import InFlight
from stoker.server.rpc.call import Call, StreamCall
from stoker.server.rpc.status import Status

UnaryHandler = Callable[[bytes, Call], Awaitable[bytes | Message]]
"""Takes the one serialised message and answers by one; raises `ServingError`."""

UnarySubmit = Callable[[bytes, Call, Callable[[bytes | Exception], None]], InFlight]
"""As a `UnaryHandler`, but tells the answer, or what is wrong, to a callback: once, at once or later."""

ViewSubmit = Callable[[memoryview, Call, Callable[[bytes | Exception], None]], InFlight]
"""As a `UnarySubmit`, of a message in memory that is nobody else's."""

Failed = Callable[[ServingError], None]
"""Takes what a call failed by."""

StreamHandler = Callable[[StreamCall], Awaitable[None]]
"""Receives and sends on the call until it returns; raises `ServingError`."""


class LargeMessages(NamedTuple):
    """How a method takes large messages without a copy of its own.

    Attributes:
        submit: Takes one as a read-only view; see `ViewSubmit`.
        lead_bytes: Where in a message of so many bytes its tensor begins, as far as earlier ones tell.
    """

    submit: ViewSubmit
    lead_bytes: Callable[[int], int]


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
        handle: A `UnaryHandler` where `kind` is UNARY, a `StreamHandler` otherwise.
        status: What its protocol answers for an error; only the gRPC code counts.
        most_bytes: Largest message a client may send. A transport that sees the length first refuses before it holds the message.
        starts_inline: The handler (unary only) may be begun outside any task, because it asks for no current task (`asyncio.timeout`,
            task groups) before it first waits: a transport then makes a task only of a call that does wait.
        large: The same for large messages that need not be `bytes`; None: all must be.
        failed: Is told of every error that the call ends by; None: nobody is.
        submit: The handler (unary only) in the form that never takes a task; None: there is no such form. Transports may use either.
        require: Refuses a call that has not the key it needs, given what gives the value of a metadata name; None: it needs none. The
            handlers check it, too: it is for transports that can refuse before a message has come.
    """

    path: str
    kind: Kind
    handle: UnaryHandler | StreamHandler
    status: Callable[[ServingError], Status]
    most_bytes: int
    starts_inline: bool = False
    submit: UnarySubmit | None = None
    large: LargeMessages | None = None
    failed: Failed | None = None
    require: Callable[[Callable[[str], str | None]], None] | None = None

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
    response: Callable[[bytes, int | None], Awaitable[bytes | Message]],
    status: Callable[[ServingError], Status],
    most_bytes: int,
    failed: Failed | None = None,
) -> Method:
    """The unary method that `descriptor` (protobuf's) describes and `response` answers, given the message and the call's deadline.

    Begun outside any task: see `Method.starts_inline`.
    """

    def handle(data: bytes, call: Call) -> Awaitable[bytes | Message]:
        return response(data, call.deadline_ns)

    return Method(
        path=path_of(descriptor), kind=Kind.UNARY, handle=handle, status=status, most_bytes=most_bytes, starts_inline=True, failed=failed
    )


def path_of(descriptor: Any) -> str:
    """The path of a method, from its protobuf descriptor."""
    return f"/{descriptor.containing_service.full_name}/{descriptor.name}"


def kind_of(descriptor: Any) -> Kind:
    """The shape of a method, from its protobuf descriptor."""
    return Kind((descriptor.client_streaming, descriptor.server_streaming))
