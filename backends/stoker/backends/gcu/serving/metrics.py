"""The metrics of the simulated cards."""

from collections.abc import Iterator, Sequence

from stoker.backends.api.backend import Figure
from stoker.backends.gcu.runtime import Card, CopyFigures, Direction, Engine
from stoker.backends.gcu.serving.placement import ClusterAllocator
from stoker.backends.simulated.serving.metrics import MetricFamily, MetricPage
from stoker.backends.simulated.serving.pool import BatchCounts, DeviceCounters

#: Runs of engines, by card and compiled batch size.
CardCounters = DeviceCounters[Engine, tuple[int, int]]

_CARD: tuple[MetricFamily, ...] = (
    MetricFamily("hbm_bytes", "hbm_bytes", "Device memory of the card."),
    MetricFamily("hbm_used_bytes", "hbm_used_bytes", "Device memory in use: engines and buffers."),
    MetricFamily("hbm_peak_bytes", "hbm_peak_bytes", "Most device memory in use at a time."),
    MetricFamily("streams", "streams", "Streams that exist."),
    MetricFamily("samples_total", "samples", "Samples that were run, without padding."),
    MetricFamily("padded_samples_total", "padded_samples", "Samples of zeros that filled compiled batches up."),
    MetricFamily("slow_runs_total", "slow_runs", "Runs that this host computed slower than the card would have."),
    MetricFamily("stream_wait_seconds_total", "stream_wait_s", "Time that batches waited for their streams, on the card's clock."),
)
_COPY: tuple[MetricFamily, ...] = (
    MetricFamily("copies_total", "copies", "Copies between host and card."),
    MetricFamily("copy_bytes_total", "size_bytes", "Bytes of these copies."),
    MetricFamily("copy_seconds_total", "busy_s", "Modelled time that they took the link."),
)
_BATCHES: tuple[MetricFamily, ...] = (
    MetricFamily("batches_total", "batches", "Batches of requests, failed ones included."),
    MetricFamily("failed_batches_total", "failed_batches", "Batches of requests that failed."),
)


def new_counters() -> CardCounters:
    """Counters of the engines on all cards."""
    return DeviceCounters(lambda engine: {(engine.device.card.id, size): count for size, count in engine.runs.items()})


def pool_metrics(cards: Sequence[Card], allocator: ClusterAllocator, counters: CardCounters) -> Iterator[Figure]:
    """All metrics, grouped by name."""
    page = MetricPage("stoker_gcu_", "card")
    figures = {card.id: card.figures for card in cards}
    yield page.total("cards", "Simulated cards of the server.", len(cards))
    yield from page.families(_CARD, figures)
    busy = "Modelled time that the cluster ran; its rate is the occupancy where pacing is realtime."
    for number, each in figures.items():
        for cluster, busy_s in enumerate(each.cluster_busy_s):
            yield page.sample("cluster_busy_seconds_total", "counter", busy, busy_s, number, cluster=str(cluster))
    shared = "Instances that run on the cluster; several take turns."
    for number, each in figures.items():
        for cluster in range(len(each.cluster_busy_s)):
            yield page.sample("cluster_instances", "gauge", shared, allocator.crowd(number, cluster), number, cluster=str(cluster))
    for family in _COPY:
        for number, each in figures.items():
            for direction in Direction:
                value = family.read(each.copies.get(direction, CopyFigures()))
                yield page.sample(family.name, family.kind, family.help, value, number, direction=direction.value)
    for (number, size), count in sorted(counters.totals().items()):
        yield page.sample("runs_total", "counter", "Runs by compiled batch size.", count, number, compiled_batch=str(size))
    batches, resets = counters.batches(), counters.resets()
    yield from page.families(_BATCHES, {number: batches.get(number, BatchCounts()) for number in figures})
    yield from page.samples("resets_total", "counter", "Resets of the card.", ((number, resets.get(number, 0)) for number in figures))
    yield from page.faults("Failures of batches by status.", counters.faults(), "status")
