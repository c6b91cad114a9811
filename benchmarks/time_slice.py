"""How late a thread wakes up beside threads that use every core: as usual, with half the time slice, and with nicer competitors.

The thread sleeps for 2 ms and notes how much later it runs again, as the event loop does when a request arrives while a model computes. The
cases take turns, so that all see the same load of the machine. Run it with

    python -m benchmarks.time_slice

It needs Linux 6.12 or later; see docs/adr/0068-thread-priority-and-time-slices.md.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from stoker.backends.api.cpu import usable_cores
from stoker.server.core.niceness import raise_niceness
from stoker.server.core.time_slice import shorten_time_slice, time_slice_ns

SLEEP_S = 0.002
QUANTILES = (50, 90, 99)


def lateness_us(seconds: float, *, is_short: bool) -> list[float]:
    """How late a thread of its own woke up, once for each sleep, in microseconds."""
    late: list[float] = []

    def sleeper() -> None:
        if is_short and not shorten_time_slice():
            raise SystemExit("this system does not let a thread choose its time slice")
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            time.sleep(SLEEP_S)
            late.append((time.monotonic() - begun - SLEEP_S) * 1e6)

    thread = threading.Thread(target=sleeper)
    thread.start()
    thread.join()
    return late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="pairs of measurements")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    options = parser.parse_args()
    late: dict[str, list[float]] = {"ordinary": [], "half the slice": [], "competitors at nice 10": []}
    for _ in range(options.rounds):
        for case, values in late.items():
            with competitors(nice=10 if "nice" in case else 0):
                values += lateness_us(options.seconds, is_short="slice" in case)
    print(f"ordinary slice: {time_slice_ns()} ns, {usable_cores()} threads that compute")
    for case, values in late.items():
        figures = "  ".join(f"p{q} {np.percentile(values, q):7.0f} us" for q in QUANTILES)
        print(f"{case:24} {figures}  ({len(values)} wake-ups)")


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


if __name__ == "__main__":
    main()
