"""A server that requires an API key, as tritonclient, the `stoker` command and scrapers meet it."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, copy_models, running_server

FOREIGN = Path(__file__).parent / "foreign"
KEY = "a-long-random-key-0123"
MISSING = "this server requires an API key: send it as 'Authorization: Bearer KEY'"
WRONG = "the API key in the header 'Authorization' is not the key of this server"


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_tritonclient_needs_the_key_for_every_call_but_health(front: str, tmp_path: Path, clients_python: Path):
    copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    (tmp_path / "key").write_text(f"{KEY}\n")
    flags = (f"--model_base_path={tmp_path / 'models'}", f"--api-key-file={tmp_path / 'key'}", f"--grpc-front={front}")
    with running_server(*flags, at=tmp_path / "run") as server:
        command = [str(clients_python), str(FOREIGN / "triton_api_key.py"), server.grpc, server.http, KEY]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "grpc live True True True",
            f"grpc none StatusCode.UNAUTHENTICATED {MISSING}",
            f"grpc wrong StatusCode.UNAUTHENTICATED {WRONG}",
            "grpc right 2",
            "http live True True True",
            f"http none 401 {MISSING}",
            f"http wrong 401 {WRONG}",
            "http right 2",
        ]
        assert KEY not in server.log()


def scraped(port: int, **headers: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_command_sends_the_key_of_the_variable_and_scrapers_need_it(tmp_path: Path):
    copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    (tmp_path / "key").write_text(KEY)
    flags = (f"--model_base_path={tmp_path / 'models'}", f"--api-key-file={tmp_path / 'key'}", "--metrics_port=0")
    with running_server(*flags, at=tmp_path / "run") as server:
        for url in (f"grpc://{server.grpc}", f"http://{server.http}"):
            for key, code, text in (
                (None, 1, f"{MISSING} (here: --api-key KEY, or the variable STOKER_API_KEY)"),
                ("wrong", 1, WRONG),
                (KEY, 0, "READY"),
            ):
                environment = {name: value for name, value in os.environ.items() if name != "STOKER_API_KEY"}
                environment |= {} if key is None else {"STOKER_API_KEY": key}
                done = subprocess.run(
                    [sys.executable, "-m", "stoker.cli.main", "models", "--url", url],
                    cwd=REPOSITORY_ROOT,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                assert done.returncode == code
                assert text in done.stdout + done.stderr
        for port in (server.http_port, server.metrics_port):
            assert [scraped(port), scraped(port, Authorization=f"Bearer {KEY}")] == [401, 200]
