"""How late a thread wakes up beside threads that use every core: as usual, with half the time slice, and with nicer competitors.

The thread sleeps for 2 ms and notes how much later it runs again, as the event loop does when a request arrives while a model computes. The
cases take turns, so that all see the same load of the machine. Run it with

    python -m benchmarks.thread_wakeup

Time slices of single threads need Linux 6.12 or later. docs/adr/0074-tuning-package.md shows what was found.
"""

import argparse
import ctypes
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from stoker.backends.api.cpu import usable_cores
from stoker.server.core.tasks import raise_niceness

SLEEP_S = 0.002
QUANTILES = (50, 90, 99)
#: System call numbers of sched_setattr and sched_getattr.
CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}


class SchedulingAttributes(ctypes.Structure):
    """`struct sched_attr` of linux/sched/types.h, in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def halve_time_slice() -> None:
    """Halves the time slice of the calling thread.

    Raises:
        OSError: the system does not allow it.
    """
    set_number, get_number = CALLS[platform.machine()]
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    attributes = SchedulingAttributes()
    if syscall(get_number, 0, ctypes.byref(attributes), ctypes.sizeof(attributes), 0) or not attributes.slice_ns:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    attributes.size = ctypes.sizeof(attributes)
    attributes.slice_ns //= 2
    if syscall(set_number, 0, ctypes.byref(attributes), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def lateness_us(seconds: float, *, is_short: bool) -> list[float]:
    """How late a thread of its own woke up, once for each sleep, in microseconds."""
    late: list[float] = []

    def sleeper() -> None:
        if is_short:
            halve_time_slice()
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            time.sleep(SLEEP_S)
            late.append((time.monotonic() - begun - SLEEP_S) * 1e6)

    thread = threading.Thread(target=sleeper)
    thread.start()
    thread.join()
    return late


@contextmanager
def competitors(nice: int) -> Iterator[None]:
    """A thread for each core that computes without the interpreter lock."""
    stop = threading.Event()
    matrix = np.ones((512, 512), np.float32)

    def compute() -> None:
        raise_niceness(nice)
        while not stop.is_set():
            matrix @ matrix

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(usable_cores())]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def main() -> None:
    """Prints the quantiles of each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="measurements of each case")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    options = parser.parse_args()
    late: dict[str, list[list[float]]] = {"ordinary": [], "half the slice": [], "competitors at nice 10": []}
    for _ in range(options.rounds):
        for case, rounds in late.items():
            with competitors(nice=10 if "nice" in case else 0):
                rounds.append(lateness_us(options.seconds, is_short="slice" in case))
    print(f"{usable_cores()} threads that compute, medians of {options.rounds} rounds")
    ordinary = [np.percentile(values, QUANTILES) for values in late["ordinary"]]
    for case, rounds in late.items():
        found = [np.percentile(values, QUANTILES) for values in rounds]
        figures = "  ".join(f"p{q} {value:7.0f} us" for q, value in zip(QUANTILES, np.median(found, axis=0), strict=True))
        better = sum(bool(mine[-1] < other[-1]) for mine, other in zip(found, ordinary, strict=True))
        print(f"{case:24} {figures}   p{QUANTILES[-1]} better than ordinary in {better} rounds")


if __name__ == "__main__":
    main()
