"""TensorFlow Serving's protocol, judged by its published client without TensorFlow, and by requests as curl sends them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, running_server, wait_until

JUDGE = Path(__file__).parent / "foreign" / "tfs.py"
CHECKS = "predict metadata status classify refusals no_reload"
FRONTS = ("h2", "grpcio")


@pytest.fixture(scope="module")
def tfs_python(clients_python: Path) -> Path:
    """The interpreter that has TensorFlow Serving's client."""
    probe = "import importlib.metadata as m; m.version('tensorflow-serving-api'); m.version('tensorflow-protobuf')"
    if subprocess.run([clients_python, "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("TensorFlow Serving's client is not installed: run 'make clients-env'")
    return clients_python


def judged(python: Path, *arguments: str) -> list[str]:
    done = subprocess.run([python, JUDGE, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.split()


@pytest.mark.parametrize("front", FRONTS)
def test_published_client_passes_all_its_checks(front: str, tfs_python: Path, tmp_path: Path):
    with running_server(f"--model_base_path={SAMPLE_MODELS}", f"--grpc_front={front}", at=tmp_path) as server:
        assert judged(tfs_python, server.grpc) == CHECKS.split()


def versions(root: Path, *numbers: int) -> Path:
    """A model folder of that many versions, without a configuration."""
    folder = root / "anywhere" / "numbers"
    for number in numbers:
        (folder / str(number)).mkdir(parents=True)
        shutil.copy(SAMPLE_MODELS / "digits" / "1" / "model.onnx", folder / str(number))
    return folder


def test_published_client_replaces_the_list_of_models(tfs_python: Path, tmp_path: Path):
    folder = versions(tmp_path, 1, 2)
    flags = ("--model_name=digits", f"--model_base_path={folder}", "--allow_model_reload")
    with running_server(*flags, at=tmp_path / "server") as server:
        assert judged(tfs_python, server.grpc, str(folder)) == ["reload"]


def images(count: int) -> list[Any]:
    with np.load(REPOSITORY_ROOT / "examples" / "digits" / "heldout.npz") as heldout:
        return heldout["images"][:count].tolist()


def test_rows_sent_by_curl_get_responses_from_every_kind_of_model(server: ServerProcess):
    best: dict[str, list[int]] = {}
    for model in ("digits", "digits_ipu", "digits_gcu"):
        answer: Any = server.json(f"/v1/models/{model}:predict", {"signature_name": "serving_default", "instances": images(9)})
        best[model] = np.argmax(answer["predictions"], axis=1).tolist()
        column: Any = server.json(f"/v1/models/{model}/versions/1:predict", {"inputs": {"image": images(9)}})
        np.testing.assert_allclose(column["outputs"], answer["predictions"])
    assert best["digits"] == best["digits_ipu"] == best["digits_gcu"]


def test_rest_returns_classes_status_and_metadata(server: ServerProcess):
    examples = [{"image": np.reshape(image, -1).tolist()} for image in images(2)]
    answer: Any = server.json("/v1/models/digits:classify", {"examples": examples})
    assert [label for label, _ in answer["results"][0]][:2] == ["zero", "one"]
    status: Any = server.json("/v1/models/digits")
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    metadata: Any = server.json("/v1/models/digits/metadata")
    assert "serving_default" in metadata["metadata"]["signature_def"]["signature_def"]
    code, text = server.get("/v1/models/ghost:predict", b'{"instances": [1]}')
    assert (code, json.loads(text)) == (404, {"error": "Servable not found for request: Latest(ghost)"})


def test_single_model_flags_serve_it_with_batching_and_metrics(tmp_path: Path):
    folder = versions(tmp_path, 3)
    (tmp_path / "batching").write_text("max_batch_size { value: 64 } batch_timeout_micros { value: 100 } num_batch_threads { value: 2 }")
    (tmp_path / "monitoring").write_text('prometheus_config { enable: true path: "/tf/metrics" }')
    flags = (
        "--model_name=mnist",
        f"--model_base_path={folder}",
        "--enable_batching",
        f"--batching_parameters_file={tmp_path / 'batching'}",
        f"--monitoring_config_file={tmp_path / 'monitoring'}",
        "--rest_api_timeout_in_ms=20000",
    )
    with running_server(*flags, at=tmp_path / "server") as server:
        answer: Any = server.json("/v1/models/mnist:predict", {"instances": images(33)})
        assert len(answer["predictions"]) == 33
        code, text = server.get("/v1/models/mnist:predict", json.dumps({"instances": images(65)}).encode())
        assert (code, b"64" in text) == (400, True)
        code, text = server.get("/tf/metrics")
        assert (code, b':tensorflow:serving:request_count{model_name="mnist",status="OK"} 1\n' in text) == (200, True)
        assert server.get("/monitoring/prometheus/metrics")[0] == 404
        assert "num_batch_threads has no effect" in server.log()


def test_model_config_file_serves_a_canary_version(tmp_path: Path):
    folder = versions(tmp_path, 1)
    path = tmp_path / "models.config"

    def write(policy: str, labels: dict[str, int]) -> None:
        shown = " ".join(f'version_labels {{ key: "{label}" value: {version} }}' for label, version in labels.items())
        model = f'name: "digits" base_path: "{folder}" model_platform: "tensorflow" model_version_policy {{ {policy} }} {shown}'
        path.with_suffix(".new").write_text(f"model_config_list {{ config {{ {model} }} }}")
        path.with_suffix(".new").replace(path)

    # Not the latest: version 2 would take its place as soon as it is there, whatever the next list says.
    write("specific { versions: 1 }", {"stable": 1})
    flags = (f"--model_config_file={path}", "--model_config_file_poll_wait_seconds=1", "--settle_secs=0")
    with running_server(*flags, at=tmp_path / "server") as server:

        def version_of(label: str) -> str:
            code, text = server.get(f"/v1/models/digits/labels/{label}")
            return json.loads(text)["model_version_status"][0]["version"] if code == 200 else text.decode()

        assert version_of("stable") == "1"
        assert "Unrecognized servable version label: canary" in version_of("canary")
        versions(tmp_path, 2)
        write("specific { versions: 1 versions: 2 }", {"stable": 1, "canary": 2})
        wait_until(lambda: version_of("canary") == "2", what="the canary")
        assert version_of("stable") == "1"
        write("specific { versions: 2 }", {"stable": 2})
        wait_until(lambda: server.get("/v1/models/digits/versions/1/metadata")[0] == 404, what="the end of the old version")
        assert version_of("stable") == "2"
        path.write_text("model_config_list { config { label: 1 } }")
        wait_until(lambda: ".label: unknown field" in server.log(), what="the error in the log")
        assert version_of("stable") == "2"
