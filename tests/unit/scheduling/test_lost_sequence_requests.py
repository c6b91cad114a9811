"""The fate of a sequence when one of its requests is lost: every stage, cause and position of a request, both strategies.

The rule that every case checks: the model has executed the START of a sequence, or each later request of it is refused.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, InvalidRequest, Overloaded, QueueTimeout, Unavailable
from stoker.backends.api.model import FileTensor, ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import complete
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.core.model_config import ModelConfig
from stoker.server.core.request import EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.core.sequence import SequenceMark
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.sequences import SequenceScheduler
from tests.fakes.named_backends import onnx_like
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog

FP32, INT32 = DataType.FP32, DataType.INT32
FACTS = ModelFacts(
    (FileTensor("x", FP32, (-1, 1)), FileTensor("START", INT32, (-1, 1)), FileTensor("was", FP32, (-1, 1))),
    (FileTensor("y", FP32, (-1, 1)), FileTensor("is", FP32, (-1, 1))),
)
IDLE_US = 1000
LIMIT_US = 50
#: What the model sets its state to when it executes a START: an answer without it shows that no START was executed.
BEGUN = 100.0
START_ERROR = "must specify the START flag on the first request of the sequence"
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: %d }"}
STAGES = ("waiting", "queued", "running")
CAUSES = ("cancel", "deadline", "queue timeout", "backend error", "unload")
PLACES = ("start", "middle", "end")
CASES = [pytest.param(*case, id="-".join(case)) for case in product(STRATEGIES, STAGES, CAUSES, PLACES)]


def config_of(strategy: str, most: int) -> ModelConfig:
    """A model whose sequences are batched by `strategy`, at most `most` concurrent ones, each batch of one request."""
    inside = STRATEGIES[strategy].replace("%d", str(most))
    batch = most if strategy == "direct" else 1
    text = (
        f"max_batch_size: {batch} sequence_batching {{ max_sequence_idle_microseconds: {IDLE_US} {inside}"
        ' control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
        ' state { input_name: "was" output_name: "is" data_type: TYPE_FP32 dims: 1 } }'
    )
    return complete(parse_pbtxt(text, source="m", model_name="m"), FACTS, onnx_like(), "model.onnx").config


class Rig:
    """Sequences in front of a fake backend: y and the state are x plus the state before, which a START sets to `BEGUN`."""

    def __init__(self, strategy: str, most: int, max_queue_size: int = 100) -> None:
        self.time = HandTimers()
        self.worker = PuppetWorker()
        self.log = RecorderLog()
        self.responses: dict[str, EngineResult] = {}
        self.ended: list[str] = []
        self.flights: dict[str, InFlight] = {}
        config = config_of(strategy, most)
        assert config.sequences is not None
        self.signature = config.signature
        self.inner = Scheduler(config.inner, 1, [self.worker], clock=self.time, timers=self.time, recorder=self.log, max_queue_size=100)
        self.scheduler = SequenceScheduler(
            self.inner,
            "m",
            config.signature,
            config.sequences,
            clock=self.time,
            timers=self.time,
            recorder=self.log,
            max_queue_size=max_queue_size,
        )

    def ask(self, request_id: str, mark: SequenceMark, value: float = 0, rows: int = 1, **limits: Any) -> None:
        request = InferRequest(
            model_name="m",
            request_id=request_id,
            inputs={"x": np.full((rows, 1), value, np.float32)},
            rows=rows,
            output_names=("y",),
            signature=self.signature,
            sequence=mark,
            **limits,
        )
        self.flights[request_id] = self.scheduler.submit(
            request, lambda response: self.take(request_id, response), lambda: self.ended.append(request_id)
        )

    def take(self, request_id: str, response: EngineResult) -> None:
        assert request_id not in self.responses, "a second answer"
        self.responses[request_id] = response

    def running(self) -> list[str]:
        self.time.run()
        return [request.request_id for at in range(len(self.worker.works)) for request in self.worker.requests_of(at)]

    def finish(self) -> None:
        """Ends the batch in work."""
        outcomes = []
        for item in self.worker.works[0].items:
            was = np.full((1, 1), BEGUN, np.float32) if item.inputs["START"].item() else item.inputs["was"]
            outcomes.append({"y": (sums := np.add(was, item.inputs["x"])), "is": sums})
        self.worker.finish(outcomes)

    def fail(self) -> None:
        """Fails the batch in progress in the backend."""
        self.worker.finish([BackendFailed("no") for _ in self.worker.works[0].items])

    def finish_all(self) -> None:
        while self.running():
            self.finish()

    def out(self, request_id: str) -> float | str:
        response = self.responses[request_id]
        return float(response.outputs["y"].item()) if isinstance(response, InferResponse) else response.message

    def needs_start(self, request_id: str) -> bool:
        response = self.responses[request_id]
        return isinstance(response, InvalidRequest) and response.message.endswith(START_ERROR)


MARKS = {
    "start": SequenceMark(7, is_start=True),
    "middle": SequenceMark(7),
    "end": SequenceMark(7, is_end=True),
}


def prepared(strategy: str, stage: str, cause: str, place: str) -> Rig:
    """A rig in which request `subject` (value 10) stands at `stage`, with `behind` (value 1) sent after it."""
    rig = Rig(strategy, most=1 if (stage, place) == ("waiting", "start") else 2)
    limits: dict[str, int] = {}
    if cause == "deadline":
        limits = {"deadline_ns": rig.time.now + LIMIT_US * 1000}
    elif cause == "queue timeout":
        limits = {"timeout_us": LIMIT_US}
    if place != "start":
        rig.ask("first", MARKS["start"])
        if stage != "waiting":
            rig.finish_all()
    elif stage == "waiting":
        rig.ask("other", SequenceMark(8, is_start=True))
    if stage == "queued":
        rig.ask("other", SequenceMark(8, is_start=True))
    before = rig.running()
    assert before == (
        [] if stage == "running" else ["first"] if (stage, place) in (("waiting", "middle"), ("waiting", "end")) else ["other"]
    )
    rig.ask("subject", MARKS[place], 10, **limits)
    assert rig.running() == (["subject"] if stage == "running" else before)
    assert rig.inner.queue_depth == (1 if stage == "queued" else 0)
    rig.ask("behind", MARKS["middle"], 1)
    return rig


def strike(rig: Rig, cause: str) -> None:
    if cause == "cancel":
        rig.flights["subject"].cancel()
    elif cause in ("deadline", "queue timeout"):
        rig.time.advance(LIMIT_US)
    elif cause == "backend error":
        rig.fail()  # what runs now: the subject itself only at the stage "running"
    else:
        rig.scheduler.abandon("gone")


@pytest.mark.parametrize(("strategy", "stage", "cause", "place"), CASES)
def test_start_must_have_run_or_its_followers_are_refused(strategy: str, stage: str, cause: str, place: str) -> None:
    rig = prepared(strategy, stage, cause, place)
    strike(rig, cause)
    is_lost = stage != "running" and cause in ("cancel", "deadline", "queue timeout")
    is_failed = (stage, cause) == ("running", "backend error")
    # The backend fails the START before the waiting subject: the subject is a follower of a START that failed.
    is_follower_of_failed = stage == "waiting" and cause == "backend error" and place != "start"
    if cause == "unload":
        rig.finish_all()
        assert all(isinstance(rig.responses[name], Unavailable) for name in ("subject", "behind"))
        with pytest.raises(InvalidRequest, match=START_ERROR):
            rig.ask("late", MARKS["middle"])
    elif is_follower_of_failed:
        rig.finish_all()
        assert isinstance(rig.responses["first"], BackendFailed)
        assert rig.needs_start("subject")
        assert rig.needs_start("behind")
        with pytest.raises(InvalidRequest, match=START_ERROR):
            rig.ask("late", MARKS["middle"])
    elif place == "start" and (is_lost or is_failed):
        check_subject(rig, cause)
        assert rig.needs_start("behind"), "refused at once"
        with pytest.raises(InvalidRequest, match=START_ERROR):
            rig.ask("late", MARKS["middle"])
        rig.finish_all()
    else:
        finish_and_check(rig, cause, place, is_lost=is_lost, is_failed=is_failed)
    check_that_nothing_is_left(rig)


def finish_and_check(rig: Rig, cause: str, place: str, *, is_lost: bool, is_failed: bool) -> None:
    """The START has run: later requests use the state of the last run, up to an END that has run."""
    rig.finish_all()
    if "subject" not in rig.responses and cause != "cancel":
        rig.time.advance(IDLE_US)  # the sequence that was in its way is over
        rig.finish_all()
    has_run = not is_lost and not is_failed
    if cause == "cancel":
        assert "subject" not in rig.responses
    elif has_run:
        assert rig.out("subject") == BEGUN + 10
    else:
        check_subject(rig, cause)
    if place == "end" and not is_lost:
        assert rig.needs_start("behind"), "the model has been given END"
        with pytest.raises(InvalidRequest, match=START_ERROR):
            rig.ask("late", MARKS["middle"])
        return
    assert rig.out("behind") == BEGUN + (10 if has_run else 0) + 1
    rig.ask("late", MARKS["middle"], 2)
    rig.finish_all()
    assert rig.out("late") == BEGUN + (10 if has_run else 0) + 3


def check_subject(rig: Rig, cause: str) -> None:
    errors = {"deadline": DeadlineExceeded, "queue timeout": QueueTimeout, "backend error": BackendFailed}
    if cause == "cancel":
        assert "subject" not in rig.responses
    else:
        assert type(rig.responses["subject"]) is errors[cause]


def check_that_nothing_is_left(rig: Rig) -> None:
    """Each accepted request ended and was counted once; every slot is free after the idle timeout of open sequences."""
    rig.finish_all()
    rig.time.advance(2 * IDLE_US)
    rig.finish_all()
    assert sorted(rig.ended) == sorted(rig.flights)
    assert (rig.scheduler.in_flight, rig.inner.in_flight, rig.log.queue_depth) == (0, 0, 0)
    counted = len(rig.log.succeeded_rows) + len(rig.log.failures)
    assert counted == len(rig.flights) + (0 if "late" in rig.flights else 1), "'late' was refused and counted, or accepted"
    for number in range(20, 23):
        rig.ask(f"new {number}", SequenceMark(number, is_start=True, is_end=True), 5)
        rig.finish_all()
        assert rig.out(f"new {number}") == BEGUN + 5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_refused_start_ends_the_earlier_sequence_of_its_id(strategy: str) -> None:
    rig = Rig(strategy, most=2, max_queue_size=1)
    rig.ask("0", MARKS["start"], 1)
    with pytest.raises(Overloaded):
        rig.ask("1", MARKS["start"], 5)
    rig.finish_all()
    with pytest.raises(InvalidRequest, match=START_ERROR):
        rig.ask("2", MARKS["middle"], 1)
    rig.ask("3", MARKS["start"], 3)
    rig.finish_all()
    with pytest.raises(InvalidRequest, match="batch-size 1"):
        rig.ask("4", MARKS["start"], rows=2)
    with pytest.raises(InvalidRequest, match=START_ERROR):
        rig.ask("5", MARKS["middle"], 1)
    check_idle_places(rig, 2)


def check_idle_places(rig: Rig, most: int) -> None:
    """`most` sequences can begin at once."""
    for number in range(30, 30 + most):
        rig.ask(f"place {number}", SequenceMark(number, is_start=True))
        rig.finish_all()
        assert rig.out(f"place {number}") == BEGUN


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_start_with_an_expired_deadline_creates_no_sequence(strategy: str) -> None:
    rig = Rig(strategy, most=1)
    with pytest.raises(DeadlineExceeded):
        rig.ask("0", MARKS["start"], deadline_ns=rig.time.now)
    with pytest.raises(InvalidRequest, match=START_ERROR):
        rig.ask("1", MARKS["middle"])
    check_idle_places(rig, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lost_restart_lets_the_earlier_sequence_complete(strategy: str) -> None:
    rig = Rig(strategy, most=1)
    rig.ask("0", MARKS["start"], 1)
    rig.ask("1", MARKS["middle"], 1)
    assert rig.running() == ["0"]
    rig.ask("again", MARKS["start"], 5)
    rig.ask("after", MARKS["middle"], 5)
    rig.flights["again"].cancel()
    assert rig.needs_start("after")
    rig.finish_all()
    assert (rig.out("0"), rig.out("1")) == (BEGUN + 1, BEGUN + 2)
    with pytest.raises(InvalidRequest, match=START_ERROR):
        rig.ask("2", MARKS["middle"])
    check_idle_places(rig, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_callback_of_a_lost_start_cannot_run_its_followers(strategy: str) -> None:
    """The front cancels the request in the way, and sends another follower, before the scheduler has refused the followers."""
    rig = Rig(strategy, most=1)
    rig.ask("other", SequenceMark(8, is_start=True))
    assert rig.running() == ["other"]
    rig.ask("subject", MARKS["start"], timeout_us=LIMIT_US)
    rig.ask("behind", MARKS["middle"])
    refused: list[str] = []

    def take(request_id: str, response: EngineResult) -> None:
        rig.responses[request_id] = response
        if request_id == "subject":
            rig.finish()
            rig.ask("ends", SequenceMark(8, is_end=True))
            rig.finish_all()
            try:
                rig.ask("more", MARKS["middle"])
            except InvalidRequest as error:
                refused.append(error.message)

    rig.take = take  # type: ignore[method-assign]
    rig.time.advance(LIMIT_US)
    rig.finish_all()
    assert rig.needs_start("behind")
    assert [text.endswith(START_ERROR) for text in refused] == [True]
    assert isinstance(rig.responses["ends"], InferResponse)
