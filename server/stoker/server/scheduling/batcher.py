"""`DynamicBatcher`: given the queue and the time, forms a batch or says when to ask again. Pure; Triton's semantics.

The entry at the head always goes into the next batch, so nothing starves; behind it, entries of another shape or with too many rows for
the room left are stepped over, not waited for. A request is never split.
"""

from dataclasses import dataclass

from stoker.server.core.model_config import DynamicBatching
from stoker.server.scheduling.queue import EntryT, RequestQueue

#: Entries looked at for one batch: bounds the cost of a queue full of shapes that do not match the head's.
MAX_SCAN = 4096


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to run yet; ask again at `until_ns` or when something arrives."""

    until_ns: int


class DynamicBatcher:
    """Forms batches for one model version.

    Rules, in order (Triton's dynamic batcher):
      1. If the entries taken in order reach a preferred size exactly, the largest such size goes now.
      2. Else if the batch cannot grow (the next entry of its shape does not fit, or max_batch_size reached), it goes now.
      3. Else if no delay is configured, or the oldest entry has waited that long, what is there goes now.
      4. Else wait.
    """

    def __init__(self, max_batch_size: int, settings: DynamicBatching | None) -> None:
        """Without `settings`, or with `max_batch_size` 0, each request is a batch of its own."""
        self._max_rows = max_batch_size
        self._is_batching = settings is not None and max_batch_size > 0
        self._preferred = frozenset(settings.preferred_batch_sizes) if settings is not None else frozenset()
        self._delay_ns = settings.max_queue_delay_us * 1_000 if settings is not None else 0
        #: Whether all that waits is a batch by rule 2 or 3 wherever it is one of one shape.
        self._takes_all = self._is_batching and not self._preferred and not self._delay_ns

    def next_batch(self, queue: RequestQueue[EntryT], now_ns: int) -> list[EntryT] | Wait | None:
        """The next batch, taken out of `queue`; or when to ask again; or None if the queue is empty.

        REQUIRES: `queue.expire(now_ns)` was called for this `now_ns`.
        """
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
        """Entries that fit together, whether the batch cannot grow, and how many of them make the largest preferred size."""
        entries = iter(queue)
        head = next(entries)
        taken, rows = [head], head.rows
        if not self._is_batching or rows >= self._max_rows:
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
