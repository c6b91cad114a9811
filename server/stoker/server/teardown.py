"""Takes a server out of service in the order that loses no request, within a bound of time.

Delay: not ready, but every request is served, so that load balancers can stop sending. Drain: new requests are refused, what is in flight
finishes within the exit timeout. End: the last answers leave, models unload; all of this takes at most `END_S` more.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from stoker.server.core.daemon_thread import in_daemon_thread
from stoker.server.engine.serving_engine import ServingEngine
from stoker.server.frontend_set import Frontends
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.shutdown import Shutdown

log = logging.getLogger("stoker.server")

#: From the end of the exit timeout to the end of the server.
END_S: Final = 0.8
#: What each writer has at least, even then.
WRITE_S: Final = 0.05
#: What of this the last answers have, where the exit timeout is used up.
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
        engine: What answers.
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
    # The ports stay open while requests are answered, so that a probe hears "not ready" and a late client why it is refused.
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
