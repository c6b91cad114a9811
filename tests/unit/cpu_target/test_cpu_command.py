"""`stoker compile --target cpu`, run in this process, and its result, loaded by the backends that serve it."""

import importlib.util
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.cpu.int8_operators import is_saturating
from stoker.backends.cpu.target import CPU_OPTIONS
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.openvino.backend import OpenVinoBackend
from stoker.compiler.cli import CHECK_FAILED
from stoker.compiler.convert.options import PRECISIONS
from stoker.compiler.target import Target
from stoker.server.config.pbtxt import parse_pbtxt
from tests.fakes.cpu_compiler import Compile
from tests.fakes.cpu_models import network, samples
from tests.fakes.graphs import parse

NO_OPENVINO = "the 'openvino' extra is not installed"
has_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason=NO_OPENVINO)
has_nncf = pytest.mark.skipif(importlib.util.find_spec("nncf") is None, reason="the package 'nncf' is not installed")


def serve(folder: Path, name: str = "m") -> tuple[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
    """The backend named by config.pbtxt, and its outputs."""
    config = parse_pbtxt((folder / name / "config.pbtxt").read_text(), source="config.pbtxt", model_name=name)
    version = folder / name / "1"
    sizes = {path.name: path.stat().st_size for path in version.iterdir()}
    backend = {"onnxruntime": OnnxRuntimeBackend, "openvino": OpenVinoBackend}[str(config.backend)]()
    filename = next(file for file in (backend.default_model_filename, "model.onnx") if file in sizes)
    served = ModelSignature(
        (TensorSpec("x", DataType.FP32, (16,)),), (TensorSpec("y", DataType.FP32, (10,)),), config.message.max_batch_size
    )
    parameters = {key: value.string_value for key, value in config.message.parameters.items()}
    request = LoadRequest(
        model_name=name, version=1, files=ModelFiles(version, sizes), model_filename=filename, signature=served, parameters=parameters
    )
    instance = backend.load(request)

    def output_of(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(instance.execute({"x": x}, ["y"])["y"])

    return backend.name, output_of


def expected(x: NDArray[np.float32]) -> NDArray[np.float32]:
    import onnxruntime as ort

    (found,) = ort.InferenceSession(network().SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return np.asarray(found)


INT8 = ("--precision", "int8", "--data_preprocess", "samples.npz")
SERVED = ("--model_repository", "repository", "--model_name", "m")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "backend", "tolerance"),
    [
        ((), "onnxruntime", 1e-5),
        (INT8, "onnxruntime", 0.1),
        ((*INT8, "--calibration_method", "percentile"), "onnxruntime", 0.1),
        pytest.param(("--precision", "bf16"), "openvino", 0.05, marks=has_openvino),
        pytest.param(("--format", "openvino"), "openvino", 1e-5, marks=has_openvino),
        pytest.param(("--format", "openvino", "--precision", "bf16"), "openvino", 0.05, marks=has_openvino),
        pytest.param(("--format", "openvino", *INT8), "openvino", 0.1, marks=has_openvino),
        pytest.param(("--format", "openvino", "--quantizer", "nncf", *INT8), "openvino", 0.1, marks=[has_openvino, has_nncf]),
    ],
)
def test_written_version_is_served_by_its_backend_at_every_batch_size(
    compile_cpu: Compile, folder: Path, words: tuple[str, ...], backend: str, tolerance: float
) -> None:
    ran = compile_cpu(*words, *SERVED)
    assert ran.code == 0, ran.err
    assert "wrote repository/m/1\n" in ran.out
    name, output_of = serve(folder / "repository")
    assert name == backend
    assert f"backend: {backend}" in ran.out
    for rows in (1, 5, 8):
        x = samples(rows)
        found = output_of(x)
        assert found.shape == (rows, 10)
        np.testing.assert_allclose(found, expected(x), atol=tolerance)


def test_file_declares_only_used_operator_sets(compile_cpu: Compile, folder: Path) -> None:
    for words in ((), INT8):
        assert compile_cpu(*words, "--export_popef", "--output_dir", "out").code == 0
        assert [each.domain for each in onnx.load(folder / "out" / "model.onnx").opset_import] == [""]


def test_int8_weights_are_signed_bytes_with_a_scale_for_each_channel(compile_cpu: Compile, folder: Path) -> None:
    assert compile_cpu(*INT8, "--export_popef", "--output_dir", "out").code == 0
    assert [path.name for path in (folder / "out").iterdir()] == ["model.onnx"]
    model = onnx.load(folder / "out" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    initializers = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    weights = {name: array for name, array in initializers.items() if array.dtype == np.int8 and array.ndim == 2}
    assert {array.shape for array in weights.values()} == {(16, 64), (64, 10)}
    scales = {
        node.input[0]: initializers[node.input[1]]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in weights
    }
    assert {scale.shape for scale in scales.values()} == {(64,), (10,)}


def test_excluded_nodes_and_operators_stay_in_single_precision(compile_cpu: Compile, folder: Path) -> None:
    def quantised(*words: str) -> set[str]:
        assert compile_cpu(*INT8, *words, "--export_popef", "--output_dir", "out").code == 0
        model = onnx.load(folder / "out" / "model.onnx")
        made = {name: node for node in model.graph.node for name in node.output}
        return {
            node.name for node in model.graph.node
            if node.op_type == "MatMul" and all(name in made and made[name].op_type == "DequantizeLinear" for name in node.input)
        }  # fmt: skip

    assert quantised() == {"first", "second"}
    assert quantised("--int8_skip_op_names", "first") == {"second"}
    ran = compile_cpu(*INT8, "--int8_skip_op_types", "MatMul,Softmax,Relu", "--export_popef", "--output_dir", "out")
    assert (ran.code, "nothing can be quantised" in ran.err) == (1, True)


def test_report_contains_costs_and_gains(compile_cpu: Compile, folder: Path) -> None:
    ran = compile_cpu(*INT8, "--export_popef", "--report", "report", "--run", "--output_dir", "out")
    assert ran.code == 0, ran.err
    found = json.loads((folder / "report" / "comparison.json").read_text())
    assert found["precision"] == "int8"
    assert found["is_random_data"] is False
    (drift,) = found["drift"]["outputs"]
    assert drift["output"] == "y"
    assert 0 < drift["max_abs"] < (0.4 if is_saturating() else 0.2)  # weights of 7 bits or of 8
    assert 0.99 < drift["cosine"] < 1
    assert 0.8 < drift["top1_agreement"] <= 1
    assert found["drift"]["samples"] == 2 + 3  # the batches held out, and 4, 2 and 1 rows
    assert (found["drift"]["rows"], found["drift"]["is_held_out"]) == (16, True)
    assert found["speed"]["batch_size"] == 8
    assert found["speed"]["threads"] >= 1
    speed = found["speed"]
    assert speed["ratio"] == pytest.approx(speed["rows_per_s"] / speed["source_rows_per_s"])
    assert 0 < speed["ratio_min"] <= speed["ratio_max"]
    assert "int8 against the source model on onnxruntime, over the samples: 16 samples, none of them calibrated with" in ran.out
    assert re.search(
        r"batch 8: [\d.]+ rows/s, source [\d.]+ rows/s: [\d.]+ \+- [\d.]+ times the source's \([\d.]+ to [\d.]+ in 24 pairs of windows",
        ran.out,
    )
    assert "Bs: 8\n" in ran.out


def test_check_compares_random_data_and_measures_no_time(compile_cpu: Compile) -> None:
    ran = compile_cpu("--check", "--export_popef", "--output_dir", "out")
    assert ran.code == 0
    assert "fp32 against the source model on onnxruntime, over random data" in ran.out
    assert "rows/s" not in ran.out


def test_comparison_is_printed_only_on_request(compile_cpu: Compile) -> None:
    assert "against the source" not in compile_cpu("--export_popef", "--output_dir", "out").out


def test_type_that_compilation_chooses_is_compared_without_a_request(
    compile_cpu: Compile, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The first channel takes the whole range of the bytes, and the others become 0.
    large, w = np.array([1e6, *[0] * 15], np.float32), np.ones((16, 10), np.float32)
    w[0] = 0
    model = parse("g (float[n,16] x) => (float[n,10] y) { z = Add(x, large) y = MatMul(z, w) }", {"large": large, "w": w})
    onnx.save(model, folder / "model.onnx")
    words = ("--precision", "int8_dynamic", *SERVED)
    failed = compile_cpu(*words)
    assert failed.code == CHECK_FAILED
    assert "the compiled model differs from its source: output 'y' has a signal to noise of" in failed.err
    assert not (folder / "repository").exists()
    assert compile_cpu(*words, "--allow_drift").code == 0
    assert "the compiled model differs from its source" in caplog.text


def test_model_without_a_batch_is_served_with_its_complete_shapes(
    compile_cpu: Compile, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixing = parse("g (float[4,4] x) => (float[4,4] y) { turned = Transpose <perm = [1, 0]> (x) y = MatMul(turned, x) }")
    onnx.save(mixing, folder / "model.onnx")
    with caplog.at_level(logging.WARNING):
        ran = compile_cpu("--input_shape", "x=4,4", *SERVED)
    assert ran.code == 0, ran.err
    assert "max_batch_size: 0" in (folder / "repository/m/config.pbtxt").read_text()
    assert "dims: [4, 4]" in (folder / "repository/m/config.pbtxt").read_text()
    assert "served without batching" in caplog.text


def test_integers_keep_their_type(compile_cpu: Compile, folder: Path) -> None:
    onnx.save(parse("g (int64[n,2] x) => (int64[n,2] y) { y = Add(x, x) }"), folder / "model.onnx")
    assert compile_cpu(*SERVED).code == 0
    config = (folder / "repository/m/config.pbtxt").read_text()
    assert config.count("TYPE_INT64") == 2
    assert onnx.load(folder / "repository/m/1/model.onnx").graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64


@has_openvino
def test_ir_is_written_with_its_weights_beside_it(compile_cpu: Compile, folder: Path) -> None:
    ran = compile_cpu("--format", "openvino", "--export_popef", "--output_dir", "out", *SERVED)
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["model.bin", "model.xml"]
    assert sorted(path.name for path in (folder / "repository/m/1").iterdir()) == ["model.bin", "model.xml"]
    assert "wrote out/model.xml\nwrote out/model.bin\n" in ran.out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--precision", "int8", "--export_popef"), 2, "--precision int8 needs --data_preprocess: samples to calibrate with"),
        (("--precision", "int8"), 2, "--precision int8 is made by compiling: give --model_repository and --model_name, or --export_popef"),
        (("--precision", "fp16", "--export_popef"), 2, "--precision fp16: target 'cpu' has fp32, bf16, int8, int8_dynamic"),
        ((*INT8, "--export_popef", "--int8_skip_op_names", "fist"), 2, "the converted model has no 'fist'; did you mean first?"),
        ((*INT8, "--export_popef", "--int8_skip_op_types", "Sofmax"), 2, "no operator 'Sofmax'; did you mean Softmax"),
        (
            ("--export_popef", "--int8_skip_op_types", "MatMul"),
            2,
            "int8_skip_op_types is for --precision int8 and int8_dynamic, not fp32",
        ),
        ((*INT8, "--export_popef", "--quantizer", "nncf"), 2, "--quantizer nncf makes OpenVINO IR: give --format openvino too"),
        ((*INT8, "--export_popef", "--calibration_method", "mean"), 2, "calibration_method: 'mean' is none of minmax, entropy, percentile"),
        (("--export_popef", "--build_flag", "fp16"), 2, "--build_flag: target 'cpu' has no such option"),
        (("--precision", "int8", "--data_preprocess", "none.npz", "--export_popef"), 2, "calibration data 'none.npz': No such file"),
        (("--export_popef", "--compiler_options", "format=tflite"), 2, "format: 'tflite' is none of onnx, openvino"),
    ],
)
def test_errors_are_one_line(compile_cpu: Compile, words: tuple[str, ...], code: int, text: str) -> None:
    ran = compile_cpu(*words, "--output_dir", "out")
    assert ran.code == code, ran.err
    assert text in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((0, 16), np.float32), "calibration data for input 'x' has shape [0, 16]: it holds no samples"),
        (np.full((8, 16), np.nan, np.float32), "calibration data for input 'x' holds NaN or infinity; ranges are taken from finite values"),
        (np.full((8, 16), np.inf, np.float32), "calibration data for input 'x' holds NaN or infinity"),
        (np.zeros((8, 15), np.float32), "calibration data for input 'x' has shape [8, 15]; expected [?, 16]"),
    ],
)
def test_samples_without_a_range_are_refused_in_one_line(compile_cpu: Compile, folder: Path, array: NDArray[np.float32], text: str) -> None:
    np.savez(folder / "bad.npz", x=array)
    ran = compile_cpu("--precision", "int8", "--data_preprocess", "bad.npz", "--export_popef", "--output_dir", "out")
    assert ran.code in (1, 2), ran.err
    assert text in ran.err
    assert ran.err.count("\n") == 1


