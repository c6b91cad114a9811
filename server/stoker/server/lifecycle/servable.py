"""`Servable`: one loaded version that requests borrow. `Retirement` closes it after the last request has ended."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from stoker.backends.api.files import ModelFiles
from stoker.server.config.report import Finding
from stoker.server.core.model_config import ModelConfig
from stoker.server.execution.process_worker import ProcessWorker
from stoker.server.scheduling.wrapped import ModelScheduler


class Servable:
    """A loaded and warmed-up version. Confined to: the event loop.

    INVARIANT: the instances are closed, and the snapshot is removed, only after `retire` was called and the last borrower has released the
        version.

    Attributes:
        name: The model's name.
        key: The model's key, see `core/model_key.py`.
        version: The version number.
        config: Completed configuration.
        signature: The signature of `config`.
        scheduler: Queue and workers. An accepted request keeps the version loaded until its completion.
        labels: Class labels by output name.
        findings: Each value of the configuration and its origin.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        scheduler: ModelScheduler,
        files: ModelFiles,
        labels: Mapping[str, Sequence[str]],
        discard: Callable[[ModelFiles], None],
    ) -> None:
        """`discard` removes the snapshot; it may block and is called in a thread."""
        self.name = self.key = config.name
        self.version = version
        self.config = config
        self.signature = config.signature
        self.scheduler = scheduler
        self.labels = labels
        self.findings: Sequence[Finding] = ()
        self._files = files
        self._discard = discard
        #: The workers of its instances; empty unless all of them are in worker processes.
        self.processes: Sequence[ProcessWorker] = ()
        #: Called when `outage` may have changed.
        self.on_outage: Callable[[], None] = _nothing
        self._is_retired = False
        self._borrowed = 0
        self._idle = asyncio.Event()

    @property
    def borrowers(self) -> int:
        """Requests that hold this version: accepted and not complete, or being decoded in a thread."""
        return self.scheduler.in_flight + self._borrowed

    @property
    def outage(self) -> str:
        """Why none of its instances can run a batch now; empty: one can."""
        return self.scheduler.outage

    @property
    def is_lost(self) -> bool:
        """Whether all its instances are out of service for longer than a restart takes."""
        return self.scheduler.is_lost

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Keeps the version loaded until the context ends."""
        self._borrowed += 1
        try:
            yield
        finally:
            self._borrowed -= 1
            self._notice_idle()

    def retire(self) -> None:
        """Admits no further borrower. The manager has already removed the version from its table."""
        self._is_retired = True
        self.scheduler.on_idle = self._notice_idle
        self._notice_idle()

    def abandon(self, why: str) -> None:
        """Fails every request in progress with UNAVAILABLE and the text `why`."""
        self.scheduler.abandon(why)

    async def drained(self) -> None:
        """Waits for the last borrower, then closes the instances and removes the snapshot. REQUIRES: `retire` was called."""
        await self._idle.wait()
        while self.borrowers:
            # A request that was decoded in a thread has been submitted in the same turn in which it released the version.
            self._idle.clear()
            await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Closes at once; waiting requests fail with UNAVAILABLE. For a shutdown whose time is used up."""
        await self.scheduler.close()
        await asyncio.get_running_loop().run_in_executor(None, self._discard, self._files)

    def _notice_idle(self) -> None:
        if self._is_retired and not self.borrowers:
            self._idle.set()


def _nothing() -> None:
    return None


log = logging.getLogger("stoker.lifecycle")

#: Bound on the time to close once requests are no longer waited for, seconds: only at the end of the process.
CLOSE_TIMEOUT_S = 0.5


class Retirement:
    """Waits for the last borrower of each retired servable. Confined to: the event loop."""

    def __init__(self, patience_s: float) -> None:
        """A servable that is still held after `patience_s` is logged."""
        self._patience_s = patience_s
        self._leaving: dict[asyncio.Task[None], Servable] = {}

    def __len__(self) -> int:
        return len(self._leaving)

    def begin(self, servable: Servable, gone: Callable[[], None] = lambda: None) -> None:
        """Admits no new borrower of `servable`; calls `gone` once it is closed."""
        servable.retire()
        task = asyncio.create_task(self._leave(servable, gone))
        self._leaving[task] = servable
        task.add_done_callback(self._leaving.pop)

    async def wait_for(self, name: str, timeout_s: float) -> None:
        """Returns when all retired versions of model `name` are closed, or after `timeout_s`."""
        tasks = [task for task, servable in self._leaving.items() if servable.key == name]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def abandon(self, why: str) -> None:
        """Fails the requests that still hold a retired servable with UNAVAILABLE and the text `why`."""
        for servable in self._leaving.values():
            servable.abandon(why)

    async def finish(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` until all are closed, then closes the others, whose requests fail."""
        if not self._leaving:
            return
        _, held = await asyncio.wait(list(self._leaving), timeout=timeout_s)
        servables = [self._leaving[task] for task in held]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        if not servables:
            return
        names = ", ".join(f"'{servable.name}' version {servable.version}" for servable in servables)
        log.warning("closing while requests still hold them: %s", names)
        _, stuck = await asyncio.wait([asyncio.create_task(servable.close()) for servable in servables], timeout=CLOSE_TIMEOUT_S)
        if stuck:
            log.error("%d of these did not close within %g s", len(stuck), CLOSE_TIMEOUT_S)

    async def _leave(self, servable: Servable, gone: Callable[[], None]) -> None:
        drained = asyncio.ensure_future(servable.drained())
        try:
            done, _ = await asyncio.wait({drained}, timeout=self._patience_s)
            if not done:
                log.warning("model '%s' version %d is still held by requests after %g s", servable.name, servable.version, self._patience_s)
            await drained
        except asyncio.CancelledError:
            drained.cancel()
            raise
        except Exception:  # a backend may raise anything in `close`; the version is out of service in any case
            log.exception("closing model '%s' version %d raised", servable.name, servable.version)
        finally:
            gone()
