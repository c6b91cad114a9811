"""`Card`: one simulated card: its memory account, cluster locks and host link, and its counts (`CardFigures`).

Modelled time: a work item begins when it is queued, the item before it in its stream has ended, and its resources (the link in one
direction, or its clusters) are free. The host executes the item as early as possible. Only a caller that waits for its completion waits
until its modelled end.
"""

import enum
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.runtime.errors import DeviceFailed, OutOfDeviceMemory, Status, StatusError
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.pacing import NS_PER_S, Pacer, Pacing, Timeline


class Direction(enum.Enum):
    """The direction of a copy over the host link."""

    TO_DEVICE = "to_device"
    TO_HOST = "to_host"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """Copies in one direction.

    Attributes:
        copies: Number of copies.
        size_bytes: Bytes of all of them.
        busy_s: Modelled time for which they occupied the link.
    """

    copies: int = 0
    size_bytes: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """A snapshot of the counters of one card since its creation.

    Attributes:
        hbm_bytes, hbm_used_bytes, hbm_peak_bytes: Device memory: its size, the bytes in use now, and the peak.
        cluster_busy_s: Modelled busy time of each cluster.
        copies: Figures of the copies, by direction.
        runs: Runs of compiled batches.
        samples: Samples in these runs, without padding.
        padded_samples: Samples of zeros that padded batches.
        slow_runs: Runs that took this host longer than the modelled time.
        stream_wait_s: Time that callers spent waiting for streams, on the card's clock.
        streams: Streams that exist now.
    """

    hbm_bytes: int
    hbm_used_bytes: int = 0
    hbm_peak_bytes: int = 0
    cluster_busy_s: tuple[float, ...] = ()
    copies: Mapping[Direction, CopyFigures] = field(default_factory=dict)
    runs: int = 0
    samples: int = 0
    padded_samples: int = 0
    slow_runs: int = 0
    stream_wait_s: float = 0.0
    streams: int = 0


class MemoryAccount:
    """Accounts for allocated bytes. Any thread may use it.

    Attributes:
        size_bytes: The capacity.
        used_bytes, peak_bytes: Bytes allocated now, and the maximum so far.
    """

    def __init__(self, owner: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self._owner = owner
        self._purposes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, size_bytes: int, purpose: str, what: str) -> None:
        """Allocates `size_bytes`.

        Args:
            size_bytes: Number of bytes.
            purpose: The category of the bytes in out-of-memory texts, such as `weights`.
            what: The item that needs the bytes, for the error text.

        Raises:
            OutOfDeviceMemory: too few bytes are free; the text lists the allocated bytes by purpose.
        """
        with self._lock:
            if size_bytes > self.size_bytes - self.used_bytes:
                taken = ", ".join(f"{size} bytes of {name}" for name, size in sorted(self._purposes.items()) if size) or "nothing"
                raise OutOfDeviceMemory(
                    f"{what} needs {size_bytes} bytes of HBM; {self._owner} has {self.size_bytes}, of which "
                    f"{self.size_bytes - self.used_bytes} are free (taken: {taken})"
                )
            self.used_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            self._purposes[purpose] += size_bytes

    def give_back(self, size_bytes: int, purpose: str) -> None:
        """Frees bytes that were allocated under `purpose`."""
        with self._lock:
            self.used_bytes -= size_bytes
            self._purposes[purpose] -= size_bytes