@has_openvino
def test_model_that_its_backend_cannot_serve_is_not_written(compile_cpu: Compile, folder: Path) -> None:
    onnx.save(parse("g (string[8] x) => (string[8] y) { y = Identity(x) }"), folder / "model.onnx")
    ran = compile_cpu("--precision", "bf16", "--export_popef", "--output_dir", "out")
    assert ran.code == 1
    assert "input 'x': OpenVINO serves no strings" in ran.err
    assert not (folder / "out" / "model.onnx").exists()


@has_openvino
@pytest.mark.parametrize("words", [("--precision", "bf16"), ("--format", "openvino")])
def test_integers_that_openvino_computes_inexactly_are_refused(compile_cpu: Compile, folder: Path, words: tuple[str, ...]) -> None:
    kind = onnx.TensorProto.INT64
    far = onnx.helper.make_tensor("far", kind, [1], [2**40])
    x, y = (onnx.helper.make_tensor_value_info(name, kind, ["n", 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "far"], ["y"])], "g", [x], [y], [far])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), folder / "model.onnx")
    ran = compile_cpu(*words, "--export_popef", "--output_dir", "out")
    assert ran.code == 1
    assert "backend openvino computes integers of Add '" in ran.err
    assert "format onnx is for onnxruntime, which is exact" in ran.err


