"""A real engine in this process, and connections whose transport has no socket: for measurements without system calls and clients."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, cast

from benchmarks.http2_requests import GrpcRequests
from benchmarks.models import BenchModel
from benchmarks.requests import GRPC, Request, request_of
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.registry import BackendRegistry
from stoker.server.core.limits import Limits
from stoker.server.core.timers import LoopTimers
from stoker.server.engine.serving_engine import ServingEngine
from stoker.server.grpc_server import grpc_methods
from stoker.server.lifecycle.loader import VersionLoader
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.settings import ControlMode, LifecycleSettings, LoaderSettings
from stoker.server.net.http1.connection import HttpConnection
from stoker.server.net.http1.direct import RouteList
from stoker.server.net.http1.port import HttpPort
from stoker.server.observability.access_log import AccessLog
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.settings import AccessLogSettings
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from stoker.server.protocols.services import Services
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.settings import GrpcSettings
from stoker.server.tuning.busy_poll import BusyPoll
from stoker.server.tuning.constants import TuningSettings
from stoker.server.tuning.read_batching import Reads
from stoker.server.web.v1_exchange import V1Routes
from stoker.server.web.v1_posts import V1Posts

_BUDGET_BYTES: Final = 1 << 30
#: The access log is sampled, as in `fronts`; its lines go to a logger that drops them.
_LOGGED_EVERY: Final = 100


@asynccontextmanager
async def engine_of(repository: Path) -> AsyncIterator[ServingEngine]:
    """A running engine that serves the models of `repository`, with what a server has by default, and a sampled access log.

    Raises:
        RuntimeError: a model does not load.
    """
    clock, reads = SystemClock(), Reads()
    metrics = Metrics(clock)
    with tempfile.TemporaryDirectory() as snapshots:
        settings = LoaderSettings(cpu_threads=1, max_queue_size=1000)
        timers = LoopTimers(asyncio.get_running_loop(), clock, reads.defer)
        loader = VersionLoader(BackendRegistry(), clock=clock, timers=timers, recorder=metrics, area=Path(snapshots), settings=settings)
        lifecycle = LifecycleSettings(control_mode=ControlMode.NONE)
        manager = ModelManager(ModelRepository([repository]), loader, metrics, clock, lifecycle, watch=False)
        access = AccessLog(AccessLogSettings(every=_LOGGED_EVERY), clock.now_ns)
        engine = ServingEngine(
            manager, metrics, clock, name="bench", version="0", max_bytes_in_flight=_BUDGET_BYTES, access=access, reads=reads
        )
        reads.busy_poll = BusyPoll(asyncio.get_running_loop().call_soon, clock.now_ns, engine, TuningSettings().busy_poll_us)
        await manager.start()
        await manager.wait_initial()
        if failed := manager.failed_models():
            raise RuntimeError(f"models that did not load: {', '.join(failed)}")
        try:
            yield engine
        finally:
            await manager.stop(1.0)


def message_of(model: BenchModel) -> bytes:
    """The serialised ModelInferRequest that sends `model.row`."""
    return bytes(request_of(model, GRPC).call.request.message.SerializeToString())


class Transport:
    """A transport without a socket: collects what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.written.extend(pieces)

    def get_extra_info(self, _name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        raise RuntimeError("the server has aborted the connection")

    close = abort


class Load(Protocol):
    """Requests of one kind for connections without sockets."""

    def prepare(self) -> None:
        """Makes the next burst's bytes, so that the clock does not see it."""

    def read(self) -> None:
        """Passes the bytes of one burst to the connections."""

    def responses(self) -> int:
        """The number of responses that were written since the last call.

        Raises:
            RuntimeError: a response is an error.
        """


class GrpcLoad:
    """Calls on one connection, as many in one read as a burst has."""

    def __init__(self, context: ConnectionContext, request: Request, requests: int) -> None:
        sent = request.call.request
        self._requests = GrpcRequests(sent.message.SerializeToString(), sent.path)
        self._count = requests
        self._transport = Transport()
        self._protocol: Any = GrpcProtocol(context)
        self._protocol.connection_made(cast("asyncio.Transport", self._transport))
        # Each request enlarges the window by more than its response takes.
        self._protocol.data_received(GrpcRequests.PREFACE)
        self._transport.written.clear()
        self._next = b""

    def prepare(self) -> None:
        self._next = b"".join([self._requests.next() for _ in range(self._count)])

    def read(self) -> None:
        self._protocol.data_received(self._next)

    def responses(self) -> int:
        written, self._transport.written = b"".join(self._transport.written), []
        if b"grpc-message" in written:
            raise RuntimeError(f"a call failed: {written!r}")
        # A DATA frame of a response holds the name of the output, as a field or the key of a map.
        return written.count(b"\n\x01y")


class HttpLoad:
    """One request in one read on each of several connections."""

    def __init__(self, port: HttpPort, request: Request, requests: int) -> None:
        sent = request.call.request
        fields = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items())
        head = f"POST {sent.path} HTTP/1.1\r\nhost: localhost\r\n{fields}content-length: {len(sent.body)}\r\n\r\n"
        self._request = head.encode() + sent.body
        self._transports = [Transport() for _ in range(requests)]
        self._connections: list[Any] = [HttpConnection(port) for _ in self._transports]
        for connection, transport in zip(self._connections, self._transports, strict=True):
            connection.connection_made(cast("asyncio.Transport", transport))

    def prepare(self) -> None:
        pass

    def read(self) -> None:
        request = self._request
        size = len(request)
        for connection in self._connections:
            connection.get_buffer(-1)[:size] = request
            connection.buffer_updated(size)

    def responses(self) -> int:
        count = 0
        for transport in self._transports:
            written, transport.written = transport.written, []
            if written and not written[0].startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a request failed: {written!r}")
            count += len(written)
        return count


def load_of(engine: ServingEngine, model: BenchModel, case: str, requests: int) -> Load:
    """Bursts of `requests` requests for `model` in the protocol `case`."""
    limits = Limits()
    services, loop = Services(engine, limits), asyncio.get_running_loop()
    request = request_of(model, case)
    if request.is_grpc:
        return GrpcLoad(ConnectionContext(grpc_methods(services), engine, limits, GrpcSettings(), loop), request, requests)
    posts = V1Posts(engine, limits, services.adlik, services.tfs)
    routes = RouteList((InferRoutes(HttpInfer(engine, limits, services.extensions)), V1Routes(posts)))
    return HttpLoad(HttpPort(cast("Any", None), limits, routes, loop), request, requests)


async def complete_burst(load: Load, requests: int) -> None:
    """Reads one burst and waits for all responses."""
    load.read()
    left = requests - load.responses()
    while left > 0:
        await asyncio.sleep(0)
        left -= load.responses()
