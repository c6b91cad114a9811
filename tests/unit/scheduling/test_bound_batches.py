"""Requests that run in bound tensors, or one after the other in one hand-over, have the same responses, errors and counts as without, under
cancellations and timeouts.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import BatchProcessor
from stoker.backends.api.errors import BackendFailed, ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_backend import FakeInstance
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig, QueuePolicy
from stoker.server.core.request import EngineResult, InferRequest, InFlight
from stoker.server.execution.worker import InlineWorker, InstanceWorker, LocalWorker, Work
from stoker.server.scheduling.scheduler import LOOP_SHARE_NS, Scheduler
from tests.fakes.bound_instance import BoundInstance
from tests.fakes.puppet_worker import HandTimers, RecorderLog, rows_array

SIGNATURE = ModelSignature(
    (TensorSpec("x", DataType.FP32, (2,)),), (TensorSpec("y", DataType.FP32, (2,)), TensorSpec("z", DataType.FP32, (2,))), 8
)
UNBATCHED = ModelSignature(SIGNATURE.inputs, SIGNATURE.outputs, 0)
#: Whatever batch it is in, a request with this value fails.
CULPRIT = 7

SUBMISSION = st.tuples(
    st.just("submit"),
    st.integers(1, 8),
    st.integers(0, CULPRIT),
    st.sampled_from([("y",), ("z",), ("z", "y")]),
    st.sampled_from([0, 0, 0, 40, 90]),
    st.sampled_from([None, None, 30, 70]),
)
STEPS = st.lists(
    st.one_of(
        SUBMISSION,
        SUBMISSION,
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("run")),
        st.tuples(st.just("advance"), st.integers(1, 80)),
        st.tuples(st.just("abandon")),
    ),
    max_size=40,
)
BATCHING = st.sampled_from(
    [
        DynamicBatching(),
        DynamicBatching(max_queue_delay_us=50, preferred_batch_sizes=(4,)),
        DynamicBatching(preserve_ordering=True),
        DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=4, default_timeout_us=60, allow_timeout_override=True)),
        DynamicBatching(priority_levels=2, default_priority_level=1),
    ]
)


class OneByOneWorker(LocalWorker):
    """Runs each batch on the event loop, as `InlineWorker`, but one request at a time of a model that runs requests apart."""

    free_slots = 1

    def __init__(self, instance: FakeInstance, signature: ModelSignature, clock: HandTimers) -> None:
        self._processor = BatchProcessor(instance, signature, clock)

    def submit(self, work: Work) -> None:
        work.on_done(self._processor.process(work.items))

    async def close(self) -> None:
        pass


class Rig:
    """A scheduler over one instance, and the outcomes of its requests. A run takes `run_us` microseconds."""

    def __init__(
        self,
        instance: FakeInstance,
        batching: DynamicBatching | None,
        *,
        run_us: int = 0,
        worker: Callable[[FakeInstance, ModelSignature, HandTimers], InstanceWorker] = InlineWorker,
    ) -> None:
        instance.fail_if = self._fails
        self._run_us = run_us
        self.time = HandTimers()
        self.log = RecorderLog()
        self.signature = signature = instance.signature
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=signature,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
            dynamic_batching=batching,
        )
        workers = [worker(instance, signature, self.time)]
        self.scheduler = Scheduler(config, 1, workers, clock=self.time, timers=self.time, recorder=self.log, max_queue_size=12)
        self.flights: list[InFlight | None] = []
        #: In the order in which they came, each with the number of its request.
        self.results: list[tuple[int, Any]] = []
        self.ended: list[int] = []

    def _fails(self, inputs: Arrays) -> Exception | None:
        self.time.now += self._run_us * 1_000
        return BackendFailed("no") if (inputs["x"] == CULPRIT).any() else None

    def step(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        if kind == "submit":
            self._submit(*rest)
        elif kind == "cancel" and rest[0] < len(self.flights) and (flight := self.flights[rest[0]]) is not None:
            flight.cancel()
        elif kind == "run":
            self.time.run()
        elif kind == "advance":
            self.time.advance(rest[0])
        elif kind == "abandon":
            self.scheduler.abandon("no more")

    def _submit(self, rows: int, value: int, wanted: tuple[str, ...], timeout_us: int, deadline_us: int | None) -> None:
        number = len(self.flights)
        deadline_ns = None if deadline_us is None else self.time.now + deadline_us * 1_000
        array = rows_array(rows, 2, value=value)
        if not self.signature.is_batched:
            rows, array = 1, array[0]
        request = InferRequest(
            "m",
            {"x": array},
            wanted,
            self.signature,
            rows=rows,
            timeout_us=timeout_us,
            deadline_ns=deadline_ns,
            priority=number % 3,
        )

        def done(result: EngineResult) -> None:
            outcome = repr(result) if isinstance(result, ServingError) else {name: each.tolist() for name, each in result.outputs.items()}
            self.results.append((number, outcome))

        try:
            self.flights.append(self.scheduler.submit(request, done, lambda: self.ended.append(number)))
        except ServingError as error:
            self.flights.append(None)
            self.results.append((number, repr(error)))

    @property
    def counts(self) -> tuple[object, ...]:
        log = self.log
        return log.succeeded_rows, log.failures, log.executions, log.queue_ns, log.queue_depth, self.scheduler.in_flight


@given(steps=STEPS, batching=BATCHING, most_rows=st.integers(0, 8), rejects=st.booleans())
def test_bound_tensors_change_no_response_no_error_and_no_count(
    steps: list[tuple[Any, ...]], batching: DynamicBatching, most_rows: int, rejects: bool
) -> None:
    instance = BoundInstance(SIGNATURE)
    instance.most_rows, instance.rejects = most_rows, rejects
    bound, general = Rig(instance, batching), Rig(FakeInstance(SIGNATURE), batching)
    for step in [*steps, ("run",), ("advance", 1_000)]:
        for rig in (bound, general):
            rig.step(step)
        assert bound.results == general.results
        assert bound.ended == general.ended
        assert bound.counts == general.counts
    accepted = [number for number, flight in enumerate(bound.flights) if flight is not None]
    assert sorted(bound.ended) == accepted
    assert len(bound.results) == len({number for number, _ in bound.results})
    assert (bound.log.queue_depth, bound.scheduler.in_flight) == (0, 0)


def test_requests_in_bound_tensors_share_a_batch() -> None:
    instance = BoundInstance(SIGNATURE)
    rig = Rig(instance, DynamicBatching())
    for value in (1, 2, 3):
        rig.step(("submit", 2, value, ("y",), 0, None))
    rig.time.run()
    assert (instance.bound_runs, rig.log.executions) == (1, [6])
    assert [outcome["y"][0][0] for _, outcome in rig.results] == [1, 2, 3]


@pytest.mark.parametrize("signature", [SIGNATURE, UNBATCHED], ids=["batched", "unbatched"])
@given(steps=STEPS, has_policy=st.booleans(), most_rows=st.integers(0, 8), rejects=st.booleans(), run_us=st.sampled_from([0, 0, 7, 300]))
def test_requests_that_run_apart_in_one_hand_over_have_the_responses_and_counts_of_single_ones(
    signature: ModelSignature, steps: list[tuple[Any, ...]], has_policy: bool, most_rows: int, rejects: bool, run_us: int
) -> None:
    instance = BoundInstance(signature)
    instance.most_rows, instance.rejects = most_rows, rejects
    # A model without a batch dimension may have the queue settings of dynamic batching.
    policy = QueuePolicy(max_queue_size=4, default_timeout_us=60, allow_timeout_override=True)
    batching = DynamicBatching(default_queue_policy=policy) if has_policy and not signature.is_batched else None
    joined = Rig(instance, batching, run_us=run_us)
    single = Rig(FakeInstance(signature), batching, run_us=run_us, worker=OneByOneWorker)
    for step in [*steps, ("run",), ("advance", 100_000)]:
        for rig in (joined, single):
            rig.step(step)
        assert joined.results == single.results
        assert joined.ended == single.ended
        assert joined.counts == single.counts
    assert (joined.log.queue_depth, joined.scheduler.in_flight) == (0, 0)


def _submit_all(rig: Rig, *requests: tuple[int, int]) -> None:
    for rows, value in requests:
        rig.step(("submit", rows, value, ("y",), 0, None))


def test_requests_of_one_turn_that_run_apart_are_one_hand_over():
    rig = Rig(BoundInstance(SIGNATURE), None)
    _submit_all(rig, (2, 1), (2, 2), (2, 3), (1, 4), (1, 5))
    rig.time.run()
    assert rig.log.executions == [2, 2, 2, 1, 1]
    assert rig.log.hand_overs == [3, 2]
    assert [outcome["y"][0][0] for _, outcome in rig.results] == [1, 2, 3, 4, 5]


def test_failed_run_ends_its_hand_over():
    rig = Rig(BoundInstance(SIGNATURE), None)
    _submit_all(rig, (1, 1), (1, CULPRIT), (1, 3), (1, 4))
    rig.time.run()
    assert (rig.log.executions, rig.log.hand_overs) == ([1, 1, 1], [1, 2])
    assert rig.log.failures == ["BACKEND"]


def test_requests_that_run_apart_leave_the_loop_after_its_share():
    run_us = 300
    rig = Rig(BoundInstance(SIGNATURE), None, run_us=run_us)
    _submit_all(rig, *[(1, 1)] * 10)
    rig.time.turn()
    runs = -(-LOOP_SHARE_NS // (run_us * 1_000))
    assert rig.log.executions == [1] * runs
    assert rig.scheduler.queue_depth == 10 - runs
    rig.time.run()
    assert rig.log.executions == [1] * 10


def test_times_of_requests_that_run_apart_are_their_own():
    rig = Rig(BoundInstance(SIGNATURE), None, run_us=10)
    _submit_all(rig, *[(1, 1)] * 3)
    rig.time.run()
    assert rig.log.queue_ns == [0, 10_000, 20_000]
    assert rig.log.compute_ns == [(0, 10_000, 0)] * 3
