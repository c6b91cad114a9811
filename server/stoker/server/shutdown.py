"""Signals, and the steps of the shutdown within a bounded time.

A second signal ends the process. While the shutdown delay runs (`--shutdown-delay-secs`), the second signal ends the delay instead, and the
third one the process.

The handlers are set by `signal.signal`, not by the loop: a loop restores the default handlers when it closes, and a second signal at that
moment would kill the process instead of ending it with an exit code.

Delay: the server is not ready, but serves every request, so that load balancers can stop sending. Drain: new requests are rejected, and
requests in flight complete within the exit timeout. End: the last responses are sent and the models are unloaded, in at most `END_S` more.
"""

import asyncio
import atexit
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import Any, Final

from stoker.server.core.tasks import in_daemon_thread
from stoker.server.engine.serving_engine import ServingEngine
from stoker.server.frontend_set import Frontends
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.process_start import SHUTDOWN_SIGNALS

#: Exit code when a further signal cut the shutdown short.
CUT_SHORT = 1


class Shutdown:
    """Notifies a loop of a requested shutdown. Confined to: the main thread.

    Attributes:
        signal_name: The signal that requested it; empty until then.
        requested: Set on the loop after the signal.
        is_late: Whether the time for the shutdown is used up.
    """

    def __init__(self) -> None:
        """Installs the signal handlers, until the end of the process."""
        self.signal_name = ""
        self.requested = asyncio.Event()
        self.is_late = False
        self._forced = asyncio.Event()
        self._is_delaying = False
        self._loop: asyncio.AbstractEventLoop | None = None
        atexit.register(_ignore_signals)
        for number in SHUTDOWN_SIGNALS:
            signal.signal(number, self._receive)

    def bind_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets `requested` on this loop, at once if a signal has already arrived. Called once, on the loop."""
        self._loop = loop
        if self.signal_name:
            self.requested.set()

    async def delay(self, delay_s: float) -> None:
        """Returns after `delay_s` seconds, or at a second signal. REQUIRES: `requested`."""
        self._is_delaying = True
        forced = asyncio.ensure_future(self._forced.wait())
        try:
            await asyncio.wait([forced], timeout=delay_s)
        finally:
            self._is_delaying = False
            forced.cancel()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        # Runs between any two instructions of the main thread: it takes no lock and does not log.
        if not self.signal_name:
            self.signal_name = signal.Signals(number).name
            self._set(self.requested)
        elif self._is_delaying:
            self._is_delaying = False
            self._set(self._forced)
        else:
            os._exit(CUT_SHORT)

    def _set(self, event: asyncio.Event) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(event.set)


def _ignore_signals() -> None:
    """Ignores signals once all threads have ended. The interpreter restores default handlers at its end, but leaves ignored signals
    ignored.
    """
    for number in SHUTDOWN_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


log = logging.getLogger("stoker.server")

#: Time from the end of the exit timeout to the end of the server, seconds.
END_S: Final = 0.8
#: Least time of each writer, seconds.
WRITE_S: Final = 0.05
#: Time for the last responses, if the exit timeout is used up, seconds.
RESPONSE_TIMEOUT_S: Final = 0.3
#: Least time to unload the models, seconds.
UNLOAD_S: Final = 0.2
#: Time to unload the models, if the exit timeout is not used up, seconds.
LONGEST_UNLOAD_S: Final = 1.0


async def delay(engine: ServingEngine, shutdown: Shutdown, delay_s: float) -> None:
    """Serves for `delay_s` seconds while the server is not ready; a second signal ends the delay."""
    engine.begin_delay()
    log.info(
        "not ready any more, serving on before the shutdown (a second signal ends the delay)",
        extra={"signal": shutdown.signal_name, "delay_s": delay_s, "requests_in_flight": engine.requests_in_flight},
    )
    await shutdown.delay(delay_s)


async def take_down(
    engine: ServingEngine, frontends: Frontends, manager: ModelManager, exit_timeout_s: float, writers: Mapping[str, Callable[[], None]]
) -> bool:
    """Drains within `exit_timeout_s`, closes the ports, unloads the models and ends `writers`; returns at most `END_S` after that time
    (but for `WRITE_S` of each writer).

    Args:
        engine: The engine.
        frontends: The open frontends.
        manager: The manager of the models.
        exit_timeout_s: Time for the requests in flight, seconds.
        writers: By name, functions that write or send pending data (such as traces) and end the writer; they may block.

    Returns:
        Whether the exit timeout is used up, so that the process should end without delay.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + exit_timeout_s + END_S
    engine.begin_shutdown()
    # The ports stay open while requests complete, so that a probe gets "not ready" and a late client the reason of its rejection.
    left_s = await engine.drained(exit_timeout_s)
    await _within("closing the connections", frontends.stop(max(left_s, RESPONSE_TIMEOUT_S)), end_s - UNLOAD_S - loop.time())
    unload_s = min(LONGEST_UNLOAD_S, end_s - loop.time())
    await _within("unloading the models", manager.stop(unload_s / 2), max(UNLOAD_S, end_s - loop.time()))
    for name, close in writers.items():
        await _within(name, _beside(close), max(WRITE_S, end_s - loop.time()))
    return loop.time() >= end_s - END_S


async def _beside(close: Callable[[], None]) -> None:
    await in_daemon_thread("close", close)


async def _within(what: str, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
    """Runs `work`; cancels it after `timeout_s` and logs a line."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=max(0.0, timeout_s))
    if done:
        task.result()
        return
    log.warning("%s takes too long at the end of the exit timeout: broken off", what)
    task.cancel()
