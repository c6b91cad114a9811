"""The example clients with a server on other ports: `STOKER_URL` has its address, `STOKER_API_KEY` its key."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server

pytestmark = pytest.mark.protocol

KEY = "a-long-random-key-0123"
DIGITS = REPOSITORY_ROOT / "examples" / "digits"
PIPELINE = REPOSITORY_ROOT / "examples" / "pipeline"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    at = tmp_path_factory.mktemp("elsewhere")
    copy_models(SAMPLE_MODELS, at / "models", ["digits"])
    (at / "key").write_text(KEY)
    with running_server(f"--model_base_path={at / 'models'}", f"--api-key-file={at / 'key'}", at=at / "run") as started:
        yield started


def run(url: str, *words: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STOKER_URL": url, "STOKER_API_KEY": key}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False, env=environment)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_digits_clients_connect_to_the_given_address(scheme: str, server: ServerProcess):
    url = f"{scheme}://{server.grpc if scheme == 'grpc' else server.http}"
    classified = run(url, str(DIGITS / "classify.py"), str(DIGITS / "sample.png"))
    assert classified.returncode == 0, classified.stderr
    assert "This is a 3." in classified.stdout
    evaluated = run(url, str(DIGITS / "evaluate.py"))
    assert evaluated.returncode == 0, evaluated.stderr
    lines = [line.split()[0] for line in evaluated.stdout.splitlines() if "accuracy" in line]
    assert lines == ["in", {"grpc": "gRPC", "http": "HTTP"}[scheme]]


def test_both_protocols_can_be_selected_by_name(server: ServerProcess):
    evaluated = run("grpc://127.0.0.1:9", str(DIGITS / "evaluate.py"), "--grpc", server.grpc, "--http", server.http)
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.count("accuracy") == 3


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_adlik_clients_connect_to_the_given_address(scheme: str, server: ServerProcess, tmp_path: Path):
    url = f"{scheme}://{server.grpc if scheme == 'grpc' else server.http}"
    script = tmp_path / "client.py"
    script.write_text(
        "import argparse, sys\n"
        f"sys.path.insert(0, {str(DIGITS.parent)!r})\n"
        "import numpy as np\n"
        "from adlik_options import add_server_options, served_model\n"
        "parser = argparse.ArgumentParser()\n"
        "add_server_options(parser, 'digits')\n"
        "with served_model(parser.parse_args()) as model:\n"
        "    print(model.run({'image': np.zeros((1, 8, 8), np.float32)})['scores'].tensor.shape)\n"
    )
    done = run(url, str(script))
    assert (done.returncode, done.stdout) == (0, "(1, 10)\n"), done.stderr
    # The other protocol has another port, of which the variable says nothing.
    other = "http" if scheme == "grpc" else "grpc"
    assert run(url, str(script), "-i", other, "-u", server.http if other == "http" else server.grpc).stdout == "(1, 10)\n"
    refused = run(url, str(script), key="wrong")
    assert refused.returncode == 1
    assert "is not the key of this server" in refused.stderr


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    at = tmp_path_factory.mktemp("pipeline")
    command = [sys.executable, str(PIPELINE / "build.py"), f"--repository={at / 'models'}", "--target=cpu"]
    subprocess.run(command, check=True, capture_output=True, timeout=2 * PATIENCE_S)
    with running_server(f"--model_base_path={at / 'models'}", at=at / "run") as started:
        yield started


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_client_of_the_pipeline_connects_to_the_given_address(scheme: str, pipeline: ServerProcess):
    url = f"{scheme}://{pipeline.grpc if scheme == 'grpc' else pipeline.http}"
    done = run(url, str(PIPELINE / "ask.py"), "rain and wind with some thunder", "the choir was very good", "--times")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["weather", "music", "tokenise:", "classify:", "label:"]


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_client_of_the_pipeline_without_a_server_prints_one_line(scheme: str):
    done = run(f"{scheme}://127.0.0.1:1", str(PIPELINE / "ask.py"), "rain")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{scheme}://127.0.0.1:1: ")
    assert len(done.stderr.splitlines()) == 1
