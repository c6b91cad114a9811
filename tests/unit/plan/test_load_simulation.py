"""The load simulation: cases computed by hand, laws of queueing theory, and bounds."""

import dataclasses
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.plan.load import Batching, ServiceTimes, closed_loop, poisson, recorded
from stoker.cli.plan.load_simulation import LoadFigures, simulate

MS = 1e-3


def device(latency_ms: float = 10, period_ms: float | None = None, **settings: Any) -> ServiceTimes:
    """Compiled for batch 1, 2 and 4, each of which takes as long."""
    sizes = (1, 2, 4)
    period = latency_ms if period_ms is None else period_ms
    return ServiceTimes(sizes, dict.fromkeys(sizes, latency_ms * MS), dict.fromkeys(sizes, period * MS), **settings)


def run(service: ServiceTimes, batching: Batching, *times_ms: float, rows: Any = 1) -> LoadFigures:
    """Requests at these times, without warm-up."""
    return simulate(service, batching, recorded([time * MS for time in times_ms], rows), warm_up=0.0)


def test_requests_that_arrive_together_share_a_batch():
    figures = run(device(), Batching(4), 0, 0, 0)
    assert (figures.mean_s, figures.p99_s) == (10 * MS, 10 * MS)
    assert figures.mean_batch_rows == 3
    assert figures.queue_p99_s == 0


def test_requests_that_arrive_during_a_call_become_the_next_batch():
    figures = run(device(), Batching(4), 0, 1, 2)
    # The first runs alone until 10 ms; the others end at 20 ms, after waits of 9 and 8 ms.
    assert figures.mean_s == pytest.approx((10 + 19 + 18) / 3 * MS)
    assert (figures.p50_s, figures.p99_s) == (pytest.approx(18 * MS), pytest.approx(19 * MS))
    assert figures.queue_p99_s == pytest.approx(9 * MS)
    assert figures.mean_batch_rows == 1.5
    assert figures.rows_per_s == pytest.approx(3 / (20 * MS))
    assert figures.utilisation == pytest.approx(1.0)


def test_batch_runs_at_the_smallest_compiled_size_that_holds_it():
    service = ServiceTimes((1, 2, 4), {1: 1 * MS, 2: 2 * MS, 4: 4 * MS}, {1: 1 * MS, 2: 2 * MS, 4: 4 * MS})
    for rows, latency_ms in ((1, 1), (2, 2), (3, 4), (4, 4)):
        assert run(service, Batching(4), 0, rows=rows).p99_s == pytest.approx(latency_ms * MS)


def test_batch_has_at_most_max_batch_size_rows():
    figures = run(device(), Batching(2), 0, 0, 0)
    assert figures.p50_s == pytest.approx(10 * MS)
    assert figures.p99_s == pytest.approx(20 * MS)
    assert figures.mean_batch_rows == 1.5


def test_model_without_dynamic_batching_runs_each_request_alone():
    figures = run(device(), Batching(4, is_dynamic=False), 0, 0, 0)
    assert (figures.p50_s, figures.p99_s) == (pytest.approx(20 * MS), pytest.approx(30 * MS))
    assert figures.mean_batch_rows == 1


def test_queue_delay_waits_for_a_larger_batch_until_the_oldest_request_is_due():
    figures = run(device(), Batching(4, max_queue_delay_us=3_000), 0, 2, 4)
    # Requests 1 and 2 run from 3 ms on; request 3 is due at 7 ms and waits for the device until 13 ms.
    assert figures.mean_s == pytest.approx((13 + 11 + 19) / 3 * MS)
    assert figures.mean_batch_rows == 1.5


def test_full_batch_does_not_wait_for_the_queue_delay():
    figures = run(device(), Batching(4, max_queue_delay_us=3_000), 0, 0, 0, 0)
    assert figures.p99_s == pytest.approx(10 * MS)


def test_preferred_size_does_not_wait_for_the_queue_delay():
    figures = run(device(), Batching(4, max_queue_delay_us=3_000, preferred_batch_sizes=(2,)), 0, 0)
    assert figures.p99_s == pytest.approx(10 * MS)


def test_device_of_depth_one_begins_a_call_after_the_last_one_ended():
    figures = run(device(10, 4), Batching(1), 0, 0, 0)
    assert (figures.p50_s, figures.p99_s) == (pytest.approx(20 * MS), pytest.approx(30 * MS))


def test_pipeline_begins_a_call_one_period_after_the_last_one():
    figures = run(device(10, 4, pipeline_depth=3), Batching(1), 0, 0, 0)
    # Calls begin at 0, 4 and 8 ms.
    assert figures.mean_s == pytest.approx((10 + 14 + 18) / 3 * MS)
    assert figures.queue_p99_s == 0
    assert figures.utilisation == pytest.approx(12 / 18)


def test_pipeline_takes_at_most_its_depth_of_calls():
    figures = run(device(10, 4, pipeline_depth=2), Batching(1), 0, 0, 0)
    # The third begins when the first has ended.
    assert figures.p99_s == pytest.approx(20 * MS)


