"""Clocks that can be waited for, pacing, the host link."""

import threading

import pytest

from stoker.backends.gcu.timing import HostLink
from stoker.backends.simulated.pacing import HostClock, Pacer, Pacing, Timeline, VirtualClock


def test_virtual_time_advances_only_on_request() -> None:
    clock = VirtualClock()
    clock.advance(1.5)
    clock.advance_to(1_000_000_000)

    assert clock.now_ns() == 1_500_000_000
    assert clock.wall_ms() == 1500


def test_waiter_for_a_virtual_time_is_woken_at_that_time() -> None:
    clock, condition, woken = VirtualClock(), threading.Condition(), threading.Event()

    def wait() -> None:
        with condition:
            while clock.now_ns() < 1000:
                clock.wait(condition, 1000)
        woken.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert clock.until_waited_for(10)
    clock.advance_to(999)
    assert not woken.is_set()
    clock.advance_to(1000)

    assert woken.wait(10)
    thread.join(10)


def test_wait_for_a_past_time_returns_at_once() -> None:
    for clock in (HostClock(), VirtualClock()):
        condition = threading.Condition()
        with condition:
            clock.wait(condition, clock.now_ns())


def test_without_pacing_every_wait_returns_at_once() -> None:
    clock = VirtualClock()
    Pacer(clock, Pacing.NONE).occupy(3600)

    assert clock.now_ns() == 0


def test_virtual_pacing_moves_the_clock() -> None:
    clock = VirtualClock()
    Pacer(clock, Pacing.VIRTUAL).occupy(3600)

    assert clock.now_ns() == 3_600_000_000_000


def test_virtual_pacing_needs_a_clock_that_can_be_moved() -> None:
    with pytest.raises(ValueError, match="VirtualClock"):
        Pacer(HostClock(), Pacing.VIRTUAL)


def test_realtime_pacing_waits_for_its_time_and_ends_when_stopped() -> None:
    clock, condition, stopped, results = VirtualClock(), threading.Condition(), threading.Event(), list[bool]()
    pacer = Pacer(clock, Pacing.REALTIME)

    def occupy() -> None:
        results.append(pacer.wait_until(1000, condition, stopped.is_set))
        results.append(pacer.wait_until(2000, condition, stopped.is_set))

    thread = threading.Thread(target=occupy, daemon=True)
    thread.start()
    assert clock.until_waited_for(10)
    clock.advance_to(1000)
    with condition:
        stopped.set()
        condition.notify_all()
    thread.join(10)

    assert results[1] is False
    assert not thread.is_alive()


def test_queued_work_begins_at_the_end_of_the_last() -> None:
    timeline = Timeline()
    assert timeline.reserve(100, now_ns=50, was_waiting=True) == 0  # a host that is late by less than the slack
    assert timeline.reserve(100, now_ns=50, was_waiting=True) == 100
    assert timeline.reserve(100, now_ns=70, was_waiting=False) == 200
    assert (timeline.free_at_ns, timeline.busy_ns) == (300, 300)


def test_later_work_begins_at_its_arrival() -> None:
    timeline = Timeline()
    timeline.reserve(100, now_ns=0, was_waiting=False)

    assert timeline.reserve(100, now_ns=500, was_waiting=False) == 500
    assert timeline.reserve(100, now_ns=600 + Timeline.SLACK_NS + 1, was_waiting=True) == 600 + Timeline.SLACK_NS + 1


def test_transfer_takes_latency_plus_bytes_over_bandwidth() -> None:
    assert HostLink(bytes_per_s=1e9, latency_s=1e-6).transfer_s(1000) == pytest.approx(2e-6)
    with pytest.raises(ValueError, match="positive bandwidth"):
        HostLink(bytes_per_s=0)
