"""The batches in flight with which a plan simulates each target."""

import pytest

from stoker.cli.plan.figures import modelled
from stoker.cli.plan.load import Batching, ServiceTimes, poisson
from stoker.cli.plan.load_plan import REQUESTS, plan_load
from stoker.cli.plan.load_simulation import simulate
from stoker.cli.plan.model import Combination, Plan, SourceInfo
from stoker.cli.plan.request import Load

LATENCY_S, PERIOD_S = 0.010, 0.004


@pytest.mark.slow
@pytest.mark.parametrize(("target", "depth"), [("ipu", 3), ("gcu", 2), ("cpu", 1)])
def test_plan_keeps_as_many_batches_in_flight_as_the_server_does(target: str, depth: int) -> None:
    combination = Combination(
        target=target,
        device="a device",
        unit="card",
        count=1,
        precision="fp16",
        batch=1,
        fits=True,
        latency=modelled(LATENCY_S, None),
        period=modelled(PERIOD_S, None),
    )
    source = SourceInfo(name="m", opset=18, nodes=1, parameter_bytes=4, inputs=(), outputs=())
    plan = Plan(model=source, targets=[target], porting=(), accuracy=(), combinations=[combination])
    arrivals = poisson(80)
    found = plan_load(plan, Load(arrivals=arrivals, kind="poisson", p99_goal_s=1.0), {target: False}, lambda _: None)

    service = ServiceTimes((1,), {1: LATENCY_S}, {1: PERIOD_S}, pipeline_depth=depth)
    [count] = found.counts
    assert count.used == 1
    assert count.p99 is not None
    assert count.p99.value == pytest.approx(simulate(service, Batching(1), arrivals, requests=REQUESTS).p99_s)
