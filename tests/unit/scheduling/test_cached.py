"""The response cache in front of a scheduler, with a puppet worker and hand-turned time."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.response_parameters import OutputsWithParameters
from stoker.backends.api.tensor import DataType
from stoker.server.caching.response_store import LocalStore, StoredResponse
from stoker.server.caching.settings import INLINE_HASH_BYTES
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import EngineResult, InferRequest, InferResponse
from stoker.server.core.sequence import SequenceMark
from stoker.server.scheduling.cached import CachedScheduler
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog

FP32 = DataType.FP32
SIGNATURE = ModelSignature((TensorSpec("IN", FP32, (-1,)),), (TensorSpec("OUT", FP32, (-1,)), TensorSpec("TWICE", FP32, (-1,))), 8)
US = 1_000


class SlowStore(LocalStore):
    """A local store whose lookups end when the test calls `respond`."""

    is_shared = True

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.lookups: list[Callable[[], None]] = []

    def get(self, key: bytes, found: Callable[[StoredResponse | None], None]) -> None:
        self.lookups.append(lambda: LocalStore.get(self, key, found))

    def respond(self) -> None:
        lookups, self.lookups = self.lookups, []
        for lookup in lookups:
            lookup()


class Rig:
    """A cached scheduler under the test's hands. `results` has the results by request id."""

    def __init__(self, store: LocalStore | None = None, max_queue_size: int = 100, identity: Any = bytes(16)) -> None:
        self.time = HandTimers()
        self.worker = PuppetWorker()
        self.log = RecorderLog()
        self.store = LocalStore(1 << 20) if store is None else store
        self.results: dict[str, EngineResult] = {}
        self.ended: list[str] = []
        self.threads: list[Callable[[], None]] = []
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
            dynamic_batching=DynamicBatching(),
        )
        self.inner = Scheduler(
            config, 3, [self.worker], clock=self.time, timers=self.time, recorder=self.log, max_queue_size=max_queue_size
        )
        self.scheduler = CachedScheduler(
            self.inner,
            self.store,
            identity,
            model="m",
            version=3,
            clock=self.time,
            timers=self.time,
            recorder=self.log,
            max_queue_size=max_queue_size,
            off_loop=lambda function, then: self.threads.append(lambda: then(function())),
        )

    def ask(self, request_id: str, value: float = 0, outputs: tuple[str, ...] = ("OUT",), size: int = 1, **fields: Any):
        request = InferRequest("m", {"IN": np.full((1, size), value, np.float32)}, outputs, SIGNATURE, request_id=request_id, **fields)
        return self.scheduler.submit(
            request, lambda result: self.results.__setitem__(request_id, result), lambda: self.ended.append(request_id)
        )

    def batch(self) -> list[float]:
        """The values of the requests of the batch in work."""
        self.time.run()
        return [float(item.inputs["IN"].flat[0]) for item in self.worker.requests] if self.worker.works else []

    def finish(self, error: ServingError | None = None) -> None:
        """Ends the batch in work: OUT is IN plus 1, TWICE is twice IN."""
        self.time.run()
        outcomes: list[Any] = []
        for item in self.worker.requests:
            known = {"OUT": np.add(item.inputs["IN"], 1), "TWICE": np.multiply(item.inputs["IN"], 2)}
            outcomes.append(error or {name: known[name] for name in item.output_names})
        self.worker.finish(outcomes)
        self.time.run()

    def out(self, request_id: str, name: str = "OUT") -> float:
        response = self.results[request_id]
        assert isinstance(response, InferResponse), response
        assert (response.request_id, response.model_name, response.model_version) == (request_id, "m", 3)
        return float(response.outputs[name].flat[0])

    @property
    def counted(self) -> int:
        return len(self.log.succeeded_rows) + len(self.log.cache_hits) + len(self.log.failures)


def test_second_equal_request_is_completed_without_an_execution() -> None:
    rig = Rig()
    rig.ask("a", 5)
    assert rig.batch() == [5]
    rig.finish()
    rig.ask("b", 5)
    assert rig.results.keys() == {"a"}, "a result never arrives before submit returns"
    assert rig.batch() == []
    assert (rig.out("a"), rig.out("b")) == (6, 6)
    assert rig.ended == ["a", "b"]
    assert (rig.log.executions, rig.log.succeeded_rows, len(rig.log.cache_hits), rig.log.cache_misses) == ([1], [1], 1, 1)
    assert rig.scheduler.in_flight == 0


