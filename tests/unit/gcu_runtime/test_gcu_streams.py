"""Streams: order, independence, errors, ends."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest
from TopsInference.host_runs import run_on_host, submit_on_host

from stoker.backends.gcu.hardware import I20
from stoker.backends.gcu.runtime import GcuSystem, Status, StatusError, StreamClosed, StreamTimeout
from stoker.backends.simulated.pacing import VirtualClock
from tests.fakes.gcu_executables import scaled


class Gate:
    """Work that waits until it is released."""

    def __init__(self):
        self.is_reached, self.is_open = threading.Event(), threading.Event()

    def __call__(self, *_):
        self.is_reached.set()
        assert self.is_open.wait(30)


def test_work_runs_in_queue_order(device):
    done = []
    with device.create_stream() as stream:
        gate = Gate()
        stream.submit(gate, [])
        for number in range(50):
            stream.submit(lambda *_, number=number: done.append(number), [])
        assert done == []
        gate.is_open.set()
        stream.synchronize(30)
    assert done == list(range(50))


def test_streams_do_not_wait_for_each_other(device):
    gate, x = Gate(), np.ones((1, 3), np.float32)
    engine = device.load(scaled())
    with device.create_stream() as blocked, device.create_stream() as free:
        blocked.submit(gate, [])
        assert gate.is_reached.wait(30)
        assert submit_on_host(engine, [x], free).result(30)[0].tolist() == [[1, 2, 3]]
        free.synchronize(30)
        gate.is_open.set()
        blocked.synchronize(30)


def test_runs_on_one_cluster_are_serial_and_on_others_parallel(system):
    turns = system.cards[0].turns
    first, second, other = system.acquire(0, [0, 1]), system.acquire(0, [1, 2]), system.acquire(0, [3])
    x = np.ones((1, 3), np.float32)
    engines = [each.load(scaled()) for each in (second, other)]
    with turns.held(first.clusters, lambda: False) as is_held, second.create_stream() as waiting:
        assert is_held
        future = submit_on_host(engines[0], [x], waiting)
        with turns.condition:
            assert turns.condition.wait_for(lambda: turns.waiting == 1, 30)
        assert run_on_host(engines[1], [x])[0].tolist() == [[1, 2, 3]]
        assert not future.done()
    # Closing the stream while it waited for its turn gave the run up.
    with pytest.raises(StreamClosed, match="stopped while it waited for its clusters"):
        future.result(30)
    assert run_on_host(engines[0], [x])[0].tolist() == [[1, 2, 3]]


def test_clusters_are_granted_first_come_first_served(system):
    turns, order = system.cards[0].turns, []
    threads = []

    def run(name, clusters):
        with turns.held(clusters, lambda: False):
            order.append(name)

    with turns.held([0], lambda: False):
        for waiting, (name, clusters) in enumerate((("both", [0, 1]), ("second", [1])), start=1):
            threads.append(threading.Thread(target=run, args=(name, clusters)))
            threads[-1].start()
            with turns.condition:
                assert turns.condition.wait_for(lambda waiting=waiting: turns.waiting == waiting, 30)
        assert order == []  # cluster 1 is free, but 'both' came first
    for thread in threads:
        thread.join(30)
    assert order == ["both", "second"]


def test_failure_stops_the_stream_until_it_is_reported(device):
    done = []

    def fail(*_):
        raise StatusError(Status.TIF_ENGINE_RUN_FAILED, "broken on purpose")

    with device.create_stream() as stream:
        gate = Gate()
        stream.submit(gate, [])
        stream.submit(fail, [])
        stream.submit(lambda *_: done.append("skipped"), [])
        gate.is_open.set()
        with pytest.raises(StatusError, match="broken on purpose"):
            stream.synchronize(30)
        assert done == []
        stream.submit(lambda *_: done.append("after"), [])
        stream.synchronize(30)
    assert done == ["after"]


def test_grouped_actions_are_skipped_together_after_a_failure(device):
    """The second submission's copy is skipped, so its run must be too, though the first one's failure was reported between them."""
    engine, first, between, done = device.load(scaled()), Gate(), Gate(), []
    with device.create_stream() as stream:
        ended: Future[object] = Future()

        def fail(*_):
            first()
            raise StatusError(Status.TIF_ENGINE_RUN_FAILED, "broken on purpose")

        stream.submit(fail, [], ended)
        copied: Future[object] = Future()
        copied.add_done_callback(between)  # holds the stream's thread after the copy was skipped
        stream.submit(lambda *_: done.append("copied"), [], copied)
        last: Future[object] = Future()
        stream.submit(lambda *_: done.append("ran"), [], last)
        first.is_open.set()
        error = ended.exception(30)
        assert between.is_reached.wait(30)
        stream.acknowledge(error)
        x, y, n = device.allocate(12), device.allocate(12), device.allocate(8)
        anew = engine.run_with_batch(1, [x], [y, n], stream)
        between.is_open.set()
        assert last.exception(30) is error
        assert anew.exception(30) is None
        stream.synchronize(30)
    assert done == []


def test_work_queued_before_a_reset_is_dropped(device):
    gate, done = Gate(), []
    with device.create_stream() as stream:
        stream.submit(gate, [])
        stream.submit(lambda *_: done.append("stale"), [])
        assert gate.is_reached.wait(30)
        device.card.reset()
        stream.submit(lambda *_: done.append("stale too"), [])
        gate.is_open.set()
        with pytest.raises(StreamClosed, match="card 0 was reset before it came to this"):
            stream.synchronize(30)
        stream.submit(lambda *_: done.append("fresh"), [])
        stream.synchronize(30)
    assert done == ["fresh"]


def test_exception_in_an_action_is_an_internal_error(device):
    with device.create_stream() as stream:
        stream.submit(lambda *_: 1 / 0, [])
        with pytest.raises(StatusError, match="ZeroDivisionError") as caught:
            stream.synchronize(30)
    assert caught.value.status is Status.TIF_INTERNAL_ERROR


def test_close_drops_queued_work_and_frees_its_buffers(device):
    engine, gate = device.load(scaled()), Gate()
    stream = device.create_stream()
    stream.submit(gate, [])
    x, y, n = device.allocate(48), device.allocate(48), device.allocate(32)
    future = engine.run_with_batch(1, [x], [y, n], stream)
    with pytest.raises(StatusError, match="work queued on a stream uses it"):
        x.free()
    closing = threading.Thread(target=stream.close)
    assert gate.is_reached.wait(30)
    closing.start()
    while not stream.is_closed:
        closing.join(0.001)
    gate.is_open.set()
    closing.join(30)
    with pytest.raises(StreamClosed, match="destroyed before it came to this"):
        future.result(0)
    x.free()
    engine.unload()
    with pytest.raises(StreamClosed, match="is destroyed"):
        stream.submit(lambda *_: None, [])
    stream.close()


def test_wait_ends_at_its_timeout_and_the_stream_continues():
    clock = VirtualClock()
    system = GcuSystem(clock=clock)
    device, gate, said = system.acquire(), Gate(), []
    stream = device.create_stream()
    stream.submit(gate, [])

    def wait():
        with pytest.raises(StreamTimeout, match=r"has not done its work in 2 s; 1 pieces are left"):
            stream.synchronize(2)
        said.append("late")

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert clock.until_waited_for(30)
    clock.advance(3)
    waiting.join(30)
    assert said == ["late"]
    gate.is_open.set()
    stream.synchronize()
    assert device.figures.stream_wait_s == 3
    system.close()


def test_stream_cannot_wait_for_itself(device):
    engine, said = device.load(scaled()), []
    with device.create_stream() as stream:
        gate = Gate()
        stream.submit(gate, [])
        future = submit_on_host(engine, [np.ones((1, 3), np.float32)], stream)

        def wait(_):
            with pytest.raises(StatusError, match="cannot wait for itself"):
                stream.synchronize()
            said.append("refused")

        future.add_done_callback(wait)
        gate.is_open.set()
        stream.synchronize(30)
    assert said == ["refused"]


def test_number_of_streams_is_that_of_the_card(device):
    streams = [device.create_stream() for _ in range(I20.max_streams)]
    with pytest.raises(StatusError, match="has 1000 streams already") as caught:
        device.create_stream()
    assert caught.value.status is Status.TIF_VALIUE_OVERFLOW
    streams[0].close()
    device.create_stream()
    assert device.figures.streams == 1000


@pytest.mark.parametrize(
    ("host", "offset", "size", "says"),
    [
        (np.zeros(17, np.uint8), 0, None, "bytes 0 to 17 are outside the buffer of 16 bytes"),
        (np.zeros(4, np.uint8), 13, None, "bytes 13 to 17 are outside"),
        (np.zeros(4, np.uint8), -1, None, "bytes -1 to 3 are outside"),
        (np.zeros(4, np.uint8), 0, 5, "5 bytes of host memory are to be copied; it has 4"),
        (np.zeros((4, 4), np.uint8)[:, :2], 0, None, "is not contiguous"),
        (np.zeros(2, object), 0, None, "dtype object cannot be copied"),
        ([1, 2], 0, None, "must be a contiguous array or buffer, not list"),
    ],
)
def test_copies_are_checked_when_they_are_queued(device, host, offset, size, says):
    buffer = device.allocate(16)
    with device.create_stream() as stream:
        for copy in (lambda: stream.copy_to_device(host, buffer, offset, size), lambda: stream.copy_to_host(buffer, host, offset, size)):
            with pytest.raises(StatusError, match=says):
                copy()
    buffer.free()


def test_copies_accept_any_array_and_any_offset(device):
    buffer = device.allocate(16)
    source, target = np.arange(4, dtype=np.int16).reshape(2, 2), np.zeros(3, np.int16)
    with device.create_stream() as stream:
        stream.copy_to_device(source, buffer, offset=8)
        stream.copy_to_device(b"\x05\x00", buffer, offset=8)
        stream.copy_to_host(buffer, target, offset=8)
        stream.synchronize(30)
        assert target.tolist() == [5, 1, 2]
        with pytest.raises(StatusError, match="read-only"):
            stream.copy_to_host(buffer, b"12")
