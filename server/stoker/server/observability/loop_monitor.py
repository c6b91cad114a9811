"""The monitor: a small process that ends the server when the server's event loop no longer runs.

A thread of the server cannot do this: while C code holds the interpreter lock, no Python code of the process runs. This file is run as a
script (`python -I -S`), imports nothing of the server and little of the standard library, and ends when the server does.

It inherits four descriptors:

* beats: a byte for every beat of the loop, another for every beat of a thread beside it, `STOPPING` once when a shutdown has begun; end of
file means that the server has ended.
* stacks: the stacks that the thread or faulthandler writes while the loop is blocked. The monitor logs them as one record.
* signals: the socket that the interpreter writes a signal's number to, from C and without the lock. The loop reads from it; the monitor
only peeks at its contents.
* standard error: the log.
"""

import os
import select
import signal
import socket
import sys
import time

BEAT, THREAD_BEAT, STOPPING = b".", b"t", b"s"
#: The signal at which faulthandler writes the stacks of all threads of the server. Sent only if no Python code of the server runs, because
#: stacks would change otherwise.
DUMP = signal.SIGRTMIN + 3
#: The signals that request a shutdown of the server; as `stoker.server.process_start.SHUTDOWN_SIGNALS`.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Time between two checks, seconds. More than twice as much means that the monitor itself did not run (a suspended host).
TICK_S = 0.2
#: Time in which a running loop reads a signal from the socket, seconds.
SECOND_SIGNAL_S = 0.5
#: After this time without more bytes, a stack dump is complete, seconds.
_DUMP_END_S = 0.1
#: Bytes of a stack dump that are logged.
MAX_DUMP_BYTES = 256 << 10
#: Time for a core dump before the server is killed, seconds.
_ABORT_S = 5.0
#: Time that a line may wait for the reader of the log, seconds.
_WRITE_S = 1.0
#: Bytes that a writable pipe accepts in one write (PIPE_BUF).
_PIECE_BYTES = 4096


