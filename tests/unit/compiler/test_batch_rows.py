"""Models whose rows depend on each other are not served in batches."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from model_compiler.compiling import compile_fields

from stoker.backends.gcu.compile.target import build
from stoker.compiler.cli import main as compile_command
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.free_batch import dependence_of_rows
from stoker.compiler.errors import ShapeError
from stoker.compiler.target import SourceModel
from tests.fakes import networks
from tests.fakes.graphs import parse
from tests.fakes.transformers import small_bert

MEAN = "g (float[b,4] x) => (float[b,4] y) { m = ReduceMean<axes = [0], keepdims = 1>(x) y = Sub(x, m) }"
OTHER = "output 'y' of a row depends on the other rows of the batch, or on its place among them"


def source_of(model: onnx.ModelProto, batch: int = 4, *, is_known: bool = True) -> SourceModel:
    first = model.graph.input[0].type.tensor_type.shape.dim[0]
    sizes = {} if first.HasField("dim_value") else {"batch_size": batch, "batch_axis": 0}
    converted = Converter(**sizes).convert_internal(model)
    return SourceModel(model=converted, name="m", source=model if is_known else None)


@pytest.mark.parametrize(
    ("text", "weights", "reason"),
    [
        (MEAN, {}, OTHER),
        ("g (float[b,4] x) => (float[b,4] y) { y = Softmax<axis = 0>(x) }", {}, OTHER),
        ("g (float[b,4] x) => (float[b,4] y) { y = CumSum(x, a) }", {"a": np.array(0)}, OTHER),
        (
            "g (float[b,4] x) => (float[b,4] y) { s = Softmax<axis = 0>(x) y = Add(s, c) }",
            {"c": np.array([0, 0, 0, -np.inf], np.float32)},
            OTHER,
        ),
        (
            "g (float[b,4] x) => (float[b,4] y) { s = Shape(x) n = Cast<to = 1>(s) f = Gather(n, z) y = Div(x, f) }",
            {"z": np.array([0])},
            OTHER,
        ),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_rows_that_depend_on_each_other_are_found(text: str, weights: dict[str, np.ndarray], reason: str, is_known: bool) -> None:
    model = parse(text, weights, opset=13)
    found = dependence_of_rows(source_of(model, is_known=is_known))
    # The size of the batch is a constant of the converted model, where all rows are divided by the same number.
    assert found == ("" if "Shape(x)" in text and not is_known else reason)


def test_dependence_of_larger_batches_is_found() -> None:
    """Rows from the third on are added to every row: a batch of two shows nothing."""
    model = parse(
        "g (float[b,4] x) => (float[b,4] y) { l = Slice(x, two, all) s = ReduceSum<axes = [0], keepdims = 1>(l) y = Add(x, s) }",
        {"two": np.array([2]), "all": np.array([9999])},
        opset=11,
    )
    assert dependence_of_rows(source_of(model, batch=8)) == OTHER


def test_table_indexed_by_position_is_found_in_a_fixed_batch() -> None:
    model = parse("g (float[3,4] x) => (float[3,4] y) { y = Add(x, w) }", {"w": np.arange(12, dtype=np.float32).reshape(3, 4)})
    assert dependence_of_rows(source_of(model)) == OTHER


def test_output_without_rows_is_found() -> None:
    model = parse("g (float[b,4] x) => (float[1,4] y) { y = ReduceMax<axes = [0]>(x) }", opset=13)
    assert dependence_of_rows(source_of(model)) == "output 'y' has not one row for each row of the inputs"


@pytest.mark.parametrize(
    "model",
    [
        networks.convolutional().model,
        networks.transformer().model,
        small_bert(2, 6),
        parse("g (float[b,3] x, int64[b] i) => (float[b,3] y) { t = Gather(w, i) y = Add(x, t) }", {"w": np.ones((5, 3), np.float32)}),
        parse("g (float[b,3] x) => (float[b,3] y) { r = RandomNormalLike(x) y = Add(x, r) }"),
        parse("g (float[1,3] x) => (float[1,3] y) { y = Softmax<axis = 0>(x) }"),
    ],
)
def test_independent_or_incomparable_rows_pass(model: onnx.ModelProto) -> None:
    assert dependence_of_rows(source_of(model)) == ""


def compiled(tmp_path: Path, *words: str) -> int:
    path = tmp_path / "mean.onnx"
    onnx.save(parse(MEAN, opset=13), path)
    return compile_command(["-i", str(path), "--model_repository", str(tmp_path / "repo"), "--model_name", "m", *words])


def test_several_batch_sizes_of_a_dependent_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compiled(tmp_path, "--target", "gcu", "--batch_sizes", "1,4") == 1
    assert f"batch sizes 1, 4: {OTHER}, and a batch of another size would be filled up" in capsys.readouterr().err
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize("target", ["gcu", "ipu"])
def test_one_batch_size_of_a_dependent_model_is_served_without_batching(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled(tmp_path, "--target", target, "--batch_size", "4", "--batch_axis", "0") == 0
    assert f"is served without batching, with the shapes it has: {OTHER}" in capsys.readouterr().err
    config = (tmp_path / "repo/m/config.pbtxt").read_text()
    assert "max_batch_size: 0" in config
    assert "dims: [4, 4]" in config


@pytest.mark.parametrize("micro_batch", ["1", "2"])
@pytest.mark.parametrize("words", [["--batches_per_step", "4"], ["--popart_options", "replicatedGraphCount=2"]])
def test_independent_micro_batches_of_a_dependent_model_are_not_served(
    micro_batch: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled(tmp_path, "--target", "ipu", "--batch_size", micro_batch, "--batch_axis", "0", *words) == 1
    assert "model 'm' cannot be served: " + OTHER in capsys.readouterr().err
    assert not (tmp_path / "repo").exists()


def test_dependent_model_is_exported_for_several_batches_in_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mean.onnx"
    onnx.save(parse(MEAN, opset=13), path)
    words = ["-i", str(path), "--target", "ipu", "--batch_size", "2", "--batch_axis", "0", "--batches_per_step", "4"]
    assert compile_command([*words, "--export_popef", "--output_dir", str(tmp_path)]) == 0
    assert f"model 'mean' cannot be served: {OTHER}" in capsys.readouterr().err


@pytest.mark.parametrize(("serving_type", "reason"), [("engine", "batch sizes 1, 2, 4"), ("popef", "max_batch_size 4: the model takes no")])
def test_request_for_batches_of_a_dependent_model_is_refused(serving_type: str, reason: str, tmp_path: Path) -> None:
    fields = {"serving_type": serving_type, "input_model": parse(MEAN, opset=13), "model_name": "m", "max_batch_size": 4}
    with pytest.raises(ShapeError, match=reason):
        compile_fields({**fields, "export_path": str(tmp_path / "repo")})


def test_dependent_model_is_not_served_in_batches_of_onnx_by_adlik(tmp_path: Path) -> None:
    fields = {"serving_type": "onnx", "model_name": "m", "max_batch_size": 4, "export_path": str(tmp_path)}
    with pytest.raises(ShapeError, match=r"max_batch_size 4: output 'y' of a row depends on the other rows"):
        compile_fields({**fields, "input_model": parse(MEAN, opset=13)})
    assert compile_fields({**fields, "max_batch_size": 1, "input_model": parse(MEAN, opset=13)}).exists()


def test_several_batch_sizes_of_a_dependent_model_are_not_built() -> None:
    with pytest.raises(ShapeError, match="batch sizes 1, 4"):
        build(parse(MEAN, opset=13), batch_sizes=[1, 4])
