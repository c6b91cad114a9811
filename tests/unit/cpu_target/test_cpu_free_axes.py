"""Dimensions that the source leaves open stay open in models compiled for the CPU; a batch needs independent rows."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from stoker.compiler.cli import main
from tests.fakes.cpu_compiler import Compile
from tests.fakes.cpu_models import attention, causal_mask, items
from tests.fakes.graphs import parse

SERVED = ("--model_repository", "repository", "--model_name", "m")
SAMPLES = ("--data_preprocess", "samples.npz")


def dims(path: Path) -> list[list[int | str]]:
    graph = onnx.load(path).graph
    return [
        [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in (*graph.input, *graph.output)
    ]  # fmt: skip


def output_of(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    (found,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return np.asarray(found)


@pytest.mark.parametrize(
    "words",
    [(), ("--precision", "int8", *SAMPLES), ("--precision", "int8", "--int8_preset", "all", *SAMPLES), ("--precision", "int8_dynamic")],
)
def test_batch_and_sequence_stay_open(compile_cpu: Compile, folder: Path, words: tuple[str, ...]) -> None:
    onnx.save(attention(), folder / "model.onnx")
    np.savez(folder / "samples.npz", x=items(40))
    ran = compile_cpu.plainly(*words, *SERVED)
    assert ran.code == 0, ran.err
    config = (folder / "repository/m/config.pbtxt").read_text()
    assert "max_batch_size: 32" in config
    assert config.count("dims: [-1, 16]") == 2
    compiled = folder / "repository/m/1/model.onnx"
    assert dims(compiled) == [["b", "s", 16], ["b", "s", 16]]
    for rows, size in ((1, 1), (3, 8), (5, 21)):
        x = items(rows, size)
        np.testing.assert_allclose(output_of(compiled, x), output_of(folder / "model.onnx", x), atol=0.5 if words else 1e-5)


@pytest.mark.parametrize(
    ("words", "batch", "shape"),
    [
        (("--batch_size", "6", "--batch_axis", "0"), 6, ["b", "s", 16]),
        (("--input_shape", "x=6,8,16"), 6, ["b", 8, 16]),
        (("--batch_size", "6", "--batch_axis", "1"), 32, ["b", 6, 16]),
    ],
)
def test_given_sizes_are_the_largest_batch_and_fix_the_others(
    compile_cpu: Compile, folder: Path, words: tuple[str, ...], batch: int, shape: list[int | str]
) -> None:
    onnx.save(attention(), folder / "model.onnx")
    ran = compile_cpu(*words, *SERVED)
    assert ran.code == 0, ran.err
    assert f"max_batch_size: {batch}\n" in (folder / "repository/m/config.pbtxt").read_text()
    assert dims(folder / "repository/m/1/model.onnx")[0] == shape


def test_size_that_contradicts_the_model_is_refused(compile_cpu: Compile) -> None:
    ran = compile_cpu("--input_shape", "x=6,17", *SERVED)
    assert ran.code == 1
    assert "input 'x' dimension 1 is 16 in the model and cannot be changed to 17" in ran.err


def test_state_with_the_size_of_the_batch_keeps_it_open(compile_cpu: Compile, folder: Path) -> None:
    text = """g (float[n,5,4] x) => (float[1,n,3] y) {
        shape = Shape <start = 0, end = 1> (x) full = Concat <axis = 0> (one, shape, three) zero = Expand(nothing, full)
        turned = Transpose <perm = [1, 0, 2]> (x) all, y = RNN <hidden_size = 3> (turned, w, r, , , zero)
    }"""
    rng = np.random.default_rng(0)
    given = {"w": rng.standard_normal((1, 3, 4)), "r": rng.standard_normal((1, 3, 3)), "nothing": np.zeros(1)}
    constants = {name: array.astype(np.float32) for name, array in given.items()}
    onnx.save(parse(text, {**constants, "one": np.array([1], np.int64), "three": np.array([3], np.int64)}), folder / "model.onnx")
    model = onnx.load(folder / "model.onnx")
    model.graph.node.append(helper.make_node("Squeeze", ["y", "first"], ["last"]))
    model.graph.initializer.append(helper.make_tensor("first", TensorProto.INT64, [1], [0]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, ["n", 3]))
    onnx.save(model, folder / "model.onnx")
    assert compile_cpu("--check", *SERVED).code == 0
    compiled = folder / "repository/m/1/model.onnx"
    assert "max_batch_size: 8" in (folder / "repository/m/config.pbtxt").read_text()
    x = rng.standard_normal((3, 5, 4)).astype(np.float32)
    np.testing.assert_allclose(output_of(compiled, x), output_of(folder / "model.onnx", x), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Softmax <axis = 0> (x)", "output 'y' is another for the same inputs"),
        ("s = Softmax <axis = 0> (x) y = Add(s, edge)", "output 'y' is another for the same inputs"),
        ("y = Transpose <perm = [1, 0]> (x)", "output 'y' has not a row for each row"),
    ],
)
def test_dependent_rows_are_no_batch(compile_cpu: Compile, folder: Path, caplog: pytest.LogCaptureFixture, body: str, reason: str) -> None:
    sizes = "float[m,n]" if "Transpose" in body else "float[n,m]"
    constants = {"edge": np.array([0, 0, 0, -np.inf], np.float32)} if "edge" in body else {}
    onnx.save(parse(f"g (float[n,m] x) => ({sizes} y) {{ {body} }}".replace("m]", "4]") if constants else
                    f"g (float[n,m] x) => ({sizes} y) {{ {body} }}", constants), folder / "model.onnx")  # fmt: skip
    with caplog.at_level(logging.WARNING):
        ran = compile_cpu.plainly(*SERVED)
    assert ran.code == 0, ran.err
    assert "served without batching" in caplog.text
    assert reason in caplog.text
    config = (folder / "repository/m/config.pbtxt").read_text()
    assert "max_batch_size: 0" in config
    assert ("dims: [-1, 4]" if constants else "dims: [-1, -1]") in config


def test_source_that_runs_with_one_number_of_rows_is_no_batch(compile_cpu: Compile, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    onnx.save(parse("g (float[n,4] x) => (float[n,4] y) { y = Reshape(x, s) }", {"s": np.array([6, 4], np.int64)}), folder / "model.onnx")
    with caplog.at_level(logging.WARNING):
        ran = compile_cpu("--input_shape", "x=6,4", "--check", *SERVED)
    assert ran.code == 0, ran.err
    assert "its inputs leave dimension 0 open, and an output has a fixed one" in caplog.text
    assert "max_batch_size: 0" in (folder / "repository/m/config.pbtxt").read_text()
    ran = compile_cpu.plainly("--check", "--export_popef", "--output_dir", "out")
    assert ran.code == 1
    assert "or fix it (--input_shape)" in ran.err


def test_source_that_fails_with_other_rows_reports_the_reason(compile_cpu: Compile, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "g (float[n,4] x) => (float[m,4] y) { r = Reshape(x, s) c = Cast <to = 1> (r) y = Compress <axis = 0> (c, all) }"
    onnx.save(parse(text, {"s": np.array([6, 4], np.int64), "all": np.ones(6, bool)}), folder / "model.onnx")
    with caplog.at_level(logging.WARNING):
        ran = compile_cpu("--input_shape", "x=6,4", "--check", *SERVED)
    assert ran.code == 0, ran.err
    assert "served without batching, with the shapes it has: it does not run with 2 rows (the source model does not run" in caplog.text


def test_samples_may_be_any_number_of_rows(compile_cpu: Compile, folder: Path) -> None:
    for rows in (3, 13, 50):
        np.savez(folder / "samples.npz", x=np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32))
        ran = compile_cpu("--precision", "int8", *SAMPLES, "--export_popef", "--output_dir", "out")
        assert ran.code == 0, ran.err
        seen = "3 samples, calibrated with as well" if rows == 3 else f"{rows} samples, calibrated with as well"
        assert (seen if rows < 16 else "12 samples, none of them calibrated with") in ran.out


def test_samples_of_another_shape_are_refused_with_the_expected_one(compile_cpu: Compile, folder: Path) -> None:
    onnx.save(attention(), folder / "model.onnx")
    np.savez(folder / "samples.npz", x=np.zeros((4, 8, 15), np.float32))
    ran = compile_cpu("--precision", "int8", *SAMPLES, "--export_popef", "--output_dir", "out")
    assert (ran.code, "expected [?, ?, 16], any number of rows of that" in ran.err) == (1, True)


def test_samples_out_of_the_inputs_range_are_refused(compile_cpu: Compile, folder: Path) -> None:
    model = parse("g (uint8[n,3] x) => (float[n,3] y) { f = Cast <to = 1> (x) y = MatMul(f, w) }", {"w": np.eye(3, dtype=np.float32)})
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "samples.npz", x=np.random.default_rng(0).uniform(0, 1, (16, 3)).astype(np.float32))
    ran = compile_cpu("--precision", "int8", *SAMPLES, "--export_popef", "--output_dir", "out")
    assert ran.code == 2
    assert "calibration data 'samples.npz', input 'x': 48 of 48 values do not fit UINT8" in ran.err
    assert not (folder / "out" / "model.onnx").exists()


@pytest.mark.parametrize("batch", ["n", "4"])
def test_outputs_of_bfloat16_keep_the_batch_and_are_compared(compile_cpu: Compile, folder: Path, batch: str) -> None:
    onnx.save(parse(f"g (float[{batch},4] x) => (bfloat16[{batch},4] y) {{ y = Cast <to = 16> (x) }}"), folder / "model.onnx")
    ran = compile_cpu("--batch_size", "4", "--batch_axis", "0", "--check", *SERVED)
    assert ran.code == 0, ran.err
    assert "max_batch_size: 4" in (folder / "repository/m/config.pbtxt").read_text()
    assert "0.000e+00" in ran.out


def test_outputs_of_strings_are_compared_for_equality(compile_cpu: Compile, folder: Path) -> None:
    label = helper.make_node(
        "LabelEncoder", ["best"], ["y"], domain="ai.onnx.ml", keys_int64s=list(range(3)), values_strings=["cat", "dog", "eel"]
    )
    model = parse("g (float[n,3] x) => (int64[n,1] best) { best = ArgMax <axis = 1> (x) }")
    model.graph.node.append(label)
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.STRING, ["n", 1]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, folder / "model.onnx")
    ran = compile_cpu("--check", "--run", "--export_popef", "--output_dir", "out")
    assert ran.code == 0, ran.err
    assert "100.00%" in ran.out


def test_check_without_compiling_accepts_open_dimensions(compile_cpu: Compile, folder: Path) -> None:
    onnx.save(attention(causal_mask(8)), folder / "model.onnx")
    np.savez(folder / "samples.npz", x=items(5))
    ran = compile_cpu.plainly("--check", *SAMPLES, "--output_dir", "out")
    assert ran.code == 0, ran.err
    assert dims(folder / "out" / "model_converted.onnx")[0] == ["b", 8, 16]


def test_other_targets_require_every_size(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "ipu", "-i", "model.onnx", "--export_popef"]) == 1
    assert (
        "variable dimensions must be fixed by a batch size (--batch_size with --batch_axis) or an input shape (--input_shape): "
        "input 'x' dimension 0 ('n')" in capsys.readouterr().err
    )
