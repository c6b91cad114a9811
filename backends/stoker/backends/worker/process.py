"""`WorkerProcess`: starts a worker process, lets it load an instance, and runs batches on it.

The process is a new interpreter, never a fork. The server's event loop takes over its channel after the load. The methods here block: they
are for the threads of loads and warm-ups.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import stoker.backends
from stoker.backends.api.backend import Figure
from stoker.backends.api.batch import BatchResult, Share
from stoker.backends.api.errors import DeadlineExceeded, ModelLoadError, ServingError, Unavailable
from stoker.backends.worker import bootstrap
from stoker.backends.worker.arrays import to_json
from stoker.backends.worker.batches import BatchWriter, ResultReader, error_from_json
from stoker.backends.worker.channel import Channel, ChannelClosed, ChannelError
from stoker.backends.worker.figures import read_figures
from stoker.backends.worker.last_lines import last_lines
from stoker.backends.worker.load_message import WorkerLoad
from stoker.backends.worker.protocol import CLOSE, CLOSED, DONE, FAILED, FIGURES, LOAD, LOADED, RESPONSE, RUN
from stoker.backends.worker.responses import read_response

#: Lines of a process' output that are kept for the log of its death (the stack of a crash has up to 100), and their length in characters.
TAIL_LINES: Final = 120
LINE_CHARACTERS: Final = 2000
#: Output that is read at a time, bytes, and the lines of each such part that are not left out: the last ones.
OUTPUT_BYTES: Final = 64 << 10
SHOWN_LINES: Final = 100
#: How long the last output of a process that has ended is waited for, seconds: what it has started may hold the pipe.
OUTPUT_TIMEOUT_S: Final = 0.1
#: How long a process may take to end after CLOSE or a signal, seconds.
CLOSE_TIMEOUT_S: Final = 5.0
KILL_TIMEOUT_S: Final = 5.0
#: Largest result of `run_in_child`, bytes.
RESULT_BYTES: Final = 16 << 20

_EXIT_TEXTS: Final = {
    bootstrap.OLD_PYTHON: "its interpreter is older than Python 3.10",
    bootstrap.NO_NUMPY: "numpy is not installed in its environment",
}


#: Takes lines of a process' output, and the number of lines before them that were left out.
TakeLines = Callable[[Sequence[str], int], None]


def _drop_lines(lines: Sequence[str], left_out: int) -> None:
    return None


class WorkerDied(Unavailable):
    """The worker process has ended while the server needed it."""


def exit_text(code: "int | None") -> str:
    """How a process has ended, for people: by signal SIGSEGV, or with exit code 3."""
    if code is None:
        return "it has closed its channel"
    if code < 0:
        try:
            return f"it was ended by signal {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"
    return _EXIT_TEXTS.get(code, f"it ended with exit code {code}")


class StartControl:
    """Ends the starts of worker processes that a thread waits for. May be used in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self._is_cancelled = False

    def started(self, interrupt: "Callable[[], None]") -> None:
        """A process has been started; `interrupt` ends it. It is called at once after `cancel`."""
        with self._lock:
            self._interrupt = interrupt
            is_cancelled = self._is_cancelled
        if is_cancelled:
            interrupt()

    def cancel(self) -> None:
        """Ends the process that loads now, and those that are started later: their loads fail."""
        with self._lock:
            self._is_cancelled = True
            interrupt = self._interrupt
        if interrupt is not None:
            interrupt()


