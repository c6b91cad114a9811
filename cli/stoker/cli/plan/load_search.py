"""Search by simulation: the smallest number of cards for a load and a p99 goal."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stoker.cli.plan.load import (
    LEAST_RATE_PER_S,
    MOST_INSTANCES,
    MOST_RATE_PER_S,
    MOST_ROWS,
    MOST_TIME_S,
    Batching,
    OpenArrivals,
    ServiceTimes,
    poisson,
    within,
)
from stoker.cli.plan.load_simulation import DEFAULT_REQUESTS, LoadFigures, simulate

#: Most cards that `smallest_cards` tries.
MOST_CARDS = 256


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The goal cannot be reached.

    Attributes:
        reason: Why, as a clause for users.
    """

    reason: str


def capacity_per_s(service: ServiceTimes, batching: Batching, rows: int = 1) -> float:
    """Returns the most requests of `rows` rows per second: what the instances complete in full batches, and the host sends."""
    most = batching.max_batch_size // rows if batching.is_dynamic else 1
    device_per_s = max(service.calls_per_s(service.size_for(count * rows)) * count for count in range(1, most + 1))
    return min(device_per_s, 1 / service.host_s) if service.host_s else device_per_s


def smallest_cards(
    service: ServiceTimes,
    batching: Batching,
    rate_per_s: float,
    p99_goal_s: float,
    *,
    rows: int = 1,
    seed: int = 0,
    requests: int = DEFAULT_REQUESTS,
    most_cards: int = MOST_CARDS,
    units: str = "cards",
) -> int | Unreachable:
    """Finds how many cards serve Poisson arrivals so that p99 is at most the goal and no request is rejected.

    One server has all cards and one queue. More cards are assumed to be no slower, so the search doubles their number and then bisects.

    Args:
        service: The times of one card; `instances` are those of one card.
        batching: The batching of the model.
        rate_per_s: Mean requests per second, of all cards together.
        p99_goal_s: The goal, seconds.
        rows: Rows of each request.
        seed: Seed of the arrivals.
        requests: Requests of each simulation.
        most_cards: Most cards to try.
        units: What reasons call the cards.

    Raises:
        ValueError: an argument is out of range.
    """
    within("rate_per_s", rate_per_s, LEAST_RATE_PER_S, MOST_RATE_PER_S)
    within("most_cards", most_cards, 1, MOST_CARDS)
    _check_goal(batching, rows, p99_goal_s)
    most_cards = min(most_cards, MOST_INSTANCES // service.instances)
    least_s = _least_latency_s(service, rows)
    if least_s > p99_goal_s:
        return Unreachable(f"one request takes {_ms(least_s)} on an idle device, more than the goal of {_ms(p99_goal_s)}")
    if rate_per_s * service.host_s >= 1:
        return Unreachable(f"the host sends at most {1 / service.host_s:,.0f} responses/s")
    # At exactly their throughput the queue grows without bound.
    fewest = math.floor(rate_per_s / capacity_per_s(replace(service, host_s=0.0), batching, rows)) + 1
    if fewest > most_cards:
        return Unreachable(f"the load needs {fewest} {units} for its throughput alone, more than {most_cards}")

    def run(cards: int) -> LoadFigures:
        all_cards = replace(service, instances=cards * service.instances)
        return simulate(all_cards, batching, poisson(rate_per_s, rows, seed), requests=requests)

    return _fewest(run, fewest, most_cards, p99_goal_s, units)


def simulate_recording(service: ServiceTimes, batching: Batching, arrivals: OpenArrivals) -> LoadFigures:
    """Simulates recorded arrivals as a whole: every request counts, because a peak may be at the beginning.

    Raises:
        ValueError: as `simulate`.
    """
    return simulate(service, batching, arrivals, requests=arrivals.count, warm_up=0.0)


def smallest_cards_for(
    service: ServiceTimes,
    batching: Batching,
    arrivals: OpenArrivals,
    p99_goal_s: float,
    *,
    most_cards: int = MOST_CARDS,
    units: str = "cards",
) -> int | Unreachable:
    """Finds how many cards serve recorded arrivals so that p99 is at most the goal and no request is rejected; see `smallest_cards`.

    Raises:
        ValueError: an argument is out of range.
    """
    within("most_cards", most_cards, 1, MOST_CARDS)
    _check_goal(batching, arrivals.most_rows, p99_goal_s)

    def run(cards: int) -> LoadFigures:
        return simulate_recording(replace(service, instances=cards * service.instances), batching, arrivals)

    return _fewest(run, 1, min(most_cards, MOST_INSTANCES // service.instances), p99_goal_s, units)


def _fewest(run: Callable[[int], LoadFigures], fewest: int, most_cards: int, p99_goal_s: float, units: str) -> int | Unreachable:
    """Returns the smallest number of cards from `fewest` on for which `run` meets the goal: doubles it, then bisects."""
    fails, meets = fewest - 1, fewest
    while not _meets(figures := run(meets), p99_goal_s):
        if meets == most_cards:
            rejected = f" and {figures.rejected} of {figures.requests + figures.rejected} requests rejected" if figures.rejected else ""
            return Unreachable(f"{meets} {units} have a p99 of {_ms(figures.p99_s)}{rejected}; the goal is {_ms(p99_goal_s)}")
        fails, meets = meets, min(2 * meets, most_cards)
    while meets - fails > 1:
        middle = (fails + meets) // 2
        if _meets(run(middle), p99_goal_s):
            meets = middle
        else:
            fails = middle
    return meets


def _check_goal(batching: Batching, rows: int, p99_goal_s: float) -> None:
    within("p99_goal_s", p99_goal_s, 1e-9, MOST_TIME_S)
    within("rows", rows, 1, min(batching.max_batch_size, MOST_ROWS))


def _meets(figures: LoadFigures, p99_goal_s: float) -> bool:
    return figures.p99_s <= p99_goal_s and not figures.rejected


def _least_latency_s(service: ServiceTimes, rows: int) -> float:
    return min(service.latency_s[size] for size in service.batch_sizes if size >= rows) + service.request_overhead_s + service.host_s


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
