"""Child processes that end with their test, whatever its outcome."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Children:
    """Starts child processes with piped output."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str | Path], *, has_input: bool = False, at: Path | None = None) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE if has_input else None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=at
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kills the children that are still alive."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@contextmanager
def child_processes() -> Iterator[Children]:
    children = Children()
    try:
        yield children
    finally:
        children.end()
