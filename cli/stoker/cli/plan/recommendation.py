"""The recommendation: a plan in a few plain sentences."""

from collections.abc import Iterator, Sequence

from stoker.cli.plan.figures import Figure, Origin, with_bar
from stoker.cli.plan.model import Combination, Plan
from stoker.compiler.porting import Support


def recommendation(plan: Plan) -> Sequence[str]:
    """Returns the sentences, the most important first."""
    return tuple(_sentences(plan))


def _sentences(plan: Plan) -> Iterator[str]:
    fitting = [each for each in plan.combinations if each.fits and each.throughput is not None and each.latency is not None]
    if not fitting:
        yield f"No device runs {plan.model.name} in the requested precisions and batch sizes."
    for origin in Origin:
        ways = [each for each in fitting if each.throughput is not None and each.throughput.origin is origin]
        if ways:
            best = max(ways, key=_rows_per_device)
            yield f"The most rows per {best.unit}: {_figures(best)}."
            quickest = min(ways, key=lambda each: each.latency.value if each.latency else 0.0)
            if quickest is not best:
                yield f"The shortest call: {_figures(quickest)}."
    for porting in plan.porting:
        if not porting.ports:
            reasons = [f"{each.operator} ({each.reason})" for each in porting.operators if each.support == Support.IMPOSSIBLE.value]
            yield f"The model does not port to {porting.target}: {porting.problem or '; '.join(reasons[:3])}."


def _rows_per_device(combination: Combination) -> float:
    return combination.throughput.value / combination.count if combination.throughput else 0.0


def _figures(combination: Combination) -> str:
    assert combination.throughput is not None
    assert combination.latency is not None
    throughput: Figure = combination.throughput
    latency = combination.latency.scaled(1e3)
    return f"{combination.label}, with {with_bar(throughput)} rows/s and {with_bar(latency)} ms for a batch ({throughput.origin})"
