"""The scheduler with puppet workers and manual time: exactly one response for every accepted request."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, Overloaded, QueueTimeout, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig, QueuePolicy, TimeoutAction
from stoker.server.core.request import InferRequest, InferResponse, InFlight
from stoker.server.execution.worker import InstanceWorker, LocalWorker, Work
from stoker.server.scheduling.pending import Pending
from stoker.server.scheduling.queue import queue_timeout_us
from stoker.server.scheduling.scheduler import LOOP_SHARE_NS, Scheduler
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog, rows_array

VARIABLE_SIGNATURE = ModelSignature((TensorSpec("IN", DataType.FP32, (-1,)),), (TensorSpec("OUT", DataType.FP32, (-1,)),), 8)


class Rig:
    """A scheduler under the test's hands."""

    def __init__(
        self, workers: int = 1, max_queue_size: int = 100, slots: int = 1, only: InstanceWorker | None = None, **batching: Any
    ) -> None:
        """`only`: the one worker, in place of puppets."""
        self.time = HandTimers()
        self.workers = [PuppetWorker(slots) for _ in range(workers)]
        self.log = RecorderLog()
        self.config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=VARIABLE_SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=workers),),
            dynamic_batching=DynamicBatching(**batching),
        )
        self.scheduler = Scheduler(
            self.config,
            1,
            self.workers if only is None else [only],
            clock=self.time,
            timers=self.time,
            recorder=self.log,
            max_queue_size=max_queue_size,
        )

    @property
    def worker(self) -> PuppetWorker:
        return self.workers[0]

    def request(self, rows: int = 1, size: int = 2, value: float = 0.0, **fields: Any) -> InferRequest:
        return InferRequest(
            model_name="m",
            inputs={"IN": rows_array(rows, size, value=value)},
            rows=rows,
            output_names=("OUT",),
            signature=VARIABLE_SIGNATURE,
            **fields,
        )

    async def ask(self, rows: int = 1, size: int = 2, value: float = 0.0, **fields: Any) -> "asyncio.Task[InferResponse]":
        task = asyncio.ensure_future(self.scheduler.infer(self.request(rows, size, value, **fields)))
        await asyncio.sleep(0)  # the task runs up to its first wait
        return task

    async def settle(self) -> None:
        self.time.run()
        for _ in range(3):
            await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_requests_of_one_loop_turn_share_a_batch_without_any_delay():
    async def scenario() -> None:
        rig = Rig()
        tasks = [await rig.ask(value=float(i)) for i in range(3)]
        await rig.settle()
        assert rig.worker.rows == [1, 1, 1]
        rig.worker.finish()
        responses = await asyncio.gather(*tasks)
        assert [float(response.outputs["OUT"][0, 0]) for response in responses] == [0.0, 1.0, 2.0]
        assert rig.log.succeeded_rows == [1, 1, 1]
        assert rig.log.executions == [3]

    run(scenario())


def test_batch_is_dispatched_in_the_loop_turn_after_its_first_request():
    async def scenario() -> None:
        rig = Rig()
        first = [await rig.ask(), await rig.ask()]
        assert rig.worker.works == []
        rig.time.turn()
        assert rig.worker.rows == [1, 1]
        late = await rig.ask()
        rig.time.turn()
        rig.worker.finish()
        await rig.settle()
        assert rig.worker.rows == [1]
        rig.worker.finish()
        await asyncio.gather(*first, late)

    run(scenario())


def test_requests_queued_while_the_worker_is_busy_become_the_next_batch():
    async def scenario() -> None:
        rig = Rig()
        first = await rig.ask()
        await rig.settle()
        later = [await rig.ask() for _ in range(4)]
        await rig.settle()
        assert (rig.worker.history, rig.log.queue_depth) == ([[1]], 4)
        rig.worker.finish()
        await rig.settle()
        assert rig.worker.history == [[1], [1, 1, 1, 1]]
        rig.worker.finish()
        await asyncio.gather(first, *later)

    run(scenario())


