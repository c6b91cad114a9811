"""Requests of more rows than a batch: parts, joined outputs, failures, cancellation and counts, with puppet workers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, InvalidRequest, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import AccessNote, EngineResult, InferRequest, InferResponse
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.splitting import SplittingScheduler
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog

SIGNATURE = ModelSignature(
    (TensorSpec("IN", DataType.FP32, (1,)), TensorSpec("TEXT", DataType.BYTES, (1,), optional=True)),
    (TensorSpec("OUT", DataType.FP32, (1,)), TensorSpec("TEXT", DataType.BYTES, (1,))),
    4,
    most_split_rows=4096,
)
US = 1_000


class Rig:
    """A splitting scheduler under the test's hands; `results` by request id."""

    def __init__(self, workers: int = 1, max_queue_size: int = 100) -> None:
        self.time = HandTimers()
        self.workers = [PuppetWorker() for _ in range(workers)]
        self.log = RecorderLog()
        self.results: dict[str, EngineResult] = {}
        self.ended: list[str] = []
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=workers),),
            dynamic_batching=DynamicBatching(),
        )
        self.inner = Scheduler(config, 2, self.workers, clock=self.time, timers=self.time, recorder=self.log, max_queue_size=max_queue_size)
        self.scheduler = SplittingScheduler(self.inner, "m", 2, 4, clock=self.time, recorder=self.log, max_queue_size=max_queue_size)

    def ask(self, request_id: str, rows: int, first: int = 0, **fields: Any):
        values = np.arange(first, first + rows, dtype=np.float32).reshape(rows, 1)
        request = InferRequest("m", {"IN": values}, ("OUT",), SIGNATURE, request_id=request_id, rows=rows, **fields)
        return self.scheduler.submit(
            request, lambda result: self.results.__setitem__(request_id, result), lambda: self.ended.append(request_id)
        )

    def finish(self, worker: int = 0, error: ServingError | None = None) -> list[int]:
        """Ends a batch: OUT is twice IN. Returns the rows of its requests."""
        self.time.run()
        puppet = self.workers[worker]
        rows = [item.rows for item in puppet.works[0].items]
        puppet.finish([error or {"OUT": np.multiply(item.inputs["IN"], 2)} for item in puppet.works[0].items])
        self.time.run()
        return rows

    def out(self, request_id: str) -> list[float]:
        response = self.results[request_id]
        assert isinstance(response, InferResponse), response
        assert (response.request_id, response.model_name, response.model_version) == (request_id, "m", 2)
        return [float(value) for value in response.outputs["OUT"][:, 0]]


def test_parts_run_in_batches_and_the_outputs_are_joined_in_order() -> None:
    rig = Rig()
    rig.ask("a", 10)
    assert [rig.finish(), rig.finish(), rig.finish()] == [[4], [4], [2]]
    assert rig.out("a") == [2.0 * row for row in range(10)]
    assert (rig.log.succeeded_rows, rig.log.executions, rig.log.failures, rig.ended) == ([10], [4, 4, 2], [], ["a"])
    assert rig.scheduler.in_flight == 0


def test_last_part_shares_its_batch_with_other_requests() -> None:
    rig = Rig()
    rig.ask("a", 6)
    rig.ask("b", 2, first=100)
    assert [rig.finish(), rig.finish()] == [[4], [2, 2]]
    assert rig.out("b") == [200.0, 202.0]
    assert sorted(rig.log.succeeded_rows) == [2, 6]


def test_request_that_fits_passes_unchanged() -> None:
    rig = Rig()
    rig.ask("a", 4)
    assert rig.finish() == [4]
    assert rig.log.succeeded_rows == [4]


def test_parts_that_end_in_another_order_are_joined_by_their_rows() -> None:
    rig = Rig(workers=2)
    rig.ask("a", 8)
    rig.time.run()
    rig.finish(worker=1)
    rig.finish(worker=0)
    assert rig.out("a") == [2.0 * row for row in range(8)]


def test_failed_part_is_the_result_and_parts_in_the_queue_never_run() -> None:
    rig = Rig()
    rig.ask("a", 16)
    rig.finish()
    rig.finish(error=BackendFailed("broken"))
    assert isinstance(rig.results["a"], BackendFailed)
    # The instance got the next part before the error was delivered; the last one is taken out of the queue.
    assert (rig.inner.queue_depth, rig.log.queue_depth) == (0, 0)
    rig.finish()
    assert rig.workers[0].works == []
    assert (rig.log.failures, rig.log.succeeded_rows, rig.ended) == (["BACKEND"], [], ["a"])


def test_cancelled_request_takes_its_parts_out_of_the_queue_and_counts_once() -> None:
    rig = Rig()
    flight = rig.ask("a", 12)
    rig.time.run()
    flight.cancel()
    assert (rig.inner.queue_depth, rig.log.failures, rig.ended) == (0, ["CANCELED"], ["a"])
    rig.finish()
    assert (rig.results, rig.log.succeeded_rows, rig.scheduler.in_flight) == ({}, [], 0)


