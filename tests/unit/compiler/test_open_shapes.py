"""`--input_shape` leaves the batch to the options that set it."""

from pathlib import Path

import onnx
import pytest

from stoker.compiler.cli import main as compile_command
from tests.fakes.graphs import parse


@pytest.mark.parametrize("shape", ["x=?,12,8", "x=*,12,8", "x=12,8"])
def test_batch_sizes_go_with_other_variable_dimensions(shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parse("g (float[b,t,8] x) => (float[b,t,8] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    words = ["--target", "gcu", "-i", str(tmp_path / "m.onnx"), "--batch_sizes", "1,4", "--input_shape", shape]
    served = ["--model_repository", str(tmp_path / "repo"), "--model_name", "m"]
    assert compile_command([*words, *served]) == 0, capsys.readouterr().err
    config = (tmp_path / "repo/m/config.pbtxt").read_text()
    assert "max_batch_size: 4" in config
    assert "dims: [12, 8]" in config


def test_open_dimension_of_a_shape_needs_another_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parse("g (float[b,t,8] x) => (float[b,t,8] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    words = ["--target", "ipu", "-i", str(tmp_path / "m.onnx"), "--input_shape", "x=?,12,8", "--output_dir", str(tmp_path)]
    assert compile_command(words) == 1
    assert "variable dimensions must be fixed by a batch size" in capsys.readouterr().err