def test_next_batch_is_dispatched_before_the_responses_of_the_last():
    async def scenario() -> None:
        rig = Rig()
        histories: list[list[list[int]]] = []
        rig.scheduler.submit(rig.request(), lambda _: histories.append(list(rig.worker.history)))
        await rig.settle()
        rig.scheduler.submit(rig.request(rows=2), lambda _: histories.append(list(rig.worker.history)))
        await rig.settle()
        rig.worker.finish()
        assert histories == [[[1], [2]]]
        rig.worker.finish()
        assert histories == [[[1], [2]], [[1], [2]]]

    run(scenario())


def test_instances_run_in_parallel():
    async def scenario() -> None:
        rig = Rig(workers=2)
        a = await rig.ask()
        await rig.settle()
        b = await rig.ask()
        await rig.settle()
        assert [len(w.works) for w in rig.workers] == [1, 1]
        for worker in rig.workers:
            worker.finish()
        await asyncio.gather(a, b)

    run(scenario())


def test_different_shapes_never_share_a_batch():
    async def scenario() -> None:
        rig = Rig()
        tasks = [await rig.ask(size=size) for size in (2, 3, 2)]
        await rig.settle()
        assert rig.worker.rows == [1, 1]
        rig.worker.finish()
        await rig.settle()
        rig.worker.finish()
        await asyncio.gather(*tasks)
        assert rig.worker.history == [[1, 1], [1]]

    run(scenario())


def test_delay_timer_dispatches_an_unfilled_batch():
    async def scenario() -> None:
        rig = Rig(max_queue_delay_us=500)
        task = await rig.ask()
        await rig.settle()
        assert rig.worker.works == []
        rig.time.advance(499)
        assert rig.worker.works == []
        rig.time.advance(1)
        assert rig.worker.rows == [1]
        rig.worker.finish()
        await task
        assert rig.log.queue_ns == [500_000]

    run(scenario())


def test_full_queue_refuses_at_once_with_a_retry_after():
    async def scenario() -> None:
        rig = Rig(max_queue_size=1)
        running = await rig.ask()
        await rig.settle()
        waiting = await rig.ask()
        refused = await rig.ask()
        with pytest.raises(Overloaded) as caught:
            await refused
        assert caught.value.retry_after_s
        assert rig.log.failures == ["REJECTED"]
        rig.worker.finish()
        await rig.settle()
        rig.worker.finish()
        await asyncio.gather(running, waiting)

    run(scenario())


def test_cancelled_waiter_leaves_the_queue_and_never_runs():
    async def scenario() -> None:
        rig = Rig(max_queue_size=2)
        running = await rig.ask()
        await rig.settle()
        doomed, mate = await rig.ask(value=1.0), await rig.ask(value=2.0)
        doomed.cancel()
        await asyncio.gather(doomed, return_exceptions=True)
        assert (rig.log.queue_depth, rig.log.failures) == (1, ["CANCELED"])
        rig.worker.finish()
        await rig.settle()
        assert rig.worker.rows == [1]
        rig.worker.finish()
        assert float((await mate).outputs["OUT"][0, 0]) == 2.0
        await running

    run(scenario())


@pytest.mark.parametrize("victim", range(4))
def test_cancelled_request_of_a_running_batch_does_not_affect_the_others(victim):
    async def scenario() -> None:
        rig = Rig()
        tasks = [await rig.ask(value=float(i)) for i in range(4)]
        await rig.settle()
        tasks[victim].cancel()
        await asyncio.gather(tasks[victim], return_exceptions=True)
        assert [request.is_cancelled for request in rig.worker.requests] == [i == victim for i in range(4)]
        rig.worker.finish()
        mates = [task for task in tasks if task is not tasks[victim]]
        responses = await asyncio.gather(*mates)
        assert [float(a.outputs["OUT"][0, 0]) for a in responses] == [float(i) for i in range(4) if i != victim]
        assert rig.log.failures == ["CANCELED"]
        assert rig.log.succeeded_rows == [1, 1, 1]

    run(scenario())