@pytest.mark.parametrize("limits", [{"timeout_us": 10}, {"deadline_ns": 1_000_000_000 + 10 * US}])
def test_request_whose_parts_expire_in_the_queue_fails_once(limits: dict[str, Any]) -> None:
    rig = Rig()
    rig.ask("a", 12, **limits)
    rig.time.run()
    rig.time.advance(20)
    assert isinstance(rig.results["a"], QueueTimeout | DeadlineExceeded)
    assert (rig.log.failures, rig.log.queue_depth, rig.ended) == (["REJECTED"], 0, ["a"])


def test_queue_without_space_for_all_parts_rejects_the_request_at_once() -> None:
    rig = Rig(max_queue_size=3)
    rig.ask("a", 4)
    rig.time.run()
    rig.ask("b", 4)
    with pytest.raises(Overloaded):
        rig.ask("c", 12)
    assert (rig.inner.queue_depth, rig.log.failures) == (1, ["REJECTED"])
    with pytest.raises(InvalidRequest, match="at most 12 rows"):
        rig.ask("d", 13)
    assert rig.log.failures == ["REJECTED", "REJECTED"]


def test_unload_fails_the_request_once() -> None:
    rig = Rig()
    rig.ask("a", 12)
    rig.time.run()
    rig.scheduler.abandon("the model was unloaded")
    assert isinstance(rig.results["a"], Unavailable)
    assert (rig.log.failures, rig.ended, rig.scheduler.in_flight) == (["OTHER"], ["a"], 0)


def test_outputs_of_different_shapes_are_an_error_with_the_way_out() -> None:
    rig = Rig()
    rig.ask("a", 8)
    rig.time.run()
    rig.workers[0].finish([{"OUT": np.zeros((4, 2), np.float32)}])
    rig.time.run()
    rig.workers[0].finish([{"OUT": np.zeros((4, 3), np.float32)}])
    result = rig.results["a"]
    assert isinstance(result, BackendFailed)
    assert "send at most 4 rows" in result.message
    assert rig.log.failures == ["BACKEND"]


def test_times_of_the_parts_are_those_of_the_request_in_the_access_log() -> None:
    rig = Rig()
    note = AccessNote()
    rig.ask("a", 8, access=note)
    rig.time.run()
    rig.time.advance(30)
    rig.finish()
    rig.finish()
    assert (note.queue_ns, note.compute_ns, note.input_ns, note.output_ns) == (30 * US, 12, 2, 6)


def test_strings_are_joined_too() -> None:
    rig = Rig()
    texts = np.array([[b"%d" % row] for row in range(6)], dtype=np.object_)
    values = np.zeros((6, 1), np.float32)
    request = InferRequest("m", {"IN": values, "TEXT": texts}, ("TEXT",), SIGNATURE, rows=6)
    rig.scheduler.submit(request, lambda result: rig.results.__setitem__("a", result))
    for _ in range(2):
        rig.time.run()
        worker = rig.workers[0]
        worker.finish([{"TEXT": item.inputs["TEXT"]} for item in worker.works[0].items])
    response = rig.results["a"]
    assert isinstance(response, InferResponse)
    assert response.outputs["TEXT"].tolist() == texts.tolist()


steps = st.lists(st.tuples(st.sampled_from(["ask", "ask", "finish", "fail", "cancel", "advance"]), st.integers(1, 15)), max_size=30)


@given(steps)
def test_each_request_gets_one_result_equal_to_that_of_one_run_and_is_counted_once(script: list[tuple[str, int]]) -> None:
    rig = Rig(workers=2, max_queue_size=6)
    flights: dict[str, Any] = {}
    cancelled: set[str] = set()
    rejected = 0
    for kind, number in script:
        rig.time.run()
        busy = [at for at, worker in enumerate(rig.workers) if worker.works]
        if kind == "ask":
            request_id = f"{len(flights) + rejected}:{number}"
            limits = {"timeout_us": number} if number % 3 == 1 else {}
            try:
                flights[request_id] = rig.ask(request_id, number, first=number, **limits)
            except (Overloaded, InvalidRequest):
                rejected += 1
        elif kind in ("finish", "fail") and busy:
            rig.finish(busy[number % len(busy)], BackendFailed("broken") if kind == "fail" else None)
        elif kind == "cancel" and flights:
            request_id = list(flights)[number % len(flights)]
            if not flights[request_id].is_over:
                cancelled.add(request_id)
            flights[request_id].cancel()
        elif kind == "advance":
            rig.time.advance(number)
    rig.time.run()
    while any(worker.works for worker in rig.workers):
        rig.finish(next(at for at, worker in enumerate(rig.workers) if worker.works))
    assert rig.scheduler.in_flight == rig.log.queue_depth == 0
    assert rig.results.keys() == flights.keys() - cancelled
    assert sorted(rig.ended) == sorted(flights)
    for request_id, result in rig.results.items():
        rows = int(request_id.split(":")[1])
        if isinstance(result, InferResponse):
            assert rig.out(request_id) == [2.0 * row for row in range(rows, 2 * rows)]
    assert len(rig.log.succeeded_rows) + len(rig.log.failures) == len(flights) + rejected
