"""Measures one level: warms up, measures windows until three in a row agree, and stops the load."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stoker.cli.bench.figures import Figures, Outcome, Window, agree, failures, measure
from stoker.cli.bench.levels import Level
from stoker.cli.bench.loops import NS_PER_S, ClockNs, Load, Samples
from stoker.cli.bench.server_times import ServerReading, between

#: Consecutive windows that must agree.
AGREEING = 3
#: Longest single wait, seconds, so that a bound on requests is enforced promptly and progress is shown.
_LOOK_S = 0.1
#: Failed requests before the first successful one after which a level is aborted.
_HOPELESS = 20


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a measurement.

    Attributes:
        warmup_s: Time of load before the first window, seconds.
        window_s: Length of a window, seconds.
        within: Share by which three consecutive windows may differ from their mean.
        most_windows: Windows after which the last three are used even if they differ.
        most_requests: Requests after which a level ends in any case.
    """

    warmup_s: float
    window_s: float
    within: float
    most_windows: int
    most_requests: int


Progress = Callable[[float, Figures | None], None]
"""Receives the elapsed share of the longest possible time (0 to 1), and the last window's figures."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The dependencies of a trial.

    Attributes:
        clock_ns: The load's clock, nanoseconds.
        cpu_ns: CPU time of this process, nanoseconds.
        sleep: Sleeps for seconds.
        read_server: Reads the server's counters; returns None if there are none.
        progress: See `Progress`.
    """

    clock_ns: ClockNs
    cpu_ns: ClockNs
    sleep: Callable[[float], Awaitable[None]]
    read_server: Callable[[], Awaitable[ServerReading | None]]
    progress: Progress


@dataclass(frozen=True, slots=True)
class _Edge:
    """The readings at the boundary between two windows."""

    at_ns: int
    cpu_ns: int
    server: ServerReading | None


async def run_level(level: Level, load: Load, samples: Samples, rules: Rules, rows: int, world: Surroundings) -> Outcome:
    """Runs `load`, which records in `samples`, until the level is measured."""
    task = asyncio.ensure_future(load.run())
    try:
        edges, seen, ended = await _watch(task, samples, rules, world)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    first = edges[-1 - min(AGREEING, len(edges) - 1)]
    last = edges[-1]
    window = Window(first.at_ns, max(last.at_ns, first.at_ns + 1))
    server = None if first.server is None or last.server is None else between(first.server, last.server)
    cpu = (last.cpu_ns - first.cpu_ns) / max(1, last.at_ns - first.at_ns)
    is_stable = len(seen) >= AGREEING and agree(seen[-AGREEING:], rules.within)
    return Outcome(level, measure(samples, window), rows, is_stable, cpu, server, failures(samples, window), ended)


async def _watch(
    task: "asyncio.Future[None]", samples: Samples, rules: Rules, world: Surroundings
) -> tuple[list[_Edge], list[Figures], str]:
    """Returns the boundaries of the windows, their figures, and the reason of the end."""
    longest_s = rules.warmup_s + rules.most_windows * rules.window_s
    begun_ns = world.clock_ns()
    seen: list[Figures] = []

    async def pass_until(end_ns: int) -> str:
        """Waits; returns a reason if the level must end, else an empty text."""
        while (now_ns := world.clock_ns()) < end_ns:
            world.progress(min(1.0, (now_ns - begun_ns) / NS_PER_S / longest_s), seen[-1] if seen else None)
            await world.sleep(min(_LOOK_S, (end_ns - now_ns) / NS_PER_S))
            if task.done():
                await task  # a defect: loops only end when they are cancelled
            if samples.count >= rules.most_requests:
                return "requests"
            if not samples.ended_ns and len(samples.failed_ns) >= _HOPELESS:
                return "errors"
        return ""

    async def edge() -> _Edge:
        # The counters first: the call takes time, in which the load continues.
        server = await world.read_server()
        return _Edge(world.clock_ns(), world.cpu_ns(), server)

    ended = await pass_until(begun_ns + round(rules.warmup_s * NS_PER_S))
    edges = [await edge()]
    while not ended and len(seen) < rules.most_windows:
        ended = await pass_until(edges[-1].at_ns + round(rules.window_s * NS_PER_S))
        edges.append(await edge())
        seen.append(measure(samples, Window(edges[-2].at_ns, edges[-1].at_ns)))
        if len(seen) >= AGREEING and agree(seen[-AGREEING:], rules.within):
            ended = "stable"
    if len(edges) == 1:
        edges.insert(0, _Edge(begun_ns, edges[0].cpu_ns, edges[0].server))
    return edges, seen, ended or "trials"