class _Child:
    """A started child process, and the last lines of its output."""

    def __init__(self, interpreter: "Path | None", function: str, end: Any, environment: "Mapping[str, str]", on_lines: TakeLines) -> None:
        """Starts `function` with the channel's end `end`, which is closed here. `interpreter`: None: the server's own."""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._on_lines = on_lines
        self._is_over = False
        try:
            read_lifeline, self._lifeline = os.pipe()
        except OSError as error:
            end.close()
            raise ModelLoadError(f"a worker process cannot be started: {error.strerror}") from error
        folder = Path(next(iter(stoker.backends.__path__)))
        facts = {
            "socket": end.fileno(),
            "lifeline": read_lifeline,
            "sys_path": sys.path if interpreter is None else None,
            "root": str(folder.parent),
            "function": function,
        }
        try:
            self.popen = subprocess.Popen(  # noqa: S603 - the interpreter is the server's own, or the one that the operator named
                [sys.executable if interpreter is None else str(interpreter), str(Path(bootstrap.__file__)), json.dumps(facts)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(end.fileno(), read_lifeline),
                # A signal of the terminal ends the server, which then ends its processes in order.
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment},
            )
        except OSError as error:
            os.close(self._lifeline)
            raise ModelLoadError(f"a worker process cannot be started: {error.strerror}") from error
        finally:
            os.close(read_lifeline)
            end.close()
        assert self.popen.stdout is not None
        self.exit_descriptor = _pidfd(self.popen.pid)
        self._reader = threading.Thread(target=self._read, args=(self.popen.stdout,), name="stoker-worker-output", daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """Ends the process and all that it has started. Nothing happens once `exit_code` has seen its end: its number may be another's."""
        if not self._is_over:
            with contextlib.suppress(OSError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def exit_code(self, timeout_s: float) -> "int | None":
        """Waits for the end of the process; kills it after `timeout_s`, seconds. None: it does not end."""
        is_in_time = self._has_ended(timeout_s)
        # Its children go with it: they could hold its memory and its output. Its number is its own until `wait` below.
        self.kill()
        try:
            code = self.popen.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # in uninterruptible sleep, in a driver
            return None
        self._is_over = True
        for descriptor in (self._lifeline, self.exit_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._lifeline = self.exit_descriptor = -1
        self._reader.join(OUTPUT_TIMEOUT_S)
        return code if is_in_time else None

    def _has_ended(self, timeout_s: float) -> bool:
        """Waits for the end of the process, which stays a zombie where the system can wait for it so."""
        if self.popen.returncode is not None:
            return True
        if self.exit_descriptor >= 0:
            ends = select.poll()
            ends.register(self.exit_descriptor, select.POLLIN)
            return bool(ends.poll(timeout_s * 1000))
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self, output: "IO[bytes]") -> None:
        """Takes what the process prints. A thread that handled every line by itself would hold the GIL as long as a model prints."""
        rest = b""
        with output:
            while chunk := os.read(output.fileno(), OUTPUT_BYTES):
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                if len(rest) > LINE_CHARACTERS:
                    lines.append(rest)
                    rest = b""
                self._take(lines)
            self._take([rest])

    def _take(self, lines: "Sequence[bytes]") -> None:
        shown = [text for line in lines[-SHOWN_LINES:] if (text := line[:LINE_CHARACTERS].decode(errors="replace").rstrip())]
        self.tail.extend(shown)
        if shown:
            self._on_lines(shown, max(0, len(lines) - SHOWN_LINES))


def _pidfd(pid: int) -> int:
    """A descriptor that is readable once the process has ended; -1: the system has none."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError:
        return -1


class WorkerProcess:
    """A worker process that has loaded its instance. Confined to: one thread at a time.

    Attributes:
        channel: Its channel.
        static_batch_size, pipeline_depth, reads_requests: As of `Instance`.
        pid: The process' number.
        figures: The metrics of the model, as the process has sent them last.
        warmup_ns: Time of its warm-up, which who starts it sets, nanoseconds.
    """

    def __init__(
        self,
        load: WorkerLoad,
        *,
        timeout_s: float,
        interpreter: "Path | None" = None,
        on_lines: TakeLines = _drop_lines,
        control: StartControl | None = None,
    ) -> None:
        """Starts a process and waits until it has loaded.

        Args:
            load: What to load.
            timeout_s: How long a batch of `process` may take; loads have no bound of their own.
            interpreter: The Python of the model's environment; None: the server's own.
            on_lines: Takes, in a thread, what the process prints.
            control: Can end the start; None: nothing can.

        Raises:
            ModelLoadError: the process cannot be started or the model cannot be loaded. WorkerDied: the process ended while it loaded.
        """
        self._timeout_s = timeout_s
        self.figures: tuple[Figure, ...] = ()
        self.warmup_ns = 0
        self._signature = load.request.signature
        self._folders = load.request.folders
        self.channel, end = Channel.pair()
        threads = str(load.request.cpu_threads)
        environment = {name: os.environ.get(name, threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        try:
            self._child = _Child(interpreter, "stoker.backends.worker.main:main", end, environment, on_lines)
        except BaseException:
            self.channel.close()
            raise
        self.pid = self._child.popen.pid
        if control is not None:
            control.started(self.interrupt)
        try:
            self.channel.send(LOAD, meta=to_json(load.to_json()))
            message = self.channel.receive()
        except ChannelError as error:
            raise self._load_failure() from error
        except BaseException:
            self.kill()
            raise
        if message.kind == FAILED:
            self.kill()
            failure = error_from_json(message.meta)
            if isinstance(failure, ModelLoadError):
                raise failure
            raise ModelLoadError(failure.message) from failure.__cause__
        if message.kind != LOADED:
            self.kill()
            raise ModelLoadError("the worker process has sent an unknown message")
        self.static_batch_size: int | None = message.meta["static_batch_size"]
        self.pipeline_depth: int = message.meta["pipeline_depth"]
        self.reads_requests: bool = message.meta["reads_requests"]

    @property
    def exit_descriptor(self) -> int:
        """Readable once the process has ended; -1: the system has no such descriptor.

        The channel alone does not say it: a process that the model has started may hold the other end.
        """
        return self._child.exit_descriptor

    @property
    def last_lines(self) -> "Sequence[str]":
        """The last lines that the process has printed, for the log of its death."""
        return last_lines(self._child.tail, self._folders)

    def process(self, items: "Sequence[Share]") -> BatchResult:
        """Runs a batch and waits for it; see `BatchProcessor.process`. Before the event loop takes over the channel only.

        Raises:
            WorkerDied, DeadlineExceeded: the process is gone after that.
        """
        outgoing = BatchWriter(self._signature, with_facts=self.reads_requests).message(items)
        self.channel.set_timeout(self._timeout_s)
        try:
            self.channel.send(RUN, 0, 0, outgoing.meta, outgoing.size_bytes, outgoing.write, payload=outgoing.payload)
            while (message := self.channel.receive()).kind != DONE:
                if message.kind == FIGURES:
                    self.figures = read_figures(message)
                    continue
                sink = items[message.index].responses if message.kind == RESPONSE and message.index < len(items) else None
                if sink is not None:
                    sink.put(read_response(message))
            return ResultReader().read(message, items)
        except TimeoutError:
            self.kill()
            raise DeadlineExceeded(f"the model has not ended a batch within {self._timeout_s:g} s") from None
        except ChannelError as error:
            raise WorkerDied(f"the worker process of the model has ended: {exit_text(self.exit_code(1.0))}") from error
        finally:
            self.channel.set_timeout(None)

    def close(self) -> None:
        """Lets the process close its instance and end; kills it if it does not."""
        with contextlib.suppress(OSError, ChannelError):
            self.channel.set_timeout(CLOSE_TIMEOUT_S)
            self.channel.send(CLOSE)
            until_s = time.monotonic() + CLOSE_TIMEOUT_S
            while self.channel.receive().kind != CLOSED and time.monotonic() < until_s:
                continue
        self.exit_code(CLOSE_TIMEOUT_S)
        self.channel.close()

    def exit_code(self, timeout_s: float) -> "int | None":
        """Waits for the end of the process; kills it after `timeout_s`, seconds. None: it was killed here."""
        return self._child.exit_code(timeout_s)

    def kill(self) -> None:
        """Ends the process at once."""
        self._child.kill()
        self._child.exit_code(KILL_TIMEOUT_S)
        self.channel.close()

    def interrupt(self) -> None:
        """Ends the process at once, without waiting for it."""
        self._child.kill()

    def _load_failure(self) -> ServingError:
        code = self.exit_code(1.0)
        self.channel.close()
        text = f"the worker process has ended while it loaded the model: {exit_text(code)}"
        if code in _EXIT_TEXTS:
            return ModelLoadError(text)
        return WorkerDied(text)


def run_in_child(
    interpreter: "Path | None",
    function: str,
    payload: "Mapping[str, Any]",
    timeout_s: float,
    on_lines: TakeLines = _drop_lines,
) -> "dict[str, Any]":
    """Calls `function` (`module:name`) with `payload` in a new process, and returns its result; both are JSON objects.

    Args:
        interpreter: The Python that runs it; None: the server's own.
        function: Takes a dict and returns one. It may raise a `ServingError`, which is raised here.
        payload: Its argument.
        timeout_s: How long it may take, with the start of the process, seconds.
        on_lines: Takes, in a thread, what the process prints.

    Raises:
        ModelLoadError: the process cannot be started, has ended without a result, or takes too long. And what `function` raises.
    """
    channel, end = Channel.pair()
    try:
        child = _Child(interpreter, "stoker.backends.worker.call:main", end, {}, on_lines)
        try:
            channel.set_timeout(timeout_s)
            channel.send(LOAD, meta=to_json({"function": function, "payload": payload}))
            message = channel.receive()
        except ChannelClosed:
            raise ModelLoadError(f"the process that reads the model has ended: {exit_text(child.exit_code(1.0))}") from None
        except TimeoutError:
            raise ModelLoadError(f"the process that reads the model has not ended within {timeout_s:g} s") from None
        finally:
            child.kill()
            child.exit_code(KILL_TIMEOUT_S)
    finally:
        channel.close()
    if message.kind == FAILED:
        raise error_from_json(message.meta)
    result: dict[str, Any] = message.meta
    return result
