"""The rate limiter alone, and in schedulers with puppet workers: exact orders and batches."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, LimiterResource, ModelConfig
from stoker.server.core.request import EngineResult, InferRequest
from stoker.server.scheduling.rate_limiter import GLOBAL, HOST_DEVICE, LimitedInstance, RateLimiter, SchedulerLimits
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog, rows_array

SIGNATURE = ModelSignature((TensorSpec("IN", DataType.FP32, (2,)),), (TensorSpec("OUT", DataType.FP32, (2,)),), 4)


def group(
    priority: int = 1, count: int = 1, gpus: tuple[int, ...] = (), glob: Mapping[str, int] | None = None, **needs: int
) -> InstanceGroup:
    """An instance group that needs `needs` of its device and `glob` of the global resources."""
    resources = [LimiterResource(name=name, count=number) for name, number in needs.items()]
    resources += [LimiterResource(name=name, count=number, is_global=True) for name, number in (glob or {}).items()]
    return InstanceGroup(name="g", count=count, gpus=gpus, resources=tuple(resources), limiter_priority=priority)


class Calls:
    """`call_soon` that the test runs."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def __call__(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run(self) -> None:
        while self.due:
            self.due.pop(0)()


def limiter(explicit: Mapping[tuple[int | None, str], int] | None = None) -> RateLimiter:
    return RateLimiter(explicit or {}, Calls())


def test_default_counts_are_the_largest_of_all_instances_on_each_device() -> None:
    # The example of Triton's documentation.
    limits = limiter()
    limits.register([group(R1=4, R2=4)], "a")
    limits.register([group(R2=5, R3=10, R4=5)], "b")
    limits.register([group(R1=1, R3=7, R4=2), group(gpus=(1,), R1=9), group(glob={"G": 2})], "c")
    assert limits.limits() == {
        (HOST_DEVICE, "R1"): 4,
        (HOST_DEVICE, "R2"): 5,
        (HOST_DEVICE, "R3"): 10,
        (HOST_DEVICE, "R4"): 5,
        (1, "R1"): 9,
        (GLOBAL, "G"): 2,
    }


def test_counts_follow_an_unload() -> None:
    limits = limiter()
    limits.register([group(R=2)], "a")
    large = limits.register([group(R=5)], "b")
    limits.unregister(large)
    assert limits.limits() == {(HOST_DEVICE, "R"): 2}


def test_explicit_counts_hold_for_their_device_or_for_all() -> None:
    # R1:10, R2:5:0, R2:8:1, R3:2, as in Triton's documentation.
    limits = limiter({(None, "R1"): 10, (0, "R2"): 5, (1, "R2"): 8, (None, "R3"): 2})
    limits.register([group(gpus=(0, 1), glob={"R3": 1}, R1=1, R2=1)], "a")
    assert limits.limits() == {(GLOBAL, "R3"): 2, (0, "R1"): 10, (0, "R2"): 5, (1, "R1"): 10, (1, "R2"): 8}


@pytest.mark.parametrize(
    ("explicit", "groups", "text"),
    [
        ({}, [group(R=1), group(glob={"R": 1})], 'Resource "R" is present as both global and device-specific resource'),
        ({(None, "R"): 2}, [group(R=3)], 'Resource count for "R" is limited to 2 which will prevent scheduling'),
        ({(None, "S"): 2}, [group(R=3)], 'Resource count for "R" is limited to 0'),
        ({(1, "R"): 5}, [group(R=3)], "the minimum required count is 3"),
    ],
)
def test_instances_that_could_never_run_are_errors_of_their_load_only(explicit: Any, groups: list[InstanceGroup], text: str) -> None:
    limits = limiter(explicit | {(None, "OK"): 1} if explicit else {})
    limits.register([group(OK=1)], "other")
    before = dict(limits.limits())
    with pytest.raises(ModelLoadError, match="model 'bad'") as caught:
        limits.register(groups, "bad")
    assert text in str(caught.value)
    assert limits.limits() == before


