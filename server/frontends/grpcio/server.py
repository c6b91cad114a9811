"""The gRPC front on grpc.aio: routes taken from the service descriptor, limits, start and drain.

Requests arrive as bytes (no deserialiser), so that a call can be refused before it is parsed. ModelInfer has a handler of its own without
the `Call` that the others get: it decides what a small request costs.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from backends.api.errors import InvalidRequest, ServingError, TooLarge
from server.engine.interface import Engine
from server.frontends.adlik.grpc_routes import SERVICE_NAMES as ADLIK_SERVICES
from server.frontends.adlik.grpc_routes import AdlikRoutes
from server.frontends.adlik.service import AdlikService
from server.frontends.adlik.settings import AdlikSettings
from server.frontends.grpc_call import GrpcCall, GrpcStreamCall, deadline_of
from server.frontends.grpc_errors import refuse, refuse_unexpected
from server.frontends.grpc_health import SERVICE as HEALTH_SERVICE
from server.frontends.grpc_health import Health
from server.frontends.kserve.reservation import Reservation
from server.frontends.kserve.service import KServeService
from server.frontends.kserve.wire import check_control_request
from server.frontends.limits import Limits
from server.frontends.listen import bind
from server.pb import grpc_service_pb2 as pb

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_Method = Callable[[Any, Any], Awaitable[Message]]


class GrpcFront:
    """Serves `inference.GRPCInferenceService`, Adlik's services and `grpc.health.v1.Health`. Confined to: the event loop."""

    def __init__(
        self, engine: Engine, limits: Limits, address: str, port: int, *, reflection: bool = False, adlik: AdlikService | None = None
    ) -> None:
        """Listens on `address:port` once started.

        Args:
            engine: What answers.
            limits: Bounds on what clients send.
            address: Where to listen.
            port: Where to listen; 0: any free one.
            reflection: Whether the descriptors are served too.
            adlik: Adlik's services; None: with their default settings.
        """
        self._engine = engine
        self._limits = limits
        self._address = address
        self._port = port
        self._reflection = reflection
        self._service = KServeService(engine, limits)
        self._adlik = AdlikRoutes(engine, limits, adlik or AdlikService(engine, limits, AdlikSettings()))
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Begins to serve; returns the real port.

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        server = grpc.aio.server(options=_options(self._limits))
        services = (_DESCRIPTOR.full_name, *ADLIK_SERVICES)
        health = Health(self._engine, frozenset(services), self._limits.health_watch_period_s)
        server.add_generic_rpc_handlers((self._handlers(), health.handler(), *self._adlik.handlers()))
        if self._reflection:
            from grpc_reflection.v1alpha import reflection

            reflection.enable_server_reflection((*services, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
        port = self._bind(server)
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; those in work have `grace_s` seconds to end, then they are cut off."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    def _bind(self, server: grpc.aio.Server) -> int:
        host = f"[{self._address}]" if ":" in self._address else self._address
        # gRPC says nothing of why it cannot bind except in lines of its own on stderr; an ordinary bind does, so it goes first.
        bind(self._address, self._port).close()
        try:
            return int(server.add_insecure_port(f"{host}:{self._port}"))
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {self._address} port {self._port}") from error

    def _handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler] = {}
        for method in _DESCRIPTOR.methods:
            if method.name == "ModelInfer":
                handler = grpc.unary_unary_rpc_method_handler(self._model_infer, None, _serialise)
            elif method.name == "ModelStreamInfer":
                handler = grpc.stream_stream_rpc_method_handler(
                    self._model_stream_infer, None, pb.ModelStreamInferResponse.SerializeToString
                )
            else:
                run = getattr(self._service, _snake(method.name))
                request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
                handler = grpc.unary_unary_rpc_method_handler(self._unary(method.name, run, request), None, response.SerializeToString)
            methods[method.name] = handler
        return grpc.method_handlers_generic_handler(_DESCRIPTOR.full_name, methods)

    async def _model_infer(self, data: bytes, context: grpc.aio.ServicerContext) -> pb.ModelInferResponse | bytes | None:
        try:
            return await self._service.inference.model_infer(data, deadline_of(context, self._engine))
        except ServingError as error:
            refuse(context, error)
        except Exception:  # noqa: BLE001 - the last stop of any defect: logged, answered INTERNAL
            refuse_unexpected(context, "ModelInfer")
        return None

    async def _model_stream_infer(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        try:
            await self._service.stream_inference.model_stream_infer(GrpcStreamCall(context, self._engine))
        except ServingError as error:
            refuse(context, error)
        except Exception:  # noqa: BLE001 - as above
            refuse_unexpected(context, "ModelStreamInfer")

    def _unary(
        self, name: str, run: _Method, request: type[Message]
    ) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[Message | None]]:
        most_bytes = self._limits.grpc_message_bytes if name == "RepositoryModelLoad" else self._limits.control_bytes

        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> Message | None:
            try:
                with Reservation(self._engine) as reservation:
                    # Held to the end: a load keeps the files it came with until then, in the message and in what is made of it.
                    reservation.take(2 * len(data))
                    if len(data) > most_bytes:
                        raise TooLarge(f"{request.DESCRIPTOR.name} of {len(data)} bytes exceeds the limit of {most_bytes} bytes")
                    check_control_request(data, self._limits)
                    try:
                        message = request.FromString(data)
                    except DecodeError:
                        raise InvalidRequest(f"the request is not a valid {request.DESCRIPTOR.name} message") from None
                    return await run(message, GrpcCall(context, self._engine))
            except ServingError as error:
                refuse(context, error)
            except Exception:  # noqa: BLE001 - as above
                refuse_unexpected(context, name)
            return None

        return handle


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.grpc_message_bytes),
        ("grpc.max_send_message_length", limits.grpc_message_bytes),
        ("grpc.max_concurrent_streams", limits.grpc_concurrent_streams),
        ("grpc.max_metadata_size", limits.grpc_metadata_bytes),
        ("grpc.server_handshake_timeout_ms", int(limits.grpc_handshake_timeout_s * 1000)),
        # A second server on the same port must fail, not silently take half of the connections.
        ("grpc.so_reuseport", 0),
        # Clients may ping while idle, as Triton's own clients are told to, but not faster than once in 10 s.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_time_ms", 7_200_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def _serialise(answer: pb.ModelInferResponse | bytes) -> bytes:
    # A large answer is made as bytes at once, in a thread.
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
