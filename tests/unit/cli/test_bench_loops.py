"""Loops and trials on a clock that moves only while a task sleeps."""

import asyncio
import itertools

import pytest

from stoker.cli.bench.levels import Level
from stoker.cli.bench.loops import NS_PER_S, ClosedLoop, OpenLoop, Samples
from stoker.cli.bench.sender import RequestFailed, Trip
from stoker.cli.bench.trial import Rules, Surroundings, run_level

MS = 1_000_000
RULES = Rules(warmup_s=0.1, window_s=1.0, within=0.1, most_windows=5, most_requests=100_000)


class World:
    """Time in virtual nanoseconds: sleeping tasks wake in order, once no other task can run."""

    def __init__(self):
        self.now_ns = 0
        self.sleepers = []
        self.count = 0

    def clock_ns(self):
        return self.now_ns

    async def sleep(self, seconds):
        # Those who poll for a moment must see time pass.
        seconds = max(seconds, 2e-4)
        self.count += 1
        woken = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.now_ns + round(seconds * NS_PER_S), self.count, woken))
        await woken

    async def turn(self, until):
        while not until.done():
            for _ in range(5):
                await asyncio.sleep(0)
            if until.done():
                return
            self.sleepers = sorted(each for each in self.sleepers if not each[2].done())
            if not self.sleepers:
                continue
            at_ns, _, woken = self.sleepers.pop(0)
            self.now_ns = max(self.now_ns, at_ns)
            woken.set_result(None)


class TimedSender:
    """Responds after `service_ms`, except during a stall of the server, which blocks all requests."""

    def __init__(self, world, service_ms=10.0, stall=(0, 0), failing=False):
        self.world, self.service_ms, self.stall, self.failing = world, service_ms, stall, failing
        self.in_flight = self.most = self.sent = 0

    async def send(self):
        self.sent += 1
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            begin, end = self.stall
            wait_ms = self.service_ms + max(0, end - self.world.now_ns / MS) if begin <= self.world.now_ns / MS < end else self.service_ms
            await self.world.sleep(wait_ms / 1000)
            if self.failing:
                raise RequestFailed("configured to fail")
            return Trip(1000, 2000)
        finally:
            self.in_flight -= 1


def trial(make, level, rules=RULES, *, failing=False, **settings):
    """Runs one level in virtual time."""

    async def run():
        world, samples = World(), Samples()
        sender = TimedSender(world, failing=failing, **settings)

        async def no_server():
            return None

        surroundings = Surroundings(world.clock_ns, world.clock_ns, world.sleep, no_server, lambda part, figures: None)
        task = asyncio.ensure_future(run_level(level, make(sender, samples, world), samples, rules, 1, surroundings))
        await world.turn(task)
        return task.result(), sender, samples

    return asyncio.run(run())


def closed(concurrency):
    return lambda sender, samples, world: ClosedLoop(sender, samples, world.clock_ns, concurrency=concurrency)


def opened(rate, **more):
    return lambda sender, samples, world: OpenLoop(sender, samples, world.clock_ns, rate_per_s=rate, sleep=world.sleep, **more)


def test_closed_loop_holds_its_concurrency_and_is_stable_after_three_windows():
    outcome, sender, _ = trial(closed(4), Level(concurrency=4))
    assert sender.most == 4
    assert outcome.is_stable
    assert outcome.ended == "stable"
    assert outcome.figures.seconds == pytest.approx(3.0, rel=0.01)
    assert outcome.figures.requests_per_s == pytest.approx(400, rel=0.02)
    assert outcome.figures.latency_us[99] == pytest.approx(10_000, rel=0.01)


def test_open_loop_holds_its_rate_independently_of_the_server():
    outcome, _, _ = trial(opened(50), Level(rate_per_s=50), service_ms=35.0)
    assert outcome.figures.requests_per_s == pytest.approx(50, rel=0.02)
    assert outcome.figures.latency_us[50] == pytest.approx(35_000, rel=0.01)


