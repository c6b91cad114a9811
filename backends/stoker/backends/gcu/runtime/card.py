"""`Card`: one simulated card: its memory account, cluster locks and host link, and its counts (`CardFigures`).

Modelled time: every piece of work begins when the work before it in its stream has ended, it was there, and what it needs (the link in
one direction, its clusters) is free. The host does it as soon as it can; only a caller that waits for its end waits until then.
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
    """Of a copy over the host link."""

    TO_DEVICE = "to_device"
    TO_HOST = "to_host"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """Copies in one direction.

    Attributes:
        copies: How many.
        size_bytes: Bytes of all of them.
        busy_s: Modelled time that they took the link.
    """

    copies: int = 0
    size_bytes: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """A snapshot of one card, since it was made.

    Attributes:
        hbm_bytes, hbm_used_bytes, hbm_peak_bytes: Of its memory: all, in use now, most in use at a time.
        cluster_busy_s: Modelled time that each cluster ran.
        copies: By direction.
        runs: Runs of compiled batches.
        samples: Samples in them, without padding.
        padded_samples: Samples of zeros that filled batches up.
        slow_runs: Runs that this host computed slower than the card would have.
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
    """Bytes taken and given back. Any thread may use it.

    Attributes:
        size_bytes: All there is.
        used_bytes, peak_bytes: Taken now, and at most.
    """

    def __init__(self, owner: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self._owner = owner
        self._purposes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, size_bytes: int, purpose: str, what: str) -> None:
        """Takes `size_bytes`.

        Args:
            size_bytes: How much.
            purpose: The heading under which it is shown when memory runs out, such as `weights`.
            what: What exactly it is for, for the message.

        Raises:
            OutOfDeviceMemory: so much is not free; the text lists the uses of the rest.
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
        """Gives back what was taken under `purpose`."""
        with self._lock:
            self.used_bytes -= size_bytes
            self._purposes[purpose] -= size_bytes


class ClusterLocks:
    """First come, first served, for each set of clusters. Any thread may use it."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self._queue: list[tuple[object, frozenset[int]]] = []
        self._busy: set[int] = set()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    @contextmanager
    def held(self, clusters: Sequence[int], is_stopped: Callable[[], bool]) -> Iterator[bool]:
        """Has all of `clusters` while the block runs.

        Yields:
            False if `is_stopped` became true before they were free: the block has nothing then. Whoever stops it notifies `condition`.
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
        """Whether its clusters are free, and no earlier caller waits for one of them."""
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
    """Made with what only the process that made it can use: threads do not follow into a forked one. Any thread may use it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Rejects any other process.

        Raises:
            StatusError: this one was forked from it.
        """
        if not self.is_here:
            raise StatusError(
                Status.TIF_RUNTIME_PREREQUISITE_MISSING,
                f"process {os.getpid()} was forked from process {self._process}, which made this simulated device; "
                "make devices after the fork, or start the process by 'spawn'",
            )


#: No two cards have an address in common, however much is allocated and freed on one; all fit into 64 bits with a sign.
_ADDRESS_BITS = 56


@dataclass(slots=True)
class Lane:
    """How far one stream has come, on the card's time. Confined to: the thread that does the stream's work.

    Attributes:
        ready_at_ns: When its last piece of work ends.
    """

    ready_at_ns: int = 0


class Card:
    """Any thread may use it.

    Attributes:
        id: Its place in the system.
        hardware: What it is.
        hbm: Its memory.
        turns: Who runs on which clusters.
        faults: What goes wrong on it; runs of compiled batches are counted.
        pacer: How time passes.
        generation: Counts resets; what was on the card before one is gone.
        process: Where the card was made.
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
        """Its counters so far."""
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
        """Why it does not work; None: it does."""
        return self._broken

    def reject_if_broken(self) -> None:
        """Raises what broke the card, if anything did."""
        if self._broken is not None:
            raise DeviceFailed(self._broken.message, is_lost=self._broken.is_lost)

    def break_down(self, error: DeviceFailed) -> None:
        """From here on every use raises `error`, until `reset` cures it."""
        self._broken = error
        with self.turns.condition:
            self.turns.condition.notify_all()

    def hang(self, is_stopped: Callable[[], bool]) -> None:
        """Returns when `is_stopped`, or the card was reset or broke down; whoever stops it notifies the turns' condition."""
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
        """Makes a broken card usable again. What was on it is gone: buffers and engines must be made anew.

        Raises:
            DeviceFailed: it is lost for good.
        """
        if self._broken is not None and self._broken.is_lost:
            self.reject_if_broken()
        with self.turns.condition:
            self.generation += 1
            self._broken = None
            self.turns.condition.notify_all()

    def copy(self, direction: Direction, size_bytes: int, copy_s: float, lane: Lane, queued_ns: int) -> None:
        """A copy of `size_bytes` that was queued at `queued_ns` takes the link for `copy_s`."""
        with self._lock:
            now = self._copies[direction]
            self._copies[direction] = CopyFigures(copies=now.copies + 1, size_bytes=now.size_bytes + size_bytes, busy_s=now.busy_s + copy_s)
            self._reserve([self._links[direction]], copy_s, lane, queued_ns)

    def run(self, clusters: Sequence[int], run_s: float, lane: Lane, queued_ns: int) -> None:
        """A run that was queued at `queued_ns` takes `clusters` for `run_s`."""
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
        """Adds time that a caller waited for a stream."""
        with self._lock:
            self._stream_wait_ns += wait_ns

    def next_address(self, size_bytes: int, alignment: int) -> int:
        """An address for a block of `size_bytes`, for which there is memory; none is given out twice."""
        with self._lock:
            address = self._next_address
            self._next_address += -(-max(size_bytes, 1) // alignment) * alignment
            return address

    def add_stream(self, change: int) -> bool:
        """Counts a stream in or out; False: there are as many as there can be."""
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
