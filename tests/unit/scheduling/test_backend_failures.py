"""The log lines of failing backends, at the default verbosity."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import BatchProcessor, as_failure
from stoker.backends.api.errors import BackendFailed, InvalidRequest, ServingError, Unavailable
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_clock import FakeClock
from stoker.backends.testing.samples import signature
from stoker.server.core.request import InferRequest
from stoker.server.scheduling.outcomes import FAILURES_PER_S, FailureLog
from tests.unit.scheduling.test_scheduler import Rig


def failure(text: str) -> BackendFailed:
    """As a processor converts a backend's exception."""
    try:
        raise ValueError(text)
    except ValueError as error:
        return as_failure(error)


async def answered(rig: Rig, *outcomes: ServingError, ids: tuple[str, ...] = ()) -> None:
    asked = [await rig.ask(request_id=ids[number] if ids else "") for number in range(len(outcomes))]
    await rig.settle()
    rig.worker.finish(list(outcomes))
    await asyncio.gather(*asked, return_exceptions=True)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.ERROR]


def test_failure_is_logged_with_traceback_model_version_and_request(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(answered(Rig(), failure("index 9 is out of bounds"), ids=("id-7",)))
    [record] = lines(caplog)
    assert record.getMessage() == "the backend of model 'm' version 1 failed: ValueError: index 9 is out of bounds"
    assert (record.model, record.version, record.request_id) == ("m", 1, "id-7")  # type: ignore[attr-defined]
    assert "in failure" in caplog.text
    assert "ValueError: index 9 is out of bounds" in caplog.text


def test_failure_of_the_model_itself_says_so_and_an_empty_request_id_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    error = BackendFailed("bad row")
    error.is_of_model = True
    asyncio.run(answered(Rig(), error))
    [record] = lines(caplog)
    assert record.getMessage() == "model 'm' version 1 failed: bad row"
    assert not hasattr(record, "request_id")
    assert not record.exc_info


def test_requests_that_failed_together_are_one_failure_and_others_separate_ones(caplog: pytest.LogCaptureFixture) -> None:
    shared = failure("together")
    asyncio.run(answered(Rig(), shared, shared, failure("apart"), ids=("a", "b", "c")))
    assert [record.request_id for record in lines(caplog)] == ["a", "c"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("error", "count"), [(Unavailable("the device is lost"), 1), (InvalidRequest("the client's mistake"), 0)])
def test_lost_device_is_a_backend_failure_and_a_client_error_is_not(
    error: ServingError, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(answered(Rig(), error))
    assert len(lines(caplog)) == count


def test_failure_that_the_log_has_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    death = Unavailable("the worker process of model 'm' has ended")
    death.is_logged = True
    asyncio.run(answered(Rig(), death))
    assert lines(caplog) == []


def test_log_lines_are_bounded_and_the_next_reports_the_suppressed_number(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        rig = Rig()
        for _ in range(FAILURES_PER_S + 4):
            await answered(rig, failure("again"))
        assert len(lines(caplog)) == FAILURES_PER_S
        rig.time.now += 1_000_000_000
        await answered(rig, failure("again"))

    asyncio.run(scenario())
    assert lines(caplog)[-1].suppressed == 4  # type: ignore[attr-defined]
    assert len(lines(caplog)) == FAILURES_PER_S + 1


class Raising(Instance):
    """Raises as libraries do: an error that another one led to."""

    def execute(self, inputs: Arrays, output_names: object) -> Arrays:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error


class Array(np.ndarray):
    """An array that can be watched."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.usefixtures("no_collector")
def test_inputs_of_a_failed_batch_are_freed_without_the_garbage_collector(requests: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "stoker.scheduling")  # pytest keeps records with their tracebacks
    dims = {"x": (DataType.FP32, (2,))}
    served = signature(dims, dims, max_batch_size=8)
    processor = BatchProcessor(Raising(), served, FakeClock())
    arrays = [np.ones((1, 2), np.float32).view(Array) for _ in range(requests)]
    watched = [weakref.ref(array) for array in arrays]
    asked = [InferRequest("m", {"x": array}, ("x",), served) for array in arrays]
    del arrays
    result = processor.process(asked)
    log = FailureLog("m", 1)
    for request, outcome in zip(asked, result.outcomes, strict=True):
        assert isinstance(outcome, BackendFailed)
        log.note(outcome, request, 0)
    del asked, request, result, outcome
    assert [each() for each in watched] == [None] * requests