def test_latency_of_an_open_loop_counts_from_when_requests_were_due():
    """One request at a time, and the server stalls for 400 ms: requests due during the stall wait for it, and their latency includes it."""
    _, _, samples = trial(opened(50, most_in_flight=1), Level(rate_per_s=50), stall=(1000, 1400))
    waited_ms = sorted((latency / MS for latency in samples.latency_ns), reverse=True)
    assert waited_ms[0] == pytest.approx(410, abs=2)
    # Twenty were due in the stall; those after it leave late until the backlog of 10 ms each is worked off.
    assert sum(each > 100 for each in waited_ms) >= 15
    assert max(samples.lag_ns) > 300 * MS


def test_closed_loop_hides_a_stall_that_an_open_one_shows():
    _, _, samples = trial(closed(1), Level(concurrency=1), stall=(1000, 1400))
    assert sum(latency > 100 * MS for latency in samples.latency_ns) == 1


def test_random_gaps_are_reproducible_and_hold_the_rate():
    first, second = (trial(opened(200, poisson=True), Level(rate_per_s=200))[2].ended_ns for _ in range(2))
    assert first == second
    gaps = {later - earlier for earlier, later in itertools.pairwise(first)}
    assert len(gaps) > 50
    assert len(first) / (first[-1] / NS_PER_S) == pytest.approx(200, rel=0.15)


def test_level_ends_at_its_bound_of_requests():
    outcome, sender, _ = trial(closed(2), Level(concurrency=2), Rules(0.1, 1.0, 0.1, 5, 50))
    assert outcome.ended == "requests"
    assert not outcome.is_stable
    assert sender.sent < 80
    assert outcome.figures.requests > 0


def test_level_that_never_stabilises_ends_after_its_windows():
    rules = Rules(0.0, 0.5, 0.001, 4, 100_000)
    outcome, _, _ = trial(opened(40, poisson=True), Level(rate_per_s=40), rules)
    assert (outcome.ended, outcome.is_stable) == ("trials", False)
    assert outcome.figures.seconds == pytest.approx(1.5, rel=0.02)


def test_level_with_only_failed_requests_is_aborted():
    outcome, _, samples = trial(opened(1000), Level(rate_per_s=1000), failing=True)
    assert outcome.ended == "errors"
    assert outcome.failures == {"configured to fail": len(samples.failed_ns)}
    assert outcome.figures.requests == 0


def whole(make, **settings):
    """Runs a load of a stated number of requests to its end, in virtual time."""

    async def run():
        world, samples = World(), Samples()
        sender = TimedSender(world, **settings)
        await world.turn(task := asyncio.ensure_future(make(sender, samples, world).run()))
        task.result()
        return samples, sender, world

    return asyncio.run(run())


def test_closed_loop_with_a_number_of_requests_ends_after_the_last_response():
    samples, sender, world = whole(lambda sender, samples, world: ClosedLoop(sender, samples, world.clock_ns, concurrency=4, requests=10))
    assert (sender.sent, sender.most, len(samples.ended_ns)) == (10, 4, 10)
    assert world.now_ns == pytest.approx(30 * MS, rel=0.01)  # three rounds of four callers, the last one with two


def test_open_loop_with_a_number_of_requests_sends_each_when_it_is_due():
    samples, sender, _ = whole(opened(100, requests=5), service_ms=3.0)
    assert sender.sent == 5
    assert [round((ended - latency) / MS, 1) for ended, latency in zip(samples.ended_ns, samples.latency_ns, strict=True)] == [
        0.0,
        10.0,
        20.0,
        30.0,
        40.0,
    ]


def test_every_request_is_counted_once_as_good_or_failed():
    samples, sender, _ = whole(
        lambda sender, samples, world: ClosedLoop(sender, samples, world.clock_ns, concurrency=2, requests=6), failing=True
    )
    assert (sender.sent, samples.count, len(samples.ended_ns), samples.failed_texts) == (6, 6, 0, ["configured to fail"] * 6)
