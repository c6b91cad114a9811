"""The number of cards for a load."""

import dataclasses

import pytest

from stoker.cli.plan.load import Batching, ServiceTimes, poisson, recorded
from stoker.cli.plan.load_search import Unreachable, capacity_per_s, smallest_cards, smallest_cards_for
from stoker.cli.plan.load_simulation import simulate

MS = 1e-3
ONE = ServiceTimes((1,), {1: 10 * MS}, {1: 10 * MS})
BATCHED = ServiceTimes((1, 4), {1: 5 * MS, 4: 8 * MS}, {1: 3 * MS, 4: 4 * MS}, pipeline_depth=3)
FEW = 3_000


def test_capacity_is_that_of_the_best_batch():
    assert capacity_per_s(ONE, Batching(1)) == pytest.approx(100)
    assert capacity_per_s(BATCHED, Batching(4)) == pytest.approx(1_000)
    assert capacity_per_s(BATCHED, Batching(4), rows=3) == pytest.approx(250)
    assert capacity_per_s(BATCHED, Batching(4, is_dynamic=False)) == pytest.approx(1_000 / 3)
    assert capacity_per_s(ServiceTimes((1,), {1: 10 * MS}, {1: 1 * MS}, pipeline_depth=2, instances=3), Batching(1)) == pytest.approx(600)


@pytest.mark.slow
def test_smallest_number_of_cards_meets_the_goal_and_one_less_does_not():
    cards = smallest_cards(ONE, Batching(1), 420, 25 * MS, requests=FEW)
    assert isinstance(cards, int)

    def p99_s(instances: int) -> float:
        service = ServiceTimes((1,), ONE.latency_s, ONE.period_s, instances=instances)
        return simulate(service, Batching(1), poisson(420), requests=FEW).p99_s

    assert p99_s(cards) <= 25 * MS < p99_s(cards - 1)


def test_one_card_suffices_for_a_low_rate():
    assert smallest_cards(ONE, Batching(1), 0.1, 11 * MS, requests=FEW) == 1


def test_goal_below_the_latency_of_a_request_is_unreachable():
    text = "one request takes 10 ms on an idle device, more than the goal of 9 ms"
    assert smallest_cards(ONE, Batching(1), 1, 9 * MS) == Unreachable(text)


def test_latency_just_above_the_goal_has_enough_digits():
    quick = ServiceTimes((1,), {1: 0.0000153}, {1: 0.0000153})
    text = "one request takes 0.0153 ms on an idle device, more than the goal of 0.0152 ms"
    assert smallest_cards(quick, Batching(1), 1, 0.0000152) == Unreachable(text)


def test_reason_names_the_units():
    found = smallest_cards(ONE, Batching(1), 1_000, 1.0, most_cards=4, units="copies of 2 IPUs")
    assert found == Unreachable("the load needs 11 copies of 2 IPUs for its throughput alone, more than 4")


def test_rate_that_the_host_cannot_send_is_unreachable_with_any_cards():
    busy = dataclasses.replace(ONE, host_s=2 * MS)
    assert smallest_cards(busy, Batching(1), 600, 1.0) == Unreachable("the host sends at most 500 responses/s")
    assert capacity_per_s(dataclasses.replace(busy, instances=9), Batching(1)) == pytest.approx(500)


def test_load_beyond_the_bound_of_cards_is_unreachable():
    found = smallest_cards(ONE, Batching(1), 1_000, 1.0, most_cards=4)
    assert found == Unreachable("the load needs 11 cards for its throughput alone, more than 4")


@pytest.mark.slow
def test_goal_that_the_bound_of_cards_misses_is_unreachable():
    found = smallest_cards(ONE, Batching(1), 395, 10.5 * MS, requests=FEW, most_cards=5)
    assert isinstance(found, Unreachable)
    assert found.reason.startswith("5 cards have a p99 of ")
    assert found.reason.endswith("; the goal is 10.5 ms")


@pytest.mark.parametrize("begins_with_peak", [False, True])
def test_peak_of_a_recording_decides_the_number_of_cards(begins_with_peak):
    peak = [at / 1_000 for at in range(500)]
    slow = [at / 10 for at in range(1, 2_001)]
    times_s = [*peak, *(0.5 + at for at in slow)] if begins_with_peak else [*slow, *(slow[-1] + 0.1 + at for at in peak)]
    found = smallest_cards_for(ONE, Batching(1), recorded(times_s), 50 * MS)
    assert isinstance(found, int)
    assert 9 <= found <= 10, "the peak of 1000 requests/s needs 10 cards of 100 requests/s, less what may wait"


def test_arguments_out_of_range_are_rejected():
    with pytest.raises(ValueError, match="rate_per_s is 0"):
        smallest_cards(ONE, Batching(1), 0, 1.0)
    with pytest.raises(ValueError, match="p99_goal_s is 0"):
        smallest_cards(ONE, Batching(1), 1, 0)
    with pytest.raises(ValueError, match="rows is 2, expected 1 to 1"):
        smallest_cards(ONE, Batching(1), 1, 1.0, rows=2)
    with pytest.raises(ValueError, match="most_cards is 0"):
        smallest_cards(ONE, Batching(1), 1, 1.0, most_cards=0)
