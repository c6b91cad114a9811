"""The servers that are measured: `serve` itself, and the bare echoes beside it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import CHECKOUT
from benchmarks.processes import START_S, STOP_S, ChildFailed, JsonChild, on_cores, python_command


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers requests on 127.0.0.1.

    Attributes:
        name: As the report calls it.
        pid: Its process.
        grpc_port, http_port: Where it listens; 0: it does not speak that.
    """

    name: str
    pid: int
    grpc_port: int = 0
    http_port: int = 0


@contextmanager
def stoker(
    repository: Path, scratch: Path, cores: Sequence[int], flags: Sequence[str] = (), bytecode: Path | None = None
) -> Iterator[Target]:
    """`serve` on `repository` with its default settings but for `flags`, ready, on free ports; its log goes to `scratch`.

    `bytecode` is where compiled modules are kept, and found again; None: wherever the environment says, which may be nowhere.

    Raises:
        ChildFailed: it ended or was not ready in time; the text holds the end of its log.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    ready, log_path = scratch / "ready.json", scratch / "server.log"
    command = [python_command("serve"), f"--model_base_path={repository}", "--grpc_port=0", "--http_port=0", f"--ready_file={ready}"]
    command += flags
    environment = dict(os.environ)
    if bytecode is not None:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    with on_cores(cores), log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_ready(process, ready, log_path)
        ports = json.loads(ready.read_text(encoding="utf-8"))
        yield Target("stoker", process.pid, ports["grpc_port"], ports["http_port"])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def echo_grpc(mode: str, response: Path, cores: Sequence[int]) -> Iterator[Target]:
    """A bare grpc.aio server; `mode` is `bytes` or `protobuf`."""
    with JsonChild("benchmarks.echo_grpc", mode, str(response), cores=cores) as child:
        yield Target(f"echo-{mode}", child.pid, grpc_port=child.hello["port"])


@contextmanager
def echo_h2(cores: Sequence[int]) -> Iterator[Target]:
    """A bare echo on the server's own HTTP/2 front."""
    with JsonChild("benchmarks.echo_h2", cores=cores) as child:
        yield Target("echo-h2", child.pid, grpc_port=child.hello["port"])


@contextmanager
def echo_asgi(response: Path, cores: Sequence[int]) -> Iterator[Target]:
    """A bare ASGI application on uvicorn."""
    with JsonChild("benchmarks.echo_asgi", str(response), cores=cores) as child:
        yield Target("echo-asgi", child.pid, http_port=child.hello["port"])


def _wait_ready(process: "subprocess.Popen[bytes]", ready: Path, log_path: Path) -> None:
    end = time.monotonic() + START_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > end:
            state = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
            raise ChildFailed(f"serve {state}: {log_path.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)
