"""Cards that fail while they serve."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.backend import Instance
from stoker.backends.api.errors import BackendFailed, ModelLoadError, ServingError, Unavailable
from stoker.backends.api.tensor import DataType
from stoker.backends.simulated.pacing import VirtualClock
from stoker.backends.testing.fake_backend import PATIENCE_S
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.gcu_backend import CardBench, batch, output_of
from tests.fakes.gcu_served import doubling

SERVED = same_in_and_out(DataType.FP32, max_batch_size=4)
ONES = np.ones((1, 2), np.float32)


def test_card_that_needs_a_reset_serves_the_next_request(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="reset@2")
    instance = bench.load(doubling(), SERVED)
    used = bench.figure("stoker_gcu_hbm_used_bytes")
    assert output_of(instance, ONES).tolist() == [[2, 2]]
    with pytest.raises(Unavailable, match=r"simulated card 0 failed: .*needs a reset .*; it is reset before the next batch"):
        output_of(instance, ONES)
    assert output_of(instance, ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_gcu_resets_total", card="0") == 1
    assert bench.figure("stoker_gcu_faults_total", status="TIF_ENGINE_RUN_FAILED") == 1
    assert bench.figure("stoker_gcu_failed_batches_total") == 1
    assert bench.figure("stoker_gcu_batches_total") == 3
    assert bench.figure("stoker_gcu_runs_total") == 2
    assert bench.figure("stoker_gcu_hbm_used_bytes") == used


def test_requests_of_a_batch_interrupted_by_a_reset_get_responses(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="reset@1")
    outcomes = batch(bench.load(doubling(), SERVED), SERVED, [ONES, 2 * ONES]).outcomes
    assert [each["y"].tolist() for each in outcomes if not isinstance(each, ServingError)] == [[[2, 2]], [[4, 4]]]


def test_other_models_of_the_card_are_reloaded_after_a_reset(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="reset@2")
    first, second = (bench.load(doubling(), SERVED, name=name) for name in ("first", "second"))
    assert output_of(second, ONES).tolist() == [[2, 2]]
    with pytest.raises(Unavailable):
        output_of(first, ONES)
    for _ in range(2):
        assert [output_of(each, ONES).tolist() for each in (second, first)] == [[[2, 2]], [[2, 2]]]
    assert bench.figure("stoker_gcu_resets_total") == 1


def test_lost_card_is_reported_for_every_request_and_others_continue(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(cards="2", faults="lost@1")
    lost, other = (bench.load(doubling(), SERVED, name=f"on{card}", card=card) for card in range(2))
    for _ in range(2):
        with pytest.raises(Unavailable, match="card is lost"):
            output_of(lost, ONES)
        assert output_of(other, ONES).tolist() == [[2, 2]]
    assert bench.backend.device_ids() == (1,), "groups for all cards would ask for the lost one"
    with pytest.raises(ModelLoadError, match="card 0 is lost"):
        bench.load(doubling(), SERVED, name="late", card=0)
    assert output_of(bench.load(doubling(), SERVED, name="late"), ONES).tolist() == [[2, 2]]


def test_out_of_memory_fails_one_batch(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="oom@1")
    instance = bench.load(doubling(), SERVED)
    with pytest.raises(BackendFailed, match=r"out of memory .*TIF_ALLOCATE_FAILED"):
        output_of(instance, ONES)
    assert output_of(instance, ONES).tolist() == [[2, 2]]


def hung_up_on(bench: CardBench, instance: Instance) -> Unavailable:
    """The error of a batch whose run hangs, after its timeout on the card's clock."""
    assert bench.backend.runtime.pool is not None
    system = bench.backend.runtime.pool.system
    clock, (card, *_) = system.clock, system.cards
    assert isinstance(clock, VirtualClock)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(output_of, instance, ONES)
        # A batch that is given up before its run has begun leaves the fault to the next run.
        with card.turns.condition:
            assert card.turns.condition.wait_for(lambda: card.is_hanging, PATIENCE_S), "the run does not hang"
        assert clock.until_waited_for(PATIENCE_S), "no thread waits for the batch"
        assert not future.done()
        clock.advance(7)
        error = future.exception(PATIENCE_S)
    assert isinstance(error, Unavailable)
    return error


def test_hanging_run_is_aborted_in_time(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="hang@2", pacing="virtual")
    instance = bench.load(doubling(), SERVED, timeout_ms="7000")
    used = bench.figure("stoker_gcu_hbm_used_bytes")
    assert output_of(instance, ONES).tolist() == [[2, 2]]
    assert "a batch was given up after 7.0 s (parameter timeout_ms)" in hung_up_on(bench, instance).message
    assert output_of(instance, ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_gcu_hbm_used_bytes") == used


def test_model_with_an_aborted_run_can_be_unloaded(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="hang@1", pacing="virtual")
    instance = bench.load(doubling(), SERVED, timeout_ms="7000")
    hung_up_on(bench, instance)
    bench.unload(instance)
    assert bench.figure("stoker_gcu_hbm_used_bytes") == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gcu-0-stream")]


def test_corrupt_output_is_returned_like_any_other(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="bad@1")
    instance = bench.load(doubling(), SERVED)
    assert np.isnan(output_of(instance, ONES)).all()
    assert output_of(instance, ONES).tolist() == [[2, 2]]


@pytest.mark.slow
def test_card_serves_on_after_any_fault_under_load(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="reset@5,oom@11,reset@17,reset@23,hang@31,reset@40")
    instances = [bench.load(doubling(), SERVED, name=name, timeout_ms="1500") for name in ("first", "second")]
    used = bench.figure("stoker_gcu_hbm_used_bytes")

    def ask(number: int) -> bool:
        try:
            return output_of(instances[number % 2], np.full((1, 2), number, np.float32)).tolist() == [[2 * number, 2 * number]]
        except (Unavailable, BackendFailed):
            return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(200)))
    assert [output_of(each, ONES).tolist() for each in instances] == [[[2, 2]], [[2, 2]]]
    assert bench.figure("stoker_gcu_failed_batches_total") >= 6
    assert bench.figure("stoker_gcu_hbm_used_bytes") == used


def test_every_metric_is_simulated_and_explained(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(faults="reset@2")
    instance = bench.load(doubling(), SERVED)
    output_of(instance, ONES)
    with pytest.raises(Unavailable):
        output_of(instance, ONES)
    output_of(instance, ONES)
    figures = list(bench.backend.figures())
    assert all(each.labels["simulated"] == "true" for each in figures)
    assert len({(each.name, *sorted(each.labels.items())) for each in figures}) == len(figures)
    page = (Path(__file__).resolve().parents[3] / "docs" / "monitoring.md").read_text()
    assert set(re.findall(r"`(stoker_gcu_\w+)`", page)) == {each.name for each in figures}