def test_equal_requests_in_flight_run_once_and_each_gets_its_own_response() -> None:
    rig = Rig()
    for request_id in "abc":
        rig.ask(request_id, 5)
    rig.ask("d", 6)
    assert rig.batch() == [5, 6]
    rig.time.advance(20)
    rig.finish()
    assert [rig.out(request_id) for request_id in "abcd"] == [6, 6, 6, 7]
    assert rig.log.cache_hits == [(20 * US, 20 * US)] * 2
    assert (rig.log.cache_misses, rig.counted) == (2, 4)


def test_response_with_parameters_reaches_equal_requests_in_flight_and_is_not_stored() -> None:
    rig = Rig()
    rig.ask("a", 5)
    rig.ask("b", 5)
    assert rig.batch() == [5]
    rig.worker.finish([OutputsWithParameters({"OUT": np.full((1, 1), 6, np.float32)}, {"k": 1})])
    rig.time.run()
    assert [getattr(rig.results[request_id], "parameters", "") for request_id in "ab"] == [{"k": 1}] * 2
    assert (rig.out("a"), rig.out("b")) == (6, 6)
    rig.ask("c", 5)
    assert rig.batch() == [5]


def test_requests_for_different_outputs_run_both() -> None:
    rig = Rig()
    rig.ask("a", 5)
    rig.ask("b", 5, outputs=("TWICE", "OUT"))
    rig.ask("c", 5, outputs=("OUT", "TWICE"))
    assert rig.batch() == [5, 5]
    rig.finish()
    response = rig.results["c"]
    assert isinstance(response, InferResponse)
    assert list(response.outputs) == ["OUT", "TWICE"]
    assert (rig.out("b", "TWICE"), rig.out("c", "TWICE")) == (10, 10)


def test_cancelled_leader_does_not_fail_its_followers() -> None:
    rig = Rig()
    leader = rig.ask("a", 5)
    rig.ask("b", 5)
    leader.cancel()
    rig.ask("c", 5)
    assert rig.batch() == [5]
    rig.finish()
    assert rig.results.keys() == {"b", "c"}
    assert (rig.out("b"), rig.out("c")) == (6, 6)
    assert (rig.log.failures, len(rig.log.cache_hits), rig.log.succeeded_rows) == (["CANCELED"], 1, [1])
    assert rig.ended == ["a", "b", "c"]


def test_flight_that_all_its_requests_have_left_is_taken_out_of_the_queue() -> None:
    rig = Rig()
    flights = [rig.ask(request_id, 5) for request_id in "ab"]
    for flight in flights:
        flight.cancel()
    assert rig.batch() == []
    assert (rig.log.failures, rig.scheduler.in_flight, rig.log.queue_depth) == (["CANCELED", "CANCELED"], 0, 0)
    rig.ask("c", 5)
    assert rig.batch() == [5]


def test_error_of_the_leader_is_the_result_of_its_followers_once_and_is_not_stored() -> None:
    rig = Rig()
    rig.ask("a", 5)
    rig.ask("b", 5)
    rig.finish(BackendFailed("broken"))
    assert {type(result) for result in rig.results.values()} == {BackendFailed}
    assert rig.log.failures == ["BACKEND", "BACKEND"]
    rig.ask("c", 5)
    assert rig.batch() == [5]
    rig.finish()
    assert rig.out("c") == 6
    assert rig.log.cache_misses == 1


@pytest.mark.parametrize("limits", [{"timeout_us": 10}, {"deadline_ns": 1_000_000_000 + 10 * US}])
def test_leader_that_expires_in_the_queue_fails_alone_and_the_next_request_runs(limits: dict[str, Any]) -> None:
    rig = Rig()
    rig.ask("other", 1)
    assert rig.batch() == [1]
    rig.ask("a", 5, **limits)
    rig.ask("b", 5)
    rig.time.advance(20)
    assert isinstance(rig.results["a"], QueueTimeout | DeadlineExceeded)
    rig.finish()
    assert rig.batch() == [5]
    rig.finish()
    assert rig.out("b") == 6
    assert (rig.log.failures, rig.counted) == (["REJECTED"], 3)


def test_follower_fails_at_its_own_deadline() -> None:
    rig = Rig()
    rig.ask("a", 5)
    assert rig.batch() == [5]
    rig.ask("b", 5, deadline_ns=rig.time.now + 10 * US)
    rig.time.advance(20)
    assert isinstance(rig.results["b"], DeadlineExceeded)
    rig.finish()
    assert (rig.out("a"), rig.log.failures, rig.counted) == (6, ["REJECTED"], 2)


