"""Cards, devices and their memory."""

import itertools
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from TopsInference.host_runs import run_on_host, submit_on_host

from stoker.backends.gcu.runtime import DeviceFailed, GcuSystem, OutOfDeviceMemory, Status, StatusError, StreamClosed
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing
from tests.fakes.gcu_executables import scaled
from tests.fakes.server_process import run_python

X = np.ones((1, 3), np.float32)


def wait_for_hang(card):
    with card.turns.condition:
        assert card.turns.condition.wait_for(lambda: card.is_hanging, 30)


@pytest.mark.parametrize(
    ("card", "clusters", "says", "status"),
    [
        (1, 0, "there is no card 1; the simulated system has 1", Status.TIF_INVALID_PARAM),
        (-1, 0, "there is no card -1", Status.TIF_INVALID_PARAM),
        ("0", 0, "a card is chosen by its number, from 0, not by '0'", Status.TIF_INVALID_PARAM),
        (0, 6, "there is no cluster 6 on card 0; a card of type i20 has 0 to 5", Status.TIF_MORE_CLUSTER_APPLIED),
        (0, range(7), "7 clusters of card 0 are asked for; a card of type i20 has 6", Status.TIF_MORE_CLUSTER_APPLIED),
        (0, [], "no cluster of card 0 is asked for", Status.TIF_INVALID_PARAM),
        (0, [1, 1], "one is named twice", Status.TIF_INVALID_PARAM),
        (0, "ab", "expected numbers, not 'ab'", Status.TIF_INVALID_PARAM),
        (0, 0.5, "expected numbers, not 0.5", Status.TIF_INVALID_PARAM),
    ],
)
def test_nonexistent_card_or_cluster_cannot_be_acquired(system, card, clusters, says, status):
    with pytest.raises(StatusError, match=says) as caught:
        system.acquire(card, clusters)
    assert caught.value.status is status
    assert str(caught.value).endswith(f"[{status.name}]")


def test_clusters_are_one_several_or_all(system):
    assert system.acquire(0, 3).clusters == (3,)
    assert system.acquire(0, [5, 2]).clusters == (2, 5)
    assert system.acquire(0, -1).clusters == system.acquire().clusters == (0, 1, 2, 3, 4, 5)


def test_devices_share_clusters_unless_one_is_exclusive(system):
    system.acquire(0, [0, 1])
    own = system.acquire(0, [2, 3], is_exclusive=True)
    system.acquire(0, [1, 4])
    with pytest.raises(StatusError, match="cluster 3 of card 0 is taken"):
        system.acquire(0, [3, 5])
    with pytest.raises(StatusError, match="cluster 4 of card 0 is taken"):
        system.acquire(0, [4, 5], is_exclusive=True)
    own.release()
    assert system.acquire(0, [3]).clusters == (3,)


def test_buffers_are_zeroed_accounted_and_freed_once(device):
    buffer = device.allocate(100)
    content = np.ones(100, np.uint8)
    device.copy_to_host(buffer, content)
    assert not content.any()
    assert device.hbm_used_bytes == device.figures.hbm_used_bytes == 100
    buffer.free()
    assert device.figures.hbm_used_bytes == 0
    for use in (buffer.free, lambda: device.copy_to_host(buffer, content)):
        with pytest.raises(StatusError, match=r"freed> (is freed twice|cannot be used any more)"):
            use()
    with pytest.raises(StatusError, match="at least one byte, not 0"):
        device.allocate(0)


def test_sixteen_gigabytes_are_the_limit(device):
    half = device.allocate(8 << 30)  # untouched pages cost the host nothing
    with pytest.raises(OutOfDeviceMemory, match=r"has 17179869184, of which 8589934592 are free \(taken: 8589934592 bytes of buffers\)"):
        device.allocate((8 << 30) + 1)
    half.free()
    assert device.figures.hbm_used_bytes == 0


def test_no_two_buffers_share_an_address(system, device):
    addresses = [device.allocate(5000).address for _ in range(4)]
    assert all(later - earlier == 8192 for earlier, later in itertools.pairwise(addresses))


