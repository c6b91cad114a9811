"""The end of a server: its order, and its bound in time."""

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest

from stoker.server.shutdown import END_S, WRITE_S, Shutdown, delay, take_down
from tests.fakes.virtual_loop import run_virtually

FOREVER_S = 1e6


class Part:
    """The engine, the listeners and the models of a server; each takes the time that the test sets."""

    def __init__(self, *, answers_s: float = 0.0, connections_s: float = 0.0, models_s: float = 0.0) -> None:
        self.events: list[str] = []
        self.requests_in_flight = 1
        self._answers_s, self._connections_s, self._models_s = answers_s, connections_s, models_s

    def begin_delay(self) -> None:
        self.events.append("delay")

    def begin_shutdown(self) -> None:
        self.events.append("refusing")

    async def drained(self, timeout_s: float) -> float:
        await asyncio.sleep(min(timeout_s, self._answers_s))
        self.events.append("drained")
        return max(0.0, timeout_s - self._answers_s)


class Frontends(Part):
    async def stop(self, grace_s: float) -> None:
        await asyncio.sleep(self._connections_s)
        self.events.append("closed")


class Models(Part):
    async def stop(self, timeout_s: float) -> None:
        await asyncio.sleep(self._models_s)
        self.events.append("unloaded")


async def taken_down(exit_timeout_s: float, **times: float) -> tuple[float, list[str]]:
    engine, frontends, models = Part(**times), Frontends(**times), Models(**times)
    frontends.events = models.events = engine.events
    await take_down(engine, frontends, models, exit_timeout_s, {"writing": lambda: engine.events.append("written")})  # type: ignore[arg-type]
    return asyncio.get_running_loop().time(), engine.events


def test_idle_server_ends_at_once_in_order() -> None:
    assert run_virtually(taken_down(30.0)) == (0.0, ["refusing", "drained", "closed", "unloaded", "written"])


def test_requests_that_finish_in_time_are_waited_for() -> None:
    now_s, events = run_virtually(taken_down(30.0, answers_s=12.0, connections_s=5.0))
    assert (now_s, events) == (17.0, ["refusing", "drained", "closed", "unloaded", "written"])


@pytest.mark.parametrize(
    "times", [{"connections_s": FOREVER_S}, {"models_s": FOREVER_S}, {"connections_s": FOREVER_S, "models_s": FOREVER_S}]
)
@pytest.mark.parametrize("answers_s", [0.0, 3.9, FOREVER_S])
def test_shutdown_never_exceeds_its_bound(times: dict[str, float], answers_s: float) -> None:
    now_s, events = run_virtually(taken_down(4.0, answers_s=answers_s, **times))
    assert now_s <= 4.0 + END_S + WRITE_S + 1e-9
    assert events[:2] == ["refusing", "drained"]


@pytest.mark.parametrize(("answers_s", "is_late"), [(0.0, False), (3.0, False), (FOREVER_S, True)])
def test_shutdown_reports_whether_the_time_is_over(answers_s: float, is_late: bool) -> None:
    part = Part(answers_s=answers_s)
    assert run_virtually(take_down(part, Frontends(), Models(), 4.0, {})) is is_late  # type: ignore[arg-type]


def test_hanging_writer_is_abandoned() -> None:
    may_end = threading.Event()

    def write() -> None:
        may_end.wait(60)

    async def run() -> float:
        part = Part()
        frontends, models = Frontends(), Models()
        await take_down(part, frontends, models, 4.0, {"writing": write})  # type: ignore[arg-type]
        return asyncio.get_running_loop().time()

    assert run_virtually(run()) <= 4.0 + END_S + WRITE_S
    may_end.set()


def test_models_unload_although_connections_do_not_close() -> None:
    assert "unloaded" in run_virtually(taken_down(4.0, answers_s=FOREVER_S, connections_s=FOREVER_S))[1]


#: The handler of each signal, by its number.
HANDLERS: dict[int, Callable[[int, None], None]] = {}


def terminate() -> None:
    """Delivers a SIGTERM."""
    HANDLERS[signal.SIGTERM](signal.SIGTERM, None)


@pytest.fixture
def shutdown(monkeypatch: pytest.MonkeyPatch) -> Shutdown:
    """Without handlers: a test calls them itself."""
    monkeypatch.setattr(signal, "signal", HANDLERS.__setitem__)
    return Shutdown()


def test_delay_lasts_as_long_as_configured(shutdown: Shutdown) -> None:
    async def run() -> tuple[float, list[str]]:
        shutdown.bind_loop(asyncio.get_running_loop())
        terminate()
        await shutdown.requested.wait()
        engine = Part()
        await delay(engine, shutdown, 10.0)  # type: ignore[arg-type]
        return asyncio.get_running_loop().time(), engine.events

    assert run_virtually(run()) == (10.0, ["delay"])


def test_second_signal_ends_the_delay(shutdown: Shutdown) -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        shutdown.bind_loop(loop)
        terminate()
        loop.call_later(2.0, terminate)
        await shutdown.delay(10.0)
        return loop.time()

    assert run_virtually(run()) == 2.0
