"""Modelled time: on a simulation's clock, and on one that tests turn."""

import threading

import numpy as np
import pytest
from TopsInference.host_runs import run_on_host

from stoker.backends.gcu.hardware import I20
from stoker.backends.gcu.runtime import Direction, GcuSystem, StreamTimeout
from stoker.backends.gcu.runtime.card import Lane
from stoker.backends.gcu.timing import copy_time_s
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing, VirtualClock
from tests.fakes.gcu_executables import scaled


@pytest.fixture
def virtual():
    system = GcuSystem(pacing=Pacing.VIRTUAL)
    yield system
    system.close()


def seconds(system):
    return system.clock.now_ns() / 1e9


def test_run_takes_its_copies_and_its_modelled_time(virtual):
    with virtual.acquire(0, 0) as device:
        engine = device.load(scaled([8], run_s=0.5))
        loaded_s = seconds(virtual)
        assert loaded_s == pytest.approx(copy_time_s(I20, 12), abs=1e-8)
        run_on_host(engine, [np.ones((20, 3), np.float32)])
    copies = sum(copy_time_s(I20, size) for size in (240, 240, 160))
    assert seconds(virtual) - loaded_s == pytest.approx(3 * 8 * 0.5 + copies, abs=1e-6)


def test_more_clusters_are_faster_by_the_compilers_figures(virtual):
    with virtual.acquire(0, [0, 1, 2]) as device:
        run_on_host(device.load(scaled([8], run_s=0.5)), [np.ones((8, 3), np.float32)])
    assert seconds(virtual) == pytest.approx(2, rel=1e-3)


def test_streams_on_separate_clusters_run_in_parallel(virtual):
    """Both are queued at time 0, in any order of threads."""
    gate = threading.Event()
    streams, futures = [], []
    for cluster in (0, 1):
        device = virtual.acquire(0, cluster)
        engine = device.load(scaled([1], run_s=10.0))
        x, y, n = device.allocate(12), device.allocate(12), device.allocate(8)
        streams.append(device.create_stream())
        streams[-1].submit(lambda *_: gate.wait(30), [])
        futures.append(engine.run_with_batch(1, [x], [y, n], streams[-1]))
    gate.set()
    for stream, future in zip(streams, futures, strict=True):
        future.result(30)
        stream.synchronize()
    assert seconds(virtual) == pytest.approx(10, rel=1e-3)


def test_streams_on_one_cluster_run_serially(virtual):
    gate, futures = threading.Event(), []
    with virtual.acquire(0, 0) as device:
        engine = device.load(scaled([1], run_s=10.0))
        for _ in range(3):
            x, y, n = device.allocate(12), device.allocate(12), device.allocate(8)
            stream = device.create_stream()
            stream.submit(lambda *_: gate.wait(30), [])
            futures.append(engine.run_with_batch(1, [x], [y, n], stream))
        gate.set()
        for future in futures:
            future.result(30)
    assert seconds(virtual) == pytest.approx(30, rel=1e-3)
    assert virtual.cards[0].figures.cluster_busy_s[0] == 30


def test_copies_overlap_in_opposite_directions_only(virtual):
    card, lanes = virtual.cards[0], [Lane() for _ in range(3)]
    card.copy(Direction.TO_DEVICE, 10, 1.0, lanes[0], 0)
    card.copy(Direction.TO_HOST, 20, 1.0, lanes[1], 0)
    card.copy(Direction.TO_DEVICE, 30, 1.0, lanes[2], 0)
    assert [lane.ready_at_ns / 1e9 for lane in lanes] == [1, 1, 2]
    to_device = card.figures.copies[Direction.TO_DEVICE]
    assert (to_device.copies, to_device.size_bytes, to_device.busy_s) == (2, 40, 2.0)


def test_run_in_real_time_ends_by_the_clock():
    clock = VirtualClock()
    system = GcuSystem(pacing=Pacing.REALTIME, numerics=Numerics.OFF, clock=clock)
    device = system.acquire(0, 0)
    done = threading.Event()

    def run():
        with device.create_stream() as stream:
            engine = device.load(scaled([1], run_s=10.0))
            x, y, n = device.allocate(12), device.allocate(12), device.allocate(8)
            engine.run_with_batch(1, [x], [y, n], stream).result()
            done.set()

    running = threading.Thread(target=run)
    running.start()
    assert clock.until_waited_for(30)
    clock.advance(1)  # the engine is loaded
    assert clock.until_waited_for(30)
    clock.advance(9.5)
    assert not done.is_set()
    clock.advance(0.6)
    assert done.wait(30)
    running.join(30)
    assert device.figures.slow_runs == 0
    system.close()


def test_wait_for_modelled_work_ends_at_its_timeout():
    clock = VirtualClock()
    system = GcuSystem(pacing=Pacing.VIRTUAL, clock=clock)
    device = system.acquire()
    stream, buffer = device.create_stream(), device.allocate(1 << 20)
    stream.copy_to_device(np.zeros(1 << 20, np.uint8), buffer)
    with pytest.raises(StreamTimeout, match="has not done its work in 1e-09 s; its last piece is under way"):
        stream.synchronize(1e-9)
    stream.synchronize()
    assert seconds(system) == pytest.approx(copy_time_s(I20, 1 << 20), abs=1e-8)
    system.close()


def test_timeout_without_pacing_is_the_hosts():
    system = GcuSystem()
    with system.acquire() as device, device.create_stream() as stream:
        buffer = device.allocate(1 << 20)
        for _ in range(200):
            stream.copy_to_device(np.zeros(1 << 20, np.uint8), buffer)
        stream.synchronize(30)
        assert device.figures.copies[Direction.TO_DEVICE].size_bytes == 200 << 20


def test_run_computed_slower_than_the_card_is_counted():
    system = GcuSystem()
    with system.acquire() as device:
        run_on_host(device.load(scaled([1], run_s=1e-9)), [np.ones((1, 3), np.float32)])
        run_on_host(device.load(scaled([1], run_s=1e3)), [np.ones((1, 3), np.float32)])
        assert device.figures.slow_runs == 1


def test_single_host_delay_does_not_accumulate_but_a_slow_host_does():
    clock = VirtualClock()
    card = GcuSystem(pacing=Pacing.REALTIME, clock=clock).cards[0]
    lane = Lane()
    card.run([0], 1.0, lane, 0)
    clock.advance(1.001)  # woken a millisecond late
    card.run([0], 1.0, lane, 0)
    assert lane.ready_at_ns == 2_000_000_000
    clock.advance(1.5)  # the host took half a second of its own
    card.run([0], 1.0, lane, 0)
    assert lane.ready_at_ns == 3_501_000_000