def test_addresses_stay_small_and_distinct_for_any_allocation_order():
    system = GcuSystem(2)
    here, there = system.acquire(0), system.acquire(1)
    first = here.allocate(1).address
    with pytest.raises(OutOfDeviceMemory):
        here.allocate(1 << 70)
    assert here.allocate(1).address == first + 4096  # what was refused takes no address
    for _ in range(65):  # more than a tebibyte in turn
        here.allocate(15 << 30).free()
    assert here.allocate(1).address < there.allocate(1).address < 1 << 63
    system.close()


def test_released_device_frees_all_its_objects(system):
    with system.acquire() as device:
        engine, stream = device.load(scaled()), device.create_stream()
        submit_on_host(engine, [X], stream).result(30)
        device.allocate(1000)
    assert system.devices == ()
    figures = system.cards[0].figures
    assert (figures.hbm_used_bytes, figures.streams) == (0, 0)
    for use in (device.create_stream, lambda: device.allocate(1), lambda: device.load(scaled()), lambda: run_on_host(engine, [X])):
        with pytest.raises(StatusError, match="released> cannot be used any more"):
            use()
    device.release()


#: Forks, and prints the child's error. In an interpreter of its own: threads of other tests' libraries do not endure a fork.
FORKING = """
import os, warnings
from stoker.backends.gcu.runtime import GcuSystem, StatusError, process_system

device = GcuSystem().acquire()
stream, ours = device.create_stream(), process_system()
stream.submit(lambda *_: None, [])
stream.synchronize(30)
warnings.simplefilter("ignore", DeprecationWarning)  # newer interpreters warn of just what is tested here
child = os.fork()
if child == 0:
    said = []
    for use in (device.create_stream, stream.synchronize, lambda: device.allocate(1), device.system.acquire):
        try:
            use()
        except StatusError as error:
            said.append(error.status.name)
    device.release()
    print(len(said), sorted(set(said)), process_system() is ours, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(device.allocate(1).size_bytes)
"""


@pytest.mark.slow
def test_forked_process_gets_an_error_and_has_its_own_system():
    said = run_python(Path(sys.executable), FORKING).splitlines()
    assert said == ["4 ['TIF_RUNTIME_PREREQUISITE_MISSING'] False", "1"]


@pytest.mark.parametrize(
    ("plan", "says", "status"),
    [
        ("oom@2", "run 2 .injected.: out of memory while engine 'scaled' ran", Status.TIF_ALLOCATE_FAILED),
        ("lost@2", "run 2 .injected.: the card is lost", Status.TIF_ENGINE_RUN_FAILED),
        ("reset@2", "run 2 .injected.: the card needs a reset", Status.TIF_ENGINE_RUN_FAILED),
    ],
)
def test_faults_occur_in_their_planned_run(plan, says, status):
    system = GcuSystem(faults=[FaultPlan.parse(plan)])
    device = system.acquire()
    engine = device.load(scaled())
    run_on_host(engine, [X])
    with device.create_stream() as stream:
        with pytest.raises(StatusError, match=says) as caught:
            submit_on_host(engine, [X], stream).result(30)
        assert caught.value.status is status
        with pytest.raises(StatusError, match=says):
            stream.synchronize(30)
    if plan.startswith("oom"):
        assert run_on_host(engine, [X])[0].tolist() == [[1, 2, 3]]
    else:
        with pytest.raises(DeviceFailed, match=says):
            run_on_host(engine, [X])
    system.close()
    assert system.cards[0].figures.hbm_used_bytes == 0


def test_reset_restores_the_card_and_clears_its_memory():
    system = GcuSystem(faults=[FaultPlan.parse("reset@1")])
    device, card = system.acquire(), system.cards[0]
    engine, buffer = device.load(scaled()), device.allocate(16)
    with pytest.raises(DeviceFailed):
        run_on_host(engine, [X])
    card.reset()
    with pytest.raises(StatusError, match="was lost when card 0 was reset; load it again"):
        run_on_host(engine, [X])
    with pytest.raises(StatusError, match="was lost when the card was reset"):
        device.copy_to_device(np.zeros(16, np.uint8), buffer)
    engine.unload()
    buffer.free()
    assert run_on_host(device.load(scaled()), [X])[0].tolist() == [[1, 2, 3]]
    system.close()


