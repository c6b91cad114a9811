"""Clients that send requests to a model while new versions of it are loaded."""

import shutil
import threading
from pathlib import Path

import numpy as np

from stoker_client import HttpClient
from tests.fakes.server_process import ServerProcess, wait_until

#: New versions, each of which gets this number of responses at least.
VERSIONS = (2, 3)
RESPONSES = 20


def check_reloads(server: ServerProcess, folder: Path) -> None:
    """Reloads the digits model of `folder` twice while three clients use it; every request must succeed."""
    name = folder.name
    is_over = threading.Event()
    rows: list[int] = []
    failures: list[Exception] = []

    def send_requests() -> None:
        with HttpClient(server.http) as client:
            while not is_over.is_set():
                try:
                    rows.append(client.infer(name, {"image": np.zeros((3, 8, 8), np.float32)})["scores"].shape[0])
                except Exception as error:  # any failure at all fails the test
                    failures.append(error)

    clients = [threading.Thread(target=send_requests) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        for version in VERSIONS:
            shutil.copytree(folder / "1", folder / str(version))
            server.json(f"/v2/repository/models/{name}/load", {})
            reached = len(rows) + RESPONSES
            wait_until(lambda reached=reached: len(rows) >= reached or bool(failures), what="responses after a reload")
    finally:
        is_over.set()
        for client in clients:
            client.join()
    assert failures == []
    assert set(rows) == {3}
    described = server.json(f"/v2/models/{name}")
    assert isinstance(described, dict)
    assert described["versions"] == [str(VERSIONS[-1])]
