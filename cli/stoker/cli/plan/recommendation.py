"""The recommendation: a plan in a few plain sentences."""

from collections.abc import Iterator, Sequence

from stoker.cli.plan.figures import Figure, Origin, number, with_bar
from stoker.cli.plan.load_plan import best_counts
from stoker.cli.plan.model import CardCount, Combination, LoadPlan, Plan
from stoker.compiler.porting import Support

#: Devices that the sentences on a load name.
_MOST_DEVICES = 5


def recommendation(plan: Plan) -> Sequence[str]:
    """Returns the sentences, the most important first."""
    return tuple(_sentences(plan))


def _sentences(plan: Plan) -> Iterator[str]:
    if plan.load is not None:
        yield from _load_sentences(plan, plan.load)
    fitting = [each for each in plan.combinations if each.fits and each.throughput is not None and each.latency is not None]
    accurate = [each for each in fitting if plan.is_accurate(each)]
    if not accurate:
        yield f"No device runs {plan.model.name} in the requested precisions and batch sizes{' with accurate outputs' if fitting else ''}."
    for origin in Origin:
        ways = [each for each in accurate if each.throughput is not None and each.throughput.origin is origin]
        if ways:
            best = max(ways, key=_rows_per_device)
            yield f"The most rows per {best.unit}: {_figures(best)}."
            quickest = min(ways, key=lambda each: each.latency.value if each.latency else 0.0)
            if quickest is not best:
                yield f"The shortest call: {_figures(quickest)}."
    for each in plan.accuracy:
        if each.failures:
            yield f"Not recommended: {each.precision} on {each.target}, because {each.failures[0]}."
    for porting in plan.porting:
        if porting.ports is False:
            reasons = [f"{each.operator} ({each.reason})" for each in porting.operators if each.support == Support.IMPOSSIBLE.value]
            yield f"The model does not port to {porting.target}: {(porting.problem or '; '.join(reasons[:3])).rstrip('.')}."


def _load_sentences(plan: Plan, load: LoadPlan) -> Iterator[str]:
    best = best_counts(plan, load.counts)
    info = load.load
    rows = f" of {info.rows} rows" if info.rows > 1 else ""
    what = f"{number(info.rate_per_s)} requests/s{rows}" if info.arrivals == "poisson" else "the recorded arrivals"
    goal = f"a p99 of at most {number(info.p99_goal_s * 1e3)} ms"
    for count in best[:_MOST_DEVICES]:
        yield _carrying(plan.combinations[count.combination], count, what)
    if not best:
        reasons = dict.fromkeys(f"{each.label}: {each.problem}" for each in load.counts if each.problem)
        yield f"No combination carries {what} with {goal}. {'. '.join(list(reasons)[:3])}."
    missing = dict.fromkeys(each.device for each in plan.combinations if each.fits and each.device not in _devices(plan, best))
    if best and missing:
        yield f"Not with {goal}: {'; '.join(missing)}."


def _devices(plan: Plan, counts: Sequence[CardCount]) -> frozenset[str]:
    return frozenset(plan.combinations[each.combination].device for each in counts)


def _carrying(combination: Combination, count: CardCount, what: str) -> str:
    assert count.p99 is not None
    p99 = count.p99.scaled(1e3)
    bar = f"{number(p99.value)} ms" if p99.low is None or p99.high is None else f"{number(p99.low)}-{number(p99.high)} ms"
    sure = "" if not count.problem else f", but {count.problem}"
    plural = "" if count.used == 1 else "s"
    unit = {"card": f" {combination.device}", "host": f" host{plural} like this one ({combination.device})"}
    devices = unit.get(combination.unit, f" {combination.device} {combination.unit}{plural}")
    times = "median" if p99.origin is Origin.MEASURED else "modelled"
    fewer = count.devices is not None and count.devices.value < count.used
    even = f"; for the {times} times {count.devices.value:.0f} would do" if fewer and count.devices else ""
    return (
        f"{count.used}{devices} in {combination.precision} at batch {combination.batch} "
        f"carr{'ies' if count.used == 1 else 'y'} {what} with a p99 of {bar}, "
        f"{_headroom(count)} ({p99.origin}){sure}{even}."
    )


def _headroom(count: CardCount) -> str:
    """Returns the share of the time, and of the throughput: small batches keep a device busy below its highest throughput."""
    busy = f"busy for {count.utilisation.value:.0%} of the time" if count.utilisation else ""
    return busy if count.capacity_share is None else f"{busy}, at {count.capacity_share:.0%} of the throughput of full batches"


def _rows_per_device(combination: Combination) -> float:
    return combination.throughput.value / combination.count if combination.throughput else 0.0


def _figures(combination: Combination) -> str:
    assert combination.throughput is not None
    assert combination.latency is not None
    throughput: Figure = combination.throughput
    latency = combination.latency.scaled(1e3)
    return f"{combination.label}, with {with_bar(throughput)} rows/s and {with_bar(latency)} ms for a batch ({throughput.origin})"
