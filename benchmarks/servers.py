"""The servers that are measured: `serve` of this or of another checkout, and the bare echoes beside it."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import CHECKOUT
from benchmarks.processes import START_S, STOP_S, ChildFailed, JsonChild, on_cores, python_command


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source tree whose `serve` is measured.

    Attributes:
        name: As the report calls it.
        folder: The root of the tree; `serve` runs in it.
        command: The words that start `serve`.
        python_path: PYTHONPATH of the process; None: that of this process.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    python_path: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Something that responds to requests on 127.0.0.1.

    Attributes:
        name: As the report calls it.
        pid: Its process.
        grpc_port, http_port: Where it listens; 0: it does not speak that.
    """

    name: str
    pid: int
    grpc_port: int = 0
    http_port: int = 0


def this_checkout() -> Checkout:
    """The checkout that this module is part of."""
    return Checkout("stoker", CHECKOUT, (python_command("serve"),))


def other_checkout(name: str, folder: Path, python: Path | None = None) -> Checkout:
    """The checkout in `folder`, run by `python`, or by `serve` of its own `.venv` where that exists, or else by this interpreter.

    Its modules are found by PYTHONPATH, so an environment that has another checkout installed serves as well.

    Raises:
        FileNotFoundError: `folder` holds no Stoker.
    """
    folder = folder.resolve()
    if (folder / "server" / "stoker" / "server" / "main.py").exists():
        module, roots = "stoker.server.main", ["server", "backends", "compiler", "cli", "clients/python"]
    elif (folder / "server" / "main.py").exists():
        module, roots = "server.main", ["clients/python"]
    else:
        raise FileNotFoundError(f"{folder} holds neither server/stoker/server/main.py nor server/main.py")
    script = folder / ".venv" / "bin" / "serve"
    command = (str(script),) if python is None and script.exists() else (str(python or sys.executable), "-m", module)
    return Checkout(name, folder, command, os.pathsep.join(str(folder / root) for root in ("", *roots)))


def add_baseline_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options from which `checkouts_of` reads what is measured."""
    parser.add_argument(
        "--baseline", type=Path, metavar="FOLDER", help="another checkout, measured in the same run and compared with this one"
    )
    parser.add_argument("--baseline-python", type=Path, metavar="FILE", help="its interpreter (default: that of its .venv, or this one)")


def checkouts_of(options: argparse.Namespace) -> tuple[Checkout, ...]:
    """This checkout; after the baseline, where one is given.

    Raises:
        FileNotFoundError: see `other_checkout`.
    """
    if options.baseline is None:
        return (this_checkout(),)
    return (other_checkout("baseline", options.baseline, options.baseline_python), this_checkout())


@contextmanager
def stoker(
    repository: Path,
    scratch: Path,
    cores: Sequence[int],
    flags: Sequence[str] = (),
    bytecode: Path | None = None,
    checkout: Checkout | None = None,
) -> Iterator[Target]:
    """`serve` on `repository` with its default settings but for `flags`, ready, on free ports; its log goes to `scratch`.

    Args:
        repository: The model repository.
        scratch: A folder for the log and the ready file.
        cores: Where the server runs; empty: on all cores.
        flags: Of the command line.
        bytecode: Where compiled modules are kept, and found again; None: wherever the environment says, which may be nowhere.
        checkout: Whose `serve`; None: this one's.

    Raises:
        ChildFailed: it ended or was not ready in time; the text holds the end of its log.
    """
    checkout = checkout or this_checkout()
    scratch.mkdir(parents=True, exist_ok=True)
    ready, log_path = scratch / "ready.json", scratch / "server.log"
    ready.unlink(missing_ok=True)
    command = [*checkout.command, f"--model_base_path={repository}", "--grpc_port=0", "--http_port=0", f"--ready_file={ready}", *flags]
    environment = dict(os.environ)
    if checkout.python_path is not None:
        environment["PYTHONPATH"] = checkout.python_path
    if bytecode is not None:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    with on_cores(cores), log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=checkout.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_ready(process, ready, log_path)
        ports = json.loads(ready.read_text(encoding="utf-8"))
        yield Target(checkout.name, process.pid, ports["grpc_port"], ports["http_port"])
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
