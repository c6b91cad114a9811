"""A worker for models that answer a request any number of times: streams end when they end, in no order."""

from stoker.backends.api.batch import BatchResult
from stoker.server.execution.worker import ThreadWorker, Work


class StreamWorker(ThreadWorker):
    """As `ThreadWorker`, but a short stream does not wait for the end of a long one that began before."""

    def _finished(self, work: Work, result: BatchResult) -> None:
        self._in_flight.remove(work)
        self.free_slots += 1
        work.on_done(result)
