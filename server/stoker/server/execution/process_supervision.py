"""`ProcessSupervision`: the worker processes of one instance, one after the other: logs how each ends, and starts the next.

A process that has ended is started again after a pause (`restart_policy.py`). An instance whose processes die repeatedly is ejected: it is
out of service until a later start succeeds.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from stoker.backends.api.batch import as_failure
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import LogLines, ServingError, Unavailable
from stoker.backends.worker.process import StartControl, WorkerProcess, exit_text
from stoker.server.core.tasks import in_daemon_thread
from stoker.server.core.timers import Timers
from stoker.server.execution.restart_policy import RestartPolicy

log = logging.getLogger("stoker.execution")

#: How long a process that has closed its channel may take to end by itself, seconds.
EXIT_TIMEOUT_S = 1.0


class ProcessStart(Protocol):
    """Starts the process of an instance, which loads and warms up, unless `control` ends it. Called in a thread."""

    def __call__(self, control: StartControl) -> WorkerProcess: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How a worker process is supervised.

    Attributes:
        name: The instance, for the log.
        model: The model, for the log.
        version: Its version, for the log.
        namespace: Its namespace, for the labels of metrics; empty: there are none.
        instance_timeout_s: How long a batch, or a stream without a response, may take, seconds.
    """

    name: str
    model: str
    version: int
    instance_timeout_s: float
    namespace: str = ""

    @property
    def facts(self) -> dict[str, object]:
        """The fields of log records."""
        return {"model": self.model, "version": self.version, "instance": self.name}


class ProcessSupervision:
    """The deaths and restarts of the processes of one instance. Confined to: the event loop.

    Attributes:
        outage: Why the instance cannot run a batch now; empty: it can.
        on_death: Called when a process has ended, before the requests that it held fail.
        on_change: Called when the instance can run batches again, or its state has changed otherwise.
    """

    def __init__(
        self,
        start: ProcessStart,
        settings: ProcessSettings,
        *,
        clock: Clock,
        timers: Timers,
        loop: asyncio.AbstractEventLoop,
        fail: Callable[[ServingError], None],
        take: Callable[[WorkerProcess], None],
    ) -> None:
        """Supervises the processes that `start` makes: `fail` ends the requests of one that has ended, `take` gets the next one."""
        self._start = start
        self._settings = settings
        self._now_ns = clock.now_ns
        self._timers = timers
        self._loop = loop
        self._fail = fail
        self._take = take
        self._policy = RestartPolicy()
        self._is_closing = False
        self._restart: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.outage = ""
        self.on_death: Callable[[], None] = _nothing
        self.on_change: Callable[[], None] = _nothing

    @property
    def is_ejected(self) -> bool:
        """Whether the instance is out of service for longer than a restart takes."""
        return self._policy.is_ejected

    def started(self) -> None:
        """A process runs, and has loaded."""
        self._policy.started(self._now_ns())
        self.outage = ""

    def ended(self, process: WorkerProcess, error: ServingError | None) -> None:
        """`process` is dead or dying. `error`: for the requests that it held; None: from its exit code."""
        self.outage = "its worker process has ended and is being started again"
        task = self._loop.create_task(self._bury(process, error))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def stop(self) -> None:
        """Starts no process any more."""
        self._is_closing = True

    async def stopped(self) -> None:
        """Waits for the end of what is in work. REQUIRES: `stop` was called."""
        if self._ending:
            await asyncio.wait(self._ending)
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait({self._restart})

    async def _bury(self, process: WorkerProcess, error: ServingError | None) -> None:
        try:
            code = await in_daemon_thread("wait", lambda: process.exit_code(EXIT_TIMEOUT_S))
        except RuntimeError as problem:  # the host gives no thread; the requests must get their error all the same
            log.error("the exit code of a worker process cannot be read: %s", problem, extra=self._settings.facts)
            process.interrupt()
            code = None
        process.channel.close()
        self.on_death()
        how = exit_text(code) if error is None else error.message
        self._log_death(process, how)
        pause_ns = self._note_outage(how)
        # No slot is free now, so the scheduler dispatches nothing here while it takes the results.
        # Without a time to try again: the request may be what has ended the process, and clients repeat such ones by themselves.
        failure = error or Unavailable(f"the worker process of model '{self._settings.model}' has ended: {how}")
        failure.is_logged = True
        self._fail(failure)
        self.on_change()
        if not self._is_closing:
            self._restart = self._loop.create_task(self._start_again(pause_ns))

    async def _start_again(self, pause_ns: int) -> None:
        while True:
            await self._pause(pause_ns)
            control = StartControl()
            starting: asyncio.Future[WorkerProcess] | None = None
            try:
                starting = in_daemon_thread("restart", partial(self._start, control))
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                control.cancel()
                assert starting is not None
                await asyncio.wait([starting])
                if starting.exception() is None:
                    await in_daemon_thread("close", starting.result().close)
                raise
            except Exception as error:
                self.on_death()
                text = error.message if isinstance(error, ServingError) else as_failure(error).message
                log.error("a worker process could not be started again: %s", text, extra=self._settings.facts, exc_info=error.__cause__)
                pause_ns = self._note_outage(text)
                self.on_change()
                continue
            back = f"instance '{self._settings.name}' is back in service: " if self._policy.is_ejected else ""
            self._take(process)
            log.info("%sa worker process has been started again", back, extra={**self._settings.facts, "pid": process.pid})
            self.on_change()
            return

    async def _pause(self, pause_ns: int) -> None:
        over = self._loop.create_future()
        timer = self._timers.call_at(self._now_ns() + pause_ns, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    def _note_outage(self, how: str) -> int:
        """A process has died, or could not be started. Returns the pause before the next start, nanoseconds."""
        now_ns = self._now_ns()
        was_ejected = self._policy.is_ejected
        pause_ns = self._policy.died(now_ns)
        settings = self._settings
        if not self._policy.is_ejected:
            self.outage = f"the worker process of instance '{settings.name}' has ended and is being started again: {how}"
            return pause_ns
        pause_s = pause_ns / 1e9
        self.outage = (
            f"instance '{settings.name}' is ejected after repeated deaths of its worker process, the last one: {how}; "
            f"the next start is tried in {pause_s:g} s"
        )
        if not was_ejected:
            log.error(
                "instance '%s' of model '%s' version %d is ejected: deaths within a minute: %d; the next start is tried in %g s",
                settings.name, settings.model, settings.version, self._policy.recent_deaths(now_ns), pause_s, extra=self._settings.facts,
            )  # fmt: skip
        return pause_ns

    def _log_death(self, process: WorkerProcess, how: str) -> None:
        lines = process.last_lines
        log.error(
            "the worker process of model '%s' version %d has ended: %s%s",
            self._settings.model,
            self._settings.version,
            how,
            "; its last lines:" if lines else "",
            extra={**self._settings.facts, "pid": process.pid},
            exc_info=LogLines(lines) if lines else None,
        )


def _nothing() -> None:
    return None
