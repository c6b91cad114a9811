"""Triton's optional times: summaries over the last minute, the time to the first response, and sums that may be left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.settings import MetricsSettings
from stoker.server.observability.statistics import SLOT_NS, SLOTS, RollingQuantiles

MINUTE_NS = SLOTS * SLOT_NS


def observed(metrics: Metrics, *request_us: int) -> None:
    recorder = metrics.version("m", 1, {})
    times_ns = [each * 1000 for each in request_us]
    recorder.succeeded(rows=[1] * len(times_ns), request_ns=times_ns, queue_ns=times_ns, input_ns=2_000, infer_ns=50_000, output_ns=3_000)


def lines_of(metrics: Metrics, word: str) -> list[str]:
    return [line for line in metrics.render().decode().splitlines() if word in line and not line.startswith("#")]


@given(st.lists(st.integers(1_000, 9 * 10**11), min_size=1, max_size=200), st.floats(0, 1))
def test_quantile_is_exact_within_five_percent(values_ns: list[int], rank: float) -> None:
    quantiles = RollingQuantiles()
    quantiles.current(0).observe_all(values_ns)
    (found,) = quantiles.quantiles_ns([rank], 0)
    assert found is not None
    at_most = sum(value <= found for value in values_ns)
    assert at_most >= max(1, rank * len(values_ns))
    below = sum(value <= found / 1.051 for value in values_ns)
    assert below < max(1, rank * len(values_ns))


def test_values_older_than_a_minute_are_dropped_slot_by_slot() -> None:
    quantiles = RollingQuantiles()
    quantiles.current(0).observe(5_000_000)
    quantiles.current(SLOT_NS).observe(1_000_000)
    (both,) = quantiles.quantiles_ns([1.0], MINUTE_NS - 1)
    (later,) = quantiles.quantiles_ns([1.0], MINUTE_NS)
    assert both is not None
    assert later is not None
    assert both >= 5_000_000 > later >= 1_000_000
    assert quantiles.quantiles_ns([0.5, 1.0], MINUTE_NS + SLOT_NS) == [None, None]
    quantiles.current(MINUTE_NS).observe(7_000_000)
    assert quantiles.current(MINUTE_NS).count == 1


def test_summaries_have_tritons_format() -> None:
    clock = FakeClock()
    metrics = Metrics(clock, settings=MetricsSettings(summary_latencies=True, summary_quantiles=(0.5, 0.999)))
    observed(metrics, 100, 200, 10_000)
    names = [f"nv_inference_{kind}_summary_us" for kind in ("request", "queue", "compute_input", "compute_infer", "compute_output")]
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    assert [families[name].type for name in names] == ["summary"] * 5
    half, most, total, count = lines_of(metrics, "nv_inference_request_summary_us")
    assert half.startswith('nv_inference_request_summary_us{model="m",quantile="0.5",version="1"} ')
    assert 200 <= int(half.split()[-1]) <= 210
    assert most.startswith('nv_inference_request_summary_us{model="m",quantile="0.999",version="1"} ')
    assert 10_000 <= int(most.split()[-1]) <= 10_500
    assert total == 'nv_inference_request_summary_us_sum{model="m",version="1"} 10300'
    assert count == 'nv_inference_request_summary_us_count{model="m",version="1"} 3'
    clock.advance(61)
    assert [line.split()[-1] for line in lines_of(metrics, "nv_inference_request_summary_us")] == ["NaN", "NaN", "10300", "3"]


def test_time_to_the_first_response_is_that_of_decoupled_models() -> None:
    metrics = Metrics(FakeClock(), settings=MetricsSettings(histogram_latencies=True))
    observed(metrics, 100)
    responses = metrics.version("rep", 1, {}).responses
    responses.completed(0, 600_000_000)
    responses.completed(1, 1)
    assert lines_of(metrics, "nv_inference_first_response_histogram_ms") == [
        f"nv_inference_first_response_histogram_ms_{end}"
        for end in (
            'bucket{le="100",model="rep",version="1"} 0',
            'bucket{le="500",model="rep",version="1"} 0',
            'bucket{le="2000",model="rep",version="1"} 1',
            'bucket{le="5000",model="rep",version="1"} 1',
            'bucket{le="+Inf",model="rep",version="1"} 1',
            'sum{model="rep",version="1"} 600',
            'count{model="rep",version="1"} 1',
        )
    ]


@pytest.mark.parametrize("shown", [True, False])
def test_sums_of_times_may_be_omitted(shown: bool) -> None:
    metrics = Metrics(FakeClock(), settings=MetricsSettings(counter_latencies=shown))
    observed(metrics, 100)
    assert len(lines_of(metrics, "_duration_us{")) == (5 if shown else 0)
    assert lines_of(metrics, "nv_inference_request_success") == ['nv_inference_request_success{model="m",version="1"} 1']
    assert not lines_of(metrics, "_summary_us")
    assert not lines_of(metrics, "_histogram_ms")