def test_failing_item_fails_alone():
    async def scenario() -> None:
        rig = Rig()
        good, bad = await rig.ask(value=5.0), await rig.ask()
        await rig.settle()
        rig.worker.finish([{"OUT": rows_array(1, value=5.0)}, BackendFailed("broken")])
        assert float((await good).outputs["OUT"][0, 0]) == 5.0
        with pytest.raises(BackendFailed, match="broken"):
            await bad
        assert rig.log.failures == ["BACKEND"]

    run(scenario())


def test_queue_timeout_rejects_before_compute():
    async def scenario() -> None:
        rig = Rig(default_queue_policy=QueuePolicy(default_timeout_us=100))
        running = await rig.ask()
        await rig.settle()
        late = await rig.ask()
        await rig.settle()
        rig.time.advance(100)
        with pytest.raises(QueueTimeout, match="Request timeout expired"):
            await late
        rig.worker.finish()
        await running
        assert rig.worker.history == [[1]]
        assert (rig.log.failures, rig.log.queue_depth) == (["REJECTED"], 0)

    run(scenario())


def test_delayed_request_runs_after_the_others():
    async def scenario() -> None:
        rig = Rig(default_queue_policy=QueuePolicy(default_timeout_us=100, timeout_action=TimeoutAction.DELAY))
        running = await rig.ask(rows=8)
        await rig.settle()
        old = await rig.ask(rows=8, value=1.0)
        await rig.settle()
        rig.time.advance(60)
        young = await rig.ask(rows=7)
        await rig.settle()
        rig.time.advance(50)
        for _ in range(3):
            rig.worker.finish()
            await rig.settle()
        assert rig.worker.history == [[8], [7], [8]]
        await asyncio.gather(running, old, young)

    run(scenario())


def test_request_expired_in_the_queue_completes_then_and_never_runs():
    async def scenario() -> None:
        rig = Rig()
        running = await rig.ask()
        await rig.settle()
        doomed = await rig.ask(deadline_ns=rig.time.now + 50_000)
        await rig.settle()
        rig.time.advance(50)
        with pytest.raises(DeadlineExceeded):
            await doomed
        past = await rig.ask(deadline_ns=rig.time.now)
        with pytest.raises(DeadlineExceeded, match="had passed when it arrived"):
            await past
        rig.worker.finish()
        await running
        assert rig.worker.history == [[1]]

    run(scenario())


def test_priority_decides_the_order():
    async def scenario() -> None:
        rig = Rig(priority_levels=2, default_priority_level=2)
        running = await rig.ask(rows=8)
        await rig.settle()
        usual, urgent = await rig.ask(rows=5), await rig.ask(rows=6, priority=1)
        rig.worker.finish()
        await rig.settle()
        assert rig.worker.rows == [6]
        rig.worker.finish()
        await rig.settle()
        rig.worker.finish()
        await asyncio.gather(running, usual, urgent)

    run(scenario())


def test_preserve_ordering_holds_a_later_response_until_the_earlier_one():
    async def scenario() -> None:
        rig = Rig(workers=2, preserve_ordering=True)
        first = await rig.ask()
        await rig.settle()
        second = await rig.ask()
        await rig.settle()
        quick = next(w for w in rig.workers if w.history and w is not rig.workers[0])
        quick.finish()
        await rig.settle()
        assert not second.done()
        rig.workers[0].finish()
        await asyncio.gather(first, second)

    run(scenario())


def test_cancelled_request_under_preserve_ordering_delays_no_other():
    async def scenario() -> None:
        rig = Rig(workers=2, preserve_ordering=True)
        first = await rig.ask()
        await rig.settle()
        second = await rig.ask()
        await rig.settle()
        rig.workers[1].finish()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await second

    run(scenario())


