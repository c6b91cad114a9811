"""Signals, and the order in which a server is taken out of service within a bound of time.

While the shutdown delay runs (`--shutdown-delay-secs`), the second one ends the delay instead, and the third one the process.

The handlers are Python's own (`signal.signal`), not the loop's: a loop gives back the default handlers when it closes, and a second signal
that comes just then would end the process by the signal instead of with an exit code.

Delay: not ready, but every request is served, so that load balancers can stop sending. Drain: new requests are rejected, what is in flight
finishes within the exit timeout. End: the last responses leave, models unload; all of this takes at most `END_S` more.
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
    """Tells a loop when a shutdown is asked for. Confined to: the main thread.

    Attributes:
        signal_name: The signal that asked for it; empty until one has.
        requested: Set on the loop once one has.
        is_late: Whether the time for the shutdown is used up.
    """

    def __init__(self) -> None:
        """From now on signals come here, until the process ends."""
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
        """Sets `requested` on this loop, at once if a signal has come already. Called on the loop, once."""
        self._loop = loop
        if self.signal_name:
            self.requested.set()

    async def delay(self, delay_s: float) -> None:
        """Returns after `delay_s`, or when a second signal comes. REQUIRES: `requested`."""
        self._is_delaying = True
        forced = asyncio.ensure_future(self._forced.wait())
        try:
            await asyncio.wait([forced], timeout=delay_s)
        finally:
            self._is_delaying = False
            forced.cancel()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        # Runs between any two instructions of the main thread: it takes no lock and logs nothing.
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
    """When all threads have ended. The interpreter gives back the default handlers as it goes, but leaves ignored signals ignored."""
    for number in SHUTDOWN_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


log = logging.getLogger("stoker.server")

#: From the end of the exit timeout to the end of the server.
END_S: Final = 0.8
#: What each writer has at least, even then.
WRITE_S: Final = 0.05
#: What of this the last responses have, where the exit timeout is used up.
RESPONSE_TIMEOUT_S: Final = 0.3
#: What of this the models have to unload, at least.
UNLOAD_S: Final = 0.2
#: Models have this much where there is time.
LONGEST_UNLOAD_S: Final = 1.0


async def delay(engine: ServingEngine, shutdown: Shutdown, delay_s: float) -> None:
    """Serves on for `delay_s` seconds while the server says that it is not ready; a second signal ends the delay."""
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
        engine: Runs the requests.
        frontends: What listens.
        manager: What holds the models.
        exit_timeout_s: For what is in flight.
        writers: By name, how what has still to be written or sent (traces, say) is ended; may block.

    Returns:
        Whether the exit timeout is over, so that the process should end without delay.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + exit_timeout_s + END_S
    engine.begin_shutdown()
    # The ports stay open while requests are completed, so that a probe hears "not ready" and a late client why it is rejected.
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
    """Does `work`; breaks it off after `timeout_s`, with a line in the log."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=max(0.0, timeout_s))
    if done:
        task.result()
        return
    log.warning("%s takes too long at the end of the exit timeout: broken off", what)
    task.cancel()
