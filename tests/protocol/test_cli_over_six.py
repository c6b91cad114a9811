"""`stoker infer` over every protocol: the same figures from the same server."""

import json
import subprocess
import sys

import numpy as np
import pytest

from stoker_client import NotFound
from stoker_client.tfs import TfsClient
from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess

PROTOCOLS = ("kserve-grpc", "kserve-http", "tfs-grpc", "tfs-rest", "adlik-grpc", "adlik-rest")


def stoker(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPOSITORY_ROOT, check=False)


def address(server: ServerProcess, protocol: str) -> str:
    return server.grpc if protocol.endswith("grpc") else server.http


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_infer_gives_the_same_figures_over_every_protocol(server: ServerProcess, protocol: str):
    numbers = list(range(16))
    given = [f"--input=INPUT{at}={json.dumps([numbers])}" for at in (0, 1)]
    done = stoker("infer", "simple", *given, f"--protocol={protocol}", f"--url={address(server, protocol)}", "--json")
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert outputs["OUTPUT0"] == {"datatype": "INT32", "shape": [1, 16], "data": [[2 * number for number in numbers]]}
    assert outputs["OUTPUT1"]["data"] == [[0] * 16]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unknown_model_is_one_line_over_every_protocol(server: ServerProcess, protocol: str):
    done = stoker("infer", "ghost", "--input=x=[1]", f"--protocol={protocol}", f"--url={address(server, protocol)}")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("stoker: error: ")
    assert "ghost" in line


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_the_tfs_client_tells_what_a_model_takes_and_predicts(server: ServerProcess, scheme: str):
    url = f"{scheme}://{server.grpc if scheme == 'grpc' else server.http}"
    with TfsClient(url) as client:
        facts = client.metadata("digits")
        assert facts["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 8, 8]}]
        image = np.zeros((2, 8, 8), np.float32)
        result = client.predict("digits", {"image": image}, version=1)
        assert [(name, array.dtype, array.shape[0]) for name, array in result.items()] == [("scores", np.float32, 2)]
        with pytest.raises(NotFound):
            client.predict("digits", {"image": image}, version=7)
