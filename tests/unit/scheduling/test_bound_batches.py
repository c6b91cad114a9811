"""Requests that run in bound tensors have the same responses, errors and counts as without, under cancellations and timeouts."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.backend import Arrays
from stoker.backends.api.errors import BackendFailed, ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_backend import FakeInstance
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig, QueuePolicy
from stoker.server.core.request import EngineResult, InferRequest, InFlight
from stoker.server.execution.worker import InlineWorker
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.bound_instance import BoundInstance
from tests.fakes.puppet_worker import HandTimers, RecorderLog, rows_array

SIGNATURE = ModelSignature(
    (TensorSpec("x", DataType.FP32, (2,)),), (TensorSpec("y", DataType.FP32, (2,)), TensorSpec("z", DataType.FP32, (2,))), 8
)
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


class Rig:
    """A scheduler over one instance, and the outcomes of its requests."""

    def __init__(self, instance: FakeInstance, batching: DynamicBatching) -> None:
        instance.fail_if = self._fails
        self.time = HandTimers()
        self.log = RecorderLog()
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
            dynamic_batching=batching,
        )
        worker = InlineWorker(instance, SIGNATURE, self.time)
        self.scheduler = Scheduler(config, 1, [worker], clock=self.time, timers=self.time, recorder=self.log, max_queue_size=12)
        self.flights: list[InFlight | None] = []
        #: In the order in which they came, each with the number of its request.
        self.results: list[tuple[int, Any]] = []
        self.ended: list[int] = []

    @staticmethod
    def _fails(inputs: Arrays) -> Exception | None:
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
        request = InferRequest(
            "m",
            {"x": rows_array(rows, 2, value=value)},
            wanted,
            SIGNATURE,
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