class Monitor:
    """Watches one server.

    Only the time in which the monitor itself runs counts: while the whole host is suspended, no time passes.
    """

    def __init__(
        self,
        server: int,
        beats: int,
        stacks: int,
        signals: socket.socket,
        *,
        block_s: float,
        abort_s: float,
        take_up_s: float,
        is_json: bool,
    ) -> None:
        """Makes a monitor of the process `server`.

        Args:
            server: Its process id.
            beats: Descriptor of the beats.
            stacks: Descriptor of the stacks.
            signals: Descriptor of the socket that signal numbers are written to.
            block_s: Time without beats of the loop and the thread after which a stack dump is requested, seconds; 0: never.
            abort_s: Time without beats of the loop after which the server is ended, seconds; 0: never.
            take_up_s: The same after a shutdown was requested.
            is_json: Whether records are JSON.
        """
        self._server = server
        self._beats = beats
        self._stacks = stacks
        self._signals = signals
        self._block_s = block_s
        self._abort_s = abort_s
        self._take_up_s = take_up_s
        self._is_json = is_json
        self._silent_s = 0.0
        self._locked_s = 0.0
        self._is_dump_requested = False
        self._signalled_s = 0.0
        self._dump = bytearray()
        self._dump_age_s = 0.0

    def run(self) -> None:
        """Returns when the server has ended."""
        poll = select.poll()
        poll.register(self._beats, select.POLLIN)
        poll.register(self._stacks, select.POLLIN)
        before = time.monotonic()
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(TICK_S * 1000)}
            now = time.monotonic()
            passed_s = min(now - before, 2 * TICK_S)
            before = now
            if self._stacks in ready:
                self._read_stacks(poll)
            else:
                self._pass_on(passed_s)
            if self._beats in ready and not self._read_beats():
                self._pass_on(_DUMP_END_S)
                return
            self._silent_s += passed_s
            self._locked_s += passed_s
            self._judge(passed_s)

    def _read_beats(self) -> bool:
        received = os.read(self._beats, 65536)
        self._locked_s = 0.0
        self._is_dump_requested = False
        if BEAT in received:
            self._silent_s = 0.0
        if STOPPING in received:
            self._abort_s = min(self._abort_s or self._take_up_s, self._take_up_s)
        return bool(received)

    def _read_stacks(self, poll: "select.poll") -> None:
        received = os.read(self._stacks, 65536)
        if not received:
            poll.unregister(self._stacks)
        self._dump += received[: MAX_DUMP_BYTES - len(self._dump)]
        self._dump_age_s = 0.0

    def _pass_on(self, passed_s: float) -> None:
        self._dump_age_s += passed_s
        if self._dump and self._dump_age_s >= _DUMP_END_S:
            self._log("ERROR", "the event loop is blocked; the stacks of all threads follow", self._dump.decode(errors="replace"))
            self._dump.clear()

    def _judge(self, passed_s: float) -> None:
        if self._block_s and self._locked_s >= self._block_s and not self._is_dump_requested:
            self._request_dump()
        signals = self._waiting_signals()
        self._signalled_s = self._signalled_s + passed_s if signals else 0.0
        if len(signals) > 1 and self._signalled_s >= SECOND_SIGNAL_S:
            self._end(f"a second signal came while the event loop is blocked ({_names(signals)})", signal.SIGKILL)
        elif signals and self._signalled_s >= self._take_up_s:
            self._end(f"{_names(signals)} came, and the event loop has not taken it up within {self._take_up_s:g} s", signal.SIGKILL)
        elif self._abort_s and self._silent_s >= self._abort_s:
            self._end(f"the event loop has not run for {self._silent_s:.1f} s", signal.SIGABRT)

    def _request_dump(self) -> None:
        """Makes faulthandler write the stacks. Not for a stopped server: it would write them after it continues, while its threads run."""
        if self._is_server_stopped():
            self._locked_s = 0.0
        elif os.getppid() == self._server:
            self._is_dump_requested = True
            os.kill(self._server, DUMP)

    def _waiting_signals(self) -> bytes:
        """The numbers of shutdown signals that the loop has not read from the socket."""
        try:
            waiting = self._signals.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        return bytes(number for number in waiting if number in STOP_SIGNALS)

    def _is_server_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the server: then missing beats are no fault."""
        try:
            with open(f"/proc/{self._server}/stat", "rb") as file:  # noqa: PTH123 - pathlib is not worth its memory here
                return file.read(4096).rpartition(b") ")[2][:1] in b"Tt"
        except OSError:
            return False

    def _end(self, why: str, number: int) -> None:
        if self._is_server_stopped():
            self._silent_s = self._signalled_s = 0.0
            return
        if self._server == 1:
            number = signal.SIGABRT  # The only signal that ends process 1 from its own namespace: `abort_ends_process_1`.
        self._log("CRITICAL", f"{why}: ending the process by {signal.Signals(number).name}", "")
        for each, wait_s in ((number, _ABORT_S), (signal.SIGKILL, _ABORT_S)):
            if os.getppid() != self._server:
                break  # it has ended, and another process may have its number
            os.kill(self._server, each)
            end = time.monotonic() + wait_s
            while os.getppid() == self._server and time.monotonic() < end:
                time.sleep(TICK_S)
        os._exit(0)

    def _log(self, level: str, message: str, stacks: str) -> None:
        """Writes one record in the form of the server's log."""
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03d}Z"
        if self._is_json:
            import json

            record = {"ts": stamp, "level": level, "logger": "stoker.loop", "message": message}
            text = json.dumps({**record, "exception": stacks.rstrip()} if stacks else record)
        else:
            text = f"{level[:1]} {stamp} stoker.loop: {message}" + "".join(f"\n    | {line}" for line in stacks.splitlines())
        _write(f"{text}\n".encode())


def _names(numbers: bytes) -> str:
    return ", ".join(signal.Signals(number).name for number in numbers)


def _write(data: bytes) -> None:
    """Writes to standard error without waiting long for its reader: the server must be ended in any case."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    while data and poll.poll(_WRITE_S * 1000):
        try:
            data = data[os.write(2, data[:_PIECE_BYTES]) :]
        except OSError:  # the reader has closed it, or the disk is full
            return


def main(arguments: "list[str]") -> None:
    """`arguments`: the server's process id, three descriptors, three times in seconds, and `json` or `text`."""
    for number in (*STOP_SIGNALS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server, beats, stacks, signals = (int(each) for each in arguments[:4])
    with socket.socket(fileno=signals) as waiting:
        block_s, abort_s, take_up_s = map(float, arguments[4:7])
        is_json = arguments[7] == "json"
        Monitor(server, beats, stacks, waiting, block_s=block_s, abort_s=abort_s, take_up_s=take_up_s, is_json=is_json).run()


if __name__ == "__main__":
    main(sys.argv[1:])
