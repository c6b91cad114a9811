"""Iterative sequences with a puppet worker and hand-turned time: the batches of their steps, controls, states, ends and counts."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, InvalidRequest, Overloaded, QueueTimeout, Unavailable, Unsupported
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.api.tensor import DataType
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import AccessNote, EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.core.sequence import ControlInput, ControlKind, SequenceBatching, SequenceMark, SequenceState
from stoker.server.scheduling.iterative import MOST_UNREAD, IterativeScheduler
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog
from tests.fakes.server_process import wait_until

FP32, INT32 = DataType.FP32, DataType.INT32
SIGNATURE = ModelSignature((TensorSpec("IN", FP32, (1,)),), (TensorSpec("OUT", FP32, (1,)),), 4)
CONTROLS = (
    ControlInput(ControlKind.START, "START", INT32),
    ControlInput(ControlKind.READY, "READY", DataType.BOOL),
    ControlInput(ControlKind.END, "END", INT32),
    ControlInput(ControlKind.ID, "ID", DataType.UINT64),
)
STATE = SequenceState(TensorSpec("was", FP32, (1,)), TensorSpec("is", FP32, (1,)), (1,))


class Reader:
    """A client of a stream that reads when the test says so."""

    def __init__(self) -> None:
        self.unread: list[tuple[Mapping[str, Any], Any]] = []

    def feed(self, outputs: Mapping[str, Any], taken: Any) -> None:
        self.unread.append((outputs, taken))

    def read(self) -> Mapping[str, Any]:
        outputs, taken = self.unread.pop(0)
        taken()
        return outputs


class Rig:
    """A scheduler of iterative sequences controlled by the test. `responses` has the results by request id."""

    def __init__(self, most: int = 4, max_queue_size: int = 100, controls=CONTROLS, states=(STATE,), *, is_decoupled: bool = False) -> None:
        self.time = HandTimers()
        self.worker = PuppetWorker()
        self.log = RecorderLog()
        self.responses: dict[str, EngineResult] = {}
        self.ended: list[str] = []
        self.flights: dict[str, InFlight] = {}
        self.signature = replace(SIGNATURE, is_decoupled=is_decoupled)
        batching = SequenceBatching(1000, most, controls, states, is_iterative=True)
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=self.signature,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
            dynamic_batching=DynamicBatching(),
            sequences=batching,
            max_enqueued_requests=1,
        )
        self.inner = Scheduler(
            config.inner, 1, [self.worker], clock=self.time, timers=self.time, recorder=self.log, max_queue_size=max_queue_size
        )
        self.scheduler = IterativeScheduler(
            self.inner,
            "m",
            self.signature,
            batching,
            clock=self.time,
            timers=self.time,
            recorder=self.log,
            max_queue_size=max_queue_size,
            post=lambda call, *arguments: call(*arguments),
        )

    def ask(self, *request_ids: str, rows: int = 1, **more: Any) -> None:
        for request_id in request_ids:
            request = InferRequest(
                model_name="m",
                request_id=request_id,
                inputs={"IN": np.ones((rows, 1), np.float32)},
                rows=rows,
                output_names=("OUT",),
                signature=self.signature,
                **more,
            )
            self.flights[request_id] = self.scheduler.submit(
                request, partial(self.responses.__setitem__, request_id), partial(self.ended.append, request_id)
            )

    @property
    def batch(self) -> list[InferRequest]:
        """The requests in progress."""
        self.time.run()
        return self.worker.requests if self.worker.works else []

    @property
    def ids(self) -> str:
        """Their ids, one below the other."""
        return " ".join(item.request_id for item in self.batch)

    def finish(self, *last: str) -> None:
        """Ends the batch in work: the last step of the requests `last`; the others are executed again. The state counts the steps."""
        outcomes: list[Any] = []
        for item in self.batch:
            steps = item.inputs["was"] + 1 if "was" in item.inputs else np.zeros((1, 1), np.float32)
            if item.request_id not in last:
                outcomes.append(Rescheduled({"is": steps} if "was" in item.inputs else {}))
            else:
                outcomes.append({} if item.responses is not None else {"OUT": steps})
        self.worker.finish(outcomes)

    def out(self, request_id: str) -> float:
        response = self.responses[request_id]
        assert isinstance(response, InferResponse), response
        assert list(response.outputs) == ["OUT"]
        assert response.signature is self.signature
        return float(response.outputs["OUT"][0, 0])

    def controls(self) -> list[list[Any]]:
        return [[item.inputs[control.name].item() for control in CONTROLS] for item in self.batch]


def test_request_joins_the_batches_of_another_that_iterates():
    rig = Rig()
    rig.ask("a")
    assert rig.ids == "a"
    rig.ask("b")
    assert rig.ids == "a"
    rig.finish()
    assert rig.ids == "b a"
    rig.finish()
    assert rig.ids == "b a"
    rig.finish("a")
    assert rig.ids == "b"
    rig.ask("c")
    rig.finish()
    assert rig.ids == "c b"
    rig.finish("b", "c")
    assert rig.ids == ""
    assert [rig.out(each) for each in "abc"] == [3, 4, 1]
    assert sorted(rig.ended) == ["a", "b", "c"]
    assert rig.log.executions == [1, 2, 2, 1, 2]


def test_slot_is_free_after_the_last_step_and_the_next_request_joins_the_same_batch():
    rig = Rig(most=2)
    rig.ask("a", "b", "c", "d")
    assert rig.ids == "a b"
    rig.finish()
    assert rig.ids == "a b"
    rig.finish("a")
    assert rig.ids == "c b"
    rig.finish("b", "c")
    assert rig.ids == "d"
    rig.finish("d")
    assert sorted(rig.responses) == ["a", "b", "c", "d"]
    assert rig.scheduler.in_flight == 0


def test_batches_are_bounded_and_steps_take_turns():
    rig = Rig(most=8)
    rig.ask(*"abcdef")
    seen = []
    for _ in range(3):
        seen.append(rig.ids)
        rig.finish()
    assert seen == ["a b c d", "e f a b", "c d e f"]


def test_start_is_set_for_the_first_step_only_and_end_never():
    rig = Rig()
    rig.ask("a")
    seen = []
    for last in ((), (), ("a",)):
        seen += rig.controls()
        (item,) = rig.batch
        assert item.sequence == SequenceMark(1, is_start=len(seen) == 1)
        rig.finish(*last)
    assert seen == [[1, True, 0, 1], [0, True, 0, 1], [0, True, 0, 1]]


def test_each_request_gets_an_id_of_its_own():
    rig = Rig(most=8)
    rig.ask("a", "b")
    rig.ask("c", sequence=SequenceMark(3, is_start=True, is_end=True))
    rig.ask("d")
    assert [controls[3] for controls in rig.controls()] == [1, 2, 3, 4]


@pytest.mark.parametrize(("datatype", "ids"), [(DataType.INT32, [1, 2]), (DataType.BYTES, [b"1", b"2"])])
def test_ids_have_the_type_of_the_control_input(datatype, ids):
    rig = Rig(controls=(ControlInput(ControlKind.ID, "ID", datatype),))
    rig.ask("a", "b")
    assert [item.inputs["ID"].item() for item in rig.batch] == ids


def test_ids_wrap_at_the_largest_of_the_control_input_and_skip_those_in_progress():
    rig = Rig(controls=(ControlInput(ControlKind.ID, "ID", DataType.INT32),))
    rig.ask("a")
    rig.scheduler._last_id = 2**31 - 2
    rig.ask("b", "c")
    assert [item.inputs["ID"].item() for item in rig.batch] == [1, 2**31 - 1, 2]


def test_id_of_a_client_needs_a_start_and_is_used_once_at_a_time():
    rig = Rig()
    with pytest.raises(InvalidRequest, match="must specify the START flag on the first request"):
        rig.ask("x", sequence=SequenceMark(7))
    rig.ask("a", sequence=SequenceMark(7, is_start=True))
    for mark in (SequenceMark(7), SequenceMark(7, is_start=True)):
        with pytest.raises(InvalidRequest, match="a request with this sequence id is in progress"):
            rig.ask("x", sequence=mark)
    rig.finish()
    assert rig.controls() == [[0, True, 0, 7]]
    rig.finish("a")
    assert rig.out("a") == 2
    rig.ask("b", sequence=SequenceMark(7, is_start=True))
    assert rig.controls() == [[1, True, 0, 7]]


def test_request_of_several_rows_is_refused():
    with pytest.raises(InvalidRequest, match="must specify batch-size 1"):
        Rig().ask("a", rows=2)


def test_whole_request_is_counted_once_with_the_times_of_its_steps():
    rig = Rig()
    note = AccessNote()
    rig.ask("a", access=note)
    for _ in range(2):
        assert rig.ids == "a"
        rig.finish()
    rig.finish("a")
    assert (rig.log.succeeded_rows, rig.log.executions, rig.log.failures) == ([1], [1, 1, 1], [])
    # The puppet reports 1, 2 and 3 ns for each batch.
    assert (note.input_ns, note.output_ns, note.compute_ns) == (3, 9, 18)
    assert rig.log.queue_depth == 0


def test_failed_step_ends_its_request_only():
    rig = Rig()
    rig.ask("a", "b")
    rig.finish()
    assert rig.ids == "a b"
    rig.worker.finish([BackendFailed("broken"), Rescheduled({"is": np.full((1, 1), 9, np.float32)})])
    assert isinstance(rig.responses["a"], BackendFailed)
    assert rig.ids == "b"
    rig.finish("b")
    assert rig.out("b") == 10
    assert (rig.log.succeeded_rows, rig.log.failures) == ([1], ["BACKEND"])


def test_step_that_leaves_out_a_state_keeps_it():
    rig = Rig()
    rig.ask("a")
    rig.finish()
    assert rig.ids == "a"
    rig.worker.finish([Rescheduled()])
    assert [item.inputs["was"].item() for item in rig.batch] == [1]


def test_request_cancelled_between_its_steps_is_not_executed_again():
    rig = Rig(most=8)
    rig.ask(*"abcde")
    assert rig.ids == "a b c d"
    rig.finish()
    assert rig.ids == "e a b c"
    rig.flights["d"].cancel()
    assert rig.log.failures == ["CANCELED"]
    rig.finish(*"eabc")
    assert rig.ids == ""
    assert ("d" in rig.responses, rig.scheduler.in_flight) == (False, 0)
    assert sorted(rig.ended) == ["a", "b", "c", "d", "e"]


def test_cancellation_of_a_running_request_reaches_the_model_and_takes_effect_after_the_step():
    rig = Rig(most=1)
    rig.ask("a", "b")
    (item,) = rig.batch
    (work,) = rig.worker.works
    rig.flights["a"].cancel()
    assert rig.worker.cancelled == [(work, 0)]
    assert item.is_cancelled
    assert (rig.ended, rig.log.failures) == (["a"], ["CANCELED"])
    assert rig.ids == "a"
    rig.finish()
    assert rig.ids == "b"
    rig.finish("b")
    assert (list(rig.responses), rig.log.succeeded_rows, rig.log.failures) == (["b"], [1], ["CANCELED"])


def test_deadline_ends_the_request_between_its_steps():
    rig = Rig()
    rig.ask("a", deadline_ns=rig.time.now + 5_000)
    rig.finish()
    assert rig.ids == "a"
    rig.time.advance(5)
    rig.finish()
    assert isinstance(rig.responses["a"], DeadlineExceeded)
    assert (rig.ids, rig.log.failures, rig.scheduler.in_flight) == ("", ["REJECTED"], 0)


def test_queue_timeout_counts_before_the_first_step_only():
    rig = Rig(most=1)
    rig.ask("a", timeout_us=10)
    rig.ask("b", timeout_us=10)
    assert rig.ids == "a"
    rig.time.advance(10)
    assert isinstance(rig.responses["b"], QueueTimeout)
    rig.finish()
    assert rig.ids == "a"
    rig.time.advance(100)
    rig.finish("a")
    assert rig.out("a") == 2


def test_steps_are_not_refused_when_the_queue_is_full():
    rig = Rig(most=2, max_queue_size=3)
    rig.ask("a", "b", "c")
    with pytest.raises(Overloaded):
        rig.ask("d")
    for _ in range(4):
        assert rig.ids == "a b"
        with pytest.raises(Overloaded):
            rig.ask("d")
        rig.finish()
    rig.finish("a", "b")
    rig.finish("c")
    assert [rig.out(each) for each in "abc"] == [5, 5, 1]


def test_request_that_iterates_is_not_idle():
    rig = Rig()
    rig.ask("a")
    assert rig.ids == "a"
    rig.time.advance(10_000)
    rig.finish()
    rig.time.advance(10_000)
    rig.finish("a")
    assert rig.out("a") == 2


def test_dead_worker_fails_the_requests_between_steps_and_not_those_that_have_not_begun():
    rig = Rig(most=8, states=())
    rig.ask(*"abcd")
    rig.finish()
    rig.ask("e", "f")
    assert rig.ids == "a b c d"
    rig.finish()
    assert rig.ids == "e f a b"
    # As a worker does whose process has ended: first the sequences, then the batch.
    rig.scheduler.lose_sequences()
    assert {each: type(rig.responses[each]) for each in "cd"} == {"c": Unavailable, "d": Unavailable}
    assert str(rig.responses["c"]) == "the state of the request was lost when the worker process of model 'm' ended"
    rig.ask("g")
    rig.worker.finish([Unavailable("the worker process has ended")] * 4)
    assert all(isinstance(rig.responses[each], Unavailable) for each in "abcdef")
    assert rig.controls()[0][0] == 1
    assert rig.ids == "g"
    rig.finish("g")
    assert rig.out("g") == 0
    assert (rig.log.failures, rig.log.succeeded_rows) == (["OTHER"] * 6, [1])


def test_dead_worker_does_not_end_requests_whose_states_the_server_keeps():
    rig = Rig(most=8)
    rig.ask(*"abcde")
    rig.finish()
    assert rig.ids == "e a b c"
    rig.scheduler.lose_sequences()
    rig.worker.finish([Unavailable("the worker process has ended")] * 4)
    assert rig.ids == "d"
    rig.finish("d")
    assert rig.out("d") == 2


def test_request_that_waits_for_its_first_step_survives_the_dead_worker():
    rig = Rig(most=8, states=())
    rig.ask("a")
    assert rig.ids == "a"
    rig.ask("b")
    rig.scheduler.lose_sequences()
    rig.worker.finish([Unavailable("the worker process has ended")])
    assert rig.controls() == [[1, True, 0, 2]]
    rig.finish("b")
    assert rig.out("b") == 0


def test_abandoned_requests_fail_in_every_place():
    rig = Rig(most=6)
    idle = []
    rig.scheduler.on_idle = lambda: idle.append(True)
    rig.ask(*"abcdef")
    rig.finish()
    rig.ask("g")
    assert rig.ids == "e f a b"
    rig.scheduler.abandon("over")
    assert [str(rig.responses[each]) for each in "abcdefg"] == ["over"] * 7
    assert (rig.scheduler.in_flight, idle) == (0, [True])
    assert rig.log.failures == ["OTHER"] * 7
    rig.worker.finish([Rescheduled()] * 4)
    assert rig.ids == ""


def test_unload_waits_for_all_steps():
    rig = Rig()
    idle = []
    rig.scheduler.on_idle = lambda: idle.append(True)
    rig.ask("a")
    for _ in range(3):
        rig.finish()
        assert (rig.scheduler.in_flight, idle) == (1, [])
    rig.finish("a")
    assert (rig.scheduler.in_flight, idle) == (0, [True])


def stream(rig: Rig, request_id: str) -> Reader:
    reader = Reader()
    rig.ask(request_id, responses=reader)
    return reader


def sink_of(rig: Rig, request_id: str) -> Any:
    """The sink that the worker gives the responses of a request to."""
    return next(item.responses for item in rig.batch if item.request_id == request_id)


def respond(rig: Rig, request_id: str, value: float, **states: float) -> None:
    arrays = {"OUT": value, **states}
    sink_of(rig, request_id).feed({name: np.full((1, 1), each, np.float32) for name, each in arrays.items()}, lambda: None)


def test_requests_of_a_decoupled_model_share_batches_and_respond_in_each_step():
    rig = Rig(is_decoupled=True)
    readers = {each: stream(rig, each) for each in "ab"}
    for step in range(3):
        assert rig.ids == "a b"
        for each in "ab":
            respond(rig, each, step, **{"is": step + 10})
        rig.worker.finish([Rescheduled(), Rescheduled()])
        assert [item.inputs["was"].item() for item in rig.batch] == [step + 10] * 2
    rig.finish("a", "b")
    for each in "ab":
        assert [readers[each].read()["OUT"].item() for _ in range(3)] == [0, 1, 2]
        response = rig.responses[each]
        assert isinstance(response, InferResponse)
        assert response.outputs == {}


def test_states_of_a_decoupled_model_do_not_reach_the_client():
    rig = Rig(is_decoupled=True)
    reader = stream(rig, "a")
    sink = sink_of(rig, "a")
    taken: list[bool] = []
    assert sink.put({"is": np.ones((1, 1), np.float32)})
    sink.feed({"is": np.full((1, 1), 2, np.float32)}, lambda: taken.append(True))
    assert (reader.unread, taken) == ([], [True])
    assert sink.put({"is": np.full((1, 1), 3, np.float32), "OUT": np.ones((1, 1), np.float32)})
    assert list(reader.read()) == ["OUT"]
    rig.worker.finish([Rescheduled()])
    assert [item.inputs["was"].item() for item in rig.batch] == [3]


def test_thread_of_a_model_waits_for_the_client_and_no_longer_than_the_request():
    rig = Rig(is_decoupled=True)
    reader = stream(rig, "a")
    sink = sink_of(rig, "a")
    outputs = {"OUT": np.ones((1, 1), np.float32)}
    results = [sink.put(outputs) for _ in range(2 * MOST_UNREAD)]
    waiting = [threading.Thread(target=lambda: results.append(sink.put(outputs))) for _ in range(2)]
    for thread in waiting:
        thread.start()
    assert results == [True] * 2 * MOST_UNREAD
    reader.read()
    wait_until(lambda: len(results) == 2 * MOST_UNREAD + 1, what="the response for which there is space")
    rig.flights["a"].cancel()
    for thread in waiting:
        thread.join(20)
    assert results == [True] * (2 * MOST_UNREAD + 1) + [False]
    assert not sink.put(outputs)


def test_next_step_waits_while_the_client_does_not_read():
    rig = Rig(is_decoupled=True)
    reader, other = stream(rig, "a"), stream(rig, "b")
    for value in range(MOST_UNREAD):
        respond(rig, "a", value)
    rig.finish()
    assert rig.ids == "b"
    assert reader.read()["OUT"].item() == 0
    rig.finish()
    assert rig.ids == "a b"
    rig.finish("a", "b")
    assert (sorted(rig.responses), other.unread) == (["a", "b"], [])


@pytest.mark.parametrize("how", ["cancel", "deadline", "death", "abandon"])
def test_request_that_waits_for_its_client_ends(how):
    rig = Rig(most=1, is_decoupled=True, states=())
    reader = Reader()
    rig.ask("a", responses=reader, deadline_ns=rig.time.now + 1_000_000)
    for value in range(MOST_UNREAD):
        respond(rig, "a", value)
    rig.finish()
    assert rig.ids == ""
    if how == "cancel":
        rig.flights["a"].cancel()
    elif how == "deadline":
        rig.time.advance(1_000)
        assert isinstance(rig.responses["a"], DeadlineExceeded)
    elif how == "death":
        rig.scheduler.lose_sequences()
        assert isinstance(rig.responses["a"], Unavailable)
    else:
        rig.scheduler.abandon("over")
        assert str(rig.responses["a"]) == "over"
    assert (rig.scheduler.in_flight, rig.ended, len(rig.log.failures)) == (0, ["a"], 1)
    reader.read()
    assert rig.ids == ""
    if how != "abandon":
        rig.ask("b", responses=Reader())
        assert rig.ids == "b"


def test_request_for_one_response_of_a_decoupled_model_is_refused():
    rig = Rig(is_decoupled=True)
    with pytest.raises(Unsupported):
        rig.ask("a")
    assert (rig.log.failures, rig.scheduler.in_flight) == (["REJECTED"], 0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 5), st.sampled_from([None, 3, 20])),
        st.tuples(st.just("finish"), st.booleans(), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.none()),
        st.tuples(st.just("advance"), st.integers(1, 5), st.none()),
        st.tuples(st.just("death"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 5), st.booleans())
def test_each_request_runs_its_steps_in_order_and_ends_once(events, most, keeps_state):
    """Requests of 1 to 5 steps, some with deadlines; batches that succeed or fail, cancellations, and deaths of the worker."""
    rig = Rig(most=most, states=(STATE,) if keeps_state else ())
    wanted: dict[str, int] = {}
    executed: dict[str, int] = {}
    cancelled: set[str] = set()
    #: Requests whose executed steps lived in a process that has ended.
    lost: set[str] = set()

    def finish(*, is_ok: bool) -> None:
        batch = rig.batch
        if not batch:
            return
        assert len(batch) <= SIGNATURE.max_batch_size
        for item in batch:
            step = executed.get(item.request_id, 0)
            assert item.request_id not in lost
            assert item.inputs["START"].item() == (step == 0)
            if keeps_state:
                assert item.inputs["was"].item() == step
            executed[item.request_id] = step + 1
        if is_ok:
            rig.finish(*(item.request_id for item in batch if executed[item.request_id] == wanted[item.request_id]))
        else:
            rig.worker.finish([BackendFailed("no")] * len(batch))

    for kind, first, second in events:
        if kind == "ask":
            name = str(len(wanted))
            wanted[name] = first
            rig.ask(name, **({} if second is None else {"deadline_ns": rig.time.now + second * 1_000}))
        elif kind == "finish":
            finish(is_ok=first)
        elif kind == "cancel" and str(first) in rig.flights:
            if str(first) not in rig.ended:
                cancelled.add(str(first))
            rig.flights[str(first)].cancel()
        elif kind == "advance":
            rig.time.advance(first)
        elif kind == "death":
            running = {item.request_id for item in rig.batch}
            rig.scheduler.lose_sequences()
            if not keeps_state:
                lost |= {name for name in executed if name not in running}
            lost |= running
            if rig.worker.works:
                rig.worker.finish([Unavailable("dead")] * len(running))
        admitted = {name for name in wanted if name not in rig.ended and executed.get(name)}
        assert len(admitted) <= most
    while rig.batch:
        finish(is_ok=True)
    rig.time.advance(100)
    assert sorted(rig.ended, key=int) == list(wanted)
    assert rig.responses.keys() == wanted.keys() - cancelled
    for name, response in rig.responses.items():
        assert not isinstance(response, InferResponse) or executed[name] == wanted[name]
    assert len(rig.log.succeeded_rows) + len(rig.log.failures) == len(wanted)
    assert (rig.scheduler.in_flight, rig.inner.in_flight, rig.log.queue_depth) == (0, 0, 0)
    rig.ask(*(f"more{number}" for number in range(most)))
    assert len(rig.batch) == min(most, SIGNATURE.max_batch_size)
