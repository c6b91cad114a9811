"""The completion of a ModelInfer call: one result for each request, with its bytes of the budget held until then."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, InvalidRequest, Overloaded, ServingError
from stoker.backends.api.tensor import DataType
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.completion import Completion
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.inference import Inference
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo
from tests.fakes.message_calls import respond

Results = list[bytes | Exception]


def asked(size: int = 4, **fields: Any) -> bytes:
    message = pb.ModelInferRequest(model_name="echo", **fields)
    message.inputs.add(name="INPUT", datatype="FP32", shape=[1, size])
    message.raw_input_contents.append(np.arange(size, dtype=np.float32).tobytes())
    return message.SerializeToString()


def served(before: Callable[[InferRequest], object] | None = None, budget_bytes: int = 1 << 40) -> tuple[FakeEngine, Inference]:
    model: FakeModel = echo(DataType.FP32, (-1,), 8, "echo")
    model.before = before  # type: ignore[assignment]
    engine = FakeEngine(model, budget_bytes=budget_bytes)
    return engine, Inference(engine, Limits(decode_inline_bytes=65_536))


def start(inference: Inference, data: bytes, results: Results) -> Completion[bytes]:
    completion = inference.start(data, None)
    completion.then(results.append)
    return completion


async def until(results: Results, count: int) -> None:
    async with asyncio.timeout(60):
        while len(results) < count:  # noqa: ASYNC110 - threads answer in their own time
            await asyncio.sleep(0.001)


# Small and by the codec, small and by the template, large on the long way, large by the template, answered by a thread.
@pytest.mark.parametrize("size", [4, 4_000, 40_000])
def test_requests_of_every_size_complete_and_release_their_bytes(size):
    async def scenario() -> None:
        engine, inference = served()
        results: Results = []
        for count in (1, 2, 3):
            start(inference, asked(size, id=str(count)), results)
            # A large one of unknown structure begins at once, as a coroutine, and the fake engine does not wait.
            assert len(results) == count - 1 or size > 1_000
            assert engine.reserved_bytes > 0 or size > 1_000
            await until(results, count)
            response = results[-1]
            assert isinstance(response, bytes)
            message = pb.ModelInferResponse.FromString(response)
            assert message.id == str(count)
            assert np.frombuffer(message.raw_output_contents[0], np.float32).tolist() == list(range(size))
            assert engine.reserved_bytes == 0

    asyncio.run(scenario())


def test_refused_request_completes_with_its_error_and_is_counted():
    async def scenario() -> None:
        engine, inference = served()
        results: Results = []
        start(inference, b"\xff\xff", results)
        start(inference, pb.ModelInferRequest(model_name="echo").SerializeToString(), results)
        assert [type(response) for response in results] == [InvalidRequest, InvalidRequest]
        assert engine.rejected == ["echo"]
        assert engine.reserved_bytes == 0

    asyncio.run(scenario())


# Parsed at once, looked through first, and on the way of streams.
@pytest.mark.parametrize(("size", "is_streamed"), [(4, False), (4_000, False), (4, True)])
@pytest.mark.parametrize(("text", "version"), [("1", 1), ("", None), ("one", None)])
def test_refusal_is_counted_for_the_requested_version(size: int, is_streamed: bool, text: str, version: int | None):
    async def scenario() -> None:
        engine, inference = served()
        request = pb.ModelInferRequest.FromString(asked(size, model_version=text))
        request.inputs[0].datatype = "INT8"
        data = request.SerializeToString()
        with pytest.raises(InvalidRequest), Reservation(engine.budget) as reservation:
            await (inference.decode(data, None, reservation) if is_streamed else respond(inference, data))
        assert (engine.rejected, engine.refused_versions) == (["echo"], [version])

    asyncio.run(scenario())


def test_request_over_the_byte_budget_completes_at_once_with_overloaded():
    async def scenario() -> None:
        _, inference = served(budget_bytes=10)
        results: Results = []
        start(inference, asked(), results).cancel()
        assert isinstance(results[0], Overloaded)
        assert "no room for" in results[0].message

    asyncio.run(scenario())


@pytest.mark.parametrize(("error", "text"), [(BackendFailed("broken"), "^broken"), (Overloaded("full"), "^\\[request id: 7\\] full")])
def test_engine_errors_complete_the_call_and_queue_errors_have_the_request_id(error, text):
    async def scenario() -> None:
        async def refuse(_: InferRequest) -> None:
            raise error

        engine, inference = served(refuse)
        results: Results = []
        start(inference, asked(id="7"), results)
        await until(results, 1)
        with pytest.raises(ServingError, match=text):
            raise results[0]  # type: ignore[misc]
        with pytest.raises(ServingError, match=text):
            await respond(inference, asked(id="7"))
        assert engine.reserved_bytes == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [4, 4_000])
def test_cancelled_request_is_withdrawn_and_its_callback_not_called(size):
    async def scenario() -> None:
        async def forever(_: InferRequest) -> None:
            await asyncio.Event().wait()

        engine, inference = served(forever)
        results: Results = []
        flight = start(inference, asked(size), results)
        await asyncio.wait_for(engine.arrival.wait(), 10)
        flight.cancel()
        flight.cancel()
        await asyncio.wait_for(engine.cancellation.wait(), 10)
        await asyncio.sleep(0)
        assert (results, engine.reserved_bytes) == ([], 0)

    asyncio.run(scenario())


def test_cancelled_awaiting_task_cancels_the_request():
    async def scenario() -> None:
        async def forever(_: InferRequest) -> None:
            await asyncio.Event().wait()

        engine, inference = served(forever)
        task = asyncio.ensure_future(respond(inference, asked()))
        await asyncio.wait_for(engine.arrival.wait(), 10)
        task.cancel()
        await asyncio.wait_for(engine.cancellation.wait(), 10)
        await asyncio.gather(task, return_exceptions=True)
        assert engine.reserved_bytes == 0

    asyncio.run(scenario())


def test_cancelled_large_response_holds_its_bytes_until_its_thread_has_ended():
    async def scenario() -> None:
        engine, inference = served()
        results: Results = []
        start(inference, asked(40_000), results)
        await until(results, 1)
        flight = start(inference, asked(40_000), results)
        for _ in range(3):
            await asyncio.sleep(0)
        flight.cancel()
        async with asyncio.timeout(60):
            while engine.reserved_bytes:  # noqa: ASYNC110 - its thread ends in its own time
                await asyncio.sleep(0.001)
        assert (len(results), engine.reserved_bytes) == (1, 0)

    asyncio.run(scenario())