def test_request_cancelled_while_its_response_is_held_back_is_counted_once():
    async def scenario() -> None:
        rig = Rig(workers=2, preserve_ordering=True)
        first = await rig.ask()
        await rig.settle()
        second = await rig.ask()
        await rig.settle()
        rig.workers[1].finish()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        rig.workers[0].finish()
        await first
        assert (rig.log.succeeded_rows, rig.log.failures) == ([1, 1], [])

    run(scenario())


def test_close_completes_waiting_requests_and_refuses_new_ones():
    async def scenario() -> None:
        rig = Rig()
        running = await rig.ask()
        await rig.settle()
        waiting = await rig.ask()
        await rig.scheduler.close()
        with pytest.raises(Unavailable, match="was unloaded"):
            await waiting
        with pytest.raises(Unavailable, match="being unloaded"):
            await (await rig.ask())
        with pytest.raises(Unavailable, match="was unloaded"):
            await running
        rig.worker.finish()
        assert rig.worker.is_closed
        assert (rig.log.failures, rig.log.succeeded_rows) == (["OTHER", "OTHER", "REJECTED"], [])

    run(scenario())


def test_abandoned_requests_complete_at_once_and_their_late_results_are_dropped():
    async def scenario() -> None:
        rig = Rig(preserve_ordering=True)
        running, waiting = await rig.ask(), await rig.ask(size=3)
        await rig.settle()
        rig.scheduler.abandon("too late")
        for task in (running, waiting):
            with pytest.raises(Unavailable, match="too late"):
                await task
        rig.worker.finish()
        assert (rig.log.failures, rig.log.succeeded_rows, rig.log.queue_depth) == (["OTHER", "OTHER"], [], 0)

    run(scenario())


@pytest.mark.parametrize(
    ("policy", "asked", "expected"),
    [
        (QueuePolicy(), 0, 0),
        (QueuePolicy(), 70, 70),
        (QueuePolicy(default_timeout_us=100), 70, 100),
        (QueuePolicy(default_timeout_us=100, allow_timeout_override=True), 70, 70),
        (QueuePolicy(default_timeout_us=100, allow_timeout_override=True), 200, 100),
        (QueuePolicy(default_timeout_us=100, allow_timeout_override=True), 0, 100),
    ],
)
def test_request_timeout_applies_only_as_the_policy_allows(policy, asked, expected):
    assert queue_timeout_us(policy, asked) == expected


def test_random_mixture_completes_every_accepted_request_exactly_once():
    async def scenario() -> None:
        generator = np.random.default_rng(7)
        rig = Rig(workers=2, max_queue_size=12, max_queue_delay_us=200)
        tasks: list[asyncio.Task[InferResponse]] = []
        for _ in range(400):
            match generator.integers(0, 5):
                case 0 | 1:
                    tasks.append(await rig.ask(rows=int(generator.integers(1, 9)), size=int(generator.integers(1, 3)), timeout_us=900))
                case 2:
                    rig.time.advance(int(generator.integers(0, 300)))
                case 3:
                    worker = rig.workers[int(generator.integers(0, 2))]
                    if worker.works:
                        worker.finish()
                case 4 if tasks:
                    tasks[int(generator.integers(0, len(tasks)))].cancel()
            await rig.settle()
        while any(not task.done() for task in tasks):
            for worker in rig.workers:
                if worker.works:
                    worker.finish()
            rig.time.advance(100)
            await rig.settle()
        answered = sum(1 for task in tasks if not task.cancelled() and task.exception() is None)
        failed = [task for task in tasks if task.cancelled() or task.exception() is not None]
        assert len(rig.log.succeeded_rows) >= answered  # one cancelled after its answer was set counts as answered
        assert len(rig.log.succeeded_rows) + len(rig.log.failures) == len(tasks)
        assert rig.log.queue_depth == 0
        assert failed
        assert answered > 50

    run(scenario())


