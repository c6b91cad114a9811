"""The engine's own part: admission, the byte budget, the stop, and a model that changes under a request."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, InvalidRequest, ServingError, Unavailable, UnknownModel
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.model_config import InstanceGroup, LoadOverrides, ModelConfig
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse, Via
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.engine.serving_engine import ServingEngine
from stoker.server.observability.metrics import Metrics


def signature(size: int = 2) -> ModelSignature:
    return ModelSignature((TensorSpec("IN", DataType.FP32, (size,)),), (TensorSpec("OUT", DataType.FP32, (size,)),), 4)


class OneServable:
    """A servable that responds when its gate opens, and counts its borrowers."""

    def __init__(self) -> None:
        self.config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=signature(),
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
        )
        self.signature = self.config.signature
        self.key = self.config.name
        self.version = 3
        self.labels = {"OUT": ("a", "b")}
        self.held: list[Held] = []
        self.scheduler = self

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None]) -> "Held":
        return Held(self, request, done, ended)


class Held:
    """A request that the servable holds."""

    def __init__(self, servable: OneServable, request: InferRequest, done: Done, ended: Callable[[], None]) -> None:
        self._servable = servable
        self._request = request
        self._done = done
        self._ended = ended
        servable.held.append(self)

    def respond(self, error: ServingError | None = None) -> None:
        self._servable.held.remove(self)
        outputs = dict(self._request.inputs)
        self._done(error or InferResponse("m", 3, self._request.request_id, outputs, self._servable.config.signature))
        self._ended()

    def cancel(self) -> None:
        if self in self._servable.held:
            self._servable.held.remove(self)
            self._ended()


class OneModelManager:
    def __init__(self, servable: OneServable) -> None:
        self.servable = servable
        self.calls: list[str] = []

    def resolve(self, name: str, version: int | None) -> OneServable:
        if name != "m":
            raise UnknownModel(f"Request for unknown model: '{name}' is not found")
        return self.servable

    def ready_versions(self, name: str) -> Sequence[int]:
        return [3]

    def is_ready(self) -> bool:
        return True

    def is_model_ready(self, name: str, version: int | None) -> bool:
        return name == "m"

    def index(self, ready_only: bool) -> list[IndexEntry]:
        return [IndexEntry("m", 3, VersionState.READY)]

    def abandon(self, why: str) -> None:
        self.calls.append(f"abandon: {why}")

    async def load(self, name: str, overrides: LoadOverrides) -> None:
        self.calls.append(f"load {name}")

    async def unload(self, name: str) -> None:
        self.calls.append(f"unload {name}")


def engine_over(servable: OneServable, budget: int = 100) -> tuple[ServingEngine, Metrics]:
    clock = FakeClock()
    metrics = Metrics(clock)
    engine = ServingEngine(
        OneModelManager(servable),  # type: ignore[arg-type]
        metrics,
        clock,
        name="stoker",
        version="1",
        max_bytes_in_flight=budget,
    )
    return engine, metrics


def request(engine: ServingEngine) -> InferRequest:
    servable = engine.resolve("m", None)
    inputs = {"IN": np.zeros((1, 2), np.float32)}
    return InferRequest(model_name="m", inputs=inputs, output_names=("OUT",), signature=servable.signature, servable=servable)


def test_request_holds_its_servable_until_its_response():
    async def scenario() -> None:
        servable = OneServable()
        engine, _ = engine_over(servable)
        asking = asyncio.create_task(engine.infer(request(engine)))
        await asyncio.sleep(0)
        assert (len(servable.held), engine.requests_in_flight) == (1, 1)
        servable.held[0].respond()
        assert (await asking).model_version == 3
        assert (servable.held, engine.requests_in_flight) == ([], 0)

    asyncio.run(scenario())


def test_submitted_request_reports_result_or_error_to_its_callback():
    async def scenario() -> None:
        servable = OneServable()
        engine, _ = engine_over(servable)
        responses: list[EngineResult] = []
        engine.submit(request(engine), responses.append)
        engine.submit(request(engine), responses.append)
        assert (responses, engine.requests_in_flight) == ([], 2)
        servable.held[0].respond()
        servable.held[0].respond(BackendFailed("broken"))
        assert [type(response) for response in responses] == [InferResponse, BackendFailed]
        assert engine.requests_in_flight == 0

    asyncio.run(scenario())


def test_cancelled_submission_gets_no_callback_and_is_not_counted():
    async def scenario() -> None:
        servable = OneServable()
        engine, _ = engine_over(servable)
        responses: list[EngineResult] = []
        flight = engine.submit(request(engine), responses.append)
        engine.begin_shutdown()
        draining = asyncio.create_task(engine.drained(30))
        await asyncio.sleep(0)
        flight.cancel()
        flight.cancel()
        assert await asyncio.wait_for(draining, 10) > 0
        assert (responses, servable.held, engine.requests_in_flight) == ([], [], 0)

    asyncio.run(scenario())


def test_cancelled_request_releases_its_servable():
    async def scenario() -> None:
        servable = OneServable()
        engine, _ = engine_over(servable)
        asking = asyncio.create_task(engine.infer(request(engine)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (servable.held, engine.requests_in_flight) == ([], 0)

    asyncio.run(scenario())


def test_request_runs_on_the_version_it_was_validated_against_after_a_reload():
    async def scenario() -> None:
        old, new = OneServable(), OneServable()
        manager = OneModelManager(old)
        clock = FakeClock()
        engine = ServingEngine(manager, Metrics(clock), clock, name="stoker", version="1", max_bytes_in_flight=100)  # type: ignore[arg-type]
        validated = request(engine)
        manager.servable = new
        asking = asyncio.create_task(engine.infer(validated))
        await asyncio.sleep(0)
        assert (len(old.held), len(new.held)) == (1, 0)
        old.held[0].respond()
        await asking

    asyncio.run(scenario())


def test_stopping_engine_refuses_new_requests_and_completes_running_ones():
    async def scenario() -> None:
        servable = OneServable()
        engine, _ = engine_over(servable)
        asking = asyncio.create_task(engine.infer(request(engine)))
        await asyncio.sleep(0)
        engine.begin_shutdown()
        assert not engine.is_live()
        assert not engine.is_ready()
        assert not engine.is_model_ready("m", None)
        with pytest.raises(Unavailable, match="shutting down"):
            await engine.infer(request(engine))
        with pytest.raises(Unavailable, match="shutting down"):
            await engine.load("m", LoadOverrides())
        assert await engine.drained(0) == 0
        draining = asyncio.create_task(engine.drained(30))
        await asyncio.sleep(0)
        assert not draining.done()
        servable.held[0].respond()
        assert (await asking).model_name == "m"
        assert await asyncio.wait_for(draining, 10) > 0

    asyncio.run(scenario())


def test_byte_budget_refuses_a_request_beside_others_but_never_a_lone_one():
    async def scenario() -> None:
        engine, _ = engine_over(OneServable(), budget=100)
        assert engine.budget.reserve(500)
        assert not engine.budget.reserve(1)
        engine.budget.release(500)
        assert engine.budget.reserve(60)
        assert not engine.budget.reserve(41)
        assert engine.budget.reserve(40)
        assert engine.bytes_in_flight == 100

    asyncio.run(scenario())


def test_refusal_before_the_queue_counts_as_a_failure_of_a_known_model_only():
    async def scenario() -> None:
        engine, metrics = engine_over(OneServable())
        engine.count_rejected("m", None, InvalidRequest("no"), Via.KSERVE_GRPC)
        engine.count_rejected("absent", None, InvalidRequest("no"), Via.KSERVE_GRPC)
        assert metrics.statistics("m", 3).fail.count == 1
        assert b'nv_inference_request_failure{model="m",reason="OTHER",version="3"} 1' in metrics.render()
        assert b"absent" not in metrics.render()

    asyncio.run(scenario())
