"""`Receiver`: a connection, as its transport sees it; `CLOSED`, its transport after the end; an adapter for asyncio's transports."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, cast


class Receiver(Protocol):
    """A connection, as its transport sees it; it has `data_received`, or `get_buffer` and `buffer_updated`, too.

    Connections do not inherit asyncio's classes: a compiled class is native only without an interpreted base.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection begins."""

    def connection_lost(self, exc: Exception | None, /) -> None:
        """The connection has ended."""

    def pause_writing(self) -> None:
        """The transport holds much that the peer has not taken."""

    def resume_writing(self) -> None:
        """The peer has taken most of it."""

    def eof_received(self) -> bool | None:
        """The peer sends no more; whether the transport stays open."""


class ClosedTransport(asyncio.Transport):
    """The transport of a connection that has ended.

    A connection and its transport refer to each other. With this in the place of the transport, reference counts free both at once, with
    the buffers of TLS (0.75 MiB after a message of 600 KB), and not a rare run of the garbage collector.
    """

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        """No effect."""

    def abort(self) -> None:
        """No effect."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        """No effect."""

    def writelines(self, list_of_data: object) -> None:
        """No effect."""

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """No effect."""

    def resume_reading(self) -> None:
        """No effect."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """No effect."""


CLOSED: Final = ClosedTransport()


class BufferedAdapter(asyncio.BufferedProtocol):
    """Passes the calls of a transport on. asyncio's own transports look at a protocol's class, uvloop's at its methods."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._receiver.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> Any:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return cast("bool | None", self._receiver.eof_received())

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()


def protocol_factory(make: Callable[[], Receiver], loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.BaseProtocol]:
    """Makes what transports of `loop` call for each connection of `make`."""
    if not isinstance(loop, asyncio.BaseEventLoop):  # uvloop's is not
        return cast("Callable[[], asyncio.BaseProtocol]", make)

    def made() -> asyncio.BaseProtocol:
        receiver = make()
        return BufferedAdapter(receiver) if hasattr(receiver, "get_buffer") else cast("asyncio.BaseProtocol", receiver)

    return made
