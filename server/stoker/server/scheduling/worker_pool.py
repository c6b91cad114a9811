"""`WorkerPool`: chooses the worker for the next batch, and ejects instances that fail. Pure: `now_ns` is a parameter.

An instance that fails at once always has the most free slots, so a lost device would receive, and fail, almost all requests. An instance
whose last batch failed as a whole is therefore ejected while others are healthy (outlier ejection, a circuit breaker for each instance).
After a pause it gets one batch as a half-open probe (slow start). Each failed probe doubles the pause; one success ends the ejection. If
all instances are ejected, all are used, so that requests get the real error at once.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import ErrorCode, ServingError
from stoker.server.execution.worker import InstanceWorker
from stoker.server.observability.recorder import VersionRecorder

#: The first pause, nanoseconds; a device reset takes about that long.
FIRST_EJECTION_NS: Final = 1_000_000_000
#: The longest pause, nanoseconds: it bounds how often a batch of requests fails as a probe.
MAX_EJECTION_NS: Final = 60_000_000_000


class _Ejection:
    __slots__ = ("is_probing", "pause_ns", "until_ns")

    def __init__(self, until_ns: int) -> None:
        self.pause_ns = FIRST_EJECTION_NS
        self.until_ns = until_ns
        self.is_probing = False


class InstanceEjections:
    """The ejected instances of one version. Confined to: the event loop."""

    def __init__(self) -> None:
        self._ejections: dict[int, _Ejection] = {}

    def __len__(self) -> int:
        """Number of ejected instances."""
        return len(self._ejections)

    def is_ejected(self, index: int) -> bool:
        """Whether instance `index` is ejected while others are healthy."""
        return index in self._ejections

    def choose(self, free_slots: Sequence[int], now_ns: int) -> int | None:
        """The instance for the next batch; `free_slots` has one number for each. None: wait until one is free.

        An instance whose pause is over takes precedence, and gets one batch only: see `dispatched`.
        """
        ejections = self._ejections
        if not ejections or len(ejections) == len(free_slots):
            return _freest(range(len(free_slots)), free_slots)
        for index, ejection in ejections.items():
            if not ejection.is_probing and ejection.until_ns <= now_ns and free_slots[index] > 0:
                return index
        return _freest((index for index in range(len(free_slots)) if index not in ejections), free_slots)

    def dispatched(self, index: int) -> None:
        """Records that instance `index`, which `choose` returned while others were healthy, gets a batch: its probe, if it is ejected.

        `choose` does not record it, since the batch may have to wait for its window first.
        """
        ejection = self._ejections.get(index)
        if ejection is not None:
            ejection.is_probing = True

    def next_probe_ns(self, now_ns: int) -> int | None:
        """When the passing of time may next change the result of `choose`, nanoseconds; None: never."""
        return min(
            (ejection.until_ns for ejection in self._ejections.values() if not ejection.is_probing and ejection.until_ns > now_ns),
            default=None,
        )

    def ended(self, index: int, has_failed: bool, now_ns: int) -> bool:
        """Records the end of a batch of instance `index`; returns whether that has ejected or readmitted the instance."""
        ejection = self._ejections.get(index)
        if not has_failed:
            return self._ejections.pop(index, None) is not None
        if ejection is None:
            self._ejections[index] = _Ejection(now_ns + FIRST_EJECTION_NS)
            return True
        # Batches that ran at the same time, or that were dispatched because all are ejected, are no further evidence.
        if ejection.is_probing or ejection.until_ns <= now_ns:
            ejection.is_probing = False
            ejection.pause_ns = min(2 * ejection.pause_ns, MAX_EJECTION_NS)
            ejection.until_ns = now_ns + ejection.pause_ns
        return False


def is_outage(result: BatchResult) -> bool:
    """Whether every request of a batch, or the last of those that ran apart, failed because of the instance: with status UNAVAILABLE.

    All other errors count as errors of the request (see `Instance.execute`): else one client's failing requests could eject all instances,
    which would affect all clients.
    """
    outcomes = result.outcomes if result.apart_ns is None else result.outcomes[-1:]
    return all(isinstance(outcome, ServingError) and outcome.code is ErrorCode.UNAVAILABLE for outcome in outcomes)


def _freest(indices: Iterable[int], free_slots: Sequence[int]) -> int | None:
    best = max(indices, key=free_slots.__getitem__)
    return best if free_slots[best] > 0 else None


log = logging.getLogger("stoker.scheduling")


class WorkerPool:
    """The workers of one version, by number; instances that fail are ejected. Confined to: the event loop.

    Attributes:
        workers: The workers, by number.
    """

    def __init__(self, workers: Sequence[InstanceWorker], recorder: VersionRecorder, *, model: str, version: int) -> None:
        """`model` and `version` are used in the log."""
        self.workers = tuple(workers)
        self._recorder = recorder
        self._ejections = InstanceEjections()
        self._labels = {"model": model, "version": version}

    def free(self, now_ns: int) -> int | None:
        """The worker for the next batch; None: no eligible worker is free."""
        return self._ejections.choose([worker.free_slots for worker in self.workers], now_ns)

    def all_free(self, now_ns: int) -> list[int]:
        """The eligible workers with a free slot, for the rate limiter, which chooses among them; `free` comes first."""
        first = self.free(now_ns)
        if first is None:
            return []
        ejections = self._ejections
        others = [
            index
            for index, worker in enumerate(self.workers)
            if index != first and worker.free_slots > 0 and not ejections.is_ejected(index)
        ]
        return [first, *others]

    def next_probe_ns(self, now_ns: int) -> int | None:
        """When the passing of time may next change the result of `free`, nanoseconds; None: never."""
        return self._ejections.next_probe_ns(now_ns)

    def dispatched(self, worker: int) -> None:
        """Records that a worker gets a batch."""
        if 0 < len(self._ejections) < len(self.workers):
            self._ejections.dispatched(worker)

    def ended(self, worker: int, result: BatchResult, now_ns: int) -> None:
        """Records the end of a worker's batch."""
        has_failed = is_outage(result)
        if not self._ejections.ended(worker, has_failed, now_ns):
            return
        self._recorder.ejected(len(self._ejections))
        where = {**self._labels, "instance": worker}
        if has_failed:
            log.warning("an instance failed a whole batch and is ejected while others are healthy: %s", result.outcomes[0], extra=where)
        else:
            log.info("an ejected instance is returned to service", extra=where)
