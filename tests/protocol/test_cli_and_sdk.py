"""The project's client and command against a real server: the four kinds of client agree, and the command prints the same.

That the protocol is right is for foreign clients to judge; here it is shown that ours speak it.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stoker_client as sdk
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, run_python, running_server

A = np.arange(16, dtype=np.int32)[None]
B = np.full((1, 16), 3, np.int32)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory, grpc_front: str, http_front: str) -> Iterator[ServerProcess]:
    """A server of this module's own, because models are loaded and unloaded here."""
    at = tmp_path_factory.mktemp("own")
    flags = (f"--model_base_path={SAMPLE_MODELS}", "--model-control-mode=explicit", "--load-model=*", grpc_front, http_front)
    with running_server(*flags, at=at) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, own_server: ServerProcess) -> str:
    return f"{request.param}://{getattr(own_server, request.param)}"


@pytest.fixture
def client(url: str) -> Iterator[sdk.Client]:
    with sdk.connect(url) as connected:
        yield connected


def test_inference_returns_the_sum_over_both_protocols(client):
    result = client.infer("simple", {"INPUT0": A, "INPUT1": B}, request_id="one")
    np.testing.assert_array_equal(result["OUTPUT0"], A + B)
    np.testing.assert_array_equal(result["OUTPUT1"], A - B)
    assert (result.model_name, result.model_version, result.request_id) == ("simple", "1", "one")


def test_asyncio_clients_run_concurrent_requests(url):
    async def main() -> list[sdk.InferResult]:
        async with sdk.connect_async(url) as client:
            return await asyncio.gather(*(client.infer("simple", {"INPUT0": A + n, "INPUT1": B}) for n in range(32)))

    for n, result in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(result["OUTPUT0"], A + n + B)


def test_metadata_are_equal_over_both_protocols(own_server):
    with sdk.connect(f"grpc://{own_server.grpc}") as over_grpc, sdk.connect(f"http://{own_server.http}") as over_http:
        assert over_grpc.is_live()
        assert over_http.is_live()
        assert over_grpc.server_metadata() == over_http.server_metadata()
        assert over_grpc.model_metadata("digits") == over_http.model_metadata("digits")
        assert over_grpc.model_config("digits", 1) == over_http.model_config("digits", 1)
        assert over_grpc.index() == over_http.index()
        assert over_grpc.statistics() == over_http.statistics()
        image = np.linspace(0, 16, 128, dtype=np.float32).reshape(2, 8, 8)
        np.testing.assert_array_equal(
            over_grpc.infer("digits", {"image": image})["scores"], over_http.infer("digits", {"image": image})["scores"]
        )


def test_stream_returns_a_response_for_every_request(client):
    results = list(client.stream("simple", ({"INPUT0": A + n, "INPUT1": B} for n in range(20)), request_id="s"))
    assert sorted(int(result.request_id[1:]) for result in results) == list(range(20))
    for result in results:
        np.testing.assert_array_equal(result["OUTPUT1"], A + int(result.request_id[1:]) - B)


def test_statistics_count_the_requests(client):
    before = client.statistics("simple", 1)[0]["inference_count"]
    client.infer("simple", {"INPUT0": np.repeat(A, 5, 0), "INPUT1": np.repeat(B, 5, 0)})
    assert client.statistics("simple", 1)[0]["inference_count"] == before + 5


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (lambda client: client.infer("nothing", {"x": [1.0]}), sdk.NotFound),
        (lambda client: client.model_metadata("nothing"), sdk.NotFound),
        (lambda client: client.infer("simple", {"INPUT0": A, "INPUT1": B}, version=9), sdk.NotFound),
        (lambda client: client.infer("simple", {"INPUT0": A, "INPUT1": B.astype(np.float32)}), sdk.InvalidRequest),
        (lambda client: client.infer("simple", {"INPUT0": A}), sdk.InvalidRequest),
        (lambda client: client.infer("simple", {"INPUT0": A, "INPUT1": B}, outputs=["OUTPUT7"]), sdk.InvalidRequest),
        (lambda client: client.infer("simple", {"INPUT0": np.repeat(A, 9, 0), "INPUT1": np.repeat(B, 9, 0)}), sdk.InvalidRequest),
        (lambda client: list(client.stream("simple", [{"INPUT0": A}])), sdk.InvalidRequest),
    ],
)
def test_failures_raise_the_same_errors_over_both_protocols(client, ask, kind):
    with pytest.raises(sdk.StokerError) as caught:
        ask(client)
    assert type(caught.value) is kind


