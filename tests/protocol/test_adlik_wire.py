"""Adlik's wire, judged by stubs that are generated from the definitions in an environment of their own, against a real server."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server, wait_until

JUDGE = Path(__file__).parent / "foreign" / "adlik_judge.py"
PROTOS = REPOSITORY_ROOT / "proto"
PROTOS_PYTHON = REPOSITORY_ROOT / ".venv-protos" / "bin" / "python"
CHECKS = "predict classes metadata rest tasks-and-status bad-requests operations"


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages and stubs, generated apart from those of the server."""
    if not PROTOS_PYTHON.exists():
        pytest.skip("no .venv-protos here (scripts/generate_protos makes it)")
    folder = tmp_path_factory.mktemp("stubs")
    files = [str(path.relative_to(PROTOS)) for path in sorted(PROTOS.rglob("*.proto")) if path.parent != PROTOS]
    outputs = [f"--proto_path={PROTOS}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([PROTOS_PYTHON, "-m", "grpc_tools.protoc", *outputs, *files], check=True, cwd=PROTOS)
    return folder


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    """Models that clients may add: a good one, a version that cannot be loaded, and a link that leads out."""
    folder = copy_models(SAMPLE_MODELS, tmp_path / "incoming", ["simple"])
    config = folder / "simple" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "simple"', ""))
    (folder / "broken").mkdir()
    (folder / "broken" / "model.onnx").write_bytes(b"no model")
    (folder / "outside").symlink_to(SAMPLE_MODELS / "digits")
    return folder


@pytest.mark.parametrize(
    "mode", [("--loading_method=automatic", "--settle_secs=0", "--repository-poll-secs=0.1"), ("--loading_method=manual",)]
)
def test_foreign_client_finds_every_expected_field(
    mode: tuple[str, ...], stubs: Path, incoming: Path, tmp_path: Path, grpc_front: str, http_front: str
):
    repository = copy_models(SAMPLE_MODELS, tmp_path / "repository", ["digits", "simple"])
    flags = (
        f"--model_base_path={repository}",
        "--prefer_adlik",
        "--allow_model_operate",
        f"--model_operate_root={incoming}",
        *mode,
        grpc_front,
        http_front,
    )
    with running_server(*flags, at=tmp_path / "server") as server:
        command = [PROTOS_PYTHON, JUDGE, stubs, server.grpc, server.http, incoming]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
        assert done.stdout.split() == CHECKS.split()
    assert sorted(path.name for path in repository.iterdir()) == ["digits", "simple"]


def test_metadata_of_adlik_platforms_has_adliks_form(server: ServerProcess):
    found: Any = server.json("/v1/models/digits_gcu/metadata")
    assert found["config"]["platform"] == "topsinference"
    assert found["version_status"] == {"1": {"ready_state": "MODEL_READY"}}
    others: Any = server.json("/v1/models/digits/metadata")
    assert list(others) == ["model_spec", "metadata"]
    forced: Any = server.json("/v1/models/digits/metadata?format=adlik")
    assert forced["config"]["input"] == [{"name": "image", "data_type": "DT_FLOAT", "dims": ["8", "8"]}]


def test_simulated_device_responds_to_adlik_requests_like_the_cpu(server: ServerProcess):
    with np.load(REPOSITORY_ROOT / "examples" / "digits" / "heldout.npz") as heldout:
        images = heldout["images"][:9].astype(np.float32)
    image = {"dtype": "DT_FLOAT", "tensor_content": base64.b64encode(images.tobytes()).decode()}
    body = {"batch_size": 9, "inputs": {"image": image}, "output_filter": {"scores": {"cls": {"count": 1}}}}
    best: dict[str, list[str]] = {}
    for model in ("digits", "digits_gcu"):
        answer: Any = server.json(f"/v1/models/{model}:predict", body)
        best[model] = [sample["cls"][0]["label"] for sample in answer["outputs"]["scores"]["batch_classes"]]
        status, text = server.get(f"/v1/models/{model}:predict", json.dumps({**body, "batch_size": 33}).encode())
        assert (status, "max_batch_size 32" in text.decode()) == (400, True)
    assert len(best["digits"]) == 9
    assert best["digits"] == best["digits_gcu"]


def free_port() -> int:
    """Adlik's command uses 0 for "off", so a port has to be chosen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def adlik_serving(*flags: str, at: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """`adlik_serving` in a child process, and its log."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY_ROOT / "compat"), str(REPOSITORY_ROOT)])}
    log = at / "adlik.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "adlik_serving", *flags], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, cwd=at
        )
    try:
        yield child, log
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def test_adlik_command_serves_with_adliks_defaults(tmp_path: Path):
    port, ready = free_port(), tmp_path / "ready.json"
    flags = (f"--model_base_path={SAMPLE_MODELS}", f"--http_port={port}", "--address=127.0.0.1", f"--ready_file={ready}")
    with adlik_serving(*flags, "--tf_enable_batching=1", "--http_num_threads=4", at=tmp_path) as (child, log):
        wait_until(lambda: ready.exists() or child.poll() is not None, what="the ready file")
        assert child.poll() is None, log.read_text()
        facts = json.loads(ready.read_text())
        assert facts["grpc_port"] is None
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/digits/metadata", timeout=30) as answer:
            assert json.load(answer)["config"]["name"] == "digits"
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
        assert "--tf_enable_batching has no effect" in log.read_text()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--model_base_path=.", "--grpc_port=1", "--ssl_config_file=/no/such/file"), "/no/such/file: No such file"),
        ((), "nothing would be served"),
        (("--grpc_port=1", "--no_such_flag=1"), "no-such-flag"),
    ],
)
def test_refused_start_prints_its_reason_in_one_line(flags: tuple[str, ...], text: str, tmp_path: Path):
    with adlik_serving(*flags, at=tmp_path) as (child, log):
        assert child.wait(60) == 2
        lines = [line for line in log.read_text().splitlines() if "error" in line]
        assert len(lines) == 1
        assert text in lines[0]
