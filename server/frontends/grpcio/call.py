"""grpc.aio's context as the `Call` that handlers know."""

from collections.abc import Mapping

import grpc.aio

from server.engine.interface import Engine
from server.pb import grpc_service_pb2 as pb

NS_PER_S = 1_000_000_000


def deadline_of(context: grpc.aio.ServicerContext, engine: Engine) -> int | None:
    """When the client stops waiting, on the engine's monotonic scale; None = never."""
    remaining_s: float | None = context.time_remaining()
    return None if remaining_s is None else engine.now_ns() + int(remaining_s * NS_PER_S)


class GrpcCall:
    """A call carried by grpc.aio. Confined to: the event loop."""

    __slots__ = ("_context", "_deadline_ns", "_metadata")

    def __init__(self, context: grpc.aio.ServicerContext, engine: Engine) -> None:
        self._context = context
        self._deadline_ns = deadline_of(context, engine)
        self._metadata: dict[str, str] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        if self._metadata is None:
            given = self._context.invocation_metadata() or ()
            self._metadata = {key: value for key, value in given if isinstance(value, str)}
        return self._metadata

    @property
    def deadline_ns(self) -> int | None:
        return self._deadline_ns

    def cancelled(self) -> bool:
        return bool(self._context.cancelled())


class GrpcStreamCall(GrpcCall):
    """A bidirectional stream carried by grpc.aio."""

    __slots__ = ()

    async def receive(self) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def send(self, message: pb.ModelStreamInferResponse) -> None:
        await self._context.write(message)
