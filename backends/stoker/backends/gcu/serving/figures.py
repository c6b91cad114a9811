"""What the metrics page shows of the simulated cards. Every figure carries `simulated="true"`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from stoker.backends.api.figures import Figure
from stoker.backends.gcu.runtime import CardFigures, CopyFigures, Direction
from stoker.backends.gcu.serving.device_pool import DevicePool

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class _CardFigure:
    name: str
    kind: Kind
    help: str
    read: Callable[[CardFigures], float]


@dataclass(frozen=True, slots=True)
class _CopyFigure:
    name: str
    help: str
    read: Callable[[CopyFigures], float]


_CARD = (
    _CardFigure("stoker_gcu_hbm_bytes", "gauge", "Device memory of the card.", lambda card: card.hbm_bytes),
    _CardFigure("stoker_gcu_hbm_used_bytes", "gauge", "Device memory in use: engines and buffers.", lambda card: card.hbm_used_bytes),
    _CardFigure("stoker_gcu_hbm_peak_bytes", "gauge", "Most device memory in use at a time.", lambda card: card.hbm_peak_bytes),
    _CardFigure("stoker_gcu_streams", "gauge", "Streams that exist.", lambda card: card.streams),
    _CardFigure("stoker_gcu_samples_total", "counter", "Samples that were run, without padding.", lambda card: card.samples),
    _CardFigure(
        "stoker_gcu_padded_samples_total",
        "counter",
        "Samples of zeros that filled compiled batches up.",
        lambda card: card.padded_samples,
    ),
    _CardFigure(
        "stoker_gcu_slow_runs_total",
        "counter",
        "Runs that this host computed slower than the card would have.",
        lambda card: card.slow_runs,
    ),
    _CardFigure(
        "stoker_gcu_stream_wait_seconds_total",
        "counter",
        "Time that batches waited for their streams, on the card's clock.",
        lambda card: card.stream_wait_s,
    ),
)
_COPY = (
    _CopyFigure("stoker_gcu_copies_total", "Copies between host and card.", lambda copy: copy.copies),
    _CopyFigure("stoker_gcu_copy_bytes_total", "Bytes of these copies.", lambda copy: copy.size_bytes),
    _CopyFigure("stoker_gcu_copy_seconds_total", "Modelled time that they took the link.", lambda copy: copy.busy_s),
)


def pool_metrics(pool: DevicePool) -> Iterator[Figure]:
    """Everything, grouped by name."""
    cards = {card.id: card.figures for card in pool.system.cards}
    yield Figure(
        name="stoker_gcu_cards", help="Simulated cards of the server.", kind="gauge", value=len(cards), labels={"simulated": "true"}
    )
    for each in _CARD:
        for number, figures in cards.items():
            yield _figure(each.name, each.help, each.kind, each.read(figures), number)
    yield from _cluster_figures(pool, cards)
    for copy in _COPY:
        for number, figures in cards.items():
            for direction in Direction:
                read = copy.read(figures.copies.get(direction, CopyFigures()))
                yield _figure(copy.name, copy.help, "counter", read, number, direction=direction.value)
    yield from _counter_metrics(pool)


def _cluster_figures(pool: DevicePool, cards: dict[int, CardFigures]) -> Iterator[Figure]:
    busy = "Modelled time that the cluster ran; its rate is the occupancy where pacing is realtime."
    for number, figures in cards.items():
        for cluster, busy_s in enumerate(figures.cluster_busy_s):
            yield _figure("stoker_gcu_cluster_busy_seconds_total", busy, "counter", busy_s, number, cluster=str(cluster))
    shared = "Instances that run on the cluster; several take turns."
    for number, figures in cards.items():
        for cluster in range(len(figures.cluster_busy_s)):
            crowd = pool.allocator.crowd(number, cluster)
            yield _figure("stoker_gcu_cluster_instances", shared, "gauge", crowd, number, cluster=str(cluster))


def _counter_metrics(pool: DevicePool) -> Iterator[Figure]:
    counters = pool.counters
    for (number, size), count in sorted(counters.runs().items()):
        yield _figure("stoker_gcu_runs_total", "Runs by compiled batch size.", "counter", count, number, compiled_batch=str(size))
    for name, text, counts in (
        ("stoker_gcu_batches_total", "Batches of requests, failed ones included.", counters.batches()),
        ("stoker_gcu_failed_batches_total", "Batches of requests that failed.", counters.failed_batches()),
        ("stoker_gcu_resets_total", "Resets of the card.", counters.resets()),
    ):
        for card in pool.system.cards:
            yield _figure(name, text, "counter", counts.get(card.id, 0), card.id)
    for (number, status), count in sorted(counters.faults().items()):
        yield _figure("stoker_gcu_faults_total", "Failures of batches by status.", "counter", count, number, status=status)


def _figure(name: str, text: str, kind: Kind, value: float, card: int, **labels: str) -> Figure:
    return Figure(name=name, help=text, kind=kind, value=float(value), labels={"card": str(card), "simulated": "true", **labels})
