"""`WorkerPool`: the workers of one version, and which of them gets the next batch."""

import asyncio
import logging
from collections.abc import Sequence

from stoker.backends.api.batch import BatchResult
from stoker.server.execution.worker import InstanceWorker
from stoker.server.observability.recorder import VersionRecorder
from stoker.server.scheduling.ejection import InstanceEjections, is_outage

log = logging.getLogger("stoker.scheduling")


class WorkerPool:
    """Workers by number; those whose instances fail are ejected (see `ejection.py`). Confined to: the event loop.

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
        """When `free` may next have another answer by the time alone; None: never."""
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

    async def close(self) -> None:
        """Closes the workers when their batches have ended."""
        await asyncio.gather(*(worker.close() for worker in self.workers))
