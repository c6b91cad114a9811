"""gRPC's own client and large requests that do not fit the byte budget together."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import grpc
import grpc.aio
import numpy as np
import pytest

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array
from stoker.server.grpc_server import grpc_methods
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.services import Services
from stoker.server.rpc.http2.server import H2Server
from tests.fakes.fake_engine import FakeEngine, model, signature

MIB = 1 << 20
INFER = "/inference.GRPCInferenceService/ModelInfer"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
#: A request takes more than a third of the budget, and a response two thirds.
BUDGET_BYTES, ROWS = 8 * MIB, 700_000

Caller = Callable[[bytes], Awaitable[bytes]]


def twice(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"OUTPUT": np.concatenate([inputs["INPUT"]] * 2, axis=1)}


def doubling() -> FakeEngine:
    """An engine whose only model returns its input twice."""
    of = signature([TensorSpec("INPUT", DataType.FP32, (-1,))], [TensorSpec("OUTPUT", DataType.FP32, (-1,))])
    return FakeEngine(model("twice", of, twice))


def message(seed: int) -> tuple[bytes, bytes]:
    """A serialised request, and the content of the output."""
    values = np.random.default_rng(seed).random((1, ROWS), np.float32)
    request = pb.ModelInferRequest(model_name="twice")
    request.inputs.add(name="INPUT", datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    return request.SerializeToString(), values.tobytes() * 2


def run(scenario: Callable[[list[Caller], FakeEngine], Awaitable[None]], *, channels: int, limits: Limits | None = None) -> None:
    async def main() -> None:
        engine = doubling()
        engine.budget = ByteBudget(BUDGET_BYTES, engine.now_ns)
        limits_used = limits or Limits()
        server = H2Server(grpc_methods(Services(engine, limits_used)), engine, limits_used, "127.0.0.1", 0)
        port = await server.start()
        # Each channel has a connection of its own.
        options = [[*UNLIMITED, ("stoker.number", number)] for number in range(channels)]
        opened = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", each) for each in options]
        try:
            async with asyncio.timeout(60):
                await scenario([channel.unary_unary(INFER) for channel in opened], engine)
        finally:
            for channel in opened:
                await channel.close()
            await server.stop(1)
        assert engine.budget.held_bytes == 0

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("is_one_connection", [True, False])
def test_parallel_requests_beyond_the_budget_all_succeed(count: int, is_one_connection: bool):
    async def scenario(callers: list[Caller], engine: FakeEngine) -> None:
        messages = [message(seed) for seed in range(count)]
        for _ in range(2):
            calls = [callers[number % len(callers)](sent) for number, (sent, _) in enumerate(messages)]
            replies = [pb.ModelInferResponse.FromString(reply) for reply in await asyncio.gather(*calls)]
            assert [reply.raw_output_contents[0] == expected for reply, (_, expected) in zip(replies, messages, strict=True)] == [
                True
            ] * count

    run(scenario, channels=1 if is_one_connection else count)


@pytest.mark.slow
def test_client_gets_the_status_text_of_a_request_that_waited_in_vain():
    async def scenario(callers: list[Caller], engine: FakeEngine) -> None:
        assert engine.budget.reserve(BUDGET_BYTES - MIB)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await callers[0](message(0)[0])
        engine.budget.release(BUDGET_BYTES - MIB)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the server holds as many request bytes as it may, no room for" in (caught.value.details() or "")
        assert "within 0.3 s: try again" in (caught.value.details() or "")
        assert dict(caught.value.trailing_metadata() or ())["retry-after"] == "1"

    run(scenario, channels=1, limits=Limits(admission_wait_s=0.3))


@pytest.mark.slow
def test_client_gets_the_status_text_of_a_response_without_room():
    async def scenario(callers: list[Caller], engine: FakeEngine) -> None:
        def fill(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            # As unread responses of other clients would.
            assert engine.budget.reserve_response(2 * BUDGET_BYTES - 4 * MIB)
            return twice(inputs)

        engine.models["twice"].function = fill
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await callers[0](message(0)[0])
        engine.budget.release(2 * BUDGET_BYTES - 4 * MIB)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "no room for a response of" in (caught.value.details() or "")

    run(scenario, channels=1)
