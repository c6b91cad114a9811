"""Ensembles with decoupled steps: each response flows on, in order, and the model waits for a slow client."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import BackendFailed, Overloaded
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.ensemble import Ensemble
from stoker.server.core.request import InferResponse
from tests.fakes.ensembles import EnsembleRig, signature, step
from tests.fakes.fake_loader import turn

VALUE = (TensorSpec("y", DataType.FP32, (2,)),)
MANY = ModelSignature((TensorSpec("x", DataType.FP32, (2,)),), VALUE, 8, is_decoupled=True)
ONE = signature(["x"], ["y"])


class Client:
    """Takes the responses of the ensemble when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[dict[str, np.ndarray], Callable[[], None]]] = []
        self.taken: list[float] = []

    def feed(self, outputs: Any, taken: Callable[[], None]) -> None:
        self.waiting.append((outputs, taken))

    def put(self, outputs: Any) -> bool:
        raise AssertionError("called in a model's thread only")

    def take(self) -> None:
        outputs, taken = self.waiting.pop(0)
        self.taken.append(float(outputs["OUT"][0, 0]))
        taken()

    def take_all(self) -> None:
        while self.waiting:
            self.take()


def rig_of(*steps: Any, models: dict[str, ModelSignature], bound: int = 0) -> EnsembleRig:
    given = ModelSignature((TensorSpec("IN", DataType.FP32, (2,)),), (TensorSpec("OUT", DataType.FP32, (2,)),), 8, is_decoupled=True)
    return EnsembleRig(given, Ensemble(tuple(steps), bound), models)


def many_then_one(bound: int = 0) -> EnsembleRig:
    """IN -> many (decoupled) -> t -> one -> OUT."""
    return rig_of(
        step("many", {"x": "IN"}, {"y": "t"}), step("one", {"x": "t"}, {"y": "OUT"}), models={"many": MANY, "one": ONE}, bound=bound
    )


def respond(rig: EnsembleRig, value: float, model: str = "many") -> None:
    """Passes one response of the decoupled model on, as an ensemble does on the loop."""
    sink: Any = rig.models[model].worker.works[0].items[0].responses
    sink.feed({"y": np.full((1, 2), value, np.float32)}, lambda: None)


def end(rig: EnsembleRig, model: str = "many") -> None:
    rig.models[model].worker.finish([{}])


