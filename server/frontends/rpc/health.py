"""`grpc.health.v1.Health`: what it says is asked of the engine at that moment, never stored."""

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from server.engine.interface import Engine

SERVICE = "grpc.health.v1.Health"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Serves Check and Watch for the whole server (empty name) and for each of `services`. Confined to: the event loop."""

    def __init__(self, engine: Engine, services: frozenset[str], watch_period_s: float) -> None:
        self._engine = engine
        self._services = services | {"", SERVICE}
        self._watch_period_s = watch_period_s

    async def check(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == _UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Sends the status at once and then at each change, looked at every `watch_period_s`, until the client leaves."""
        sent: int | None = None
        while True:
            status = self._status(request.service)
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            await asyncio.sleep(self._watch_period_s)

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's routes."""
        decode = health_pb2.HealthCheckRequest.FromString
        encode = health_pb2.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, decode, encode),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, decode, encode),
            },
        )

    def _status(self, service: str) -> int:
        if service not in self._services:
            return int(_UNKNOWN)
        return int(_SERVING if self._engine.is_ready() else _NOT_SERVING)