def test_request_whose_deadline_has_passed_is_rejected_although_its_response_is_stored() -> None:
    rig = Rig()
    rig.ask("a", 5)
    rig.finish()
    with pytest.raises(DeadlineExceeded):
        rig.ask("b", 5, deadline_ns=rig.time.now)
    assert rig.log.failures == ["REJECTED"]


def test_full_queue_rejects_a_miss_at_once_but_not_a_hit() -> None:
    rig = Rig(max_queue_size=1)
    rig.ask("a", 1)
    rig.finish()
    rig.ask("b", 2)
    assert rig.batch() == [2]
    rig.ask("c", 3)
    with pytest.raises(Overloaded):
        rig.ask("d", 4)
    rig.ask("e", 1)
    rig.time.run()
    assert rig.out("e") == 2
    assert rig.log.failures == ["REJECTED"]
    rig.finish()
    rig.finish()
    rig.ask("d", 4)
    assert rig.batch() == [4]


def test_followers_are_bounded_like_the_queue() -> None:
    rig = Rig(max_queue_size=2)
    for request_id in "abc":
        rig.ask(request_id, 5)
    with pytest.raises(Overloaded, match="Exceeds maximum queue size: 2"):
        rig.ask("d", 5)
    rig.finish()
    assert sorted(rig.results) == ["a", "b", "c"]
    for request_id in "efg":
        rig.ask(request_id, 6)
    rig.finish()
    assert rig.counted == 7


def test_cancelled_hit_gets_no_result() -> None:
    rig = Rig()
    rig.ask("a", 5)
    rig.finish()
    rig.ask("b", 5).cancel()
    rig.time.run()
    assert (rig.results.keys(), rig.log.failures, rig.ended) == ({"a"}, ["CANCELED"], ["a", "b"])


def test_sequence_requests_pass_by_the_cache() -> None:
    rig = Rig()
    for request_id in "ab":
        rig.ask(request_id, 5, sequence=SequenceMark(7))
    assert rig.batch() == [5, 5]
    rig.finish()
    assert (rig.log.cache_misses, rig.log.succeeded_rows, len(rig.store)) == (0, [1, 1], 0)


def test_response_of_an_earlier_identity_is_not_used() -> None:
    identity = [bytes(16)]
    rig = Rig(identity=lambda: identity[0])
    rig.ask("a", 5)
    rig.finish()
    identity[0] = b"\1" * 16
    rig.ask("b", 5)
    assert rig.batch() == [5]


def test_unload_fails_what_waits_and_releases_the_stored_responses() -> None:
    rig = Rig()
    rig.ask("a", 5)
    rig.finish()
    rig.ask("b", 6)
    rig.ask("c", 6)
    rig.ask("hit", 5)
    rig.ask("large", 7, size=INLINE_HASH_BYTES)
    assert rig.batch() == [6]
    asyncio.run(rig.scheduler.close())
    assert {key: type(rig.results[key]) for key in ("b", "c", "large")} == dict.fromkeys(("b", "c", "large"), Unavailable)
    assert (len(rig.store), rig.scheduler.in_flight, rig.counted) == (0, 0, 5)
    for thread in rig.threads:
        thread()
    with pytest.raises(Unavailable):
        rig.ask("late", 5)


def test_idle_is_reported_after_the_last_request_whether_it_hit_or_ran() -> None:
    rig = Rig()
    idle: list[int] = []
    rig.scheduler.on_idle = lambda: idle.append(rig.scheduler.in_flight)
    rig.ask("a", 5)
    rig.finish()
    assert idle == [0]
    rig.ask("b", 5)
    rig.time.run()
    assert idle == [0, 0]


def test_key_of_a_large_request_is_computed_in_a_thread() -> None:
    rig = Rig(LocalStore(1 << 30))
    for request_id in "ab":
        rig.ask(request_id, 5, size=INLINE_HASH_BYTES)
    assert rig.batch() == []
    assert len(rig.threads) == 2
    for thread in rig.threads:
        thread()
    assert rig.batch() == [5]
    rig.finish()
    assert (rig.out("a"), rig.out("b")) == (6, 6)


def test_large_request_that_is_cancelled_before_its_key_is_known_never_runs() -> None:
    rig = Rig()
    rig.ask("a", 5, size=INLINE_HASH_BYTES).cancel()
    rig.threads[0]()
    assert (rig.batch(), rig.log.failures, rig.scheduler.in_flight) == ([], ["CANCELED"], 0)


