"""A decoupled model's responses through the engine: order, version, and early cancellation."""

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import aclosing

import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.model_config import InstanceGroup, ModelConfig
from stoker.server.core.request import Done, InferRequest, InferResponse, Servable
from stoker.server.engine.serving_engine import ServingEngine
from stoker.server.observability.metrics import Metrics

TENSOR = TensorSpec("x", DataType.FP32, (1,))
SIGNATURE = ModelSignature((TENSOR,), (dataclasses.replace(TENSOR, name="y"),), 0, is_decoupled=True)


class Streaming:
    """A servable, its manager and its worker in one: returns `responses`, then ends with `error`, all in a thread."""

    def __init__(self, responses: int, error: ServingError | None = None) -> None:
        self.config = ModelConfig(
            name="m",
            backend="f",
            platform="f",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
        )
        self.signature = SIGNATURE
        self.version = 3
        self.scheduler = self
        self.was_wanted: list[bool] = []
        self.work: asyncio.Future[None] | None = None
        self.is_cancelled = False
        self._responses = responses
        self._error = error

    def resolve(self, name: str, version: int | None) -> "Streaming":
        return self

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None]) -> "Streaming":
        assert request.responses is not None
        sink = request.responses

        def produce() -> None:
            for place in range(self._responses):
                self.was_wanted.append(sink.put({"y": np.array([place], np.float32)}))
                if not self.was_wanted[-1]:
                    return

        async def work() -> None:
            await asyncio.to_thread(produce)
            if not self.is_cancelled:
                done(self._error or InferResponse("m", 3, "", {}, SIGNATURE))
                ended()

        self.work = asyncio.ensure_future(work())
        return self

    def cancel(self) -> None:
        self.is_cancelled = True


def engine_over(model: Streaming) -> ServingEngine:
    clock = FakeClock()
    return ServingEngine(model, Metrics(clock), clock, name="s", version="1", max_bytes_in_flight=1)  # type: ignore[arg-type]


def request(model: Streaming) -> InferRequest:
    inputs = {"x": np.zeros(1, np.float32)}
    servable: Servable = model  # type: ignore[assignment]
    return InferRequest("m", inputs, ("y",), SIGNATURE, request_id="r", servable=servable)


@pytest.mark.parametrize("error", [None, BackendFailed("at the end")])
def test_responses_arrive_in_order_followed_by_the_error(error: ServingError | None) -> None:
    async def scenario() -> None:
        found: list[tuple[str, int, float]] = []

        async def ask() -> None:
            model = Streaming(40, error)
            async for response in engine_over(model).stream(request(model)):
                found.append((response.request_id, response.model_version, float(response.outputs["y"][0])))

        if error is None:
            await ask()
        else:
            with pytest.raises(BackendFailed, match="at the end"):
                await ask()
        assert found == [("r", 3, place) for place in range(40)]

    asyncio.run(scenario())


def test_client_that_leaves_early_stops_the_model() -> None:
    async def scenario() -> None:
        model = Streaming(1000)
        async with aclosing(engine_over(model).stream(request(model))) as responses:
            async for _ in responses:
                break
        assert model.work is not None
        await model.work
        assert model.was_wanted[-1] is False
        assert len(model.was_wanted) < 30
        await asyncio.sleep(0)
        assert model.is_cancelled

    asyncio.run(scenario())
