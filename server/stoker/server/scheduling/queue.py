"""The request queue (priority levels, bounds, timeouts) and the batcher that forms batches from it. Pure: `now_ns` is a parameter.

Order is by level (1 first), within a level by arrival; a request whose timeout action is DELAY moves behind the other requests of its level
when its queue timeout expires. Removing any entry frees its place at once. Expiry is O(log n).

The batcher has Triton's semantics. The entry at the head is always in the next batch, so no request starves. Entries behind it are skipped
if they have another shape or more rows than the batch has left. A request is never split.
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from stoker.backends.api.errors import Overloaded
from stoker.server.core.model_config import DynamicBatching, QueuePolicy, TimeoutAction

#: Above this size, the heap of times drops those of entries that have left the queue.
_KEPT_TIMES: Final = 64


class Waiting(Protocol):
    """A waiting request, as the queue and the batcher use it.

    Attributes:
        rows: The rows that it adds to a batch.
        shape_key: Requests share a batch only if their keys are equal.
        level: Priority level, 1 = first.
        enqueued_ns: When it was accepted.
        timeout_ns: When its queue timeout expires, by queue policy; None: never.
        deadline_ns: The client's deadline; None: none. Unlike `timeout_ns` it never delays the request, but always ends it.
        sequence: Set by the queue; increases with every push.
        is_delayed: Set by the queue once `timeout_ns` has passed under DELAY.
    """

    rows: int
    shape_key: Hashable
    level: int
    enqueued_ns: int
    timeout_ns: int | None
    deadline_ns: int | None
    sequence: int
    is_delayed: bool


@dataclass(slots=True, eq=False)
class QueueEntry:
    """The plain implementation of `Waiting`."""

    rows: int
    shape_key: Hashable
    level: int
    enqueued_ns: int
    timeout_ns: int | None = None
    deadline_ns: int | None = None
    sequence: int = -1
    is_delayed: bool = False


EntryT = TypeVar("EntryT", bound=Waiting)


class _Level(Generic[EntryT]):
    __slots__ = ("delayed", "policy", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.waiting: OrderedDict[int, EntryT] = OrderedDict()
        self.delayed: OrderedDict[int, EntryT] = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delayed)


class RequestQueue(Generic[EntryT]):
    """Waiting requests of one model version.

    INVARIANT: an entry is in exactly one level's `waiting` or `delayed`, from `push` until `remove`, `take_first`, `take_all` or `expire`
    takes it out.
    `push`, `remove`, `take_first` and `take_all` are the only methods that change the counts. `__iter__` defines the order; the fast
    paths of `take_first` and `take_all` for one level must agree.

    Attributes:
        size: Requests waiting.
        timed: A heap of expiry time, entry and level; empty if no entry has an expiry time. Only the queue changes it.
    """

    def __init__(self, *, levels: int, default_policy: QueuePolicy, policies: Mapping[int, QueuePolicy], max_size: int) -> None:
        """Makes a queue with priority levels 1..`levels` that holds at most `max_size` requests in all."""
        self._levels = {level: _Level[EntryT](policies.get(level, default_policy)) for level in range(1, max(1, levels) + 1)}
        #: The level, if there is only one, as for most models.
        self._only = self._levels[1] if len(self._levels) == 1 else None
        self._max_size = max_size
        self.size = 0
        self._rows = 0
        self._next_sequence = 0
        # Expiry time, sequence number, level. Numbers only: the heap must not keep an entry that has left, and its tensors, in memory.
        self.timed: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """Requests waiting."""
        return self.size

    @property
    def rows(self) -> int:
        """Rows of all requests waiting."""
        return self._rows

    def policy(self, level: int) -> QueuePolicy:
        """The policy of a level."""
        return self._levels[level].policy

    def push(self, entry: EntryT) -> None:
        """Appends an entry to its level.

        Raises:
            Overloaded: the level's `max_queue_size` or the whole queue's bound is reached.
        """
        level = self._levels[entry.level]
        limit = level.policy.max_queue_size
        if limit and len(level) >= limit:
            raise Overloaded(f"Exceeds maximum queue size: {limit} request(s) wait already")
        if self.size >= self._max_size:
            raise Overloaded(f"Exceeds maximum queue size: {self._max_size} request(s) wait already, the server's bound for one model")
        entry.sequence = self._next_sequence
        self._next_sequence += 1
        level.waiting[entry.sequence] = entry
        self.size += 1
        self._rows += entry.rows
        if entry.timeout_ns is None and entry.deadline_ns is None:
            return
        ends_ns = earliest(entry.timeout_ns, entry.deadline_ns)
        if ends_ns is not None:
            heapq.heappush(self.timed, (ends_ns, entry.sequence, entry.level))

    def remove(self, entry: EntryT) -> bool:
        """Removes an entry (for a batch, or because it was cancelled); returns False if it is not in the queue."""
        level = self._levels[entry.level]
        bucket = level.delayed if entry.is_delayed else level.waiting
        if bucket.pop(entry.sequence, None) is None:
            return False
        self.size -= 1
        self._rows -= entry.rows
        if len(self.timed) > _KEPT_TIMES:
            self._drop_times()
        return True

    def take_all(self, most_rows: int) -> list[EntryT] | None:
        """Removes all entries, in queue order, if they fit one batch of `most_rows` rows; else returns None.

        Most batches take all entries; removing the entries one by one costs 1.1 us each.
        """
        only = self._only
        if only is None or only.delayed or not self.size or self._rows > most_rows:
            return None
        entries = list(only.waiting.values())
        shape_key = entries[0].shape_key
        for entry in entries:
            if entry.shape_key != shape_key:
                return None
        only.waiting.clear()
        self.size = self._rows = 0
        if len(self.timed) > _KEPT_TIMES:
            self._drop_times()
        return entries

    def take_first(self, like: EntryT | None = None) -> EntryT | None:
        """Removes and returns the first entry in queue order; None: the queue is empty.

        With `like`, returns None too if the first entry has other rows or another shape, or if the queue has several levels or delayed
        entries.
        """
        only = self._only
        if only is None or only.delayed:
            first = next(iter(self), None) if like is None else None
            if first is not None:
                self.remove(first)
            return first
        for first in only.waiting.values():
            if like is not None and (first.rows != like.rows or first.shape_key != like.shape_key):
                return None
            del only.waiting[first.sequence]
            self.size -= 1
            self._rows -= first.rows
            if len(self.timed) > _KEPT_TIMES:
                self._drop_times()
            return first
        return None

    def expire(self, now_ns: int) -> list[EntryT]:
        """Removes and returns every expired entry; those under DELAY move back in the queue instead."""
        expired: list[EntryT] = []
        while self.timed and self.timed[0][0] <= now_ns:
            _, sequence, number = heapq.heappop(self.timed)
            entry = self._held(sequence, number)
            if entry is None:
                continue
            level = self._levels[number]
            is_past_deadline = entry.deadline_ns is not None and entry.deadline_ns <= now_ns
            if is_past_deadline or level.policy.timeout_action is TimeoutAction.REJECT:
                self.remove(entry)
                expired.append(entry)
                continue
            if not entry.is_delayed:
                del level.waiting[entry.sequence]
                level.delayed[entry.sequence] = entry
                entry.is_delayed = True
            if entry.deadline_ns is not None:
                heapq.heappush(self.timed, (entry.deadline_ns, entry.sequence, entry.level))
        return expired

    def next_expiry_ns(self) -> int | None:
        """When `expire` should be called next, nanoseconds; None: no entry has an expiry time."""
        while self.timed and self._held(*self.timed[0][1:]) is None:
            heapq.heappop(self.timed)
        return self.timed[0][0] if self.timed else None

    def __iter__(self) -> Iterator[EntryT]:
        """Yields the entries in queue order. The queue must not change meanwhile."""
        for level in self._levels.values():
            yield from level.waiting.values()
            yield from level.delayed.values()

    def _drop_times(self) -> None:
        """Drops the times of entries that have left the queue, once they are most of the heap."""
        if len(self.timed) > 4 * self.size:
            self.timed = [item for item in self.timed if self._held(*item[1:]) is not None]
            heapq.heapify(self.timed)

    def _held(self, sequence: int, number: int) -> EntryT | None:
        """The entry with that sequence number in that level; None: it has left the queue."""
        level = self._levels[number]
        return level.waiting.get(sequence) or level.delayed.get(sequence)


def queue_timeout_us(policy: QueuePolicy, requested_us: int) -> int:
    """The queue timeout of a request, microseconds; 0: none.

    Triton's rule where the policy sets a default: the request's own counts only if overriding is allowed and it is the smaller one.
    If the policy sets no default, the request's own timeout always counts.
    """
    default_us = policy.default_timeout_us
    if not default_us:
        return requested_us
    if requested_us and policy.allow_timeout_override:
        return min(default_us, requested_us)
    return default_us


def earliest(a: int | None, b: int | None) -> int | None:
    """The earlier of two times; None = never."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