class ClusterLocks:
    """First-come, first-served locks for sets of clusters. Any thread may use it."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self._queue: list[tuple[object, frozenset[int]]] = []
        self._busy: set[int] = set()

    @property
    def waiting(self) -> int:
        """The number of waiting callers."""
        return len(self._queue)

    @contextmanager
    def held(self, clusters: Sequence[int], is_stopped: Callable[[], bool]) -> Iterator[bool]:
        """Holds the locks of all `clusters` while the block runs.

        Yields:
            False if `is_stopped` became true before they were free; then the block holds no lock. Code that makes it true must notify
            `condition`.
        """
        wanted = frozenset(clusters)
        ticket = (object(), wanted)
        with self.condition:
            self._queue.append(ticket)
            self.condition.notify_all()
            try:
                self.condition.wait_for(lambda: is_stopped() or self._is_next(ticket))
                is_held = not is_stopped()
                if is_held:
                    self._busy |= wanted
            finally:
                self._queue.remove(ticket)
                self.condition.notify_all()
        try:
            yield is_held
        finally:
            if is_held:
                with self.condition:
                    self._busy -= wanted
                    self.condition.notify_all()

    def _is_next(self, ticket: tuple[object, frozenset[int]]) -> bool:
        """Whether the caller's clusters are free, and no earlier caller waits for one of them."""
        wanted = ticket[1]
        if wanted & self._busy:
            return False
        for earlier in self._queue:
            if earlier is ticket:
                return True
            if earlier[1] & wanted:
                return False
        return True