class Model:
    """A model under the limiter: a scheduler with puppet workers."""

    def __init__(self, rig: "Rig", name: str, groups: list[InstanceGroup], **batching: Any) -> None:
        self.name = name
        self.workers = [PuppetWorker() for each in groups for _ in range(each.count * max(1, len(each.gpus)))]
        self.results: list[EngineResult] = []
        self.log = RecorderLog()
        config = ModelConfig(
            name=name,
            backend="fake",
            platform="fake",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=tuple(groups),
            dynamic_batching=DynamicBatching(**batching) if batching else None,
        )
        limits = SchedulerLimits(rig.limiter, rig.limiter.register(groups, name))
        self.scheduler = Scheduler(
            config, 1, self.workers, clock=rig.time, timers=rig.time, recorder=self.log, max_queue_size=100, limits=limits
        )

    def ask(self, rows: int = 1, **fields: Any):
        request = InferRequest(self.name, {"IN": rows_array(rows)}, ("OUT",), SIGNATURE, rows=rows, **fields)
        return self.scheduler.submit(request, self.results.append)

    @property
    def running(self) -> int:
        return sum(len(worker.works) for worker in self.workers)


class Rig:
    """Models that share a limiter and the time."""

    def __init__(self, explicit: Mapping[tuple[int | None, str], int] | None = None) -> None:
        self.time = HandTimers()
        self.limiter = RateLimiter(explicit or {}, self.time.call_soon)
        self.order: list[str] = []

    def run_to_the_end(self, *models: Model) -> list[str]:
        """Ends batch after batch, the oldest model first; returns the order in which models ran."""
        order: list[str] = []
        self.time.run()
        while busy := [model for model in models if model.running]:
            for model in busy:
                for worker in model.workers:
                    if worker.works:
                        order.append(model.name)
                        worker.finish()
                self.time.run()
        return order


def test_models_that_need_the_same_resource_run_one_after_the_other() -> None:
    rig = Rig()
    a, b = Model(rig, "a", [group(R=1)]), Model(rig, "b", [group(R=1)])
    a.ask()
    b.ask()
    rig.time.run()
    assert (a.running, b.running) == (1, 0)
    a.workers[0].finish()
    rig.time.run()
    assert (a.running, b.running, len(a.results)) == (0, 1, 1)
    b.workers[0].finish()
    assert rig.limiter.used(HOST_DEVICE, "R") == 0


def test_requests_that_arrive_while_the_model_waits_share_its_batch() -> None:
    rig = Rig()
    a, b = Model(rig, "a", [group(R=1)]), Model(rig, "b", [group(R=1)], max_queue_delay_us=0)
    a.ask()
    rig.time.run()
    for _ in range(3):
        b.ask()
        rig.time.run()
    a.workers[0].finish()
    rig.time.run()
    assert b.workers[0].history == [[1, 1, 1]]


def test_instances_run_together_while_there_are_enough_resources() -> None:
    rig = Rig({(None, "R"): 3})
    a = Model(rig, "a", [group(count=4, R=1)])
    for _ in range(4):
        a.ask()
    rig.time.run()
    assert a.running == 3
    a.workers[1].finish()
    rig.time.run()
    assert (a.running, len(a.results)) == (3, 1)


def test_priority_2_gets_half_the_batches_of_priority_1() -> None:
    rig = Rig()
    a, b = Model(rig, "a", [group(R=1)]), Model(rig, "b", [group(priority=2, R=1)])
    for _ in range(40):
        a.ask()
        b.ask()
    order = rig.run_to_the_end(a, b)
    assert order[:30].count("a") == 20
    assert len(order) == 80


def test_idle_model_does_not_catch_up_on_missed_executions() -> None:
    rig = Rig()
    a, b = Model(rig, "a", [group(R=1)]), Model(rig, "b", [group(R=1)])
    for _ in range(50):
        a.ask()
    assert rig.run_to_the_end(a) == ["a"] * 50
    for _ in range(10):
        a.ask()
        b.ask()
    assert rig.run_to_the_end(a, b)[:10].count("a") == 5


def test_instance_that_needs_more_is_not_overtaken_by_one_that_needs_less() -> None:
    rig = Rig({(None, "R"): 2})
    small, large = Model(rig, "small", [group(count=2, R=1)]), Model(rig, "large", [group(R=2)])
    for _ in range(6):
        small.ask()
    rig.time.run()
    assert small.running == 2
    large.ask()
    rig.time.run()
    small.workers[0].finish()
    rig.time.run()
    assert (small.running, large.running) == (1, 0), "the free half is kept for the one that waits"
    small.workers[1].finish()
    rig.time.run()
    assert (small.running, large.running) == (0, 1)


def test_instance_that_waits_does_not_delay_one_that_needs_other_resources() -> None:
    rig = Rig()
    a, b, c = (Model(rig, name, [needs]) for name, needs in (("a", group(R=1)), ("b", group(R=1)), ("c", group(S=1))))
    a.ask()
    rig.time.run()
    b.ask()
    c.ask()
    rig.time.run()
    assert (a.running, b.running, c.running) == (1, 0, 1)


