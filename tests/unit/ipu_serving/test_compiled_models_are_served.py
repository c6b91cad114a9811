"""Versions written by `stoker compile --model_repository`, compared with the backend's requirements."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.registry import BackendRegistry
from stoker.backends.ipu.backend import PoplarBackend
from stoker.compiler.cli import main as compile_command
from stoker.server.lifecycle.check import check_repository

KINDS = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.int64: TensorProto.INT64}


def mean_of_pixels(dtype: type[np.generic]) -> onnx.ModelProto:
    """[n, 3, 4, 4] to [n, 3]."""
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image"], ["y"], axes=[2, 3], keepdims=0)],
        "mean",
        [helper.make_tensor_value_info("image", KINDS[dtype], ["n", 3, 4, 4])],
        [helper.make_tensor_value_info("y", KINDS[dtype], ["n", 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)


@pytest.mark.parametrize(
    ("dtype", "options", "served"),
    [
        (np.float32, ["--precision", "fp16"], "TYPE_FP32"),
        (np.float32, ["--precision", "fp16", "--eightbitsio"], "TYPE_UINT8"),
        (np.float64, ["--precision", "fp32"], "TYPE_FP64"),
        (np.float64, ["--precision", "fp16"], "TYPE_FP64"),
        (np.int64, [], "TYPE_INT64"),
        (np.float32, ["--batches_per_step", "4"], "TYPE_FP32"),
    ],
)
def test_compiled_version_is_served_by_the_backend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: type[np.generic], options: list[str], served: str
) -> None:
    onnx.save(mean_of_pixels(dtype), tmp_path / "m.onnx")
    words = ["--target", "ipu", "-i", str(tmp_path / "m.onnx"), "--batch_size", "2", "--batch_axis", "0", *options]
    assert compile_command([*words, "--model_repository", str(tmp_path / "repo"), "--model_name", "m"]) == 0, capsys.readouterr().err
    [model] = check_repository([tmp_path / "repo"], BackendRegistry((PoplarBackend(),))).models
    assert model.problems == ()
    assert f'name: "image" data_type: {served} dims' in (tmp_path / "repo/m/config.pbtxt").read_text()
