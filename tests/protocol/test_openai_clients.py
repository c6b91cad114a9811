"""OpenAI's API judged by OpenAI's own clients, of Python and of Node, on the models of examples/tiny_chat."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess, running_server, wait_until

FOREIGN = Path(__file__).parent
NODE_MODULES = REPOSITORY_ROOT / ".node-client" / "node_modules"
TRAINING_S = 600
PYTHON_CHECKS = "models embeddings chat chat-stream stream-helper completions limits sampling errors leaving aio"
NODE_CHECKS = "models embeddings chat chatStream streamHelper completions errors leaving"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that the example trains."""
    repository = tmp_path_factory.mktemp("tiny") / "models"
    command = [sys.executable, str(REPOSITORY_ROOT / "examples" / "tiny_chat" / "train.py"), "--to", str(repository)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TRAINING_S, check=False)
    assert done.returncode == 0, done.stderr
    return repository


@pytest.fixture(scope="module")
def chatting(trained: Path, http_front: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(f"--model_base_path={trained}", http_front, at=tmp_path_factory.mktemp("server")) as server:
        yield server


def cancelled(server: ServerProcess) -> int:
    """Requests of the chat model that their clients have left."""
    text = server.get("/metrics")[1].decode()
    found = re.search(r'^nv_inference_request_failure\{model="tiny_chat",reason="CANCELED",version="1"\} (\d+)', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.timeout(900)
def test_openais_python_client_passes_all_its_checks(chatting: ServerProcess, clients_python: Path) -> None:
    if subprocess.run([clients_python, "-c", "import openai"], capture_output=True, check=False).returncode:
        pytest.skip("the client 'openai' is not installed: run 'make clients-env'")
    before = cancelled(chatting)
    command = [str(clients_python), str(FOREIGN / "foreign" / "openai_python.py"), chatting.http]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{chatting.log()[-2000:]}"
    assert done.stdout.split() == PYTHON_CHECKS.split()
    wait_until(lambda: cancelled(chatting) > before, what="the texts that the client left to be cancelled")


@pytest.mark.timeout(900)
def test_openais_node_client_passes_all_its_checks(chatting: ServerProcess) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (NODE_MODULES / "openai").exists():
        pytest.skip("the client 'openai' is not installed: run 'make node-client'")
    before = cancelled(chatting)
    command = [node, str(FOREIGN / "foreign_node" / "openai.js"), chatting.http]
    environment = {**os.environ, "NODE_PATH": str(NODE_MODULES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{chatting.log()[-2000:]}"
    assert done.stdout.split() == NODE_CHECKS.split()
    wait_until(lambda: cancelled(chatting) > before, what="the texts that the client left to be cancelled")