def test_unloaded_model_can_be_loaded_again(client):
    client.unload("simple")
    assert not client.is_model_ready("simple")
    with pytest.raises(sdk.StokerError):
        client.infer("simple", {"INPUT0": A, "INPUT1": B})
    client.load("simple")
    assert client.is_model_ready("simple", 1)
    client.load("simple", config={**client.model_config("simple"), "max_batch_size": 2, "dynamic_batching": {}})
    assert client.model_config("simple")["max_batch_size"] == 2
    client.load("simple")
    assert client.model_config("simple")["max_batch_size"] == 8


def test_load_accepts_model_files_in_the_request(client):
    content = (SAMPLE_MODELS / "simple" / "1" / "model.onnx").read_bytes()
    config = client.model_config("simple")
    client.load("simple", config=config, files={"7/model.onnx": content})
    assert client.infer("simple", {"INPUT0": A, "INPUT1": B}).model_version == "7"
    client.load("simple")
    assert client.infer("simple", {"INPUT0": A, "INPUT1": B}).model_version == "1"


def documented_snippets() -> list[str]:
    """The Python blocks of the client's pages that need nothing but a server."""
    pages = (REPOSITORY_ROOT / "README.md", REPOSITORY_ROOT / "clients" / "python" / "README.md", REPOSITORY_ROOT / "docs" / "client.md")
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    return [block for block in blocks if "models.example" not in block]


@pytest.mark.parametrize("snippet", documented_snippets())
def test_documented_examples_run(own_server, snippet, request):
    here = snippet.replace("127.0.0.1:8500", own_server.grpc).replace("127.0.0.1:8501", own_server.http)
    python = request.getfixturevalue("clients_python") if "tritonclient" in snippet else Path(sys.executable)
    assert run_python(python, here)


def stoker(url: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Runs the command in a child process."""
    command = [sys.executable, "-m", "stoker.cli.main", *words]
    return subprocess.run(
        command, env={**os.environ, "STOKER_URL": url}, cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_command_prints_models_and_status(url):
    listed = stoker(url, "models", "--json")
    assert listed.returncode == 0, listed.stderr
    assert {(row["model"], row["state"], row["backend"]) for row in json.loads(listed.stdout)} >= {("simple", "READY", "onnxruntime")}
    shown = stoker(url, "status", "--interval", "0")
    assert shown.returncode == 0, shown.stderr
    assert "live: yes   ready: yes" in shown.stdout


def test_command_infers_from_a_file(url, tmp_path: Path):
    np.save(tmp_path / "image.npy", np.zeros((8, 8), np.uint8))
    done = stoker(url, "infer", "digits", "--input", f"image={tmp_path / 'image.npy'}", "--top", "1", "--json", "--save", str(tmp_path))
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["outputs"]["scores"]
    assert scores["shape"] == [1, 10]
    assert scores["top"][0]["value"] == max(scores["data"][0])
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), scores["data"])


def test_failing_command_prints_one_line(url):
    failed = stoker(url, "metadata", "nothing")
    assert failed.returncode == 1
    assert failed.stderr == "stoker: error: Request for unknown model: 'nothing' is not found\n"


def test_stoker_serve_equals_the_serve_command():
    done = stoker("grpc://127.0.0.1:1", "serve", "--model_base_path=/no/such/folder")
    assert done.returncode == 2
    assert done.stderr.startswith("serve: error: ")
