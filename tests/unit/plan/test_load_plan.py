"""The number of devices for a load, for the combinations of a plan."""

import pytest

from stoker.cli.plan.figures import Figure, Origin
from stoker.cli.plan.load import poisson, recorded
from stoker.cli.plan.load_plan import REQUESTS, best_counts, plan_load
from stoker.cli.plan.model import CardCount, Combination, Plan, SourceInfo
from stoker.cli.plan.request import Load


def _plan(latency_s: float) -> Plan:
    time = Figure(value=latency_s, low=latency_s, high=latency_s, origin=Origin.SIMULATED)
    way = Combination(target="gcu", device="i20", unit="card", count=1, precision="fp32", batch=1, fits=True, latency=time, period=time)
    source = SourceInfo(name="m", nodes=1, parameter_bytes=0, opset=20, inputs=(), outputs=())
    return Plan(model=source, targets=("gcu",), porting=(), accuracy=(), combinations=[way])


@pytest.mark.slow
def test_peak_at_the_end_of_a_long_recording_decides_the_number_of_devices() -> None:
    slow = [at / 10 for at in range(REQUESTS)]
    peak = [slow[-1] + at / 1_000 for at in range(1, 1_001)]
    load = Load(arrivals=recorded([*slow, *peak]), kind="recorded", p99_goal_s=0.05)
    planned = plan_load(_plan(0.01), load, {"gcu": False}, lambda _: None)
    assert planned.load.requests == len(slow) + len(peak)
    devices = planned.counts[0].devices
    assert devices is not None
    assert 9 <= devices.value <= 10, "the peak of 1000 requests/s needs 10 devices of 100 requests/s, less what may wait"


def test_fewest_devices_as_modelled_come_first_of_as_many_at_the_slow_end() -> None:
    plan = _plan(0.01)

    def count(as_modelled: int) -> CardCount:
        devices = Figure(value=as_modelled, low=1, high=25, origin=Origin.SIMULATED)
        return CardCount(combination=0, label=str(as_modelled), devices=devices, used=25)

    assert [each.label for each in best_counts(plan, [count(10), count(3), count(5)])] == ["3"]


def test_time_of_the_host_is_in_every_latency_and_stated() -> None:
    load = Load(arrivals=recorded([0.0, 1.0, 2.0]), kind="recorded", p99_goal_s=0.05, host_s=0.002, request_overhead_s=0.003)
    planned = plan_load(_plan(0.01), load, {"gcu": False}, lambda _: None)
    p99 = planned.counts[0].p99
    assert p99 is not None
    assert p99.value == pytest.approx(0.015)
    assert "2 ms of the event loop, and each request 3 ms" in planned.load.host_text


@pytest.mark.slow
def test_curve_has_the_load_as_a_point_with_the_p99_of_its_devices() -> None:
    load = Load(arrivals=poisson(120.0), kind="poisson", p99_goal_s=0.05)
    planned = plan_load(_plan(0.01), load, {"gcu": False}, lambda _: None)
    [curve], [count] = planned.curves, planned.counts
    rates = [each.rate_per_s for each in curve.points]
    assert rates == sorted(rates)
    assert curve.points[rates.index(120.0)].p99 == count.p99


@pytest.mark.slow
def test_load_of_exactly_the_throughput_of_one_device_takes_two() -> None:
    load = Load(arrivals=poisson(100.0), kind="poisson", p99_goal_s=60.0)
    devices = plan_load(_plan(0.01), load, {"gcu": False}, lambda _: None).counts[0].devices
    assert devices is not None
    assert devices.value == 2