def test_failing_instance_does_not_take_the_requests_of_a_healthy_one():
    async def scenario() -> None:
        rig = Rig(workers=2)
        sick, well = rig.workers
        first = await rig.ask()
        await rig.settle()
        sick.finish([Unavailable("card 0 is lost")])
        with pytest.raises(Unavailable, match="card 0 is lost"):
            await first
        assert rig.log.ejected_counts == [1]
        for _ in range(5):
            answered = await rig.ask()
            waiting = await rig.ask(rows=8)
            await rig.settle()
            assert (len(sick.works), len(well.works)) == (0, 1), "the well one is waited for"
            well.finish()
            well.finish()
            await asyncio.gather(answered, waiting)
        assert len(sick.history) == 1

    run(scenario())


def test_ejected_instance_is_probed_by_the_timer_alone_and_serves_again():
    async def scenario() -> None:
        rig = Rig(workers=2)
        sick, well = rig.workers
        first = await rig.ask()
        await rig.settle()
        sick.finish([Unavailable("card 0 is being reset")])
        await asyncio.gather(first, return_exceptions=True)
        held = await rig.ask(rows=8)
        await rig.settle()
        waiting = await rig.ask(rows=8)
        await rig.settle()
        assert (len(sick.works), len(well.works)) == (0, 1)
        rig.time.advance(1_000_000)
        assert (len(sick.works), len(well.works)) == (1, 1)
        sick.finish()
        await waiting
        assert rig.log.ejected_counts == [1, 0]
        well.finish()
        await held

    run(scenario())


def test_ejected_instance_is_probed_though_batches_wait_for_their_window():
    async def scenario() -> None:
        rig = Rig(workers=2, max_queue_delay_us=10_000)
        sick, well = rig.workers

        async def one(worker: PuppetWorker, *outcomes: Unavailable) -> None:
            waiting = await rig.ask()
            await rig.settle()
            rig.time.advance(10_000)
            assert len(worker.works) == 1
            worker.finish(list(outcomes)) if outcomes else worker.finish()
            await asyncio.gather(waiting, return_exceptions=True)

        await one(sick, Unavailable("card 0 is being reset"))
        await one(well)
        rig.time.advance(1_000_000)
        await one(sick)
        assert rig.log.ejected_counts == [1, 0]

    run(scenario())


def test_client_errors_eject_no_instance():
    async def scenario() -> None:
        rig = Rig(workers=2)
        for _ in range(6):
            bad = await rig.ask()
            await rig.settle()
            [worker] = [worker for worker in rig.workers if worker.works]
            worker.finish([BackendFailed("index 9 is out of bounds")])
            with pytest.raises(BackendFailed, match="out of bounds"):
                await bad
        good = [await rig.ask(rows=8), await rig.ask(rows=8)]
        await rig.settle()
        assert [len(worker.works) for worker in rig.workers] == [1, 1], "both instances serve"
        for worker in rig.workers:
            worker.finish()
        await asyncio.gather(*good)
        assert rig.log.ejected_counts == []

    run(scenario())


def test_requests_get_the_real_error_at_once_if_every_instance_fails():
    async def scenario() -> None:
        rig = Rig(workers=2)
        for _ in range(6):
            asked = await rig.ask()
            await rig.settle()
            busy = [worker for worker in rig.workers if worker.works]
            assert len(busy) == 1
            busy[0].finish([Unavailable("no card works")])
            with pytest.raises(Unavailable, match="no card works"):
                await asked
        assert rig.log.ejected_counts == [1, 2]

    run(scenario())


def test_callback_that_raises_affects_no_other_request_of_its_batch(caplog):
    async def scenario() -> None:
        rig = Rig()

        def broken(_: object) -> None:
            raise ValueError("a defect of a front")

        doomed = rig.request()
        rig.scheduler.submit(doomed, broken)
        mate = await rig.ask(value=2.0)
        await rig.settle()
        rig.worker.finish()
        assert float((await mate).outputs["OUT"][0, 0]) == 2.0
        assert rig.scheduler.in_flight == 0

    run(scenario())
    assert "a defect of a front" in caplog.text


