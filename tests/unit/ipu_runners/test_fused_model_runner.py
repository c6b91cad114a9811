"""Two models compiled into one executable, and run one after the other by their index."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from stoker.backends.ipu.runtime import ModelRunner, RuntimeConfig
from stoker.compiler.cli import main
from tests.fakes.graphs import model_of, tensor

CONFIG = """\
output_dir: './'
output_model: 'executable'
export_popef: True
max_tensor_size: -1
model_fusion:
  - input_model: 'model0.onnx'
    input_shape: ['X=1,2', 'Y=1,2']
    precision: 'fp32'

  - input_model: 'model1.onnx'
    input_shape: ['X=1,1']
    precision: 'fp16'
"""


def write_models(folder: Path) -> None:
    adding = model_of(
        [helper.make_node("Add", ["X", "Y"], ["Z"]), helper.make_node("Reshape", ["Z", "C"], ["O"])],
        [tensor("X", (1, 2)), tensor("Y", (1, 2))],
        [tensor("O", (2,))],
        {"C": np.array([2], np.int64)},
        opset=11,
    )
    joining = model_of(
        [helper.make_node("Concat", ["X", "C"], ["O"], axis=1)],
        [tensor("X", (1, 1), np.float16)],
        [tensor("O", (1, 3), np.float16)],
        {"C": np.array([[1.5, 2.0]], np.float16)},
        opset=11,
    )
    onnx.save(adding, folder / "model0.onnx")
    onnx.save(joining, folder / "model1.onnx")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")


def test_fused_models_are_compiled_from_yaml_and_run_by_index(tmp_path: Path, monkeypatch) -> None:
    write_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["--config_yaml", "config.yaml"], default_target="ipu") == 0

    config = RuntimeConfig()
    config.validate_io_params = False
    runner = ModelRunner(str(tmp_path / "executable.popef"), config)
    try:
        first, second, total = np.ones((1, 2), np.float32), np.full((1, 2), 2, np.float32), np.zeros(2, np.float32)
        runner.execute({"index": np.array([0], np.uint8), "graph0/stream0": first, "graph0/stream1": second}, {"graph0/O": total})
        np.testing.assert_array_equal(total, np.full(2, 3, np.float32))

        joined = np.zeros((1, 3), np.float16)
        runner.execute({"index": np.array([1], np.uint8), "graph1/stream0": np.zeros((1, 1), np.float16)}, {"graph1/O": joined})
        np.testing.assert_array_equal(joined, np.array([[0.0, 1.5, 2.0]], np.float16))
    finally:
        runner.close()
