"""The servers that are measured: `serve` of this or of another checkout, any other server by its command, and the bare echoes."""

import abc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import CHECKOUT
from benchmarks.processes import START_S, STOP_S, ChildFailed, JsonChild, on_cores, python_command


class ServerUnderTest(abc.ABC):
    """A server process on 127.0.0.1; also a context manager that starts and stops it.

    Attributes:
        name: Name in the report.
        pid: The process id after the start; descendants are measured too.
        grpc_port, http_port: The ports after the start; 0: the protocol is not served.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = self.grpc_port = self.http_port = 0

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the server; returns when it is ready.

        Raises:
            ChildFailed: the process ended, or was not ready in time.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Stops the server; returns when its process has ended."""

    def port(self, is_grpc: bool) -> int:
        """The port of gRPC or of HTTP."""
        return self.grpc_port if is_grpc else self.http_port

    def successes(self, model: str) -> int:
        """The number of successful requests for `model`, from the server's statistics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/models/{model}/stats", timeout=30) as reply:
            return int(json.load(reply)["model_stats"][0]["inference_stats"]["success"]["count"])

    def description(self) -> str:
        """The server's name and version, from its metadata."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2", timeout=30) as reply:
            metadata = json.load(reply)
        return f"{metadata['name']} {metadata['version']}"

    def __enter__(self) -> "ServerUnderTest":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class CommandServer(ServerUnderTest):
    """A server started by a command, whose output goes to `scratch`/server.log.

    Args:
        name: Name in the report.
        command: The command.
        scratch: A folder for the log.
        cores: The cores to run on; empty: all.
        ports: The gRPC and HTTP ports of a server that is ready once `/v2/health/ready` on the HTTP port returns 200.
        ready_file: Instead of `ports`: the file that the server writes when it is ready, with both ports as JSON.
        folder, environment: Working folder and environment of the process; None: those of this one.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        scratch: Path,
        cores: Sequence[int] = (),
        *,
        ports: tuple[int, int] = (0, 0),
        ready_file: Path | None = None,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(name)
        self.grpc_port, self.http_port = ports
        self._command = command
        self._log = scratch / "server.log"
        self._cores = cores
        self._ready_file = ready_file
        self._folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """See `ServerUnderTest`."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        with on_cores(self._cores), self._log.open("wb") as log:
            process = self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.pid = process.pid
        end = time.monotonic() + START_S
        while not self._is_ready():
            if process.poll() is not None or time.monotonic() > end:
                state = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
                self.stop()
                raise ChildFailed(f"{self.name} {state}: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        if self._ready_file is not None:
            ports = json.loads(self._ready_file.read_text(encoding="utf-8"))
            self.grpc_port, self.http_port = ports["grpc_port"], ports["http_port"]

    def stop(self) -> None:
        """See `ServerUnderTest`."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _is_ready(self) -> bool:
        if self._ready_file is not None:
            return self._ready_file.exists()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source tree whose `serve` is measured.

    Attributes:
        name: Name in the report.
        folder: The root of the tree; `serve` runs in it.
        command: The words that start `serve`.
        python_path: PYTHONPATH of the process; None: that of this process.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    python_path: str | None = None

    def server(
        self, repository: Path, scratch: Path, cores: Sequence[int] = (), flags: Sequence[str] = (), bytecode: Path | None = None
    ) -> ServerUnderTest:
        """`serve` on `repository` with its default settings but for `flags`.

        Args:
            repository: The model repository.
            scratch: A folder for the log and the ready file.
            cores: The cores to run on; empty: all.
            flags: Further flags of the command line.
            bytecode: Folder for compiled modules; None: as the environment sets it, possibly none.
        """
        ready = scratch / "ready.json"
        command = [*self.command, f"--model_base_path={repository}", "--grpc_port=0", "--http_port=0", f"--ready_file={ready}", *flags]
        environment = dict(os.environ)
        if self.python_path is not None:
            environment["PYTHONPATH"] = self.python_path
        if bytecode is not None:
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
        return CommandServer(self.name, command, scratch, cores, ready_file=ready, folder=self.folder, environment=environment)


@dataclass(frozen=True, slots=True)
class Command:
    """A server of KServe's protocols, started by a command with the placeholders `{repository}`, `{grpc_port}` and `{http_port}`.

    It is an installation of its own: PYTHONPATH, which would give it the modules of this checkout, is removed from its environment.
    """

    name: str
    words: tuple[str, ...]

    def server(
        self, repository: Path, scratch: Path, cores: Sequence[int] = (), flags: Sequence[str] = (), bytecode: Path | None = None
    ) -> ServerUnderTest:
        """Starts the server on `repository`; `flags` and `bytecode` have no effect."""
        ports = free_port(), free_port()
        command = [word.format(repository=repository, grpc_port=ports[0], http_port=ports[1]) for word in self.words]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return CommandServer(self.name, command, scratch, cores, ports=ports, environment=environment)


Contender = Checkout | Command
"""A contender: makes servers."""


def this_checkout() -> Checkout:
    """The checkout of this module."""
    return Checkout("stoker", CHECKOUT, (python_command("serve"),))


def other_checkout(name: str, folder: Path, python: Path | None = None) -> Checkout:
    """The checkout in `folder`, run by `python`, or by `serve` of its `.venv` if there is one, or else by this interpreter.

    PYTHONPATH selects its modules, so that an environment with another installed checkout can be used.

    Raises:
        FileNotFoundError: `folder` holds no Stoker.
    """
    folder = folder.resolve()
    if (folder / "server" / "stoker" / "server" / "main.py").exists():
        module, roots = "stoker.server.main", ["server", "backends", "compiler", "cli", "clients/python"]
    elif (folder / "server" / "main.py").exists():
        module, roots = "server.main", ["clients/python"]
    else:
        raise FileNotFoundError(f"{folder} is no checkout of Stoker: it holds neither server/stoker/server/main.py nor server/main.py")
    script = folder / ".venv" / "bin" / "serve"
    command = (str(script),) if python is None and script.exists() else (str(python or sys.executable), "-m", module)
    return Checkout(name, folder, command, os.pathsep.join(str(folder / root) for root in ("", *roots)))


class EchoServer(ServerUnderTest):
    """A bare echo.

    Args:
        kind: A kind of `benchmarks.echo`.
        response: The file with the response, for the kinds that need one.
        cores: The cores to run on; empty: all.
    """

    def __init__(self, kind: str, response: Path | None = None, cores: Sequence[int] = ()) -> None:
        super().__init__(f"echo-{kind}")
        self._kind = kind
        self._arguments = [] if response is None else [str(response)]
        self._cores = cores
        self._child: JsonChild | None = None

    def start(self) -> None:
        """See `ServerUnderTest`."""
        self._child = JsonChild("benchmarks.echo", self._kind, *self._arguments, cores=self._cores)
        self.pid, port = self._child.pid, int(self._child.hello["port"])
        self.grpc_port, self.http_port = (0, port) if self._kind == "asgi" else (port, 0)

    def stop(self) -> None:
        """See `ServerUnderTest`."""
        if self._child is not None:
            self._child.close()


def free_port() -> int:
    """A port of 127.0.0.1 that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