def test_resources_of_each_device_are_separate_and_global_ones_are_shared() -> None:
    rig = Rig()
    a = Model(rig, "a", [group(gpus=(0, 1), R=1)])
    b = Model(rig, "b", [group(gpus=(0, 1), glob={"G": 1})])
    for _ in range(2):
        a.ask()
        b.ask()
    rig.time.run()
    assert (a.running, b.running) == (2, 1)


def test_model_that_waits_for_a_fuller_batch_holds_no_resource() -> None:
    rig = Rig()
    a = Model(rig, "a", [group(R=1)], max_queue_delay_us=100, preferred_batch_sizes=(4,))
    b = Model(rig, "b", [group(R=1)])
    a.ask()
    rig.time.run()
    assert rig.limiter.used(HOST_DEVICE, "R") == 0
    b.ask()
    rig.time.run()
    assert (a.running, b.running) == (0, 1)
    rig.time.advance(200)
    assert a.running == 0
    b.workers[0].finish()
    rig.time.run()
    assert a.running == 1


def test_cancelled_request_gives_its_turn_to_the_next_model() -> None:
    rig = Rig({(None, "R"): 3})
    c, a, b = Model(rig, "c", [group(R=2)]), Model(rig, "a", [group(R=3)]), Model(rig, "b", [group(R=1)])
    c.ask()
    rig.time.run()
    waiting = a.ask()
    rig.time.run()
    b.ask()
    rig.time.run()
    assert (c.running, a.running, b.running) == (1, 0, 0)
    waiting.cancel()
    rig.time.run()
    assert b.running == 1


def test_request_that_expires_while_its_model_waits_is_rejected_in_time() -> None:
    rig = Rig()
    a, b = Model(rig, "a", [group(R=1)]), Model(rig, "b", [group(R=1)])
    a.ask()
    rig.time.run()
    b.ask(timeout_us=50)
    rig.time.advance(100)
    assert [type(result).__name__ for result in b.results] == ["QueueTimeout"]
    a.workers[0].finish()
    rig.time.run()
    assert (b.running, rig.limiter.used(HOST_DEVICE, "R")) == (0, 0)


def test_unload_returns_the_resources_of_a_batch_that_never_ended() -> None:
    rig = Rig()
    a, b = Model(rig, "a", [group(R=1)]), Model(rig, "b", [group(R=1)])
    a.ask()
    rig.time.run()
    b.ask()
    rig.time.run()
    asyncio.run(a.scheduler.close())
    rig.time.run()
    assert b.running == 1


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["ask", "finish", "cancel"]), st.integers(0, 3)), max_size=60),
)
def test_limits_are_never_exceeded_and_every_request_runs_in_the_end(
    needs: list[tuple[int, int, int]], script: list[tuple[str, int]]
) -> None:
    rig = Rig()
    models = [Model(rig, f"m{at}", [group(priority, R=r, S=s, count=2)]) for at, (r, s, priority) in enumerate(needs)]
    flights: list[Any] = []
    asked = cancelled = 0
    for kind, at in script:
        model = models[at % len(models)]
        if kind == "ask":
            flights.append(model.ask())
            asked += 1
        elif kind == "cancel" and flights:
            flight = flights.pop(at % len(flights))
            cancelled += not flight.is_over
            flight.cancel()
        elif kind == "finish":
            for worker in model.workers:
                if worker.works:
                    worker.finish()
                    break
        rig.time.run()
        for name in "RS":
            held = sum(
                len(worker.works) * need["RS".index(name)] for model, need in zip(models, needs, strict=True) for worker in model.workers
            )
            assert held == rig.limiter.used(HOST_DEVICE, name)
            assert held <= max(need["RS".index(name)] for need in needs)
    rig.run_to_the_end(*models)
    assert sum(len(model.results) for model in models) == asked - cancelled
    assert [rig.limiter.used(HOST_DEVICE, name) for name in "RS"] == [0, 0]


def test_order_among_equal_positions_is_that_of_waiting() -> None:
    calls = Calls()
    limits = RateLimiter({}, calls)
    one, two, three = (limits.register([group(R=1)], name)[0] for name in "abc")
    woken: list[LimitedInstance] = []
    for each in (one, two, three):
        each.wake = lambda each=each: woken.append(each)  # type: ignore[misc]
    assert limits.acquire([one]) == 0
    assert (limits.acquire([three]), limits.acquire([two])) == (None, None)
    limits.ran(one)
    limits.release(one)
    calls.run()
    assert woken[0] is three
