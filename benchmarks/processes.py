"""Child processes: start on chosen cores, communicate in JSON lines, and end with their context."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.models import CHECKOUT

#: Bound on the time of a child to start, or to end on request, seconds.
START_S = 60.0
STOP_S = 15.0


class ChildFailed(RuntimeError):
    """A child process ended, or sent no line, when a result was due."""


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Processes started in this context run on `cores`; empty: on all cores of this process."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end_on_sigterm() -> None:
    """Makes SIGTERM end this process like an error, so that its servers are stopped."""

    def end(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


class JsonChild:
    """A module of this package run as `python -m`, which prints one JSON line when it is ready and one for each line it receives."""

    def __init__(self, module: str, *arguments: str, cores: Sequence[int] = ()) -> None:
        self._name = module
        with on_cores(cores):
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.hello = self._response(START_S)
        except ChildFailed:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, question: dict[str, Any], patience_s: float) -> dict[str, Any]:
        """Sends one line and waits for the line with the result.

        Raises:
            ChildFailed: the child ended, or sent nothing for `patience_s`.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildFailed(f"{self._name} has ended") from None
        return self._response(patience_s)

    def close(self) -> None:
        """Closes the child's standard input, which ends the child; kills it if it does not end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _response(self, patience_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=patience_s)
        except queue.Empty:
            raise ChildFailed(f"{self._name} said nothing for {patience_s:.0f} s") from None
        if not line:
            raise ChildFailed(f"{self._name} ended without a result; its own error stands above")
        reply: dict[str, Any] = json.loads(line)
        return reply


def python_command(name: str) -> str:
    """The path of a console command installed beside this interpreter.

    Raises:
        FileNotFoundError: it is not installed.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: install the project into this environment first (make setup)")
    return str(path)
