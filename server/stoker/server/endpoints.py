"""The server's listening addresses, and the ready file that passes them to scripts (docs/adr/0005)."""

import asyncio
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.server.engine.interface import Engine


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The listening addresses of one frontend.

    Attributes:
        address: The address that the port is bound to.
        port: The port number; None: only the socket is open.
        socket_path: Absolute path of a Unix-domain socket; None: there is none.
        encryption: How the port is encrypted, such as `TLS`; empty: it is plain.
    """

    address: str
    port: int | None
    socket_path: Path | None = None
    encryption: str = ""

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        listen_addresses = [] if self.port is None else [f"{host}:{self.port}" + (f" ({self.encryption})" if self.encryption else "")]
        if self.socket_path is not None:
            listen_addresses.append(f"unix:{self.socket_path}")
        return " and ".join(listen_addresses)

    @property
    def url(self) -> str:
        """The address of an HTTP port for a browser on this machine; empty without a port."""
        if self.port is None:
            return ""
        host = "localhost" if self.address in ("0.0.0.0", "::") else self.address  # noqa: S104 - what is shown, not bound
        return f"{'https' if self.encryption else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"


#: Interval between two checks whether the server is ready, seconds.
CHECK_S = 0.02


def ready_facts(endpoints: Mapping[str, Endpoint]) -> dict[str, object]:
    """The content of the ready file: each port (None where there is none) and the sockets."""
    facts: dict[str, object] = {f"{name}_port": endpoints[name].port if name in endpoints else None for name in ("grpc", "http", "metrics")}
    return facts | {f"{name}_socket": str(each.socket_path) for name, each in endpoints.items() if each.socket_path is not None}


class ReadyFile:
    """The file at `path`; None: no file is wanted."""

    def __init__(self, path: Path | None) -> None:
        """Removes the ready file of an earlier run.

        Raises:
            OSError: the path cannot be used; raised before any model is loaded.
        """
        self._path = path
        if path is not None:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "the ready file is a folder", str(path))
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise OSError(errno.ENOENT, "the ready file's folder does not exist or cannot be written", str(path))
        self.remove()

    async def write_once_ready(self, engine: Engine, facts: Mapping[str, object]) -> None:
        """Waits until the engine is ready, then writes `facts` as one JSON object, atomically."""
        if self._path is None:
            return
        while not engine.is_ready():  # noqa: ASYNC110 - readiness is a question, not an event: it may come and go
            await asyncio.sleep(CHECK_S)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.write_text(json.dumps({**facts, "pid": os.getpid()}) + "\n", encoding="utf-8")
        draft.replace(self._path)

    def remove(self) -> None:
        """Removes the file: the server is not ready, or no longer ready."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