def test_short_call_behind_a_long_one_ends_in_order():
    service = ServiceTimes((1, 2), {1: 3 * MS, 2: 20 * MS}, {1: 1 * MS, 2: 5 * MS}, pipeline_depth=2)
    figures = run(service, Batching(2), 0, 1, rows=[2, 1])
    # The second begins at 5 ms, and its result comes with that of the first at 20 ms.
    assert figures.mean_s == pytest.approx((20 + 19) / 2 * MS)


def test_instances_run_at_the_same_time():
    figures = run(device(instances=3), Batching(1), 0, 0, 0, 0)
    assert figures.p50_s == pytest.approx(10 * MS)
    assert figures.p99_s == pytest.approx(20 * MS)
    assert figures.utilisation == pytest.approx(40 / (3 * 20))


def test_request_overhead_adds_to_each_latency_and_takes_no_capacity():
    figures = run(device(request_overhead_s=0.5 * MS), Batching(4), 0, 1)
    assert figures.mean_s == pytest.approx((10.5 + 19.5) / 2 * MS)


def test_host_sends_the_responses_of_a_batch_one_after_the_other():
    figures = run(device(host_s=0.5 * MS), Batching(4), 0, 0, 0)
    assert figures.mean_s == pytest.approx((10.5 + 11 + 11.5) / 3 * MS)
    assert figures.p99_s == pytest.approx(11.5 * MS)


def test_host_that_is_slower_than_the_device_bounds_the_throughput():
    figures = simulate(device(10, host_s=8 * MS), Batching(4), closed_loop(8), requests=1_000)
    assert figures.rows_per_s == pytest.approx(125, rel=0.01)
    assert figures.mean_s == pytest.approx(8 * 8 * MS, rel=0.01)


def test_clients_whose_responses_come_apart_do_not_share_every_batch():
    together = simulate(device(10), Batching(4), closed_loop(4), requests=1_000)
    apart = simulate(device(10, host_s=0.1 * MS), Batching(4), closed_loop(4), requests=1_000)
    # The first response starts a batch of one request, the other three wait for its end.
    assert together.mean_batch_rows == 4
    assert apart.mean_batch_rows == pytest.approx(2, rel=0.01)


def test_full_queue_rejects_requests():
    figures = run(device(), Batching(1, max_queue_size=2), 0, 1, 2, 3, 4)
    # One runs, two wait, two are rejected.
    assert (figures.requests, figures.rejected) == (3, 2)
    assert figures.p99_s == pytest.approx(28 * MS)


def test_queue_of_an_overloaded_model_has_the_servers_bound():
    figures = simulate(device(), Batching(1), poisson(1_000), requests=3_000, warm_up=0.0)
    assert figures.rejected + figures.requests == 3_000
    assert figures.queue_p99_s == pytest.approx(1024 * 10 * MS, rel=0.02)


def test_rejected_client_of_a_closed_loop_sends_again_after_a_pause():
    figures = simulate(device(4), Batching(1, max_queue_size=1), closed_loop(3), duration_s=1.0)
    assert figures.rejected > 0
    assert figures.rows_per_s == pytest.approx(250, rel=0.01)


def test_warm_up_does_not_count():
    times = [0.0] * 5 + [1.0 + at for at in range(15)]
    figures = simulate(device(), Batching(1), recorded(times), warm_up=0.25)
    assert figures.requests == 15
    assert figures.p99_s == pytest.approx(10 * MS)


def test_duration_bounds_the_arrivals():
    figures = simulate(device(), Batching(1), recorded([float(at) for at in range(20)]), duration_s=10.0, warm_up=0.2)
    assert figures.requests == 8


def test_equal_seeds_give_equal_figures_and_other_seeds_others():
    def figures(seed: int) -> LoadFigures:
        return simulate(device(), Batching(4), poisson(150, seed=seed), requests=500)

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_mean_of_an_m_d_1_queue_is_that_of_pollaczek_and_khinchine(load: float) -> None:
    service_s = MS
    service = ServiceTimes((1,), {1: service_s}, {1: service_s})
    means = [simulate(service, Batching(1), poisson(load / service_s, seed=seed), requests=12_000).mean_s for seed in range(5)]
    mean_s = sum(means) / len(means)
    error_s = math.sqrt(sum((each - mean_s) ** 2 for each in means) / (len(means) - 1) / len(means))
    expected_s = service_s + load * service_s / (2 * (1 - load))
    assert abs(mean_s - expected_s) < 4 * error_s
    assert error_s < 0.05 * expected_s


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("clients", [1, 2, 5, 16])
def test_closed_loop_follows_littles_law(clients: int, depth: int) -> None:
    service = device(10, 4, pipeline_depth=depth, request_overhead_s=1 * MS)
    figures = simulate(service, Batching(4), closed_loop(clients, rows=2), requests=2_000)
    assert figures.rows_per_s == pytest.approx(clients * 2 / figures.mean_s, rel=0.01)