def test_lost_card_is_never_restored():
    system = GcuSystem(2, faults=[FaultPlan.parse("lost@1")])
    device, other = system.acquire(0), system.acquire(1)
    with pytest.raises(DeviceFailed):
        run_on_host(device.load(scaled()), [X])
    with pytest.raises(DeviceFailed, match="is lost"):
        system.cards[0].reset()
    with pytest.raises(DeviceFailed, match="is lost"):
        device.allocate(1)
    assert run_on_host(other.load(scaled()), [X])[0].tolist() == [[1, 2, 3]]
    system.close()


def test_hanging_run_is_aborted_when_its_stream_ends():
    system = GcuSystem(faults=[FaultPlan.parse("hang@1")])
    device = system.acquire()
    engine, stream = device.load(scaled()), device.create_stream()
    future = submit_on_host(engine, [X], stream)
    wait_for_hang(system.cards[0])
    stream.close()
    with pytest.raises(StreamClosed, match="hung until it was given up"):
        future.result(30)
    assert run_on_host(engine, [X])[0].tolist() == [[1, 2, 3]]
    system.close()


def test_hanging_run_is_aborted_when_its_card_is_reset():
    system = GcuSystem(faults=[FaultPlan.parse("hang@1")])
    device, card, said = system.acquire(), system.cards[0], []
    engine = device.load(scaled())

    def run():
        with pytest.raises(StreamClosed, match="hung until it was given up"):
            run_on_host(engine, [X])
        said.append("given up")

    hanging = threading.Thread(target=run)
    hanging.start()
    wait_for_hang(card)
    card.reset()
    hanging.join(30)
    assert said == ["given up"]
    system.close()


def test_bad_output_has_all_bits_set():
    system = GcuSystem(faults=[FaultPlan.parse("bad@1")], numerics=Numerics.OFF)
    with system.acquire() as device:
        y, n = run_on_host(device.load(scaled()), [X])
        assert np.isnan(y).all()
        assert (n == -1).all()
        assert (run_on_host(device.load(scaled()), [X])[0] == 0).all()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cards": 0}, "1 to 64 cards, not 0"),
        ({"cards": 65}, "1 to 64 cards, not 65"),
        ({"host_threads": 0}, "at least one thread"),
        ({"faults": [FaultPlan(), FaultPlan()]}, "plans of faults for 2 cards, the simulated system has 1"),
        ({"faults": [FaultPlan.parse("reset:link@1")]}, "'reset:link@1': faults of a card have no variants"),
    ],
)
def test_impossible_systems_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        GcuSystem(**settings)


def test_environment_describes_the_system():
    system = GcuSystem.from_environment(
        {
            "STOKER_SIM_GCU_CARDS": "2",
            "STOKER_SIM_GCU_PACING": "realtime",
            "STOKER_SIM_GCU_NUMERICS": "off",
            "STOKER_SIM_GCU_FAULTS": "oom@1",
        }
    )
    assert (len(system.cards), system.pacing, system.numerics) == (2, Pacing.REALTIME, Numerics.OFF)
    assert [len(card.faults.faults) for card in system.cards] == [1, 0]
    assert len(GcuSystem.from_environment({}).cards) == 1


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("CARDS", "many", "STOKER_SIM_GCU_CARDS='many' is no number"),
        ("CARDS", "99", "1 to 64 cards, not 99"),
        ("PACING", "slow", "STOKER_SIM_GCU_PACING='slow': expected none or realtime or virtual"),
        ("NUMERICS", "maybe", "STOKER_SIM_GCU_NUMERICS='maybe': expected real or off"),
        ("FAULTS", "fire@1", "'fire@1' is no fault"),
    ],
)
def test_invalid_variable_is_named(name, value, says):
    with pytest.raises(ValueError, match=says):
        GcuSystem.from_environment({f"STOKER_SIM_GCU_{name}": value})
