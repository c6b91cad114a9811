"""The call as a method sees it, whichever transport carries it."""

from collections.abc import Mapping
from typing import Protocol

from google.protobuf.message import Message


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
