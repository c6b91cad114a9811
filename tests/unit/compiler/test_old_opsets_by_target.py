"""Models of old opsets compile for every target: `--check` compares with the source, and fails on a difference."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from stoker.compiler.cli import main as compile_command
from tests.fakes.graphs import parse

SCALES = {"s": np.array([1, 1, 2, 2], np.float32)}
MODELS: dict[str, tuple[int, str, dict[str, NDArray]]] = {
    "upsample 7": (7, 'g (float[b,1,4,4] x) => (float[b,1,8,8] y) { y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]>(x) }', {}),
    "upsample 9": (9, 'g (float[b,1,4,4] x) => (float[b,1,8,8] y) { y = Upsample<mode = "linear">(x, s) }', SCALES),
    "resize 10": (10, 'g (float[b,1,4,4] x) => (float[b,1,8,8] y) { y = Resize<mode = "linear">(x, s) }', SCALES),
    "resize 10 nearest": (
        10,
        "g (float[b,1,6,6] x) => (float[b,1,3,3] y) { y = Resize(x, s) }",
        {"s": np.array([1, 1, 0.5, 0.5], np.float32)},
    ),
    "softmax 12": (12, "g (float[b,3,4] x) => (float[b,3,4] y) { y = Softmax(x) }", {}),
    "attention 23": (23, "g (float[b,2,4,8] q, float[b,2,4,8] k) => (float[b,2,4,8] y) { y = Attention<is_causal = 1>(q, k, k) }", {}),
}


@pytest.mark.parametrize("target", ["gcu", "ipu", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_model_equals_the_source(name: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opset, text, weights = MODELS[name]
    onnx.save(parse(text, weights, opset=opset), tmp_path / "m.onnx")
    batch = ["--batch_sizes", "1,2"] if target == "gcu" else ["--batch_size", "2", "--batch_axis", "0"]
    words = ["--target", target, "-i", str(tmp_path / "m.onnx"), "--check", "--export_popef", "--output_dir", str(tmp_path), *batch]
    assert compile_command(words) == 0, capsys.readouterr().err
