"""`--config_yaml`: the command line's options in a file, and several models in one executable."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker.compiler.cli_arguments import read_config
from stoker.compiler.errors import OptionError
from tests.fakes.fake_target import FakeTarget
from tests.fakes.graphs import model_of, tensor

FUSION = """\
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


@pytest.fixture
def two_models(folder: Path) -> Path:
    """The models that the published example of model fusion makes."""
    nodes = [helper.make_node("Add", ["X", "Y"], ["Z"]), helper.make_node("Reshape", ["Z", "C"], ["O"])]
    first = model_of(nodes, [tensor("X", (1, 2)), tensor("Y", (1, 2))], [tensor("O", (2,))], {"C": np.array([2])}, opset=11)
    concat = helper.make_node("Concat", ["X", "C"], ["O"], axis=1)
    weights = {"C": np.array([[1.5, 2.0]], np.float16)}
    second = model_of([concat], [tensor("X", (1, 1), np.float16)], [tensor("O", (1, 3), np.float16)], weights, opset=11)
    onnx.save(first, folder / "model0.onnx")
    onnx.save(second, folder / "model1.onnx")
    return folder


def test_published_example_fuses_two_models_into_one_executable(stoker_compile, two_models: Path, target: FakeTarget) -> None:
    (two_models / "config.yaml").write_text(FUSION)
    ran = stoker_compile("--config_yaml", "config.yaml")
    assert ran.code == 0
    facts = json.loads((two_models / "executable.fake").read_text())
    assert {name: each["inputs"] for name, each in facts.items()} == {"graph0": ["X", "Y"], "graph1": ["X"]}
    assert target.options is not None
    assert target.options.enable_model_fusion
    second = target.sources[1].model
    assert second.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert not (two_models / "executable").exists()


def test_command_line_overrides_the_file(stoker_compile, folder: Path, target: FakeTarget) -> None:
    (folder / "c.yaml").write_text("input_model: model.onnx\ninput_shape: {x: [2, 3]}\nexport_popef: true\nbatches_per_step: 2\n")
    assert stoker_compile("--config_yaml", "c.yaml", "--batches_per_step", "16").code == 0
    assert target.options is not None
    assert target.options.batches_per_step == 16


def test_file_names_the_target_and_the_logging_level(stoker_compile, folder: Path) -> None:
    (folder / "c.yaml").write_text(
        "target: fake\nlogging_level: ERROR\ninput_model: model.onnx\nbatch_size: 1\nbatch_axis: 0\nperf_tuner: true\n"
    )
    ran = stoker_compile("--config_yaml", "c.yaml", default_target=None)
    assert ran.code == 0
    assert "WARNING" not in ran.err


def test_settings_of_one_model_override_common_ones(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("precision: fp16\nmodel_fusion:\n - {input_model: a.onnx}\n - {input_model: b.onnx, precision: fp32}\n")
    config = read_config(path)
    assert config.job["precision"] == "fp16"
    assert [each.get("precision") for each in config.models] == [None, "fp32"]


def test_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing yet\n")
    assert (read_config(tmp_path / "c.yaml").job, read_config(tmp_path / "c.yaml").models) == ({}, ())


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("input_model: a\n\nprecison: fp16\n", 3, "there is no option 'precison'; did you mean precision"),
        ("batches_per_step: two\n", 1, "batches_per_step: expected an integer, got 'two'"),
        ("batch_size: 0\n", 1, "batch_size: expected an integer of 1 or more"),
        ("export_popef: maybe\n", 1, "export_popef: expected true or false"),
        ("input_shape: 4\n", 1, "input_shape: expected a list"),
        ("precision:\n  fp12\n", 1, "precision: 'fp12' is none of"),
        ("show: true\nshow: false\n", 2, "'show' is written twice"),
        ("batch_per_step: 2\nbatches_per_step: 2\n", 2, "are one option, given twice"),
        ("- a\n- b\n", 1, "the file: expected options as 'name: value'"),
        ("a: [1\nb: 2\n", 2, "no valid YAML"),
        ("model_fusion: a.onnx\n", 1, "model_fusion: expected a list"),
        ("model_fusion:\n - precision: fp16\n", 2, "model_fusion[0]: 'input_model' is missing"),
        (
            "model_fusion:\n - input_model: a\n - input_model: b\n   output_dir: out\n",
            4,
            "model_fusion[1]: 'output_dir' concerns the whole",
        ),
        ("model_fusion:\n - input_model: a\n   input_shap: [X=1]\n", 3, "model_fusion[0]: there is no option 'input_shap'"),
        ("config_yaml: other.yaml\n", 1, "there is no option 'config_yaml'"),
    ],
)
def test_error_in_the_yaml_file_names_file_and_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert reason in str(caught.value)


def test_missing_yaml_file_is_reported(stoker_compile) -> None:
    ran = stoker_compile("--config_yaml", "no.yaml")
    assert (ran.code, ran.err) == (2, "stoker compile: error: config_yaml: cannot read no.yaml: No such file or directory\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("export_popef: True", "export_popef: False"), "model_fusion needs --export_popef"),
        (("output_dir:", "input_model: x.onnx\noutput_dir:"), "--input_model and model_fusion exclude each other"),
    ],
)
def test_impossible_fusion_is_refused(stoker_compile, two_models: Path, change: tuple[str, str], reason: str) -> None:
    (two_models / "config.yaml").write_text(FUSION.replace(*change))
    ran = stoker_compile("--config_yaml", "config.yaml")
    assert ran.code == 2
    assert reason in ran.err
