"""The gRPC server in process, on a free port, with a fake engine."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from stoker.backends.api.errors import InvalidRequest, Overloaded, QueueTimeout, ServingError
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.grpc_server import grpc_methods, grpc_server
from stoker.server.net.listeners import PortInUse
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.services import Services
from stoker.server.rpc.grpcio.server import handler_of
from tests.fakes.both_transports import settings, transport  # noqa: F401 - a fixture
from tests.fakes.fake_engine import FakeEngine, echo, simple

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
Code = grpc.StatusCode


def rpc(channel: grpc.aio.Channel, name: str) -> Callable[..., Any]:
    response = GetMessageClass(SERVICE.methods_by_name[name].output_type)
    open_call = channel.stream_stream if name == "ModelStreamInfer" else channel.unary_unary
    return open_call(f"/{SERVICE.full_name}/{name}", lambda message: message.SerializeToString(), response.FromString)


def run(scenario: Callable[[grpc.aio.Channel], Awaitable[None]], engine: FakeEngine, limits: Limits | None = None, **options: Any) -> None:
    @asynccontextmanager
    async def served() -> AsyncIterator[grpc.aio.Channel]:
        front = grpc_server(Services(engine, limits or Limits()), "127.0.0.1", 0, settings=settings(), **options)
        port = await front.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            await front.stop(1)

    async def main() -> None:
        async with asyncio.timeout(20), served() as channel:
            await scenario(channel)

    asyncio.run(main())
    assert engine.reserved_bytes == 0


def infer_request(**fields: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="simple", **fields)
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(bytes(range(64)))
    return message


async def failure(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def wait_for_ever(request: InferRequest) -> None:
    await asyncio.Event().wait()


def test_infer_returns_raw_contents_with_the_id():
    async def scenario(channel: grpc.aio.Channel) -> None:
        response = await rpc(channel, "ModelInfer")(infer_request(id="7"))
        assert (response.id, response.model_name, response.model_version) == ("7", "simple", "1")
        assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
            ("OUTPUT0", "INT32", [1, 16]),
            ("OUTPUT1", "INT32", [1, 16]),
        ]
        assert response.raw_output_contents[1] == bytes(64)

    run(scenario, FakeEngine(simple()))


def test_every_rpc_of_the_service_gets_a_response():
    requests: dict[str, Any] = {
        "ModelInfer": infer_request(),
        "RepositoryModelLoad": {"model_name": "m"},
        "RepositoryModelUnload": {"model_name": "m"},
    }
    named = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
    refused = {"SystemSharedMemoryRegister": Code.UNIMPLEMENTED, "CudaSharedMemoryRegister": Code.INVALID_ARGUMENT}
    refused |= {"TraceSetting": Code.UNIMPLEMENTED, "LogSettings": Code.UNIMPLEMENTED}

    async def scenario(channel: grpc.aio.Channel) -> None:
        for method in SERVICE.methods:
            if method.name == "ModelStreamInfer":
                continue
            given = requests.get(method.name, {"name": "simple"} if method.name in named else {})
            message = GetMessageClass(method.input_type)(**given) if isinstance(given, dict) else given
            call = rpc(channel, method.name)(message)
            if method.name in refused:
                assert (await failure(call)).code() == refused[method.name], method.name
            else:
                assert isinstance(await call, GetMessageClass(method.output_type)), method.name

    run(scenario, FakeEngine(simple()))


def test_descriptions_equal_those_of_the_engine():
    async def scenario(channel: grpc.aio.Channel) -> None:
        metadata = await rpc(channel, "ModelMetadata")(pb.ModelMetadataRequest(name="simple"))
        assert (list(metadata.versions), metadata.platform, list(metadata.inputs[0].shape)) == (["1"], "fake", [-1, 16])
        config = (await rpc(channel, "ModelConfig")(pb.ModelConfigRequest(name="simple", version="1"))).config
        assert (config.name, config.max_batch_size) == ("simple", 8)
        stats = (await rpc(channel, "ModelStatistics")(pb.ModelStatisticsRequest())).model_stats
        assert (stats[0].version, stats[0].inference_stats.success.count, stats[0].inference_stats.HasField("cache_hit")) == ("1", 3, True)
        assert stats[0].batch_stats[0].batch_size == 1
        index = (await rpc(channel, "RepositoryIndex")(pb.RepositoryIndexRequest())).models
        assert [(m.name, m.version, m.state) for m in index] == [("simple", "1", "READY"), ("never", "", "")]
        assert not (await rpc(channel, "ModelReady")(pb.ModelReadyRequest(name="nope"))).ready

    run(scenario, FakeEngine(simple()))


def test_load_and_unload_pass_their_parameters_on():
    engine = FakeEngine(simple())

    async def scenario(channel: grpc.aio.Channel) -> None:
        load = pb.RepositoryModelLoadRequest(model_name="m")
        load.parameters["config"].string_param = "{}"
        load.parameters["file:1/model.onnx"].bytes_param = b"abc"
        await rpc(channel, "RepositoryModelLoad")(load)
        unload = pb.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["unload_dependents"].bool_param = True
        await rpc(channel, "RepositoryModelUnload")(unload)
        for bad in ("..", "a/b", "", "m" * 129, "a\nb"):
            error = await failure(rpc(channel, "RepositoryModelLoad")(pb.RepositoryModelLoadRequest(model_name=bad)))
            assert error.code() == Code.INVALID_ARGUMENT

    run(scenario, engine)
    assert [(name, o.config_json, dict(o.files)) for name, o in engine.loads] == [("m", "{}", {"1/model.onnx": b"abc"})]
    assert engine.unloads == [("m", True)]


def test_failures_have_tritons_codes():
    busy = echo(DataType.FP32, name="busy")
    busy.is_ready = False

    async def scenario(channel: grpc.aio.Channel) -> None:
        infer = rpc(channel, "ModelInfer")
        for message, code, text in (
            (pb.ModelInferRequest(model_name="nope"), Code.NOT_FOUND, "Request for unknown model: 'nope' is not found"),
            (infer_request(model_version="9"), Code.NOT_FOUND, "version 9 is not found"),
            (pb.ModelInferRequest(model_name="busy"), Code.UNAVAILABLE, "is not ready"),
            (pb.ModelInferRequest(model_name="simple"), Code.INVALID_ARGUMENT, "expected 2 inputs but got 0 inputs"),
        ):
            error = await failure(infer(message))
            assert error.code() == code
            assert text in (error.details() or "")

    run(scenario, FakeEngine(simple(), busy))


@pytest.mark.parametrize("name", ["ModelInfer", "ServerLive", "ModelMetadata"])
def test_bytes_that_are_not_a_message_are_an_invalid_argument(name: str):
    async def scenario(channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(f"/{SERVICE.full_name}/{name}")
        error = await failure(call(b"\xff\xff\xff"))
        assert error.code() == Code.INVALID_ARGUMENT
        assert "is not a valid" in (error.details() or "")

    run(scenario, FakeEngine(simple()))


@pytest.mark.parametrize(
    ("error", "code", "after", "text"),
    [
        (Overloaded("Exceeds maximum queue size", retry_after_s=2.5), Code.UNAVAILABLE, "3", "[request id: 7] Exceeds maximum queue size"),
        (QueueTimeout("Request timeout expired"), Code.UNAVAILABLE, None, "[request id: 7] Request timeout expired"),
        (RuntimeError("secret /etc/path"), Code.INTERNAL, None, "internal error: see the server's log"),
    ],
)
def test_engine_failures_reach_the_client(
    error: Exception, code: grpc.StatusCode, after: str | None, text: str, caplog: pytest.LogCaptureFixture
):
    fake = simple()

    async def fail(request: InferRequest) -> None:
        raise error

    fake.before = fail

    async def scenario(channel: grpc.aio.Channel) -> None:
        got = await failure(rpc(channel, "ModelInfer")(infer_request(id="7")))
        assert (got.code(), got.details()) == (code, text)
        assert dict(got.trailing_metadata() or {}).get("retry-after") == after

    run(scenario, FakeEngine(fake))
    assert ("secret" in caplog.text) == (code is Code.INTERNAL)


def test_bytes_in_flight_are_bounded_before_anything_is_parsed():
    async def scenario(channel: grpc.aio.Channel) -> None:
        error = await failure(rpc(channel, "ModelInfer")(infer_request()))
        assert error.code() == Code.UNAVAILABLE
        assert dict(error.trailing_metadata() or {})["retry-after"] == "1"

    engine = FakeEngine(simple(), budget_bytes=100)
    run(scenario, engine)
    assert engine.requests == []


def test_cancelled_call_cancels_its_request():
    fake = simple()
    fake.before = wait_for_ever
    engine = FakeEngine(fake)

    async def scenario(channel: grpc.aio.Channel) -> None:
        call = rpc(channel, "ModelInfer")(infer_request())
        await engine.arrival.wait()
        call.cancel()
        await engine.cancellation.wait()

    run(scenario, engine)


def test_deadline_reaches_the_engine_and_ends_the_work():
    fake = simple()
    fake.before = wait_for_ever
    engine = FakeEngine(fake)

    async def scenario(channel: grpc.aio.Channel) -> None:
        error = await failure(rpc(channel, "ModelInfer")(infer_request(), timeout=0.2))
        assert error.code() == Code.DEADLINE_EXCEEDED
        await engine.cancellation.wait()

    run(scenario, engine)
    assert engine.requests[0].deadline_ns is not None
    assert 0 < engine.requests[0].deadline_ns - engine.time_ns < 300_000_000


def test_call_without_a_deadline_reaches_the_engine_without_one():
    engine = FakeEngine(simple())

    async def scenario(channel: grpc.aio.Channel) -> None:
        await rpc(channel, "ModelInfer")(infer_request())

    run(scenario, engine)
    assert engine.requests[0].deadline_ns is None


def test_health_reports_the_current_readiness():
    engine = FakeEngine(simple())

    async def scenario(channel: grpc.aio.Channel) -> None:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString
        )
        for service in ("", SERVICE.full_name):
            engine.ready = True
            assert (await check(health_pb2.HealthCheckRequest(service=service))).status == health_pb2.HealthCheckResponse.SERVING
            engine.ready = False
            assert (await check(health_pb2.HealthCheckRequest(service=service))).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await failure(check(health_pb2.HealthCheckRequest(service="other")))).code() == Code.NOT_FOUND

    run(scenario, engine)


def test_health_watcher_receives_changes():
    engine = FakeEngine(simple())

    async def scenario(channel: grpc.aio.Channel) -> None:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString
        )
        call = watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        engine.ready = False
        assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        call.cancel()

    run(scenario, engine, Limits(health_watch_period_s=0.001))


@pytest.mark.parametrize("on", [True, False])
def test_reflection_is_served_only_if_enabled(on: bool):
    from grpc_reflection.v1alpha import reflection_pb2

    async def scenario(channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        if on:
            names = {service.name for service in (await call.read()).list_services_response.service}
            assert SERVICE.full_name in names
            call.cancel()
        else:
            assert (await failure(call.read())).code() == Code.UNIMPLEMENTED

    run(scenario, FakeEngine(simple()), reflection=on)


def test_occupied_port_is_named():
    async def main() -> None:
        first = grpc_server(Services(FakeEngine(), Limits()), "127.0.0.1", 0, settings=settings())
        port = await first.start()
        with pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 is in use"):
            await grpc_server(Services(FakeEngine(), Limits()), "127.0.0.1", port, settings=settings()).start()
        await first.stop(0)

    asyncio.run(main())


def test_stop_drains_calls():
    fake = simple()
    engine = FakeEngine(fake)

    async def main() -> None:
        go = asyncio.Event()

        async def wait(request: InferRequest) -> None:
            await go.wait()

        fake.before = wait
        front = grpc_server(Services(engine, Limits()), "127.0.0.1", 0, settings=settings())
        port = await front.start()
        async with asyncio.timeout(20), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = rpc(channel, "ModelInfer")(infer_request())
            await engine.arrival.wait()
            stopping = asyncio.create_task(front.stop(10))
            await asyncio.sleep(0)
            go.set()
            assert (await call).model_name == "simple"
            await stopping

    asyncio.run(main())


class FakeContext:
    """A call's context, without gRPC."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.details = ""

    def time_remaining(self) -> None:
        return None

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