@pytest.mark.parametrize(
    ("package", "words"), [("openvino", ("--format", "openvino")), ("nncf", ("--format", "openvino", "--quantizer", "nncf"))]
)
def test_missing_package_is_named(compile_cpu: Compile, monkeypatch: pytest.MonkeyPatch, package: str, words: tuple[str, ...]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))
    ran = compile_cpu(*INT8, *words, "--export_popef", "--output_dir", "out")
    assert ran.code == 2
    assert f"the package '{package}', which is not installed: pip install" in ran.err


def test_other_targets_refuse_options_of_the_cpu() -> None:
    assert {"bf16", "int8"} <= set(PRECISIONS)
    assert {"bf16", "int8"}.isdisjoint(Target.precisions)
    assert not CPU_OPTIONS & Target.build_options


def test_options_from_a_file_equal_those_of_the_command_line(compile_cpu: Compile, folder: Path) -> None:
    (folder / "options.yaml").write_text(
        "precision: int8\ndata_preprocess: samples.npz\ncalibration_method: entropy\nint8_skip_op_names: [second]\nexport_popef: True\n"
        "output_dir: out\n"
    )
    ran = compile_cpu("--config_yaml", "options.yaml")
    assert ran.code == 0, ran.err
    assert "calibration_method: entropy" in ran.out
