"""`WorkerPool`: which of a version's workers gets the next batch; those whose instances fail are ejected. Pure: `now_ns` is a parameter.

An instance that fails at once is always free, and so the most free one would always be the one that fails: a lost device would take all
the requests of its siblings with it. So an instance whose device failed its last batch as a whole is ejected while others are healthy
(outlier ejection, a circuit breaker for each instance). When its pause is over it gets one batch as a half-open probe (slow start): each
probe that fails doubles the pause, one success ends it. Where all are ejected, all are used: requests get the real error at once.
"""

import logging
from collections.abc import Iterable, Sequence

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import ErrorCode, ServingError
from stoker.server.execution.worker import InstanceWorker
from stoker.server.observability.recorder import VersionRecorder

#: The first pause; a device that was reset is back within about that time.
FIRST_EJECTION_NS = 1_000_000_000
#: The longest: what a probe costs, one batch of requests that fail, is paid no more often than that.
MAX_EJECTION_NS = 60_000_000_000


class _Ejection:
    __slots__ = ("is_probing", "pause_ns", "until_ns")

    def __init__(self, until_ns: int) -> None:
        self.pause_ns = FIRST_EJECTION_NS
        self.until_ns = until_ns
        self.is_probing = False


class InstanceEjections:
    """Confined to: the event loop."""

    def __init__(self) -> None:
        self._ejections: dict[int, _Ejection] = {}

    def __len__(self) -> int:
        """Instances that are ejected now."""
        return len(self._ejections)

    def choose(self, free_slots: Sequence[int], now_ns: int) -> int | None:
        """The instance for the next batch, of those with `free_slots` (one number for each); None: wait until one is free.

        One whose pause is over comes first, and gets one batch only.
        """
        ejections = self._ejections
        if not ejections or len(ejections) == len(free_slots):
            return _freest(range(len(free_slots)), free_slots)
        for index, ejection in ejections.items():
            if not ejection.is_probing and ejection.until_ns <= now_ns and free_slots[index] > 0:
                ejection.is_probing = True
                return index
        return _freest((index for index in range(len(free_slots)) if index not in ejections), free_slots)

    def next_probe_ns(self, now_ns: int) -> int | None:
        """When the time alone may next change what `choose` returns; None: never."""
        return min(
            (ejection.until_ns for ejection in self._ejections.values() if not ejection.is_probing and ejection.until_ns > now_ns),
            default=None,
        )

    def ended(self, index: int, has_failed: bool, now_ns: int) -> bool:
        """A batch of instance `index` has ended; returns whether the instance has been ejected or readmitted by that."""
        ejection = self._ejections.get(index)
        if not has_failed:
            return self._ejections.pop(index, None) is not None
        if ejection is None:
            self._ejections[index] = _Ejection(now_ns + FIRST_EJECTION_NS)
            return True
        # What was in work beside, or given because all are ejected, is no further sign.
        if ejection.is_probing or ejection.until_ns <= now_ns:
            ejection.is_probing = False
            ejection.pause_ns = min(2 * ejection.pause_ns, MAX_EJECTION_NS)
            ejection.until_ns = now_ns + ejection.pause_ns
        return False


def is_outage(result: BatchResult) -> bool:
    """Whether every request of a batch failed for a reason of the instance: its status is UNAVAILABLE.

    Whatever else it raises counts as the request's own (see `Instance.execute`): else one client whose requests fail could have
    instance after instance ejected, at the cost of all clients.
    """
    return all(isinstance(outcome, ServingError) and outcome.code is ErrorCode.UNAVAILABLE for outcome in result.outcomes)


def _freest(indices: Iterable[int], free_slots: Sequence[int]) -> int | None:
    best = max(indices, key=free_slots.__getitem__)
    return best if free_slots[best] > 0 else None


log = logging.getLogger("stoker.scheduling")


class WorkerPool:
    """Workers by number; those whose instances fail are ejected. Confined to: the event loop.

    Attributes:
        workers: By number.
    """

    def __init__(self, workers: Sequence[InstanceWorker], recorder: VersionRecorder, *, model: str, version: int) -> None:
        """`model` and `version` are for the log."""
        self.workers = tuple(workers)
        self._recorder = recorder
        self._ejections = InstanceEjections()
        self._labels = {"model": model, "version": version}

    def free(self, now_ns: int) -> int | None:
        """The worker for the next batch; None: none is free that should get one."""
        workers = self.workers
        if len(workers) == 1:
            return 0 if workers[0].free_slots > 0 else None
        return self._ejections.choose([worker.free_slots for worker in workers], now_ns)

    def next_probe_ns(self, now_ns: int) -> int | None:
        """When the time alone may next change what `free` returns; None: never."""
        return self._ejections.next_probe_ns(now_ns)

    def ended(self, worker: int, result: BatchResult, now_ns: int) -> None:
        """A batch of a worker has ended."""
        if len(self.workers) == 1:
            return
        has_failed = is_outage(result)
        if not self._ejections.ended(worker, has_failed, now_ns):
            return
        self._recorder.ejected(len(self._ejections))
        where = {**self._labels, "instance": worker}
        if has_failed:
            log.warning("an instance failed a whole batch and is ejected while others are healthy: %s", result.outcomes[0], extra=where)
        else:
            log.info("an ejected instance is returned to service", extra=where)