def in_loop(test: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@in_loop
async def test_each_response_flows_through_the_steps_behind() -> None:
    rig, client = many_then_one(), Client()
    rig.ask("1", responses=client)
    rig.time.run()
    respond(rig, 1)
    respond(rig, 2)
    assert rig.running()["one"] == [["1", "1"]], "responses share a batch"
    rig.finish("one")
    end(rig)
    client.take_all()
    assert client.taken == [2, 3]
    assert rig.response("1").outputs == {}
    assert rig.ended == ["1"]
    assert rig.scheduler.in_flight == 0


@in_loop
async def test_responses_keep_their_order() -> None:
    rig = rig_of(step("many", {"x": "IN"}, {"y": "t"}), step("one", {"x": "t"}, {"y": "OUT"}), models={"many": MANY, "one": ONE})
    rig.models["one"].worker._slots = 2
    client = Client()
    rig.ask("1", responses=client)
    rig.time.run()
    respond(rig, 1)
    rig.time.run()
    respond(rig, 2)
    rig.time.run()
    works = rig.models["one"].worker.works
    second = works.pop(1)
    second.on_done(BatchResult([{"y": second.items[0].inputs["x"]}], [1]))
    assert client.waiting == [], "the first response is not there"
    rig.finish("one")
    end(rig)
    client.take_all()
    assert client.taken == [2, 2]
    assert isinstance(rig.results["1"], InferResponse)


@in_loop
async def test_request_ends_when_the_last_response_was_taken() -> None:
    rig, client = many_then_one(), Client()
    rig.ask("1", responses=client)
    rig.time.run()
    respond(rig, 1)
    end(rig)
    rig.finish_all()
    assert rig.results == {}
    client.take()
    assert "1" in rig.results


@in_loop
async def test_model_without_responses_ends_the_request() -> None:
    rig, client = many_then_one(), Client()
    rig.ask("1", responses=client)
    rig.time.run()
    end(rig)
    assert rig.response("1").outputs == {}


@in_loop
async def test_model_waits_while_the_bound_is_reached() -> None:
    rig, client = many_then_one(bound=2), Client()
    rig.ask("1", responses=client)
    rig.time.run()
    sink: Any = rig.models["many"].worker.works[0].items[0].responses
    sent: list[bool] = []

    def produce() -> None:
        for value in range(4):
            sent.append(sink.put({"y": np.full((1, 2), value, np.float32)}))

    thread = threading.Thread(target=produce)
    thread.start()
    async with asyncio.timeout(20):
        while len(sent) < 2 or "one" not in rig.running():
            await turn(1)
        while "one" in rig.running():
            rig.finish("one")
        assert len(client.waiting) == 1, "the next one waits for the client"
        assert len(sent) == 2
        while len(client.taken) < 4:
            while "one" in rig.running():
                rig.finish("one")
            client.take_all()
            await turn(1)
    thread.join()
    assert sent == [True] * 4
    end(rig)
    assert client.taken == [1, 2, 3, 4]
    assert "1" in rig.results


@in_loop
async def test_cancelled_request_ends_the_stream_of_the_model() -> None:
    rig, client = many_then_one(bound=1), Client()
    flight = rig.ask("1", responses=client)
    rig.time.run()
    sink: Any = rig.models["many"].worker.works[0].items[0].responses
    respond(rig, 1)
    rig.time.run()
    flight.cancel()
    assert not sink.put({"y": np.zeros((1, 2), np.float32)})
    assert rig.models["many"].worker.requests[0].is_cancelled
    rig.finish_all()
    assert rig.results == {}
    assert client.waiting == []
    assert rig.log.failures == ["CANCELED"]
    assert rig.scheduler.in_flight == 0


@in_loop
async def test_failure_behind_the_decoupled_step_fails_the_request() -> None:
    rig, client = many_then_one(), Client()
    rig.ask("1", responses=client)
    rig.time.run()
    respond(rig, 1)
    rig.time.run()
    rig.finish("one", [BackendFailed("no luck")])
    assert rig.error("1").message == "in ensemble 'e', step 'one': no luck"
    respond(rig, 2)
    assert "one" not in rig.running()


@in_loop
async def test_rejection_behind_the_decoupled_step_fails_the_request() -> None:
    rig, client = many_then_one(), Client()
    rig.ask("1", responses=client)
    rig.time.run()
    rig.models["one"].scheduler._queue._max_size = 1
    respond(rig, 1)
    respond(rig, 2)
    assert isinstance(rig.error("1"), Overloaded)
    assert rig.log.failures == ["REJECTED"]


@in_loop
async def test_steps_before_the_decoupled_step_run_once() -> None:
    rig = rig_of(
        step("before", {"x": "IN"}, {"y": "a"}),
        step("side", {"x": "IN"}, {"y": "b"}),
        step("many", {"x": "a"}, {"y": "t"}),
        step("join", {"x": "t", "z": "b"}, {"y": "OUT"}),
        models={"before": ONE, "side": ONE, "many": MANY, "join": signature(["x", "z"], ["y"])},
    )
    client = Client()
    rig.ask("1", responses=client, inputs={"IN": np.full((1, 2), 10, np.float32)})
    assert set(rig.running()) == {"before", "side"}
    rig.finish("before")
    rig.finish("side")
    assert set(rig.running()) == {"many"}
    respond(rig, 1)
    respond(rig, 2)
    end(rig)
    rig.finish_all()
    client.take_all()
    assert client.taken == [13, 14]
    assert rig.models["side"].worker.history == [[1]]


@in_loop
async def test_decoupled_steps_in_a_row_multiply_their_responses() -> None:
    rig = rig_of(
        step("many", {"x": "IN"}, {"y": "t"}),
        step("more", {"x": "t"}, {"y": "OUT"}),
        models={"many": MANY, "more": MANY},
    )
    client = Client()
    rig.ask("1", responses=client)
    rig.time.run()
    respond(rig, 1)
    respond(rig, 5)
    end(rig)
    for value in (1, 5):
        rig.time.run()
        respond(rig, value, "more")
        respond(rig, value + 1, "more")
        end(rig, "more")
    client.take_all()
    assert client.taken == [1, 2, 5, 6]
    assert "1" in rig.results
