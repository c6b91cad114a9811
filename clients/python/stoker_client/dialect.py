"""The requests of a client, without I/O: a `Dialect` turns each request into a `Call` and parses its response.

    InferRequest, names, flags  --Dialect-->  Call(request, parse)  --Transport-->  reply  --parse-->  dicts, InferResult

Dialects do no I/O, so that a synchronous and an asynchronous transport share one implementation of each protocol. The types of
`Call.request` and of the reply are private to a dialect and its transports.
"""

import abc
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from stoker_client.errors import InvalidRequest
from stoker_client.inference import InferRequest, InferResult

T = TypeVar("T")

Facts = dict[str, Any]
"""A message as a plain dict: the field names of the protocol, whole numbers as int."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and the function that parses its reply.

    Attributes:
        request: The request for the transport.
        parse: Converts the reply to the response; raises a `StokerError` if the reply is an error or malformed.
        is_read: Whether repeating the request changes nothing at the server and costs little.
    """

    request: Any
    parse: Callable[[Any], T]
    is_read: bool


class Transport(Protocol):
    """Sends requests of one dialect. Thread-safe."""

    def send(self, request: Any, timeout_s: float | None) -> Any:
        """Sends once and returns the reply; raises a `StokerError` if there is none."""

    def close(self) -> None:
        """Closes every connection."""


class AsyncTransport(Protocol):
    """Sends requests of one dialect. Confined to: one event loop."""

    async def send(self, request: Any, timeout_s: float | None) -> Any:
        """Sends once and returns the reply; raises a `StokerError` if there is none."""

    async def close(self) -> None:
        """Closes every connection."""


class Dialect(abc.ABC):
    """All requests in the form of one protocol. Stateless, and so thread-safe."""

    @abc.abstractmethod
    def infer(self, request: InferRequest) -> Call[InferResult]: ...

    @abc.abstractmethod
    def is_live(self) -> Call[bool]: ...

    @abc.abstractmethod
    def is_ready(self) -> Call[bool]: ...

    @abc.abstractmethod
    def is_model_ready(self, model: str, version: str) -> Call[bool]: ...

    @abc.abstractmethod
    def server_metadata(self) -> Call[Facts]: ...

    @abc.abstractmethod
    def model_metadata(self, model: str, version: str) -> Call[Facts]: ...

    @abc.abstractmethod
    def model_config(self, model: str, version: str) -> Call[Facts]: ...

    @abc.abstractmethod
    def index(self, *, ready_only: bool) -> Call[list[Facts]]: ...

    @abc.abstractmethod
    def statistics(self, model: str, version: str) -> Call[list[Facts]]: ...

    @abc.abstractmethod
    def load(self, model: str, config_json: str | None, files: Mapping[str, bytes]) -> Call[None]: ...

    @abc.abstractmethod
    def unload(self, model: str, *, unload_dependents: bool) -> Call[None]: ...


def config_text(config: Mapping[str, Any] | str | None, files: Mapping[str, bytes]) -> str | None:
    """A configuration override as JSON text, as the protocols send it.

    Raises:
        InvalidRequest: it is no JSON object, or there are files without it (the server could not read them).
    """
    if config is None:
        if files:
            raise InvalidRequest("files are given without a config; a load that brings files must bring the model's config as well")
        return None
    if not isinstance(config, str):
        try:
            return json.dumps(config)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"config cannot be written as JSON: {error}") from error
    try:
        parsed = json.loads(config)
    except ValueError as error:
        raise InvalidRequest(f"config is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"config is a JSON {type(parsed).__name__}; expected an object")
    return config
