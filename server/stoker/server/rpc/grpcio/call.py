"""Adapters from grpc.aio's context to the `Call` of methods."""

from collections.abc import Mapping

import grpc.aio
from google.protobuf.message import Message

from stoker.server.engine.interface import Engine
from stoker.server.rpc.rejection import Rejection

_NS_PER_S = 1_000_000_000
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioCall:
    """A call carried by grpc.aio. Confined to: the event loop."""

    __slots__ = ("_context", "_engine", "_trailers")

    def __init__(self, context: grpc.aio.ServicerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._trailers: list[tuple[str, str | bytes]] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return {name: value for name, value in self._context.invocation_metadata() or () if isinstance(value, str)}

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        return {name: value for name, value in self._context.invocation_metadata() or () if isinstance(value, bytes)}

    @property
    def deadline_ns(self) -> int | None:
        remaining_s: float | None = self._context.time_remaining()
        return None if remaining_s is None else self._engine.now_ns() + int(remaining_s * _NS_PER_S)

    def cancelled(self) -> bool:
        return bool(self._context.cancelled())

    def add_trailer(self, name: str, value: str | bytes) -> None:
        if self._trailers is None:
            self._trailers = []
        self._trailers.append((name, value))
        self._context.set_trailing_metadata(tuple(self._trailers))

    def reject(self, rejection: Rejection) -> None:
        """Sets the status of the call.

        The handler must then return. `context.abort` would raise an exception that gRPC's call state keeps in a reference cycle with the
        frames of its traceback. The cycle would keep the rejected request in memory until the next full garbage collection.
        """
        for name, value in rejection.trailers:
            self.add_trailer(name, value)
        self._context.set_code(_CODES[rejection.code])
        self._context.set_details(rejection.text)


class GrpcioStreamCall(GrpcioCall):
    """A stream carried by grpc.aio."""

    __slots__ = ()

    async def receive(self) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def send(self, message: bytes | Message | list[bytes | memoryview]) -> None:
        await self._context.write(b"".join(message) if isinstance(message, list) else message)