def test_closed_loop_on_a_busy_pipeline_waits_for_one_period_per_client():
    figures = simulate(device(10, 4, pipeline_depth=3), Batching(1), closed_loop(8), requests=1_000)
    assert figures.mean_s == figures.p99_s == pytest.approx(8 * 4 * MS)
    assert figures.utilisation == pytest.approx(1.0, rel=0.01)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0, 500, 5_000]),
    st.integers(0, 3),
)
def test_no_request_is_lost_or_faster_than_the_device(
    gaps: list[tuple[int, int]], depth: int, instances: int, delay_us: int, queue_size: int
) -> None:
    service = device(10, 4, pipeline_depth=depth, instances=instances)
    times, now = [], 0.0
    for gap, _ in gaps:
        now += gap * MS
        times.append(now)
    rows = [count for _, count in gaps]
    batching = Batching(4, max_queue_delay_us=delay_us, max_queue_size=queue_size)
    figures = simulate(service, batching, recorded(times, rows), warm_up=0.0)
    assert figures.requests + figures.rejected == len(gaps)
    assert figures.p50_s >= 10 * MS
    assert figures.mean_s >= 10 * MS * (1 - 1e-9)
    assert figures.p50_s <= figures.p90_s <= figures.p99_s
    assert 0 < figures.utilisation <= 1 + 1e-9
    assert 1 <= figures.mean_batch_rows <= 4
    if not queue_size:
        assert figures.rejected == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"batch_sizes": (2, 1)}, r"batch_sizes \[2, 1\]: expected .* ascending"),
        ({"latency_s": {1: 1.0}}, r"latency_s has the batch sizes \[1\], expected .* \[1, 2\]"),
        ({"latency_s": {1: 0.0, 2: 1.0}}, "latency_s of batch size 1 is 0.0, expected"),
        ({"latency_s": {1: 1.0, 2: math.nan}}, "latency_s of batch size 2 is nan, expected"),
        ({"period_s": {1: 1.0, 2: 3.0}}, "period_s of batch size 2 is 3.0 s, expected at most its latency_s, 2.0 s"),
        ({"pipeline_depth": 0}, "pipeline_depth is 0, expected 1 to 64"),
        ({"instances": 2_000}, "instances is 2000, expected 1 to 1,024"),
        ({"request_overhead_s": -1.0}, "request_overhead_s is -1.0"),
        ({"host_s": math.inf}, "host_s is inf"),
    ],
)
def test_service_times_out_of_range_are_rejected(change: dict[str, Any], text: str) -> None:
    service = ServiceTimes((1, 2), {1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0})
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(service, **change)


def test_batching_and_arrivals_out_of_range_are_rejected():
    for make, text in (
        (lambda: Batching(0), "max_batch_size is 0"),
        (lambda: Batching(4, max_queue_delay_us=-1), "max_queue_delay_us is -1"),
        (lambda: Batching(4, preferred_batch_sizes=(8,)), "preferred_batch_sizes is 8, expected 1 to 4"),
        (lambda: poisson(0), "rate_per_s is 0"),
        (lambda: poisson(math.nan), "rate_per_s is nan"),
        (lambda: poisson(1, rows=0), "rows is 0"),
        (lambda: recorded([]), "the number of recorded times is 0"),
        (lambda: recorded([1.0, 0.5]), "recorded time 2 is 0.5 s, before"),
        (lambda: recorded([1.0, math.nan]), "recorded time 2 is nan s"),
        (lambda: recorded([1.0, 2.0], [1]), "1 row counts for 2 recorded times"),
        (lambda: closed_loop(0), "clients is 0"),
    ):
        with pytest.raises(ValueError, match=text):
            make()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"requests": 0}, "requests is 0"),
        ({"duration_s": -1.0}, "duration_s is -1.0"),
        ({"duration_s": 1e6}, "the number of requests, is 100000000.0, expected 0 to 5,000,000"),
        ({"requests": 10, "warm_up": 1.0}, "warm_up is 1.0, expected 0.0 to 0.9"),
        ({"duration_s": 1e-6}, "no request completes after the warm-up"),
    ],
)
def test_bounds_of_a_simulation_are_checked(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        simulate(device(), Batching(4), poisson(100), **settings)


def test_rows_that_no_compiled_batch_holds_are_rejected():
    with pytest.raises(ValueError, match="max_batch_size is 8; the largest compiled batch has 4 rows"):
        simulate(device(), Batching(8), poisson(100))
    with pytest.raises(ValueError, match="a request has 3 rows, more than max_batch_size, 2"):
        simulate(device(), Batching(2), poisson(100, rows=3))


def test_poisson_arrivals_have_the_rate_and_scale_with_it():
    arrivals = [time_ns for (time_ns, _), _ in zip(poisson(1_000, seed=3).times(), range(20_000), strict=False)]
    assert arrivals[-1] / 1e9 == pytest.approx(20.0, rel=0.03)
    half = next(poisson(500, seed=3).times())[0]
    assert half == pytest.approx(2 * arrivals[0], abs=2)
    assert arrivals[0] == round(random.Random(3).expovariate(1.0) * 1e6)
