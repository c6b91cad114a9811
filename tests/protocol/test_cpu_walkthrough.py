"""From an ONNX file to responses: `stoker compile --target cpu`, the server, and a request, each in a separate process."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, running_server

pytestmark = pytest.mark.protocol

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the 'openvino' extra is not installed")
MODEL = REPOSITORY_ROOT / "model_repos/digits/1/model.onnx"


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images and their classes."""
    with np.load(REPOSITORY_ROOT / "examples/digits/heldout.npz") as heldout:
        return heldout["images"].astype(np.float32), heldout["digits"]


@pytest.mark.parametrize(
    ("words", "backend"),
    [
        ((), "onnxruntime"),
        (("--precision", "int8"), "onnxruntime"),
        pytest.param(("--precision", "bf16"), "openvino", marks=needs_openvino),
        pytest.param(("--precision", "int8", "--format", "openvino"), "openvino", marks=needs_openvino),
    ],
)
def test_compiled_digits_are_as_accurate_as_the_source(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray], words: tuple[str, ...], backend: str
) -> None:
    images, truth = digits
    np.savez(tmp_path / "samples.npz", image=images[:128])
    command = [
        sys.executable,
        "-m",
        "stoker.cli.main",
        "compile",
        "--target",
        "cpu",
        "-i",
        str(MODEL),
        "--batch_size",
        "32",
        "--batch_axis",
        "0",
    ]
    served = ["--data_preprocess", "samples.npz", "--model_repository", "repository", "--model_name", "digits"]
    compiled = subprocess.run([*command, *served, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert compiled.returncode == 0, compiled.stderr
    with running_server(f"--model_base_path={tmp_path / 'repository'}", at=tmp_path / "server") as server:
        config = server.json("/v2/models/digits/config")
        assert isinstance(config, dict)
        assert config["backend"] == backend
        right = 0
        for first in range(128, 192, 16):
            some = images[first : first + 16]
            body = {"inputs": [{"name": "image", "shape": list(some.shape), "datatype": "FP32", "data": some.ravel().tolist()}]}
            answer = server.json("/v2/models/digits/infer", body)
            assert isinstance(answer, dict)
            scores = np.asarray(answer["outputs"][0]["data"]).reshape(16, 10)
            right += int((scores.argmax(axis=1) == truth[first : first + 16]).sum())
        assert right >= 61