def test_refused_request_is_freed_without_a_garbage_collection():
    engine, path = FakeEngine(simple()), f"/{SERVICE.full_name}/ModelInfer"
    methods = grpc_methods(Services(engine, Limits()))
    handler = handler_of(methods[path], engine)
    message = infer_request(id="7")
    message.inputs[0].name = "NONE"
    message.raw_input_contents[0] = bytes(10_000)

    async def refused(data: bytes) -> None:
        context = FakeContext()
        assert await handler.unary_unary(data, context) is None
        assert context.code is Code.INVALID_ARGUMENT
        # What gRPC keeps of the call must not lead to the request.
        kept.append(context)

    kept: list[FakeContext] = []
    data = message.SerializeToString()
    gc.collect()
    gc.disable()
    try:
        references = sys.getrefcount(data)
        asyncio.run(refused(data))
        assert sys.getrefcount(data) == references
    finally:
        gc.enable()


def test_refused_calls_leave_no_messages_behind():
    """Over real gRPC, whose call state holds the exception of `context.abort` in a cycle with its frames."""
    held: list[int] = []

    def errors() -> int:
        return sum(isinstance(found, ServingError | grpc.aio.AbortError) for found in gc.get_objects())

    async def scenario(channel: grpc.aio.Channel) -> None:
        message = infer_request()
        message.inputs[0].name = "NONE"
        gc.collect()
        gc.disable()
        try:
            before = errors()
            for _ in range(3):
                await failure(rpc(channel, "ModelInfer")(message))
            held.append(errors() - before)
        finally:
            gc.enable()

    run(scenario, FakeEngine(simple()))
    assert held == [0]


