"""Unary inference methods as coroutines: a serialised request in, a serialised response out."""

from types import MappingProxyType
from typing import Any, Protocol

from stoker.server.codecs.tensors import Raw, whole
from stoker.server.core.completion import Completion


class Startable(Protocol):
    """`Inference`, or a `MessageInference`."""

    def start(self, data: Raw, call: Any) -> Completion[Any]:
        """Begins the request."""


class PlainCall:
    """A call without metadata."""

    def __init__(self, deadline_ns: int | None = None) -> None:
        self.deadline_ns = deadline_ns
        self.metadata: MappingProxyType[str, str] = MappingProxyType({})
        self.binary_metadata: MappingProxyType[str, bytes] = MappingProxyType({})

    def cancelled(self) -> bool:
        return False

    def add_trailer(self, name: str, value: str | bytes) -> None:
        raise NotImplementedError


async def respond(method: Startable, data: Raw, deadline_ns: int | None = None) -> bytes:
    """The serialised response of `method` to `data`; raises what the call ends with."""
    return whole(await method.start(data, PlainCall(deadline_ns)).outcome())
