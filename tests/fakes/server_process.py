"""A real server in a child process, on free ports, stopped by its pid."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: How long a server may take to be ready, or to end, before a test gives up, seconds.
PATIENCE_S = 60.0

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
SAMPLE_MODELS = REPOSITORY_ROOT / "model_repos"


class ServerProcess:
    """A running `serve`.

    Attributes:
        process: The child.
        grpc_port, http_port: Where it listens.
        log_path: What it wrote to standard error; standard output is in `out_path`.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", facts: Mapping[str, int], log_path: Path) -> None:
        self.process = process
        self.grpc_port = facts.get("grpc_port", 0)
        self.http_port = facts.get("http_port", 0)
        self.metrics_port = facts.get("metrics_port", 0)
        self.log_path = log_path
        self.out_path = log_path.with_name("server.out")

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def get(self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """One HTTP request (POST if there is a body): status and body."""
        request = urllib.request.Request(f"http://{self.http}{path}", data=body, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def json(self, path: str, body: object = None) -> Any:
        """The response to a request that must succeed."""
        status, text = self.get(path, None if body is None else json.dumps(body).encode())
        assert status == 200, f"{path}: {status} {text!r}"
        return json.loads(text) if text else None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and waits for the exit code."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(PATIENCE_S)


def start_server(
    *flags: str, at: Path, env: Mapping[str, str] | None = None, wait_ready: bool = True, python: Path = Path(sys.executable)
) -> ServerProcess:
    """Starts `serve` of `python` with free ports and `flags`; `at` is a folder for its log and ready file."""
    at.mkdir(parents=True, exist_ok=True)
    ready, log_path = at / "ready.json", at / "server.log"
    command = [str(python), "-m", "stoker.server.main", "--grpc_port=0", "--http_port=0", f"--ready_file={ready}", *flags]
    with log_path.open("wb") as log, log_path.with_name("server.out").open("wb") as out:
        process = subprocess.Popen(
            command, cwd=REPOSITORY_ROOT, stdout=out, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
        )
    facts: Mapping[str, int] = {}
    if wait_ready:
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, what="the ready file")
            assert process.poll() is None, f"the server ended with {process.returncode}: {log_path.read_text()}"
        except BaseException:
            process.kill()
            process.wait()
            print(log_path.read_text())
            raise
        facts = json.loads(ready.read_text())
    return ServerProcess(process, facts, log_path)


@contextmanager
def running_server(
    *flags: str, at: Path, env: Mapping[str, str] | None = None, python: Path = Path(sys.executable)
) -> Iterator[ServerProcess]:
    """As `start_server`; the server always ends with the block."""
    server = start_server(*flags, at=at, env=env, python=python)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


def wait_until(is_so: Callable[..., bool], *, what: str, patience_s: float = PATIENCE_S) -> None:
    """Polls with a bound until `is_so`; `what` names the condition in the failure."""
    end = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience_s} s for {what}")
        time.sleep(0.01)


def run_python(python: Path, script: str, *arguments: str, patience_s: float = PATIENCE_S) -> str:
    """Runs `script` in another interpreter, in a child process, and returns its output; a failure shows its error output."""
    done = subprocess.run([str(python), "-c", script, *arguments], capture_output=True, text=True, timeout=patience_s, cwd="/", check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_models(source: Path, into: Path, names: Sequence[str]) -> Path:
    """Copies sample models into a repository of the test's own."""
    for name in names:
        shutil.copytree(source / name, into / name)
    return into
