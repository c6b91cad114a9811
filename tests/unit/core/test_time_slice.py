import ctypes
import os
import platform
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from stoker.server.core import time_slice
from stoker.server.core.time_slice import shorten_time_slice, time_slice_ns

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    """What `work` gives in a thread of its own: a slice outlives the test that asked for it."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


needs_slices = pytest.mark.skipif(time_slice_ns() is None, reason="this system has no slices of a thread's own (Linux before 6.12)")


@needs_slices
@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) < 0, reason="started with a negative nice value")
def test_the_slice_of_the_thread_is_halved_and_that_of_its_threads_is_not() -> None:
    def work() -> tuple[int | None, bool, int | None, int | None]:
        return time_slice_ns(), shorten_time_slice(), time_slice_ns(), in_a_thread(time_slice_ns)

    before_ns, is_done, after_ns, inherited_ns = in_a_thread(work)
    assert before_ns is not None
    assert (is_done, after_ns, inherited_ns) == (True, before_ns // 2, before_ns)


@needs_slices
def test_nothing_else_of_the_thread_changes() -> None:
    def attributes() -> tuple[int, int]:
        return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def work() -> tuple[tuple[int, int], tuple[int, int]]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        before = attributes()
        shorten_time_slice()
        return before, attributes()

    before, after = in_a_thread(work)
    assert before == after == (os.SCHED_OTHER, 3)


def test_a_machine_of_unknown_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    assert not shorten_time_slice()
    assert time_slice_ns() is None


def test_a_system_that_refuses_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, name: None, *, use_errno: bool) -> None:
            assert name is None
            assert use_errno

        def syscall(self, *arguments: object) -> int:
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Refusing)
    assert not shorten_time_slice()


def test_an_interpreter_without_shared_libraries_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: None, *, use_errno: bool) -> None:
        raise OSError("Dynamic loading not supported")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert not shorten_time_slice()
    assert time_slice_ns() is None


@pytest.mark.parametrize(("policy", "nice", "slice_ns"), [(1, 0, 0), (0, -5, 1_400_000), (0, 0, 0)])
def test_real_time_threads_favoured_ones_and_older_kernels_keep_what_they_have(
    policy: int, nice: int, slice_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = time_slice._Attributes(policy=policy, nice=nice, slice_ns=slice_ns)
    monkeypatch.setattr(time_slice, "_read", lambda: attributes)
    monkeypatch.setattr(time_slice, "_call", lambda *_: pytest.fail("changed something"))
    assert not shorten_time_slice()
