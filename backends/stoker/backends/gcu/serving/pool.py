"""`GcuPool`: the simulated cards of the server, the executables loaded on them, and their metrics."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from stoker.backends.api.backend import Figure
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.devices.metrics import MetricFamily, MetricPage
from stoker.backends.devices.pool import BatchCounts, DeviceCounters, DevicePool, Lease, quoted
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime import Card, CopyFigures, DeviceFailed, Direction, Engine, StatusError
from stoker.backends.gcu.serving.mount import Mount
from stoker.backends.gcu.serving.options import CardSettings
from stoker.backends.gcu.serving.placement import ClusterAllocator, Placement
from stoker.backends.gcu.serving.sample_layout import SampleLayout
from stoker.backends.simulated.numerics import Numerics

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
    page = MetricPage("stoker_gcu_", "card", is_simulated=True)
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


log = logging.getLogger("stoker.backends.topsinference")


class GcuPool(DevicePool):
    """Any thread may use it.

    Attributes:
        settings: The operator's settings.
        system: The cards.
        allocator: Assigns clusters to instances.
        counters: Counters of batches, faults, resets, and runs of engines.
        clock: Measures the time of batches for the counters.
    """

    def __init__(self, settings: CardSettings) -> None:
        """Creates the cards that `settings` describe."""
        self.settings = settings
        self.system = settings.system()
        self.allocator = ClusterAllocator(settings.cards, settings.clusters)
        self.counters = new_counters()
        self.clock: Clock = SystemClock()
        self._lock = threading.Lock()
        self._executables: dict[Path, tuple[GcuExecutable, int]] = {}

    @property
    def failed_cards(self) -> frozenset[int]:
        """The lost cards, which no reset repairs."""
        return frozenset(each.id for each in self.system.cards if each.failure is not None and each.failure.is_lost)

    @property
    def open_files(self) -> frozenset[Path]:
        """The executable files that instances share now."""
        return frozenset(self._executables)

    def metrics(self) -> Iterator[Figure]:
        return pool_metrics(self.system.cards, self.allocator, self.counters)

    def models(self) -> Sequence[str]:
        return _models(self.allocator.placements)

    def hardware(self) -> str:
        kind = self.settings.hardware.name
        clusters = f"{self.settings.clusters} cluster{'s' if self.settings.clusters > 1 else ''}"
        is_one = self.settings.cards == 1
        return (
            f"a simulated {kind} card with {clusters}" if is_one else f"{self.settings.cards} simulated {kind} cards with {clusters} each"
        )

    def sharing_notices(self) -> Iterator[str]:
        placements = self.allocator.placements
        for card in range(self.settings.cards):
            shared = [cluster for cluster in range(self.settings.clusters) if self.allocator.crowd(card, cluster) > 1]
            if shared:
                crowd = _models(placement for placement in placements if placement.card == card and set(placement.clusters) & set(shared))
                yield (
                    f"{quoted(crowd)} share clusters {', '.join(map(str, shared))} of simulated card {card}, where their runs take turns; "
                    "parameter 'clusters' in config.pbtxt, or more cards, part them"
                )

    def models_without_numerics(self) -> Sequence[str]:
        return self.models() if self.settings.numerics is Numerics.OFF else ()

    def allocate(self, lease: Lease, *, card: int | None, siblings: int, wanted: int | None) -> Placement:
        """Allocates clusters for one more instance of `lease`; see `ClusterAllocator.take`.

        Raises:
            ModelLoadError: too few clusters are free, or the card is lost.
        """
        return self.allocator.take(lease, card=card, siblings=siblings, wanted=wanted, unusable=self.failed_cards)

    def mount(self, placement: Placement, executable: GcuExecutable, layout: SampleLayout, depth: int) -> Mount:
        """Loads `executable` on the clusters of `placement`; first resets the card if it needs a reset. The caller ends this with
        `unmount`.

        Raises:
            StatusError: the card is lost, or has too little free memory.
        """
        self._revive(placement.card)
        mount = Mount(self.system, placement, executable, layout, depth, moves_bytes=self.settings.moves_bytes)
        self.counters.attach(mount.engine)
        return mount

    def unmount(self, mount: Mount) -> None:
        """Removes everything of `mount` from its card. A second call does nothing."""
        self.counters.retire(mount.engine)  # first, because an unloaded engine has no run counts
        mount.close()

    def shared_executable(self, path: Path, read: Callable[[], GcuExecutable]) -> GcuExecutable:
        """Returns the result of `read` for the file at `path`. All instances of a version share it. The caller releases it with
        `forget_executable`.

        Raises:
            ModelLoadError: the file cannot be read.
        """
        with self._lock:
            executable, users = self._executables.get(path, (None, 0))
            executable = executable or read()
            self._executables[path] = (executable, users + 1)
            return executable

    def forget_executable(self, path: Path) -> None:
        """Releases an executable that `shared_executable` returned."""
        with self._lock:
            executable, users = self._executables[path]
            if users > 1:
                self._executables[path] = (executable, users - 1)
            else:
                del self._executables[path]

    def _revive(self, number: int) -> None:
        """Resets the card if a reset repairs it. All engines and buffers on it are lost; their instances load them again."""
        card = self.system.cards[number]
        with self._lock:
            if card.failure is not None and not card.failure.is_lost:
                log.warning("simulated card %d is reset: %s", number, card.failure.message)
                card.reset()
                self.counters.count_reset(number)


def _models(placements: Iterable[Placement]) -> list[str]:
    return [placement.lease.model for placement in placements]


def load_failure(error: StatusError, placement: Placement) -> ModelLoadError:
    """Returns the error for a load that the card rejected."""
    where = f"simulated card {placement.card}, clusters {', '.join(map(str, placement.clusters))}"
    hint = "; --backend-config=topsinference,cards=N adds cards" if not isinstance(error, DeviceFailed) else ""
    return ModelLoadError(f"the engine cannot be loaded to {where}: {error}{hint}")
