"""Devices that fail while they serve."""

from collections.abc import Callable

import numpy as np
import pytest

from stoker.backends.api.batch import BatchItem, BatchProcessor
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed, ServingError, Unavailable
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.ipu_backend import Bench, output_of
from tests.fakes.ipu_programs import doubling
from tests.fakes.ipu_served import popef

TWO_ROWS = same_in_and_out(DataType.FP32, max_batch_size=2)
ONES = np.ones((1, 2), np.float32)
FILE = popef(doubling((2, 2)))


def test_device_that_needs_a_reset_serves_the_next_request(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(faults="reset@2")
    instance = bench.load(FILE, TWO_ROWS)
    assert output_of(instance, ONES).tolist() == [[2, 2]]
    with pytest.raises(Unavailable, match=r"simulated IPU 0 failed: .*IPU_RESET; it is reset before the next batch"):
        output_of(instance, ONES)
    assert output_of(instance, ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_ipu_faults_total", device="0", action="IPU_RESET") == 1
    assert bench.figure("stoker_ipu_failed_batches_total") == 1
    assert bench.figure("stoker_ipu_batches_total") == 3


def test_requests_of_a_batch_interrupted_by_a_reset_get_responses(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(faults="reset@1")
    unit = BatchProcessor(bench.load(FILE, TWO_ROWS), TWO_ROWS, SystemClock())
    outcomes = unit.process([BatchItem({"x": ONES}, 1, ("y",))] * 2).outcomes
    assert not any(isinstance(outcome, ServingError) for outcome in outcomes)


def test_model_without_auto_reset_stays_unavailable(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(faults="reset@1")
    instance = bench.load(FILE, TWO_ROWS, auto_reset="false")
    for _ in range(2):
        with pytest.raises(Unavailable, match="auto_reset is off"):
            output_of(instance, ONES)


def test_lost_device_is_reported_for_every_request(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(faults="lost@1")
    instance = bench.load(FILE, TWO_ROWS)
    for _ in range(2):
        with pytest.raises(Unavailable, match="the device is lost"):
            output_of(instance, ONES)


def test_model_loaded_after_a_loss_uses_another_ipu(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(faults="lost@1")
    lost = bench.load(FILE, TWO_ROWS)
    with pytest.raises(Unavailable):
        output_of(lost, ONES)
    assert output_of(bench.load(FILE, TWO_ROWS, name="other"), ONES).tolist() == [[2, 2]]


def test_out_of_memory_fails_the_batch_and_the_program_is_loaded_again(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(faults="oom@1")
    instance = bench.load(FILE, TWO_ROWS)
    with pytest.raises(BackendFailed, match="out of memory"):
        output_of(instance, ONES)
    assert output_of(instance, ONES).tolist() == [[2, 2]]


def test_other_models_are_unaffected_by_a_fault(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(faults="lost@1")
    first = bench.load(FILE, TWO_ROWS)
    second = bench.load(popef(doubling((2, 2)), name="second"), TWO_ROWS, name="second")
    with pytest.raises(Unavailable):
        output_of(first, ONES)
    assert output_of(second, ONES).tolist() == [[2, 2]]
