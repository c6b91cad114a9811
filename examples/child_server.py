"""A server in a child process, for the examples that start their own."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The installed commands, such as `serve`.
COMMANDS = Path(sys.executable).parent
READY_WITHIN_S = 30.0
POLL_S = 0.05


@contextmanager
def server(repository: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Serves `repository` on free ports; gives the gRPC and HTTP addresses. `folder` is for the log.

    Raises:
        SystemExit: the server did not become ready.
    """
    ready = folder / "ready.json"
    words = [f"--model_base_path={repository}", "--grpc_port=0", "--http_port=0", f"--ready-file={ready}", "--settle-secs=0"]
    with (folder / "server.log").open("wb") as log:
        child = subprocess.Popen([COMMANDS / "serve", *words], stdout=log, stderr=log)  # noqa: S603 - our own command
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not ready.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not become ready:\n{(folder / 'server.log').read_text()}")
            time.sleep(POLL_S)
        facts = json.loads(ready.read_text())
        yield f"127.0.0.1:{facts['grpc_port']}", f"127.0.0.1:{facts['http_port']}"
    finally:
        child.terminate()
        child.wait()
