"""Refusals of `stoker compile --target ipu`: all at once, and before long work begins."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import stoker.compiler.cli
from tests.fakes.graphs import model_of, tensor

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in an empty folder; returns exit code and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        code = stoker.compiler.cli.main(["--target", "ipu", *words])
        return code, capsys.readouterr().err

    return run


def save(path: str, batch: int | str = 2) -> None:
    weights = {"w": np.ones((3, 2), np.float32)}
    onnx.save(
        model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor("x", [batch, 3])], [tensor("y", [batch, 2])], weights), path
    )


def test_all_operators_are_named_although_one_of_them_leaves_an_output_without_shape(refused: Command) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"], name="finds"),
        helper.make_node("Foo", ["x"], ["y"], name="foo", domain="my.ops"),
    ]
    model = model_of(nodes, [tensor("x", [2, 3])], [tensor("at", [2, None], np.int64), tensor("y", [2, 3])])
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    onnx.save(model, "model.onnx")
    code, said = refused("-i", "model.onnx", "--export_popef")
    assert code == 1
    assert "2 node(s) cannot be compiled for ipu2 (M2000):" in said
    assert "NonZero (node 'finds')" in said
    assert "my.ops::Foo (node 'foo')" in said


def test_output_without_shape_is_the_error_if_the_device_has_the_operator(refused: Command) -> None:
    nodes = [helper.make_node("Compress", ["x", "which"], ["y"], name="drops", axis=0)]
    onnx.save(model_of(nodes, [tensor("x", [2, 3]), tensor("which", [2], np.bool_)], [tensor("y", [None, 3])]), "model.onnx")
    code, said = refused("-i", "model.onnx", "--output_model", "converted.onnx")
    assert (code, Path("converted.onnx").exists()) == (1, False)
    assert "'drops' (Compress" in said


@pytest.mark.parametrize("precision", ["fp8", "fp8_weight"])
def test_eight_bit_floats_are_refused_before_the_model_is_read_if_the_device_has_none(refused: Command, precision: str) -> None:
    assert refused("-i", "there is none", "--precision", precision, "--export_popef") == (
        2,
        f"stoker compile: error: precision {precision}: M2000 (ipu2) has no FP8; give ipu_version ipu21, a C600\n",
    )


def test_options_of_the_device_are_refused_before_the_model_is_read(refused: Command) -> None:
    code, said = refused("-i", "there is none", "--num_io_tiles", "2000", "--export_popef")
    assert (code, said) == (2, "stoker compile: error: num_io_tiles is 2000, expected 0 to 1471\n")


def test_invalid_folder_is_refused_before_the_model_is_read(refused: Command) -> None:
    Path("taken").write_text("")
    code, said = refused("-i", "there is none", "--output_dir", "taken/deeper")
    assert code == 1
    assert said.startswith("stoker compile: error: cannot write to folder taken/deeper: ")
    assert said.endswith("/taken is a file\n")


def test_unconvertible_model_of_a_fusion_is_named(refused: Command) -> None:
    save("fixed.onnx")
    save("open.onnx", "batch")
    Path("fused.yaml").write_text("export_popef: true\nmodel_fusion:\n  - input_model: fixed.onnx\n  - input_model: open.onnx\n")
    code, said = refused("--config_yaml", "fused.yaml")
    assert code == 1
    assert "error: graph1 (open.onnx): variable dimensions must be fixed" in said
