"""How many devices carry a load: each combination simulated with the server's scheduler, at the modelled times and at both ends of the
error bar.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stoker.backends.gcu.timing import DEFAULT_PIPELINE_DEPTH as GCU_PIPELINE_DEPTH
from stoker.backends.ipu.serving.options import DEFAULT_PIPELINE_DEPTH as IPU_PIPELINE_DEPTH
from stoker.cli.plan.figures import Figure, Origin
from stoker.cli.plan.load import Batching, OpenArrivals, ServiceTimes, poisson
from stoker.cli.plan.load_search import Unreachable, capacity_per_s, simulate_recording, smallest_cards, smallest_cards_for
from stoker.cli.plan.load_simulation import LoadFigures, simulate
from stoker.cli.plan.model import CardCount, Combination, LoadInfo, LoadPlan, Plan, RateCurve, RatePoint
from stoker.cli.plan.request import Load

#: Requests of each simulation of Poisson arrivals: p99 is that of the 36 slowest that count. A recording is simulated as a whole.
REQUESTS = 4_000
#: Most devices of one combination.
MOST_DEVICES = 64
#: Batches of one copy in flight, as `serve` runs them by default, by target; elsewhere one.
_PIPELINE_DEPTHS = {"ipu": IPU_PIPELINE_DEPTH, "gcu": GCU_PIPELINE_DEPTH}
#: Rates of a curve, as shares of the highest rate that the devices carry.
_SHARES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.97)
#: Curves of a plan: the best combination of each device, up to this number.
MOST_CURVES = 5


def plan_load(plan: Plan, load: Load, is_multi_size: Mapping[str, bool], progress: Callable[[str], None]) -> LoadPlan:
    """Returns how many devices carry `load` in each combination that fits.

    Args:
        plan: The combinations.
        load: The load and the goal.
        is_multi_size: By target, whether one compiled model holds several batch sizes.
        progress: Called before each combination.
    """
    arrivals = load.arrivals
    info = LoadInfo(
        arrivals=load.kind,
        rate_per_s=arrivals.rate_per_s,
        rows=arrivals.most_rows,
        p99_goal_s=load.p99_goal_s,
        requests=arrivals.count or REQUESTS,
        host_s=load.host_s,
        request_overhead_s=load.request_overhead_s,
    )
    counts = []
    for at, each in enumerate(plan.combinations):
        if each.fits and each.latency is not None and each.takes_no_more_than_needed(plan.combinations):
            progress(f"load: {each.label}")
            counts.append(_count(plan, at, load, info, is_multi_size=is_multi_size[each.target]))
    curves = []
    for count in best_counts(plan, counts)[:MOST_CURVES]:
        progress(f"load: p99 over the rate, {count.label}")
        curves.append(_curve(plan, count, info, is_multi_size=is_multi_size[plan.combinations[count.combination].target]))
    return LoadPlan(load=info, counts=counts, curves=curves)


def best_counts(plan: Plan, counts: Sequence[CardCount]) -> list[CardCount]:
    """Returns for each device the combination that carries the load with the fewest devices; those with the fewest devices first.

    Combinations whose outputs differ too much from the source model's are left out.
    """
    best: dict[str, CardCount] = {}
    rank = partial(_rank, plan)
    for count in counts:
        combination = plan.combinations[count.combination]
        if count.devices is None or not plan.is_accurate(combination):
            continue
        present = best.get(combination.device)
        if present is None or rank(count) < rank(present):
            best[combination.device] = count
    return sorted(best.values(), key=rank)


def _rank(plan: Plan, count: CardCount) -> tuple[bool, int, float, float, float]:
    """Returns what is compared, the smaller the better: of as few devices, those of which fewest do as modelled; then accuracy and p99."""
    combination = plan.combinations[count.combination]
    accuracy = plan.accuracy_of(combination.target, combination.precision)
    snr_db = accuracy.snr_db if accuracy and accuracy.snr_db is not None else 0.0
    is_unsure = count.devices is None or count.devices.high is None
    as_modelled = count.devices.value if count.devices else 0.0
    return is_unsure, count.used, as_modelled, -snr_db, count.p99.value if count.p99 else 0.0


class _Service:
    """One combination as the simulation sees it."""

    def __init__(self, plan: Plan, at: int, info: LoadInfo, *, is_multi_size: bool) -> None:
        own = plan.combinations[at]
        self.own = own
        self._info = info
        self._sizes = [
            each
            for each in plan.combinations
            if each is own
            or (
                is_multi_size
                and each.fits
                and each.latency is not None
                and each.batch < own.batch
                and (each.target, each.device, each.count, each.precision) == (own.target, own.device, own.count, own.precision)
            )
        ]
        self.batching = Batching(own.batch)
        self._pipeline_depth = _PIPELINE_DEPTHS.get(own.target, 1)
        self.origin = own.latency.origin if own.latency else Origin.SIMULATED

    def times(self, end: str, copies: int = 1) -> ServiceTimes:
        """Returns the times of `copies` copies at one `end` of the error bar: `low`, `value` or `high`."""
        ordered = sorted(self._sizes, key=lambda each: each.batch)
        latency_s = {each.batch: _at(each.latency, end) for each in ordered}
        period_s = {each.batch: min(_at(each.period, end), latency_s[each.batch]) for each in ordered}
        return ServiceTimes(
            tuple(latency_s),
            latency_s,
            period_s,
            pipeline_depth=self._pipeline_depth,
            instances=copies,
            request_overhead_s=self._info.request_overhead_s,
            host_s=self._info.host_s,
        )


def _at(figure: Figure | None, end: str) -> float:
    assert figure is not None
    value: float | None = getattr(figure, end)
    return figure.value if value is None else value


def _count(plan: Plan, at: int, load: Load, info: LoadInfo, *, is_multi_size: bool) -> CardCount:
    service = _Service(plan, at, info, is_multi_size=is_multi_size)
    own, label = service.own, service.own.label
    if load.arrivals.most_rows > own.batch:
        return CardCount(combination=at, label=label, problem=f"a request has {load.arrivals.most_rows} rows, more than the batch")
    found = {end: _fewest(service, end, load) for end in ("low", "value", "high")}
    copies = found["value"]
    if isinstance(copies, Unreachable):
        fast = found["low"]
        unless = "" if isinstance(fast, Unreachable) else f"; enough at the fast end of the error bar: {fast} {_units(own)}"
        return CardCount(combination=at, label=label, problem=copies.reason + unless)
    slow = found["high"]
    used = copies if isinstance(slow, Unreachable) else slow
    figures = [_simulated(service, end, used, load.arrivals) for end in ("low", "value", "high")]
    modelled, low = figures[1], found["low"]
    assert modelled is not None  # the modelled times meet the goal
    return CardCount(
        combination=at,
        label=label,
        devices=Figure(
            value=copies * own.count,
            low=None if isinstance(low, Unreachable) else low * own.count,
            high=None if isinstance(slow, Unreachable) else slow * own.count,
            origin=service.origin,
        ),
        used=used * own.count,
        p50=_figure([None if each is None else each.p50_s for each in figures], service.origin),
        p99=_figure([None if each is None else each.p99_s for each in figures], service.origin),
        utilisation=_figure([each.utilisation if each else 1.0 for each in figures], service.origin),
        capacity_share=_capacity_share(service, used, load.arrivals),
        mean_batch_rows=modelled.mean_batch_rows,
        problem=f"not at the slow end of the error bar: {slow.reason}" if isinstance(slow, Unreachable) else "",
    )


def _capacity_share(service: _Service, copies: int, arrivals: OpenArrivals) -> float | None:
    """Returns the load as a share of what the devices complete in full batches; None for recorded arrivals, whose rate varies."""
    if arrivals.count is not None:
        return None
    return arrivals.rate_per_s / capacity_per_s(service.times("value", copies), service.batching, arrivals.most_rows)


def _figure(ends: Sequence[float | None], origin: Origin) -> Figure:
    """Returns a figure from its lower end, value and upper end. REQUIRES: there is a value."""
    low, value, high = ends
    assert value is not None
    return Figure(value=value, low=low, high=high, origin=origin)


def _units(combination: Combination) -> str:
    """Returns what a copy of the model takes, in the plural: `cards`, `copies of 4 IPUs`."""
    return f"{combination.unit}s" if combination.count == 1 else f"copies of {combination.count} {combination.unit}s"


def _fewest(service: _Service, end: str, load: Load) -> int | Unreachable:
    times, most = service.times(end), max(1, MOST_DEVICES // service.own.count)
    if load.kind == "poisson":
        return smallest_cards(
            times,
            service.batching,
            load.arrivals.rate_per_s,
            load.p99_goal_s,
            rows=load.arrivals.most_rows,
            requests=REQUESTS,
            most_cards=most,
            units=_units(service.own),
        )
    return smallest_cards_for(times, service.batching, load.arrivals, load.p99_goal_s, most_cards=most, units=_units(service.own))


def _simulated(service: _Service, end: str, copies: int, arrivals: OpenArrivals) -> LoadFigures | None:
    """Returns the figures; None if the devices are overloaded, so that latencies grow with the length of the simulation."""
    times = service.times(end, copies)
    if arrivals.count is None and arrivals.rate_per_s >= capacity_per_s(times, service.batching, arrivals.most_rows):
        return None
    return (
        simulate_recording(times, service.batching, arrivals)
        if arrivals.count
        else simulate(times, service.batching, arrivals, requests=REQUESTS)
    )


def _curve(plan: Plan, count: CardCount, info: LoadInfo, *, is_multi_size: bool) -> RateCurve:
    service = _Service(plan, count.combination, info, is_multi_size=is_multi_size)
    copies = count.used // service.own.count
    most = capacity_per_s(service.times("value", copies), service.batching, info.rows)
    points = []
    rates = {share * most for share in _SHARES}
    if info.arrivals == "poisson":
        rates.add(info.rate_per_s)  # below `most`, because the devices meet the goal
    for rate_per_s in sorted(rates):
        arrivals = poisson(rate_per_s, info.rows)
        figures = [_simulated(service, end, copies, arrivals) for end in ("low", "value", "high")]
        p99 = _figure([None if each is None else each.p99_s for each in figures], service.origin)
        points.append(RatePoint(rate_per_s=rate_per_s, p99=p99))
    return RateCurve(combination=count.combination, label=count.label, devices=count.used, points=points)
