"""`grpc.health.v1.Health`; each status is read from the engine when it is sent, never stored."""

import asyncio

from grpc_health.v1 import health_pb2

from stoker.backends.api.errors import NotFound, Unavailable
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.rpc.control import ControlMethods, parse_control
from stoker.server.rpc.method import Call, Kind, Method, StreamCall, path_of
from stoker.server.rpc.status import kserve_status

_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
SERVICE = _SERVICE.full_name
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Serves Check and Watch for the whole server (empty name) and for each of `services`. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, services: frozenset[str]) -> None:
        self._engine = engine
        self._limits = limits
        self._services = services | {"", SERVICE}

    def methods(self) -> tuple[Method, ...]:
        """Check and Watch."""
        check, watch = _SERVICE.methods_by_name["Check"], _SERVICE.methods_by_name["Watch"]
        return (
            ControlMethods(self._engine, self._limits, kserve_status).method(check, self._check),
            Method(
                path=path_of(watch),
                kind=Kind.SERVER_STREAM,
                handle=self._watch,
                status=kserve_status,
                most_bytes=self._limits.control_bytes,
            ),
        )

    def _check(self, request: health_pb2.HealthCheckRequest, call: Call) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == _UNKNOWN:
            raise NotFound("no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def _watch(self, call: StreamCall) -> None:
        """Sends the status at once and after each change, which is polled every `health_watch_period_s`, until the client disconnects."""
        limits = self._limits
        request = parse_control(await call.receive() or b"", health_pb2.HealthCheckRequest, limits, limits.control_bytes)
        sent: int | None = None
        while True:
            status = self._status(request.service)
            if status != sent:
                await call.send(health_pb2.HealthCheckResponse(status=status))
                sent = status
            if not self._engine.is_live():
                # A Watch call must not delay the server's shutdown.
                raise Unavailable("the server is shutting down")
            await asyncio.sleep(limits.health_watch_period_s)

    def _status(self, service: str) -> int:
        if service not in self._services:
            return int(_UNKNOWN)
        return int(_SERVING if self._engine.is_ready() else _NOT_SERVING)
