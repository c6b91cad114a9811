"""`LoopWatch`: detects a blocked event loop, logs where it is blocked, and makes sure that a blocked server can be ended.

A timer of the loop runs every quarter of the threshold. Each beat writes a byte to the monitor (`loop_monitor.py`), a process that ends the
server after too long without beats. Each beat also compares the time since the last one with the threshold, and so counts every block once
it is over.

Two parts write the stacks of all threads, because each detects blocks that the other cannot
(docs/adr/0070-event-loop-watchdog.md):

* A thread reads them while it holds the interpreter lock, so that no stack changes meanwhile. It also beats, to the monitor.
* While C code holds the lock, that thread does not run, and no stack changes either. The monitor receives none of its beats and sends a
signal, for which faulthandler has a handler in C.

The interpreter writes shutdown signals, from C, to a socket that the loop reads and the monitor peeks at.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from prometheus_client.metrics_core import Metric

from stoker.server.observability import loop_monitor
from stoker.server.observability.settings import LoopWatchSettings

log = logging.getLogger("stoker.loop")

#: Time for the loop to begin a shutdown after a signal, seconds; then the monitor ends the process.
TAKE_UP_S: Final = 5.0
#: Time for the monitor to end, seconds.
_CLOSE_S: Final = 0.2
#: Time that stacks may wait for the monitor to read them, seconds.
_WRITE_S: Final = 1.0
#: Bound on the frames of one thread in a stack dump.
_MOST_FRAMES: Final = 200


class LoopWatch:
    """The watch over one loop, and its metrics. Confined to: the event loop, in the main thread.

    Only one may be open in a process: the interpreter has one descriptor for signals.
    """

    def __init__(self, settings: LoopWatchSettings, now_ns: Callable[[], int]) -> None:
        """`now_ns` returns monotonic time in nanoseconds."""
        self._settings = settings
        self._now_ns = now_ns
        self._blocks = 0
        self._blocked_ns = 0
        self._last_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._monitor: subprocess.Popen[bytes] | None = None
        self._beats: int | None = None
        self._stacks: int | None = None
        self._is_monitor_gone = False
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watching(self, log_descriptor: int | None, *, is_json: bool) -> Iterator[None]:
        """Watches the running loop within the context. REQUIRES: called in the main thread, while the loop runs.

        Args:
            log_descriptor: The descriptor that the monitor writes to; None: standard error.
            is_json: Whether its lines are JSON.
        """
        loop = asyncio.get_running_loop()
        ours, monitors = socket.socketpair()
        with ours, monitors, abort_ends_process_1():
            for end in (ours, monitors):
                end.setblocking(False)
            loop.add_reader(ours, _empty, ours)
            before = signal.set_wakeup_fd(monitors.fileno(), warn_on_full_buffer=False)
            self._start_monitor(ours, log_descriptor, is_json=is_json)
            self._last_ns = self._now_ns()
            self._beat(loop)
            thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)
            if self._settings.block_s:
                thread.start()
            try:
                yield
            finally:
                if self._timer is not None:
                    self._timer.cancel()
                self._ended.set()
                if self._settings.block_s:
                    thread.join()
                signal.set_wakeup_fd(before, warn_on_full_buffer=False)
                loop.remove_reader(ours)
                self._end_monitor()

    def begin_shutdown(self) -> None:
        """From now on a block of `TAKE_UP_S` seconds ends the process, independent of the settings."""
        self._tell(loop_monitor.STOPPING)

    def collect(self) -> Iterator[Metric]:
        """The metrics, for a registry."""
        blocks = Metric("stoker_event_loop_blocks_total", "Times that the event loop did not run for the threshold or longer.", "counter")
        blocks.add_sample("stoker_event_loop_blocks_total", {}, self._blocks)
        yield blocks
        blocked = Metric("stoker_event_loop_blocked_seconds_total", "How long the event loop did not run, those times together.", "counter")
        blocked.add_sample("stoker_event_loop_blocked_seconds_total", {}, self._blocked_ns / 1e9)
        yield blocked

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now_ns = self._now_ns()
        gap_ns, self._last_ns = now_ns - self._last_ns, now_ns
        block_s = self._settings.block_s
        if block_s and gap_ns >= block_s * 1e9:
            self._blocks += 1
            self._blocked_ns += gap_ns
            log.warning("the event loop did not run for %.3f s: no request was read or completed meanwhile", gap_ns / 1e9)
        self._tell(loop_monitor.BEAT)
        self._timer = loop.call_later(self._settings.beat_s, self._beat, loop)

    def _watch(self) -> None:
        """The thread: beats, and writes the stacks of all threads once in each block."""
        shown_ns = 0
        while not self._ended.wait(self._settings.beat_s):
            self._tell(loop_monitor.THREAD_BEAT)
            last_ns = self._last_ns
            if last_ns != shown_ns and self._now_ns() - last_ns >= self._settings.block_s * 1e9:
                shown_ns = last_ns
                self._write_stacks(all_stacks().encode(errors="replace"))

    def _write_stacks(self, text: bytes) -> None:
        poll = select.poll()
        if self._stacks is not None:
            poll.register(self._stacks, select.POLLOUT)
        while text and self._stacks is not None and poll.poll(_WRITE_S * 1000):
            try:
                text = text[os.write(self._stacks, text[: select.PIPE_BUF]) :]
            except OSError:
                return  # the monitor has ended

    def _tell(self, what: bytes) -> None:
        """Writes to the monitor, from the loop or from the thread; the descriptor stays open until both have ended."""
        if self._beats is None or self._is_monitor_gone:
            return
        try:
            os.write(self._beats, what)
        except BlockingIOError:
            return  # the monitor does not read: it is stopped, or waits for the reader of the log
        except OSError:
            self._is_monitor_gone = True
            log.error("the monitor of the event loop has ended: a blocked loop is still counted, but neither shown nor ended")

    def _start_monitor(self, signals: socket.socket, log_descriptor: int | None, *, is_json: bool) -> None:
        (beats, self._beats), (stacks, self._stacks) = os.pipe(), os.pipe()
        for end in (self._beats, self._stacks):
            # Neither the loop nor faulthandler's handler may wait long for the monitor.
            os.set_blocking(end, False)
        if self._settings.block_s:
            # Ignored before and after the watch: the monitor may send it at any time.
            signal.signal(loop_monitor.DUMP, signal.SIG_IGN)
            faulthandler.register(loop_monitor.DUMP, file=self._stacks)
        inherited = (beats, stacks, signals.fileno())
        command = [sys.executable, "-I", "-S", str(Path(loop_monitor.__file__)), str(os.getpid()), *map(str, inherited)]
        times = [str(self._settings.block_s), str(self._settings.abort_s), str(TAKE_UP_S), "json" if is_json else "text"]
        try:
            # In its own session: Ctrl-C at the terminal is for the server.
            self._monitor = subprocess.Popen(  # noqa: S603 - our own interpreter and file
                [*command, *times],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_descriptor,
                start_new_session=True,
            )
        except OSError as error:
            log.error(
                "the monitor of the event loop cannot be started (%s): a blocked loop is still counted, but neither shown nor ended",
                error.strerror,
            )
            os.close(self._beats)
            os.close(self._stacks)
            self._beats = self._stacks = None
        finally:
            os.close(beats)
            os.close(stacks)

    def _end_monitor(self) -> None:
        faulthandler.unregister(loop_monitor.DUMP)
        for end in (self._beats, self._stacks):
            if end is not None:
                os.close(end)
        self._beats = self._stacks = None
        if self._monitor is not None:
            try:
                self._monitor.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._monitor.kill()
                self._monitor.wait()
            self._monitor = None


@contextlib.contextmanager
def abort_ends_process_1() -> Iterator[None]:
    """Within the context, SIGABRT ends this process with exit code 6 if it is process 1, as a container's entry point is.

    The kernel drops signals to process 1 from its own namespace that have no handler, including SIGKILL. The handler is the C library's
    `_exit`, which receives the signal's number and needs no interpreter lock.
    """
    if os.getpid() != 1:
        yield
        return
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = library.signal(signal.SIGABRT, ctypes.cast(library._exit, ctypes.c_void_p))
    try:
        yield
    finally:
        library.signal(signal.SIGABRT, before)


def _empty(signals: socket.socket) -> None:
    """Reads the signal numbers from the socket; their handlers have run, or run now that Python code runs."""
    with contextlib.suppress(BlockingIOError):
        while signals.recv(4096):
            pass


def all_stacks() -> str:
    """The stacks of all threads, in faulthandler's form: the most recent call of a thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for number, top in sys._current_frames().items():
        lines.append(f'Thread 0x{number:016x} "{names.get(number, "?")}" (most recent call first):')
        frame: FrameType | None = top
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
    return "\n".join(lines) + "\n"
