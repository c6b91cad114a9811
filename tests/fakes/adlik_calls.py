"""Adlik's front in process on free ports: gRPC and HTTP with one fake engine behind them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
from google.protobuf.message_factory import GetMessageClass

from stoker.backends.api.errors import ServingError
from stoker.server.core.limits import Limits
from stoker.server.grpc_server import grpc_server
from stoker.server.net.listeners import Frontend
from stoker.server.pb.adlik import operate_pb2, predict_pb2
from stoker.server.pb.tensorflow.core.framework import types_pb2
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import AdlikSettings
from stoker.server.rpc.status import adlik_status
from stoker.server.web.http_server import http_server
from tests.fakes.both_transports import settings as transport_settings
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.message_calls import respond

SERVICES = {**predict_pb2.DESCRIPTOR.services_by_name, **operate_pb2.DESCRIPTOR.services_by_name}
CODES = {code.value[0]: code for code in grpc.StatusCode}
TYPES = {np.dtype(np.int32): types_pb2.DT_INT32, np.dtype(np.float32): types_pb2.DT_FLOAT, np.dtype(np.int64): types_pb2.DT_INT64}


@dataclass
class Caller:
    """A client of both fronts."""

    channel: grpc.aio.Channel
    http: httpx.AsyncClient

    async def call(self, method: str, request: Any) -> Any:
        """The response of the RPC `method`, in the service that has it."""
        service, found = next(
            (service, service.methods_by_name[method]) for service in SERVICES.values() if method in service.methods_by_name
        )
        send = self.channel.unary_unary(
            f"/{service.full_name}/{method}", lambda message: message.SerializeToString(), GetMessageClass(found.output_type).FromString
        )
        return await send(request)

    async def rejection(self, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
        """Code and text of a call that must fail."""
        try:
            await self.call(method, request)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{method} was answered")


class DirectCaller(Caller):
    """Calls the service itself, for tests that need no transport."""

    def __init__(self, engine: FakeEngine, limits: Limits) -> None:
        self._service = AdlikService(engine, limits, AdlikSettings())

    async def call(self, method: str, request: Any) -> Any:
        assert method == "predict"
        return predict_pb2.PredictResponse.FromString(await respond(self._service.predicting, request.SerializeToString()))

    async def rejection(self, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
        try:
            await self.call(method, request)
        except ServingError as error:
            return CODES[adlik_status(error).grpc], error.message
        raise AssertionError(f"{method} was answered")


def run_direct(scenario: Callable[[Caller], Awaitable[None]], engine: FakeEngine, limits: Limits | None = None) -> None:
    """Runs `scenario` against the service without a transport; afterwards nothing is reserved any more."""

    async def main() -> None:
        async with asyncio.timeout(20):
            await scenario(DirectCaller(engine, limits or Limits()))

    asyncio.run(main())
    assert engine.reserved_bytes == 0


def run(
    scenario: Callable[[Caller], Awaitable[None]],
    engine: FakeEngine,
    limits: Limits | None = None,
    settings: AdlikSettings | None = None,
    *,
    http: bool = True,
) -> None:
    """Runs `scenario` against both fronts (without `http`: gRPC alone); afterwards nothing is reserved any more."""
    bounds = limits or Limits()

    @asynccontextmanager
    async def served() -> AsyncIterator[Caller]:
        service = AdlikService(engine, bounds, settings or AdlikSettings())
        fronts: list[Frontend] = [grpc_server(Services(engine, bounds, adlik=service), "127.0.0.1", 0, settings=transport_settings())]
        if http:
            fronts.append(http_server(Services(engine, bounds, adlik=service), "127.0.0.1", 0))
        ports = [await front.start() for front in fronts]
        try:
            async with (
                grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[-1]}", headers={"accept-encoding": "identity"}, timeout=60) as client,
            ):
                yield Caller(channel, client)
        finally:
            for front in fronts:
                await front.stop(1)

    async def main() -> None:
        async with asyncio.timeout(20), served() as caller:
            await scenario(caller)

    asyncio.run(main())
    assert engine.reserved_bytes == 0


def predict_request(inputs: dict[str, Any], batch_size: int = 1, name: str = "simple", **fields: Any) -> predict_pb2.PredictRequest:
    """A request with raw bytes for each array in `inputs`."""
    message = predict_pb2.PredictRequest(batch_size=batch_size, **fields)
    message.model_spec.name = name
    for key, array in inputs.items():
        tensor = message.inputs[key]
        tensor.dtype = TYPES[array.dtype]
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = array.tobytes()
    return message


def array_of(output: predict_pb2.PredictResponse.Output, dtype: Any) -> Any:
    """The array of an output in a response."""
    shape = [dim.size for dim in output.tensor.tensor_shape.dim]
    return np.frombuffer(output.tensor.tensor_content, dtype).reshape(shape)
