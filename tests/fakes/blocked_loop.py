"""A process with an event loop under watch that is really blocked. Run as a script; prints its progress on standard output.

    python tests/fakes/blocked_loop.py HOW SECONDS BLOCK_S ABORT_S TAKE_UP_S

HOW: `python` runs a loop of instructions, `threads` does so while other threads start and end, `lock` waits in C code that holds the
interpreter lock, `idle` does not block. SECONDS 0: for ever.
"""

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvloop

from stoker.server.observability import logs, loop_watch
from stoker.server.observability.loop_watch import LoopWatch
from stoker.server.observability.series import write_exposition
from stoker.server.observability.settings import LogSettings, LoopWatchSettings

#: `PyDLL` keeps the interpreter lock during a call.
LIBC = ctypes.PyDLL(None)


def hold_in_python(seconds: float) -> None:
    end = time.monotonic() + (seconds or 1e9)
    while time.monotonic() < end:
        pass


def hold_beside_threads(seconds: float) -> None:
    end = time.monotonic() + (seconds or 1e9)
    while time.monotonic() < end:
        threads = [threading.Thread(target=sum, args=(range(100),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def hold_the_lock(seconds: float) -> None:
    # A mutex that is locked twice: unlike a sleep, no signal interrupts it.
    mutex = ctypes.create_string_buffer(256)
    LIBC.pthread_mutex_lock(mutex)
    end = time.time() + (seconds or 1e6)
    LIBC.pthread_mutex_timedlock(mutex, (ctypes.c_long * 2)(int(end), int(end % 1 * 1e9)))


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


async def main(how: str, seconds: float, settings: LoopWatchSettings, descriptor: int | None) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def receive(*_: object) -> None:
        say("handled")
        loop.call_soon_threadsafe(asked.set)

    for number in (signal.SIGTERM, signal.SIGINT):  # as a server has them; asyncio's own handler of SIGINT may raise before the block
        signal.signal(number, receive)
    watch = LoopWatch(settings, time.monotonic_ns)
    with watch.watching(descriptor, is_json=True):
        assert watch._monitor is not None
        # The interpreter of the monitor needs its time: a block counts from the last beat, but only once it listens.
        say(str(watch._monitor.pid))
        await asyncio.sleep(0.3)
        if how == "idle":
            say("idle")
            await asked.wait()
        else:
            say("blocking")
            {"python": hold_in_python, "threads": hold_beside_threads, "lock": hold_the_lock}[how](seconds)
            await asyncio.sleep(2 * settings.beat_s)
    say(write_exposition(watch.collect()).decode())


if __name__ == "__main__":
    how, *numbers = sys.argv[1:]
    seconds, block_s, abort_s, loop_watch.TAKE_UP_S = map(float, numbers)  # type: ignore[misc]
    with logs.configure(LogSettings(format="json")) as sink:
        uvloop.run(main(how, seconds, LoopWatchSettings(block_s=block_s, abort_s=abort_s), sink.descriptor))
