"""Serves a method table on grpc.aio's server, the reference for the server's own transport.

Requests arrive as bytes (no deserialiser), so that a call can be rejected before it is parsed. All streaming methods are registered as
stream-stream, which is the same on the wire.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import grpc
import grpc.aio

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.net.listeners import PLAIN_LISTENER, Identity, ListenOptions, bind, identity_of, make_way, remove_if
from stoker.server.net.tls.key_ring import KeyRing
from stoker.server.net.tls.material import TlsMaterial
from stoker.server.rpc.grpcio.call import GrpcioCall, GrpcioStreamCall
from stoker.server.rpc.method import Kind, Method, MethodTable, Result, StreamHandler
from stoker.server.rpc.rejection import rejection_of
from stoker.server.rpc.settings import GrpcSettings


class GrpcioServer:
    """Serves a table of methods. Confined to: the event loop."""

    def __init__(
        self,
        methods: MethodTable,
        engine: Engine,
        limits: Limits,
        address: str,
        port: int,
        settings: GrpcSettings | None = None,
        listeners: ListenOptions = PLAIN_LISTENER,
    ) -> None:
        """Listens on `address:port` once started (port 0: any free one), and on the sockets of `listeners`."""
        self._methods = methods
        self._engine = engine
        self._limits = limits
        self._address = address
        self._port = port
        self._settings = settings or GrpcSettings()
        self._listeners = listeners
        self._server: grpc.aio.Server | None = None
        self._socket_identity: Identity | None = None

    async def start(self) -> int:
        """Begins to serve; returns the real port, 0 if it has none.

        Raises:
            PortInUse: the port is taken. OSError: the address cannot be bound.
        """
        server = grpc.aio.server(options=_options(self._limits, self._settings), maximum_concurrent_rpcs=self._limits.grpc_concurrent_rpcs)
        server.add_generic_rpc_handlers(_handlers(self._methods, self._engine))
        listeners = self._listeners
        port = self._bind(server) if listeners.has_port else 0
        if listeners.socket_path is not None:
            self._bind_socket(server, listeners.socket_path.absolute())
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; those in work have `grace_s` seconds to end, then they are cancelled."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None
            if self._listeners.socket_path is not None:
                remove_if(self._listeners.socket_path, self._socket_identity)

    def _bind(self, server: grpc.aio.Server) -> int:
        host = f"[{self._address}]" if ":" in self._address else self._address
        # gRPC reports the reason of a failed bind only in its own log lines on stderr. An ordinary bind raises it, so that one is tried
        # first.
        bind(self._address, self._port).close()
        target, ring = f"{host}:{self._port}", self._listeners.ring
        try:
            return int(server.add_insecure_port(target) if ring is None else server.add_secure_port(target, _credentials(ring)))
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {self._address} port {self._port}") from error

    def _bind_socket(self, server: grpc.aio.Server, path: Path) -> None:
        make_way(path)
        # gRPC creates the socket file itself. If its mode were changed afterwards, a client might connect before the change.
        before = os.umask(0o777 & ~self._listeners.socket_mode)
        try:
            server.add_insecure_port(f"unix:{path}")
            path.chmod(self._listeners.socket_mode)
        except (RuntimeError, OSError) as error:
            raise OSError(f"gRPC cannot listen on {path}") from error
        finally:
            os.umask(before)
        self._socket_identity = identity_of(path)


def _credentials(ring: KeyRing) -> grpc.ServerCredentials:
    """Credentials from the ring's current certificate, which gRPC requests before each handshake, in its own threads."""
    last = ring.material

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        material = ring.material
        if material is last:
            return None
        last = material
        return _configuration(material)

    return grpc.dynamic_ssl_server_credentials(_configuration(last), changed, ring.requires_client_certificate)


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    client_ca = None if material.client_ca is None else material.client_ca.encode()
    return grpc.ssl_server_certificate_configuration([(material.key.encode(), material.cert.encode())], client_ca)


def _handlers(methods: MethodTable, engine: Engine) -> tuple[grpc.GenericRpcHandler, ...]:
    """One grpcio generic handler for each service."""
    services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    for path, method in methods.items():
        services.setdefault(method.service, {})[path.rpartition("/")[2]] = handler_of(method, engine)
    return tuple(grpc.method_handlers_generic_handler(service, handlers) for service, handlers in services.items())


def handler_of(method: Method, engine: Engine) -> grpc.RpcMethodHandler:
    """The grpcio handler of `method`."""
    if method.kind is Kind.UNARY:
        return grpc.unary_unary_rpc_method_handler(_unary(method, engine), None, _serialise)
    return grpc.stream_stream_rpc_method_handler(_stream(method, engine), None, _serialise)


def _unary(method: Method, engine: Engine) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[Result | None]]:
    async def handle(data: bytes, context: grpc.aio.ServicerContext) -> Result | None:
        call = GrpcioCall(context, engine)
        try:
            assert method.start is not None
            return await method.start(data, call).outcome()
        except Exception as error:  # noqa: BLE001 - any defect: logged, the status is INTERNAL
            call.reject(rejection_of(error, method))
        return None

    return handle


def _stream(method: Method, engine: Engine) -> Callable[[object, grpc.aio.ServicerContext], Awaitable[None]]:
    run = cast("StreamHandler", method.handle)

    async def handle(_requests: object, context: grpc.aio.ServicerContext) -> None:
        call = GrpcioStreamCall(context, engine)
        try:
            await run(call)
        except Exception as error:  # noqa: BLE001 - as above
            call.reject(rejection_of(error, method))

    return handle


def _serialise(response: Result) -> bytes:
    # A large response is serialised in a thread.
    if isinstance(response, list):
        return b"".join(response)
    return response if isinstance(response, bytes) else response.SerializeToString()


def _options(limits: Limits, settings: GrpcSettings) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", limits.grpc_message_bytes),
        ("grpc.max_send_message_length", limits.grpc_message_bytes),
        ("grpc.max_concurrent_streams", limits.grpc_concurrent_streams),
        ("grpc.max_metadata_size", limits.grpc_metadata_bytes),
        ("grpc.server_handshake_timeout_ms", _ms(limits.grpc_handshake_timeout_s)),
        # A second server on the same port must fail, not silently take half of the connections.
        ("grpc.so_reuseport", 0),
        # Clients may ping while idle, as Triton's documentation advises, but not too fast.
        ("grpc.keepalive_permit_without_calls", int(settings.permits_pings_without_calls)),
        ("grpc.http2.max_pings_without_data", settings.max_pings_without_data),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(settings.min_ping_interval_s)),
        ("grpc.http2.max_ping_strikes", settings.max_ping_strikes),
        ("grpc.keepalive_time_ms", _ms(settings.keepalive_time_s)),
        ("grpc.keepalive_timeout_ms", _ms(settings.keepalive_timeout_s)),
    ]
    if settings.max_connection_idle_s is not None:
        options.append(("grpc.max_connection_idle_ms", _ms(settings.max_connection_idle_s)))
    if settings.max_connection_age_s is not None:
        options.append(("grpc.max_connection_age_ms", _ms(settings.max_connection_age_s)))
        options.append(("grpc.max_connection_age_grace_ms", _ms(settings.max_connection_age_grace_s)))
    return options


def _ms(time_s: float) -> int:
    return round(time_s * 1000)