#: Bound on the entries examined for one batch: limits the cost of a queue full of shapes that do not match that of the head.
MAX_SCAN: Final = 4096


@dataclass(frozen=True, slots=True)
class Wait:
    """No batch is due yet: call again at `until_ns`, or when a request arrives."""

    until_ns: int


class DynamicBatcher:
    """Forms batches for one model version.

    Rules, in order (Triton's dynamic batcher):
      1. If the entries in order reach a preferred size exactly, the largest such batch is due.
      2. Else if the batch cannot grow (the next entry of its shape does not fit, or max_batch_size is reached), it is due.
      3. Else if no delay is configured, or the oldest entry has waited that long, the batch is due as it is.
      4. Else wait.
    """

    def __init__(self, max_batch_size: int, settings: DynamicBatching | None) -> None:
        """Without `settings`, or with `max_batch_size` 0, each request is a batch of its own."""
        self._max_rows = max_batch_size
        #: Whether requests share batches.
        self.is_batching = settings is not None and max_batch_size > 0
        self._preferred = frozenset(settings.preferred_batch_sizes) if settings is not None else frozenset()
        self._delay_ns = settings.max_queue_delay_us * 1_000 if settings is not None else 0
        #: Whether all waiting entries are a batch by rule 2 or 3 if they have one shape.
        self._takes_all = self.is_batching and not self._preferred and not self._delay_ns

    def next_batch(self, queue: RequestQueue[EntryT], now_ns: int) -> list[EntryT] | Wait | None:
        """Removes the next batch from `queue` and returns it; else returns the time of the next call, or None if the queue is empty.

        REQUIRES: `queue.expire(now_ns)` was called for this `now_ns`.
        """
        if not self.is_batching:
            first = queue.take_first()
            return None if first is None else [first]
        if not queue.size:
            return None
        if self._takes_all and (everything := queue.take_all(self._max_rows)) is not None:
            return everything
        taken, is_full, preferred_count = self._collect(queue)
        if preferred_count:
            taken = taken[:preferred_count]
        elif not is_full and self._delay_ns:
            oldest_ns = min(entry.enqueued_ns for entry in taken)
            if now_ns < oldest_ns + self._delay_ns:
                return Wait(oldest_ns + self._delay_ns)
        for entry in taken:
            queue.remove(entry)
        return taken

    def _collect(self, queue: RequestQueue[EntryT]) -> tuple[list[EntryT], bool, int]:
        """The entries that fit together, whether the batch cannot grow, and how many of them make the largest preferred size."""
        entries = iter(queue)
        head = next(entries)
        taken, rows = [head], head.rows
        if rows >= self._max_rows:
            return taken, True, 0
        preferred_count = 1 if rows in self._preferred else 0
        is_full = False
        for scanned, entry in enumerate(entries):
            if scanned >= MAX_SCAN:
                break
            if entry.shape_key != head.shape_key:
                continue
            if rows + entry.rows > self._max_rows:
                is_full = True
                continue
            taken.append(entry)
            rows += entry.rows
            if rows in self._preferred:
                preferred_count = len(taken)
            if rows == self._max_rows:
                return taken, True, preferred_count
        return taken, is_full, preferred_count