def test_long_error_text_is_truncated_to_the_clients_limit(capfd: pytest.CaptureFixture[str]):
    fake = simple()

    async def fail(request: InferRequest) -> None:
        raise InvalidRequest("\u4e2d%" * 3000)

    fake.before = fail

    async def scenario(channel: grpc.aio.Channel) -> None:
        details = (await failure(rpc(channel, "ModelInfer")(infer_request()))).details() or ""
        assert details.startswith("\u4e2d%\u4e2d")
        assert details.endswith("...")

    run(scenario, FakeEngine(fake))
    assert capfd.readouterr().err == ""


def test_control_requests_are_limited_to_a_small_size():
    async def scenario(channel: grpc.aio.Channel) -> None:
        error = await failure(rpc(channel, "ModelMetadata")(pb.ModelMetadataRequest(name="m" * 70_000)))
        assert error.code() == Code.RESOURCE_EXHAUSTED
        load = pb.RepositoryModelLoadRequest(model_name="m")
        load.parameters["config"].string_param = "{" + " " * 70_000 + "}"
        await rpc(channel, "RepositoryModelLoad")(load)

    run(scenario, FakeEngine(simple()))


def test_large_responses_equal_the_encoded_message():
    async def scenario(channel: grpc.aio.Channel) -> None:
        message = pb.ModelInferRequest(model_name="echo_int32", id="7")
        message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 100_000])
        message.raw_input_contents.append(bytes(range(250)) * 1600)
        response = await rpc(channel, "ModelInfer")(message)
        assert (response.id, response.outputs[0].name, list(response.outputs[0].shape)) == ("7", "OUTPUT", [1, 100_000])
        assert list(response.raw_output_contents) == list(message.raw_input_contents)

    run(scenario, FakeEngine(echo(DataType.INT32)))
