"""The metrics of the simulated cards."""

from collections.abc import Iterator, Sequence

from stoker.backends.api.backend import Figure
from stoker.backends.gcu.runtime import Card, CardFigures, CopyFigures, Direction, Engine
from stoker.backends.gcu.serving.placement import ClusterAllocator
from stoker.backends.simulated.serving.metrics import MetricFamily, MetricPage
from stoker.backends.simulated.serving.pool import BatchCounts, DeviceCounters

#: Runs of engines, by card and compiled batch size.
CardCounters = DeviceCounters[Engine, tuple[int, int]]

_CARD: tuple[MetricFamily[CardFigures], ...] = (
    MetricFamily("hbm_bytes", "gauge", "Device memory of the card.", lambda each: each.hbm_bytes),
    MetricFamily("hbm_used_bytes", "gauge", "Device memory in use: engines and buffers.", lambda each: each.hbm_used_bytes),
    MetricFamily("hbm_peak_bytes", "gauge", "Most device memory in use at a time.", lambda each: each.hbm_peak_bytes),
    MetricFamily("streams", "gauge", "Streams that exist.", lambda each: each.streams),
    MetricFamily("samples_total", "counter", "Samples that were run, without padding.", lambda each: each.samples),
    MetricFamily(
        "padded_samples_total",
        "counter",
        "Samples of zeros that filled compiled batches up.",
        lambda each: each.padded_samples,
    ),
    MetricFamily(
        "slow_runs_total",
        "counter",
        "Runs that this host computed slower than the card would have.",
        lambda each: each.slow_runs,
    ),
    MetricFamily(
        "stream_wait_seconds_total",
        "counter",
        "Time that batches waited for their streams, on the card's clock.",
        lambda each: each.stream_wait_s,
    ),
)
_COPY: tuple[MetricFamily[CopyFigures], ...] = (
    MetricFamily("copies_total", "counter", "Copies between host and card.", lambda each: each.copies),
    MetricFamily("copy_bytes_total", "counter", "Bytes of these copies.", lambda each: each.size_bytes),
    MetricFamily("copy_seconds_total", "counter", "Modelled time that they took the link.", lambda each: each.busy_s),
)
_BATCHES: tuple[MetricFamily[BatchCounts], ...] = (
    MetricFamily("batches_total", "counter", "Batches of requests, failed ones included.", lambda each: each.batches),
    MetricFamily("failed_batches_total", "counter", "Batches of requests that failed.", lambda each: each.failed_batches),
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
