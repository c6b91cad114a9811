"""Unary control methods: their message size limit, and the checks before a message is parsed."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from stoker.backends.api.errors import InvalidRequest, ServingError, TooLarge
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.rpc.message_cost import check_control_request
from stoker.server.rpc.method import Call, Kind, Method, in_task, path_of
from stoker.server.rpc.status import Status

M = TypeVar("M", bound=Message)
Run = Callable[[Any, Call], Message | Awaitable[Message]]
"""Takes the parsed message and the call; may be a coroutine function."""


class ControlMethods:
    """Builds a protocol's unary control methods from functions that take a message and return one. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, status: Callable[[ServingError], Status]) -> None:
        """`status` returns the protocol's status for an error."""
        self._engine = engine
        self._limits = limits
        self._status = status

    def method(self, descriptor: Any, run: Run, most_bytes: int | None = None) -> Method:
        """The unary method that `descriptor` (protobuf's) describes and `run` handles.

        Args:
            descriptor: Gives path and request type.
            run: Handles the parsed request and returns the response.
            most_bytes: Largest request; by default `Limits.control_bytes`.
        """
        request = GetMessageClass(descriptor.input_type)
        most = self._limits.control_bytes if most_bytes is None else most_bytes

        async def handle(data: bytes, call: Call) -> Message:
            with Reservation(self._engine.budget) as reservation:
                # Reserved until the handler ends: a load request keeps its files in memory until then, in the message and in copies of it.
                reservation.take(2 * len(data))
                response = run(parse_control(data, request, self._limits, most), call)
                return await response if inspect.isawaitable(response) else response

        return Method(path=path_of(descriptor), kind=Kind.UNARY, start=in_task(handle), status=self._status, most_bytes=most)


def parse_control(data: bytes | memoryview, request: type[M], limits: Limits, most_bytes: int) -> M:
    """Parses `data` as a message.

    Raises:
        TooLarge: `data` is longer than `most_bytes`.
        InvalidRequest: `data` is no such message, or has more fields than a request may have parameters.
    """
    name = request.DESCRIPTOR.name
    if len(data) > most_bytes:
        raise TooLarge(f"{name} of {len(data)} bytes exceeds the limit of {most_bytes} bytes")
    check_control_request(data, limits)
    try:
        return request.FromString(bytes(data))
    except DecodeError:
        raise InvalidRequest(f"the request is not a valid {name} message") from None