class ProcessMark:
    """Records the process that created an object.

    A forked process cannot use the object, because its threads do not exist there. Any thread may use it.
    """

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in that process."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Rejects calls from any other process.

        Raises:
            StatusError: the calling process was forked from it.
        """
        if not self.is_here:
            raise StatusError(
                Status.TIF_RUNTIME_PREREQUISITE_MISSING,
                f"process {os.getpid()} was forked from process {self._process}, which made this simulated device; "
                "make devices after the fork, or start the process by 'spawn'",
            )


#: Size of a card's address range. The ranges of two cards never overlap, and all addresses fit into a signed 64-bit integer.
_ADDRESS_BITS = 56


@dataclass(slots=True)
class Lane:
    """The progress of one stream in modelled time. Confined to: the thread that does the stream's work.

    Attributes:
        ready_at_ns: The time at which its last work item ends.
    """

    ready_at_ns: int = 0


class Card:
    """Any thread may use it.

    Attributes:
        id: Its index in the system.
        hardware: Its published figures.
        hbm: The account of its memory.
        turns: The locks of its clusters.
        faults: The injected faults, by the number of runs of compiled batches.
        pacer: The pacing of modelled time.
        generation: The number of resets. Buffers and engines of an earlier generation are lost.
        process: The process that created the card.
    """

    def __init__(self, number: int, hardware: GcuHardware, pacer: Pacer, faults: FaultPlan, process: ProcessMark) -> None:
        self.id = number
        self.hardware = hardware
        self.hbm = MemoryAccount(f"card {number} ({hardware.name})", hardware.hbm_bytes)
        self.turns = ClusterLocks()
        self.faults = faults
        self.pacer = pacer
        self.generation = 0
        self.process = process
        self._lock = threading.Lock()
        self._clusters = tuple(Timeline() for _ in range(hardware.clusters))
        self._links = {direction: Timeline() for direction in Direction}
        self._copies = {direction: CopyFigures() for direction in Direction}
        self._runs = self._samples = self._padded = self._slow_runs = self._streams = self._hanging = 0
        self._stream_wait_ns = 0
        self._next_address = (number + 1) << _ADDRESS_BITS
        self._broken: DeviceFailed | None = None

    @property
    def figures(self) -> CardFigures:
        """A snapshot of its counters."""
        with self._lock:
            return CardFigures(
                hbm_bytes=self.hbm.size_bytes,
                hbm_used_bytes=self.hbm.used_bytes,
                hbm_peak_bytes=self.hbm.peak_bytes,
                cluster_busy_s=tuple(each.busy_ns / NS_PER_S for each in self._clusters),
                copies=dict(self._copies),
                runs=self._runs,
                samples=self._samples,
                padded_samples=self._padded,
                slow_runs=self._slow_runs,
                stream_wait_s=self._stream_wait_ns / NS_PER_S,
                streams=self._streams,
            )

    @property
    def failure(self) -> DeviceFailed | None:
        """The error that broke the card; None if it works."""
        return self._broken

    def reject_if_broken(self) -> None:
        """Raises the error that broke the card, if any."""
        if self._broken is not None:
            raise DeviceFailed(self._broken.message, is_lost=self._broken.is_lost)

    def break_down(self, error: DeviceFailed) -> None:
        """Makes every later use raise `error`, until `reset` repairs the card."""
        self._broken = error
        with self.turns.condition:
            self.turns.condition.notify_all()

    def hang(self, is_stopped: Callable[[], bool]) -> None:
        """Blocks until `is_stopped`, a reset or a failure of the card.

        Code that makes `is_stopped` true must notify the condition of `turns`.
        """
        generation = self.generation
        with self.turns.condition:
            self._hanging += 1
            self.turns.condition.notify_all()
            try:
                self.turns.condition.wait_for(lambda: is_stopped() or self._broken is not None or self.generation != generation)
            finally:
                self._hanging -= 1

    @property
    def is_hanging(self) -> bool:
        """Whether a run on it hangs."""
        return self._hanging > 0

    def reset(self) -> None:
        """Makes a broken card usable again. Its buffers and engines are lost and must be created again.

        Raises:
            DeviceFailed: the card is lost; no reset repairs it.
        """
        if self._broken is not None and self._broken.is_lost:
            self.reject_if_broken()
        with self.turns.condition:
            self.generation += 1
            self._broken = None
            self.turns.condition.notify_all()

    def copy(self, direction: Direction, size_bytes: int, copy_s: float, lane: Lane, queued_ns: int) -> None:
        """Accounts for a copy of `size_bytes`, queued at `queued_ns`, that occupies the link for `copy_s`."""
        with self._lock:
            now = self._copies[direction]
            self._copies[direction] = CopyFigures(copies=now.copies + 1, size_bytes=now.size_bytes + size_bytes, busy_s=now.busy_s + copy_s)
            self._reserve([self._links[direction]], copy_s, lane, queued_ns)

    def run(self, clusters: Sequence[int], run_s: float, lane: Lane, queued_ns: int) -> None:
        """Accounts for a run, queued at `queued_ns`, that occupies `clusters` for `run_s`."""
        with self._lock:
            self._reserve([self._clusters[each] for each in clusters], run_s, lane, queued_ns)

    def count_run(self, *, samples: int, padded_samples: int, is_slow: bool) -> None:
        """Adds one run of a compiled batch to the figures."""
        with self._lock:
            self._runs += 1
            self._samples += samples
            self._padded += padded_samples
            self._slow_runs += is_slow

    def count_wait(self, wait_ns: int) -> None:
        """Adds the time for which a caller waited for a stream."""
        with self._lock:
            self._stream_wait_ns += wait_ns

    def next_address(self, size_bytes: int, alignment: int) -> int:
        """Returns an unused address for a block of `size_bytes`.

        No address is returned twice. REQUIRES: the memory account has the bytes.
        """
        with self._lock:
            address = self._next_address
            self._next_address += -(-max(size_bytes, 1) // alignment) * alignment
            return address

    def add_stream(self, change: int) -> bool:
        """Counts a created or closed stream. Returns False if the card already has its maximum number of streams."""
        with self._lock:
            if change > 0 and self._streams >= self.hardware.max_streams:
                return False
            self._streams += change
            return True

    def _reserve(self, timelines: Sequence[Timeline], duration_s: float, lane: Lane, queued_ns: int) -> None:
        begins_ns = max(lane.ready_at_ns, queued_ns, *(each.free_at_ns for each in timelines))
        if self.pacer.pacing is Pacing.REALTIME:
            now_ns = self.pacer.clock.now_ns()
            if now_ns - begins_ns > Timeline.SLACK_NS:  # so late is the host's doing, and no inexact waking of threads
                begins_ns = now_ns
        duration_ns = round(duration_s * NS_PER_S)
        lane.ready_at_ns = begins_ns + duration_ns
        for each in timelines:
            each.free_at_ns = lane.ready_at_ns
            each.busy_ns += duration_ns
