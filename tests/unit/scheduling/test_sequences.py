"""Sequences with a puppet worker and hand-turned time: order, controls, states, ends, and Triton's refusals."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, InvalidRequest, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.core.sequence import ControlInput, ControlKind, SequenceBatching, SequenceMark, SequenceState
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.sequences import SequenceScheduler
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog

FP32, INT32 = DataType.FP32, DataType.INT32
SIGNATURE = ModelSignature((TensorSpec("IN", FP32, (1,)),), (TensorSpec("OUT", FP32, (1,)),), 4)
CONTROLS = (
    ControlInput(ControlKind.START, "START", INT32),
    ControlInput(ControlKind.READY, "READY", DataType.BOOL),
    ControlInput(ControlKind.END, "END", FP32, (0.0, 2.0)),
    ControlInput(ControlKind.ID, "ID", DataType.UINT64),
)
STATE = SequenceState(TensorSpec("was", FP32, (1,)), TensorSpec("is", FP32, (1,)), (1,))
IDLE_US = 1000


class Rig:
    """A sequence scheduler controlled by the test. `responses` has the results by request id."""

    def __init__(self, most: int = 4, max_queue_size: int = 100, controls=CONTROLS, states=(STATE,)) -> None:
        self.time = HandTimers()
        self.worker = PuppetWorker()
        self.log = RecorderLog()
        self.responses: dict[str, EngineResult] = {}
        self.ended: list[str] = []
        batching = SequenceBatching(IDLE_US, most, controls, states)
        config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=SIGNATURE,
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
            dynamic_batching=DynamicBatching(),
            sequences=batching,
        )
        inner = Scheduler(
            config.inner, 1, [self.worker], clock=self.time, timers=self.time, recorder=self.log, max_queue_size=max_queue_size
        )
        self.scheduler = SequenceScheduler(
            inner, "m", SIGNATURE, batching, clock=self.time, timers=self.time, recorder=self.log, max_queue_size=max_queue_size
        )

    def ask(self, request_id: str, mark: SequenceMark | None, value: float = 0, rows: int = 1, **limits: Any):
        request = InferRequest(
            model_name="m",
            request_id=request_id,
            inputs={"IN": np.full((rows, 1), value, np.float32)},
            rows=rows,
            output_names=("OUT",),
            signature=SIGNATURE,
            sequence=mark,
            **limits,
        )
        return self.scheduler.submit(
            request, lambda response: self.responses.__setitem__(request_id, response), lambda: self.ended.append(request_id)
        )

    def batch(self) -> list[InferRequest]:
        """The requests in progress."""
        self.time.run()
        return self.worker.requests if self.worker.works else []

    def finish(self) -> None:
        """Ends the batch in work: OUT and the state are IN and the state before it, added up."""
        self.worker.finish([{"OUT": (sums := np.add(item.inputs["IN"], item.inputs["was"])), "is": sums} for item in self.batch()])

    def finish_all(self) -> None:
        while self.batch():
            self.finish()

    def out(self, request_id: str) -> float:
        response = self.responses[request_id]
        assert isinstance(response, InferResponse), response
        assert list(response.outputs) == ["OUT"]
        assert response.signature is SIGNATURE
        return float(response.outputs["OUT"][0, 0])


def start(number: int | str = 7) -> SequenceMark:
    return SequenceMark(number, is_start=True)


def end(number: int | str = 7) -> SequenceMark:
    return SequenceMark(number, is_end=True)


def test_requests_of_a_sequence_run_in_order_with_the_state_of_the_previous_one():
    rig = Rig()
    for place, mark in enumerate([start(), SequenceMark(7), end()]):
        rig.ask(str(place), mark, value=10**place)
    assert [item.request_id for item in rig.batch()] == ["0"]
    rig.finish_all()
    assert [rig.out(str(place)) for place in range(3)] == [1, 11, 111]
    assert rig.ended == ["0", "1", "2"]
    assert rig.scheduler.in_flight == 0


def test_model_gets_the_position_in_the_sequence():
    rig = Rig()
    seen = []
    for place, mark in enumerate([start(), SequenceMark(7), end()]):
        rig.ask(str(place), mark)
    while batch := rig.batch():
        seen.append([batch[0].inputs[name].item() for name in ("START", "READY", "END", "ID")])
        assert all(batch[0].inputs[control.name].shape == (1, 1) for control in CONTROLS)
        assert [batch[0].inputs[control.name].dtype for control in CONTROLS] == [control.datatype.numpy for control in CONTROLS]
        rig.finish()
    assert seen == [[1, True, 0.0, 7], [0, True, 0.0, 7], [0, True, 2.0, 7]]


def test_different_sequences_share_batches():
    rig = Rig()
    for number in (1, 2, 3):
        rig.ask(f"{number}a", start(number), value=number)
        rig.ask(f"{number}b", end(number), value=number)
    assert [item.request_id for item in rig.batch()] == ["1a", "2a", "3a"]
    rig.finish()
    assert [item.request_id for item in rig.batch()] == ["1b", "2b", "3b"]
    rig.finish()
    assert [rig.out(f"{number}b") for number in (1, 2, 3)] == [2, 4, 6]


@pytest.mark.parametrize(
    ("mark", "rows", "text"),
    [
        (None, 1, "inference request to model 'm' must specify a non-zero or non-empty correlation ID"),
        (SequenceMark(0, is_start=True), 1, "must specify a non-zero or non-empty correlation ID"),
        (
            SequenceMark(9),
            1,
            "inference request for sequence 9 to model 'm' must specify the START flag on the first request of the sequence",
        ),
        (start(), 2, "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"),
        (start("text"), 1, "sequence id 'text' must be an integer for model 'm'"),
    ],
)
def test_invalid_sequence_requests_are_refused(mark, rows, text):
    rig = Rig()
    with pytest.raises(InvalidRequest) as caught:
        rig.ask("r", mark, rows=rows)
    assert text in caught.value.message
    assert rig.log.failures == ["REJECTED"]
    assert rig.scheduler.in_flight == 0


def test_ids_may_be_text_if_the_model_accepts_text():
    rig = Rig(controls=(ControlInput(ControlKind.ID, "ID", DataType.BYTES),))
    rig.ask("0", start("mine"))
    assert rig.batch()[0].inputs["ID"].tolist() == [[b"mine"]]
    with pytest.raises(InvalidRequest, match="must be a string"):
        rig.ask("1", start(5))


def test_id_too_large_for_the_models_type_is_refused():
    rig = Rig(controls=(ControlInput(ControlKind.ID, "ID", INT32),))
    with pytest.raises(InvalidRequest, match="is too large for model 'm', which takes INT32"):
        rig.ask("0", start(2**40))


def test_ended_sequence_is_dropped():
    rig = Rig()
    rig.ask("0", SequenceMark(7, is_start=True, is_end=True))
    rig.finish_all()
    with pytest.raises(InvalidRequest, match="START flag"):
        rig.ask("1", SequenceMark(7))


def test_idle_sequence_is_dropped_after_its_timeout():
    rig = Rig()
    rig.ask("0", start())
    rig.finish_all()
    rig.time.advance(IDLE_US - 1)
    rig.ask("1", SequenceMark(7))
    rig.time.advance(10 * IDLE_US)  # in work: not idle
    rig.finish_all()
    rig.time.advance(IDLE_US)
    with pytest.raises(InvalidRequest, match="START flag"):
        rig.ask("2", SequenceMark(7))


def test_another_start_restarts_the_sequence():
    rig = Rig()
    rig.ask("0", start(), value=5)
    rig.ask("1", SequenceMark(7), value=5)
    rig.ask("2", start(), value=1)
    rig.ask("3", end(), value=1)
    rig.finish_all()
    assert [rig.out(name) for name in "0123"] == [5, 10, 1, 2]


def test_restarted_sequence_frees_its_slot_with_the_response_of_its_last_request():
    rig = Rig(most=1)
    rig.ask("0", start(), value=5)
    rig.batch()
    rig.ask("1", start(), value=1)
    rig.finish()
    assert [item.request_id for item in rig.batch()] == ["1"], "not once the first one is idle for too long"
    rig.finish()
    assert rig.out("1") == 1


def test_expired_end_leaves_the_sequence_to_the_idle_timeout():
    rig = Rig(most=1)
    rig.ask("0", start(1))
    rig.ask("1", end(1), timeout_us=50)
    rig.ask("2", start(2), value=3)
    outputs = {name: np.zeros((1, 1), np.float32) for name in ("OUT", "is")}
    assert [item.request_id for item in rig.batch()] == ["0"]
    rig.time.now += 60_000  # the loop stood still: no timer has rung
    rig.worker.finish([outputs])
    assert isinstance(rig.responses["1"], QueueTimeout)
    assert rig.batch() == []
    rig.time.advance(IDLE_US)
    assert [item.request_id for item in rig.batch()] == ["2"]


def test_sequences_above_the_bound_wait_for_an_ended_or_idle_one():
    rig = Rig(most=1)
    rig.ask("0", start(1))
    rig.ask("1", start(2), value=3)
    rig.ask("2", start(3), value=4)
    rig.finish_all()
    assert set(rig.responses) == {"0"}
    rig.ask("3", end(1))
    rig.finish_all()
    assert rig.out("1") == 3
    rig.time.advance(IDLE_US)
    rig.finish_all()
    assert rig.out("2") == 4


def fail(rig: Rig) -> None:
    """Ends the batch in work as the death of its worker process does."""
    rig.scheduler.lose_sequences()
    rig.worker.finish([Unavailable("the worker process has ended") for _ in rig.batch()])


def echo(rig: Rig) -> None:
    """Ends the batch in work: OUT is IN."""
    rig.worker.finish([{"OUT": item.inputs["IN"]} for item in rig.batch()])


def test_sequences_whose_state_died_with_a_worker_process_need_a_new_start():
    rig = Rig(states=())
    rig.ask("a", start(1), value=5)
    rig.ask("x", start(2), value=6)
    echo(rig)
    rig.ask("b", SequenceMark(1), value=7)
    rig.ask("c", end(1), value=8)
    assert [item.request_id for item in rig.batch()] == ["b"]
    fail(rig)
    assert isinstance(rig.responses["b"], Unavailable)
    lost = "its state was lost when the worker process of the model ended: begin it again"
    assert lost in str(rig.responses["c"])
    with pytest.raises(InvalidRequest, match=f"must specify the START flag .*{lost}"):
        rig.ask("y", SequenceMark(2))
    rig.ask("z", start(2), value=9)
    echo(rig)
    assert rig.out("z") == 9
    rig.ask("w", end(2), value=3)
    echo(rig)
    assert rig.out("w") == 3
    with pytest.raises(InvalidRequest) as again:
        rig.ask("v", SequenceMark(2))
    assert lost not in str(again.value)
    assert rig.scheduler.in_flight == 0


def test_request_that_waits_for_the_restart_of_its_worker_is_rejected_with_its_sequence():
    rig = Rig(states=())
    rig.ask("a", start(1), value=5)
    echo(rig)
    rig.ask("s", start(3), value=5)
    rig.batch()
    rig.ask("b", SequenceMark(1), value=7)
    rig.time.run()
    fail(rig)
    assert "its state was lost" in str(rig.responses["b"])
    assert isinstance(rig.responses["s"], Unavailable)
    assert rig.batch() == []
    assert rig.scheduler.in_flight == 0
    assert rig.log.failures.count("CANCELED") == 0


def test_sequences_whose_states_the_server_keeps_survive_the_death_of_a_worker_process():
    rig = Rig()
    rig.ask("a", start(), value=5)
    rig.finish()
    rig.scheduler.lose_sequences()
    rig.ask("b", end(), value=7)
    rig.finish()
    assert rig.out("b") == 12


def test_failed_request_leaves_the_state_unchanged():
    rig = Rig()
    rig.ask("0", start(), value=5)
    rig.finish_all()
    rig.ask("1", SequenceMark(7), value=6)
    rig.batch()
    rig.worker.finish([BackendFailed("no")])
    rig.ask("2", end(), value=1)
    rig.finish_all()
    assert isinstance(rig.responses["1"], ServingError)
    assert rig.out("2") == 6


@pytest.mark.parametrize("is_running", [True, False])
def test_cancelled_request_unblocks_the_next_one(is_running):
    rig = Rig()
    flights = [rig.ask(str(place), mark, value=10**place) for place, mark in enumerate([start(), SequenceMark(7), end()])]
    rig.batch()
    if not is_running:
        flights[1].cancel()
        rig.finish_all()
        assert rig.out("2") == 101
    else:
        flights[0].cancel()
        assert [item.request_id for item in rig.batch()] == ["0"], "the next one waits for what runs"
        rig.finish_all()
        assert rig.out("2") == 111, "what has run counts"
    assert rig.log.failures == ["CANCELED"]
    assert len(rig.responses) == 2
    assert sorted(rig.ended) == ["0", "1", "2"]


def test_waiting_requests_are_bounded():
    rig = Rig(max_queue_size=2)
    rig.ask("0", start())
    rig.ask("1", SequenceMark(7))
    with pytest.raises(Overloaded, match="Exceeds maximum queue size"):
        rig.ask("2", SequenceMark(7))


def test_all_waiting_and_running_requests_complete_when_the_model_is_unloaded():
    rig = Rig(most=1)
    idle: list[bool] = []
    rig.scheduler.on_idle = lambda: idle.append(True)
    for number in (1, 2):
        rig.ask(f"{number}a", start(number))
        rig.ask(f"{number}b", end(number))
    rig.batch()
    rig.scheduler.abandon("gone")
    assert {type(response) for response in rig.responses.values()} == {Unavailable}
    assert len(rig.responses) == 4
    assert rig.scheduler.in_flight == 0
    assert idle == [True]
    rig.time.advance(10 * IDLE_US)
    rig.worker.works.clear()
    rig.ask("again", SequenceMark(1, is_start=True, is_end=True), value=2)
    rig.finish_all()
    assert rig.out("again") == 2


def whole(number: int) -> SequenceMark:
    """A sequence of one request."""
    return SequenceMark(number, is_start=True, is_end=True)


def test_sequence_cancelled_before_its_start_leaves_nothing():
    rig = Rig(most=1)
    rig.ask("0", start(1))
    rig.finish_all()
    for number in range(2, 50):
        rig.ask(str(number), start(number)).cancel()
    with pytest.raises(InvalidRequest, match="START flag"):
        rig.ask("later", SequenceMark(2))
    rig.ask("next", whole(99), value=3)
    rig.ask("end", end(1))
    rig.finish_all()
    assert rig.out("next") == 3, "no sequence without requests comes before it"
    assert rig.log.failures.count("CANCELED") == 48
    assert rig.scheduler.in_flight == 0


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize(("limit", "error"), [("deadline_ns", DeadlineExceeded), ("timeout_us", QueueTimeout)])
def test_request_that_expires_before_its_turn_completes_then(limit, error, is_begun):
    rig = Rig(most=1)
    rig.ask("0", start(1))
    rig.batch()
    mark = SequenceMark(1) if is_begun else start(2)
    rig.ask("1", mark, **{limit: rig.time.now + 50_000 if limit == "deadline_ns" else 50})
    rig.time.advance(49)
    assert "1" not in rig.responses
    rig.time.advance(1)
    assert isinstance(rig.responses["1"], error)
    assert rig.log.failures == ["REJECTED"]
    rig.ask("2", end(1))
    rig.finish_all()
    assert [len(works) for works in rig.worker.history] == [1, 1], "what was late is not run"
    assert rig.ended == ["1", "0", "2"]


def test_time_before_its_turn_is_counted_as_queue_time_of_a_request():
    rig = Rig()
    rig.ask("0", start())
    rig.ask("1", SequenceMark(7), timeout_us=50)
    rig.batch()
    rig.time.advance(40)
    rig.finish()
    assert [(item.request_id, item.timeout_us) for item in rig.batch()] == [("1", 10)]


def test_any_number_of_simultaneously_late_sequences_complete():
    rig = Rig(most=1, max_queue_size=3000)
    rig.ask("0", whole(1))
    rig.batch()
    for number in range(2, 2000):
        rig.ask(str(number), whole(number), deadline_ns=rig.time.now + 1_000)
    rig.time.now += 2_000  # the loop stood still: no timer has rung
    rig.finish()
    assert len(rig.responses) == 1999
    assert rig.scheduler.in_flight == 0
    rig.time.advance(10)
    assert len(rig.ended) == 1999


def test_callback_that_raises_does_not_end_the_sequence(caplog):
    rig = Rig()

    def broken(_: EngineResult) -> None:
        raise ValueError("a defect of a front")

    request = InferRequest(
        model_name="m", inputs={"IN": np.ones((1, 1), np.float32)}, output_names=("OUT",), signature=SIGNATURE, sequence=start()
    )
    rig.scheduler.submit(request, broken)
    rig.ask("1", end(), value=2)
    rig.finish_all()
    assert rig.out("1") == 3
    assert "the result callback of a request raised" in caplog.text


def test_state_of_a_sequence_holds_no_batch_of_others_in_memory():
    rig = Rig()
    for number in (1, 2):
        rig.ask(str(number), start(number), value=number)
    batch = rig.batch()
    outputs = np.array([[1.0], [2.0]], np.float32)
    rig.worker.finish([{"OUT": outputs[place : place + 1], "is": outputs[place : place + 1]} for place in range(len(batch))])
    rig.ask("3", SequenceMark(1), value=1)
    state = rig.batch()[0].inputs["was"]
    assert (state.item(), state.base) == (1.0, None)


@pytest.mark.slow
@given(st.data())
def test_each_request_has_one_completion_and_is_counted_once(data):
    rig = Rig(most=2, max_queue_size=12)
    flights: dict[str, InFlight] = {}
    sent = cancelled = 0
    for step in range(data.draw(st.integers(5, 60))):
        action = data.draw(st.sampled_from(["ask", "ask", "ask", "cancel", "finish", "fail", "wait", "idle"]))
        if action == "ask":
            mark = SequenceMark(data.draw(st.integers(1, 4)), data.draw(st.booleans()), data.draw(st.booleans()))
            limits = data.draw(st.sampled_from([{}, {"timeout_us": 30}, {"deadline_ns": rig.time.now + 40_000}]))
            sent += 1
            with contextlib.suppress(ServingError):
                flights[str(step)] = rig.ask(str(step), mark, **limits)
        elif action == "cancel" and flights:
            name = data.draw(st.sampled_from(sorted(flights)))
            cancelled += name not in rig.ended
            flights[name].cancel()
        elif action == "finish" and rig.batch():
            rig.finish()
        elif action == "fail" and rig.batch():
            rig.worker.finish([BackendFailed("no") for _ in rig.batch()])
        elif action in ("wait", "idle"):
            rig.time.advance(20 if action == "wait" else IDLE_US)
    while rig.scheduler.in_flight:
        rig.finish_all()
        rig.time.advance(IDLE_US)
    rig.finish_all()  # batches of which all were taken back
    assert sorted(rig.ended) == sorted(flights), "each accepted request ends once"
    assert len(rig.responses) + cancelled == len(flights)
    assert len(rig.log.succeeded_rows) + len(rig.log.failures) == sent
    assert rig.log.queue_depth == 0
    rig.time.advance(2 * IDLE_US)
    rig.ask("last", whole(9), value=4)
    rig.finish_all()
    assert rig.out("last") == 4, "places of sequences that are over are free"
