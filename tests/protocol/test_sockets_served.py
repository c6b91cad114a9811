"""Unix-domain sockets and cross-origin responses, as tritonclient and curl see them."""

import asyncio
import json
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stoker_client as sdk
from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, SAMPLE_MODELS, copy_models, running_server

FOREIGN = Path(__file__).parent / "foreign"
CURL = shutil.which("curl")
needs_curl = pytest.mark.skipif(CURL is None, reason="needs curl")


@pytest.fixture
def at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a path short enough for sockets."""
    folder = tmp_path_factory.mktemp("s")
    copy_models(SAMPLE_MODELS, folder / "models", ["simple"])
    return folder


def flags_of(at: Path) -> list[str]:
    return [f"--model_base_path={at / 'models'}", f"--grpc_socket_path={at / 'g.sock'}", f"--http_socket_path={at / 'h.sock'}"]


def fronts(grpc_front: str) -> list[str]:
    """The flags of the gRPC transport and of the HTTP server: uvicorn stands beside grpcio."""
    return [f"--grpc-front={grpc_front}", f"--http-front={'uvicorn' if grpc_front == 'grpcio' else 'stoker'}"]


def curl(*arguments: str) -> str:
    done = subprocess.run([str(CURL), "-sS", "--max-time", "20", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def targets(clients_python: Path, *given: str) -> None:
    command = [str(clients_python), str(FOREIGN / "grpc_targets.py"), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(given)


@needs_curl
@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_both_protocols_listen_on_sockets_beside_their_ports(front, at, clients_python: Path):
    with running_server(*flags_of(at), *fronts(front), at=at / "run") as server:
        facts = json.loads((at / "run" / "ready.json").read_text())
        assert (facts["grpc_socket"], facts["http_socket"]) == (str(at / "g.sock"), str(at / "h.sock"))
        assert server.out_path.read_text().splitlines()[-1] == (
            f"serving grpc on {server.grpc} and unix:{at / 'g.sock'}, http on {server.http} and unix:{at / 'h.sock'}"
        )
        for name in ("g.sock", "h.sock"):
            assert stat.S_IMODE((at / name).stat().st_mode) == 0o600
        targets(clients_python, f"unix:{at / 'g.sock'}", server.grpc)
        assert json.loads(curl("--unix-socket", str(at / "h.sock"), "http://stoker/v2/models/simple"))["name"] == "simple"
        assert server.stop() == 0
    assert not (at / "g.sock").exists()
    assert not (at / "h.sock").exists()


@needs_curl
@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_socket_of_a_killed_server_is_replaced_and_that_of_a_live_one_refused(front, at, clients_python: Path):
    flags = [*flags_of(at), *fronts(front), "--allow-tcp=false"]
    with running_server(*flags, at=at / "first") as killed:
        killed.stop(signal.SIGKILL)
    assert (at / "g.sock").is_socket()
    with running_server(*flags, at=at / "second") as living:
        assert json.loads((at / "second" / "ready.json").read_text())["http_port"] is None
        command = [sys.executable, "-m", "stoker.server.main", *flags]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=REPOSITORY_ROOT, check=False)
        assert refused.returncode == 2
        assert refused.stderr == f"serve: error: the socket {at / 'g.sock'} is in use by another process\n"
        # It took nothing from the one that lives.
        targets(clients_python, f"unix:{at / 'g.sock'}")
        assert json.loads(curl("--unix-socket", str(at / "h.sock"), "http://stoker/v2/health/ready")) == {"ready": True}
        assert living.stop() == 0


def test_clients_of_the_project_connect_to_sockets(at):
    image = {f"INPUT{each}": np.full((1, 16), 3, np.int32) for each in (0, 1)}

    async def call(url: str) -> list[int]:
        async with sdk.connect_async(url) as client:
            return (await client.infer("simple", image))["OUTPUT0"][0].tolist()

    with running_server(*flags_of(at), at=at / "run"):
        for url in (f"unix:{at / 'g.sock'}", f"http+unix://{at / 'h.sock'}"):
            with sdk.connect(url) as client:
                assert client.infer("simple", image)["OUTPUT0"][0].tolist() == [6] * 16
            assert asyncio.run(call(url)) == [6] * 16


@needs_curl
def test_preflight_request_sent_by_curl_gets_a_response(at):
    with running_server(f"--model_base_path={at / 'models'}", "--rest_api_enable_cors_support=true", at=at / "run") as server:
        asked = ["-H", "Origin: https://app.example", "-H", "Access-Control-Request-Method: POST"]
        headed = curl("-i", "-X", "OPTIONS", *asked, f"http://{server.http}/v2/models/simple/infer").lower().splitlines()
        assert headed[0] == "http/1.1 200 ok"
        assert "access-control-allow-origin: *" in headed
        assert "access-control-allow-methods: get, head, post" in headed