def test_lookup_that_takes_time_is_shared_and_then_runs_once() -> None:
    store = SlowStore()
    rig = Rig(store)
    rig.ask("a", 5)
    rig.ask("b", 5)
    assert (rig.batch(), len(store.lookups)) == ([], 1)
    store.respond()
    assert rig.batch() == [5]
    rig.finish()
    assert (rig.out("a"), rig.out("b")) == (6, 6)
    rig.ask("c", 5)
    store.respond()
    rig.time.run()
    assert (rig.out("c"), rig.log.executions) == (6, [1])


def test_request_cancelled_during_the_lookup_never_runs_but_a_later_one_does() -> None:
    store = SlowStore()
    rig = Rig(store)
    rig.ask("a", 5).cancel()
    rig.ask("b", 5)
    store.respond()
    assert rig.batch() == [5]
    rig.finish()
    assert (sorted(rig.results), rig.log.failures, rig.counted) == (["b"], ["CANCELED"], 2)


def test_miss_after_a_slow_lookup_that_the_full_queue_rejects_is_the_result() -> None:
    store = SlowStore()
    rig = Rig(store, max_queue_size=1)
    rig.ask("a", 1)
    store.respond()
    assert rig.batch() == [1]
    for request_id, value in (("b", 2), ("c", 3), ("d", 3)):
        rig.ask(request_id, value)
    store.respond()
    assert isinstance(rig.results["c"], Overloaded)
    assert isinstance(rig.results["d"], Overloaded)
    assert rig.log.failures == ["REJECTED", "REJECTED"]


def test_stored_value_of_another_datatype_is_a_miss() -> None:
    store = SlowStore()
    rig = Rig(store)
    rig.ask("a", 5)
    store.respond()
    rig.finish()
    (stored,) = store._entries.values()
    stored.outputs = {"OUT": np.zeros((1, 1), np.int64)}
    rig.ask("b", 5)
    store.respond()
    assert rig.batch() == [5]


Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "cancel", "finish", "fail", "advance", "look"]), st.integers(0, 3), st.integers(0, 40)),
    max_size=40,
)


@given(steps, st.booleans())
def test_each_request_gets_exactly_one_true_result_and_is_counted_once(script: list[Step], is_slow: bool) -> None:
    store = SlowStore() if is_slow else LocalStore(1200)
    rig = Rig(store, max_queue_size=3)
    values: dict[str, int] = {}
    flights: dict[str, Any] = {}
    cancelled: set[str] = set()
    rejected = 0
    calls: list[str] = []

    def ask(value: int, limit_us: int) -> None:
        nonlocal rejected
        request_id = f"r{len(values) + rejected}"
        limits: dict[str, Any] = {"deadline_ns": rig.time.now + limit_us * US} if limit_us % 3 == 1 else {}
        request = InferRequest("m", {"IN": np.full((1, 1), value, np.float32)}, ("OUT",), SIGNATURE, request_id=request_id, **limits)

        def done(result: EngineResult) -> None:
            calls.append(request_id)
            rig.results[request_id] = result

        try:
            flights[request_id] = rig.scheduler.submit(request, done)
            values[request_id] = value
        except Overloaded:
            rejected += 1

    def running() -> list[float]:
        rig.time.run()
        return rig.batch()

    for kind, value, number in script:
        match kind:
            case "ask":
                ask(value, number + 1)
            case "cancel" if flights:
                request_id = list(flights)[number % len(flights)]
                if request_id not in rig.results:
                    cancelled.add(request_id)
                flights[request_id].cancel()
            case "finish" | "fail" if running():
                rig.finish(BackendFailed("broken") if kind == "fail" else None)
            case "advance":
                rig.time.advance(number)
            case "look" if isinstance(store, SlowStore):
                store.respond()
        assert len(set(running())) == len(running()), "equal requests run at the same time"
    for _ in range(len(values) + 1):
        if isinstance(store, SlowStore):
            store.respond()
        if running():
            rig.finish()
        rig.time.run()
    assert rig.scheduler.in_flight == 0
    assert sorted(calls) == sorted(values.keys() - cancelled)
    for request_id in calls:
        result = rig.results[request_id]
        if isinstance(result, InferResponse):
            assert float(result.outputs["OUT"].flat[0]) == values[request_id] + 1
        else:
            assert isinstance(result, BackendFailed | DeadlineExceeded | Overloaded)
    assert rig.log.queue_depth == 0
    # A leader that was cancelled, and then expires in the queue, is counted twice.
    assert 0 <= rig.counted - len(values) - rejected <= len(cancelled)