def test_submitted_request_completes_once_in_a_later_tick():
    async def scenario() -> None:
        rig = Rig()
        events: list[str] = []
        rig.scheduler.on_idle = lambda: events.append("idle")

        def submitted(number: int) -> InFlight:
            return rig.scheduler.submit(
                rig.request(value=float(number)), lambda _: events.append(f"answer {number}"), lambda: events.append(f"end {number}")
            )

        flights = [submitted(number) for number in range(3)]
        assert events == []
        flights[1].cancel()
        flights[1].cancel()
        await rig.settle()
        rig.worker.finish()
        flights[0].cancel()
        assert events == ["end 1", "answer 0", "end 0", "answer 2", "end 2", "idle"]
        assert (rig.log.succeeded_rows, rig.log.failures, rig.log.queue_depth) == ([1, 1], ["CANCELED"], 0)

    run(scenario())


def test_request_may_be_cancelled_by_the_callback_of_its_batchmate():
    async def scenario() -> None:
        rig = Rig()
        responses: list[object] = []
        flights: list[InFlight] = []

        def cancel_the_other(response: object) -> None:
            responses.append(response)
            flights[1].cancel()

        flights.append(rig.scheduler.submit(rig.request(), cancel_the_other))
        flights.append(rig.scheduler.submit(rig.request(), responses.append))
        await rig.settle()
        rig.worker.finish()
        assert len(responses) == 1
        assert rig.scheduler.in_flight == 0

    run(scenario())


def test_batches_on_the_loop_yield_to_others():
    async def scenario() -> None:
        class OnTheLoop(LocalWorker):
            free_slots = 1
            batches = 0

            def submit(self, work: Work) -> None:
                self.batches += 1
                rig.time.now += LOOP_SHARE_NS // 2
                work.on_done(BatchResult([{"OUT": rows_array(8)} for _ in work.items], [8]))

            async def close(self) -> None: ...

        worker = OnTheLoop()
        rig = Rig(only=worker)
        tasks = [await rig.ask(rows=8) for _ in range(5)]
        seen: list[int] = []
        for _ in range(40):
            rig.time.turn()
            if worker.batches and (not seen or seen[-1] != worker.batches):
                seen.append(worker.batches)
        assert seen == [2, 4, 5]
        await asyncio.gather(*tasks)

    run(scenario())


def test_caller_and_its_request_form_no_reference_cycle():
    class Caller:
        def __init__(self, scheduler: Scheduler, request: InferRequest) -> None:
            self.flight = scheduler.submit(request, self.done, self.ended)

        def done(self, response: object) -> None: ...

        def ended(self) -> None: ...

    async def scenario() -> None:
        rig = Rig()
        answered, cancelled = Caller(rig.scheduler, rig.request()), Caller(rig.scheduler, rig.request())
        cancelled.flight.cancel()
        await rig.settle()
        rig.worker.finish()
        left = [weakref.ref(answered), weakref.ref(cancelled)]
        gc.disable()
        try:
            del answered, cancelled
            assert [reference() for reference in left] == [None, None]
        finally:
            gc.enable()

    run(scenario())


def test_batch_that_has_run_is_freed_without_a_garbage_collection():
    """A reference cycle would keep the tensors of a batch in memory, and cost a collection every few hundred requests."""

    async def scenario() -> None:
        class OnTheLoop(LocalWorker):
            free_slots = 1

            def submit(self, work: Work) -> None:
                work.on_done(BatchResult([{"OUT": rows_array(8)} for _ in work.items], [8]))

            async def close(self) -> None: ...

        rig = Rig(only=OnTheLoop())
        tasks = [await rig.ask(rows=8) for _ in range(5)]
        for _ in range(40):
            rig.time.turn()
        await asyncio.gather(*tasks)

    def alive() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, Pending | Work)]

    gc.collect()
    gc.disable()
    try:
        of_other_tests = alive()
        run(scenario())
        assert not [each for each in alive() if not any(each is other for other in of_other_tests)]
    finally:
        gc.enable()
