"""Models that keep a state between infer requests are refused: the next request may be another client's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.openvino.backend import OpenVinoBackend
from stoker.server.lifecycle.check import check_repository

ov = pytest.importorskip("openvino", reason="the 'openvino' extra is not installed")

from openvino import opset13  # noqa: E402
from openvino.op.util import Variable, VariableInfo  # noqa: E402


def counting() -> Any:
    """y = state + x; state = y."""
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1, 2]), ov.Type.f32, "v"
    variable = Variable(info)
    x = opset13.parameter([1, 2], np.float32, name="x")
    read = opset13.read_value(opset13.constant(np.zeros((1, 2), np.float32)), variable)
    read.set_friendly_name("past")
    total = opset13.add(read, x)
    return ov.Model([opset13.result(total)], [opset13.assign(total, variable)], [x], "counting")


def counting_in_a_branch() -> Any:
    x, condition = opset13.parameter([1, 2], np.float32, name="x"), opset13.parameter([], bool, name="condition")
    then_body = counting()
    other = opset13.parameter([1, 2], np.float32)
    else_body = ov.Model([opset13.result(opset13.relu(other))], [other], "other")
    branch = opset13.if_op(condition.output(0))
    branch.set_then_body(then_body)
    branch.set_else_body(else_body)
    branch.set_input(x.output(0), then_body.get_parameters()[0], else_body.get_parameters()[0])
    chosen = branch.set_output(then_body.get_results()[0], else_body.get_results()[0])
    return ov.Model([opset13.result(chosen)], [x, condition], "branch")


def saved(model: Any, folder: Path) -> ModelFiles:
    folder.mkdir(parents=True)
    ov.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)
    return ModelFiles(folder, {path.name: path.stat().st_size for path in folder.iterdir()})


@pytest.mark.parametrize("make", [counting, counting_in_a_branch])
def test_model_with_a_state_is_refused_with_its_nodes_and_a_remedy(make, tmp_path: Path) -> None:
    files = saved(make(), tmp_path / "1")
    with pytest.raises(ModelLoadError, match=r"keeps a state .*: ReadValue 'past', Assign '.*'.*--disable-stateful") as caught:
        OpenVinoBackend().inspect(files, "model.xml")
    assert str(tmp_path) not in caught.value.message


def test_check_of_a_repository_finds_the_state(tmp_path: Path) -> None:
    saved(counting(), tmp_path / "models" / "counting" / "1")
    (model,) = check_repository([tmp_path / "models"], BackendRegistry((OpenVinoBackend(),))).models
    (error,) = model.versions[0].errors
    assert "keeps a state" in error
    assert "ReadValue 'past'" in error
