"""The access log: the requests with a line, its content, and its resistance to client data."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import BackendFailed, InvalidRequest, Overloaded, ServingError, UnknownModel
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse, Via
from stoker.server.observability.access_log import FAILURES_PER_S, HOLD_NS, MOST_HELD, AccessLog
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.settings import AccessLogSettings
from stoker.server.scheduling.outcomes import count_batch
from stoker.server.scheduling.pending import Pending
from tests.fakes.puppet_worker import HandTimers

SIGNATURE = ModelSignature((TensorSpec("IN", DataType.FP32, (2,)),), (TensorSpec("OUT", DataType.FP32, (2,)),), 4)
_S = 1_000_000_000


class Log:
    """An access log into a file, on a clock that tests turn."""

    def __init__(self, folder: Path, every: int) -> None:
        self.now_ns = 10 * _S
        self._path = folder / "access.log"
        self.access = AccessLog(AccessLogSettings(every=every, file=self._path), lambda: self.now_ns)

    def lines(self) -> list[dict[str, Any]]:
        """All lines; ends the log."""
        self.access.close()
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        for line in lines:
            assert line.pop("ts").endswith("Z")
            assert (line.pop("level"), line.pop("logger")) == ("INFO", "stoker.access")
        return lines


@pytest.fixture
def log(tmp_path: Path) -> Callable[[int], Log]:
    return lambda every: Log(tmp_path, every)


def request(request_id: str = "", model: str = "m") -> InferRequest:
    return InferRequest(
        model_name=model,
        request_id=request_id,
        inputs={"IN": np.zeros((3, 2), np.float32)},
        rows=3,
        output_names=("OUT",),
        signature=SIGNATURE,
        received_ns=9 * _S,
        size_bytes=77,
        via=Via.KSERVE_GRPC,
    )


def answer_to(asked: InferRequest) -> InferResponse:
    return InferResponse(asked.model_name, 4, asked.request_id, {"OUT": np.zeros((3, 2), np.float32)}, SIGNATURE)


def test_access_log_line_contains_client_request_and_duration(log: Callable[[int], Log]) -> None:
    written_log, responses = log(1), list[EngineResult]()
    asked = request("r1")
    done = written_log.access.watched(asked, responses.append)
    assert asked.access is not None
    asked.access.queue_ns, asked.access.compute_ns = 12_000, 345_678
    response = answer_to(asked)
    done(response)
    assert responses == [response]
    assert written_log.lines() == [
        {
            "message": "an inference request was completed",
            "protocol": "kserve-grpc",
            "model": "m",
            "version": 4,
            "request_id": "r1",
            "rows": 3,
            "status": "OK",
            "total_us": 1_000_000,
            "queue_us": 12,
            "compute_us": 345,
            "in_bytes": 77,
            "out_bytes": 24,
        }
    ]


def test_one_of_every_n_requests_has_a_line_and_only_it_is_timed(log: Callable[[int], Log]) -> None:
    written_log = log(3)
    for number in range(7):
        asked = request(str(number))
        done = written_log.access.watched(asked, lambda _: None)
        assert (asked.access is not None) == (number % 3 == 2)
        done(answer_to(asked))
    assert [line["request_id"] for line in written_log.lines()] == ["2", "5"]


def test_every_failure_has_a_line_sampled_or_not(log: Callable[[int], Log]) -> None:
    written_log, responses = log(2), list[EngineResult]()
    for number in range(2):
        asked = request(str(number))
        written_log.access.watched(asked, responses.append)(BackendFailed("the device is lost"))
    written_log.access.rejected(request("full"), Overloaded("the queue is full"))
    written_log.access.unread(Via.TFS_HTTP, "absent", 7, UnknownModel("no such model"))
    lines = written_log.lines()
    assert [(line.get("request_id"), line["status"], line["error"]) for line in lines] == [
        ("0", "BACKEND_FAILED", "the device is lost"),
        ("1", "BACKEND_FAILED", "the device is lost"),
        ("full", "OVERLOADED", "the queue is full"),
        (None, "NOT_FOUND", "no such model"),
    ]
    assert (lines[3]["protocol"], lines[3]["model"], lines[3]["version"]) == ("tfs-http", "absent", 7)
    assert [type(response) for response in responses] == [BackendFailed, BackendFailed]


def test_sampled_request_that_is_refused_has_one_line(log: Callable[[int], Log]) -> None:
    written_log = log(1)
    asked = request("r")
    done: Done | None = written_log.access.watched(asked, lambda _: None)
    written_log.access.rejected(asked, Overloaded("the queue is full"))
    del done
    assert [line["status"] for line in written_log.lines()] == ["OVERLOADED"]


def test_sampled_request_that_its_client_cancels_has_a_line(log: Callable[[int], Log]) -> None:
    written_log = log(1)
    done: Done | None = written_log.access.watched(request("gone"), lambda _: None)
    del done
    assert [(line["request_id"], line["status"]) for line in written_log.lines()] == [("gone", "CANCELLED")]


def test_translated_error_has_one_line(log: Callable[[int], Log]) -> None:
    written_log = log(1)
    noted = UnknownModel("as the engine says it")
    written_log.access.unread(Via.ADLIK_GRPC, "m", None, noted)
    try:
        try:
            raise noted
        except UnknownModel:
            raise InvalidRequest("as the protocol says it") from None
    except InvalidRequest as error:
        written_log.access.log_response(Via.ADLIK_GRPC, error, "m", None)
    written_log.access.log_response(Via.ADLIK_GRPC, noted, "m", None)
    written_log.access.log_response(Via.ADLIK_GRPC, InvalidRequest("another"), "", None)
    lines = written_log.lines()
    assert [line["error"] for line in lines] == ["as the engine says it", "another"]
    assert "model" not in lines[1]


def test_flood_of_failures_is_rate_limited_and_the_next_line_counts_them(log: Callable[[int], Log]) -> None:
    written_log = log(1)
    for _ in range(FAILURES_PER_S + 50):
        written_log.access.unread(Via.KSERVE_HTTP, "m", None, InvalidRequest("no"))
    written_log.now_ns += _S // 10
    written_log.access.unread(Via.KSERVE_HTTP, "m", None, InvalidRequest("no"))
    lines = written_log.lines()
    assert len(lines) == FAILURES_PER_S + 1
    assert [line["suppressed"] for line in lines if "suppressed" in line] == [50]
    assert lines[-1]["suppressed"] == 50


def test_client_data_can_neither_forge_nor_fill_a_line(log: Callable[[int], Log]) -> None:
    written_log = log(1)
    asked = request('x"}\n{"status": "OK\x1b[2J\u2028', model="m" * 1_000_000)
    written_log.access.watched(asked, lambda _: None)(answer_to(asked))
    written_log.access.unread(Via.KSERVE_HTTP, "a\r\nb\ud800", None, InvalidRequest("e" * 5000))
    first, second = written_log.lines()
    assert first["request_id"] == 'x"}\\n{"status": "OK\\x1b[2J\\u2028'
    assert len(first["model"]) == 256
    assert second["model"] == "a\\r\\nb\\ud800"
    assert len(second["error"]) == 256


def test_disabled_access_log_writes_no_line_not_even_for_failures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = AccessLog(AccessLogSettings(every=0, file=tmp_path / "none"), lambda: 0)
    access.rejected(request(), Overloaded("full"))
    access.unread(Via.KSERVE_HTTP, "m", None, InvalidRequest("no"))
    assert not access.is_on
    assert not (tmp_path / "none").exists()
    assert not caplog.records


def test_access_log_without_a_file_writes_to_the_server_log(caplog: pytest.LogCaptureFixture) -> None:
    access = AccessLog(AccessLogSettings(every=1), lambda: 10 * _S)
    asked = request("r9")
    with caplog.at_level("INFO", "stoker.access"):
        access.watched(asked, lambda _: None)(answer_to(asked))
        access.close()
    assert [record.__dict__["request_id"] for record in caplog.records] == ["r9"]


def test_line_is_held_for_a_bounded_time_and_has_the_time_of_its_request(caplog: pytest.LogCaptureFixture) -> None:
    timers = HandTimers()
    access = AccessLog(AccessLogSettings(every=1), timers.now_ns, timers)
    with caplog.at_level("INFO", "stoker.access"):
        access.watched(asked := request("first"), lambda _: None)(answer_to(asked))
        due_ns = timers.next_ns
        timers.advance(HOLD_NS // 2000)
        access.watched(asked := request("second"), lambda _: None)(answer_to(asked))
        assert due_ns == timers.next_ns == timers.now + HOLD_NS // 2, "one timer for all that are held"
        assert not caplog.records
        timers.advance(HOLD_NS // 2000)
        first, second = caplog.records
        assert [record.__dict__["request_id"] for record in (first, second)] == ["first", "second"]
        assert first.created <= time.time() - HOLD_NS / 1e9
        assert second.created > first.created
        assert timers.next_ns is None
        access.watched(asked := request("third"), lambda _: None)(answer_to(asked))
        assert timers.next_ns == timers.now + HOLD_NS


def test_full_buffer_of_lines_is_written_at_once(caplog: pytest.LogCaptureFixture) -> None:
    timers = HandTimers()
    access = AccessLog(AccessLogSettings(every=1), timers.now_ns, timers)
    numbers = [str(number) for number in range(2 * MOST_HELD)]
    with caplog.at_level("INFO", "stoker.access"):
        for number, name in enumerate(numbers):
            assert len(caplog.records) == number // MOST_HELD * MOST_HELD
            access.watched(asked := request(name), lambda _: None)(answer_to(asked))
    assert [record.__dict__["request_id"] for record in caplog.records] == numbers


def test_line_of_a_sampled_request_contains_the_times_of_its_batch(log: Callable[[int], Log]) -> None:
    async def scenario() -> None:
        written_log = log(1)
        asked = request("r")
        done = written_log.access.watched(asked, lambda _: None)
        entry = Pending(asked, None, 1, 9 * _S + 1000, None, done, lambda: None, lambda _: None)
        entry.dispatched_ns = 9 * _S + 6000
        outputs = {"OUT": np.zeros((3, 2), np.float32)}
        result = BatchResult([outputs], [3], input_ns=1000, infer_ns=20_000, output_ns=3000)
        count_batch(Metrics(FakeClock()).version("m", 1, {}), [entry], result, 10 * _S)
        done(answer_to(asked))
        line = written_log.lines()[0]
        assert (line["queue_us"], line["compute_us"]) == (5, 24)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [BackendFailed, Overloaded])
def test_failing_response_reaches_its_callback(kind: type[ServingError], log: Callable[[int], Log]) -> None:
    written_log, responses = log(1), list[EngineResult]()
    written_log.access.watched(request(), responses.append)(kind("no"))
    assert [type(response) for response in responses] == [kind]
    written_log.access.close()
