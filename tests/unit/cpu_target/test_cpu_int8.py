"""The choice of INT8 or FP32, and the gates of the result."""

import json
import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import stoker.backends.cpu.comparison
from stoker.backends.cpu.comparison import Speeds
from stoker.backends.cpu.int8_operators import is_saturating, is_transformer, select
from stoker.backends.cpu.quantising import check_scales, quantised, quantised_dynamically
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from tests.fakes.cpu_compiler import Compile
from tests.fakes.cpu_models import attention, causal_mask, items, network, samples
from tests.fakes.graphs import parse, run_onnx

INT8 = ("--precision", "int8", "--data_preprocess", "samples.npz")
OUT = ("--export_popef", "--output_dir", "out")
ALL = CompilerOptions(int8_preset="all")


def scales(model: onnx.ModelProto) -> list[np.ndarray]:
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    return [constants[node.input[1]] for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]


def optimised_run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """As the server runs it: ONNX Runtime may use other kernels for it."""
    (found,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return np.asarray(found)


def quantised_nodes(model: onnx.ModelProto) -> set[str]:
    made = {node.output[0]: node.op_type for node in model.graph.node}
    return {node.name for node in model.graph.node if any(made.get(name) == "DequantizeLinear" for name in node.input)} - {
        node.name for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_tensors_with_infinities_stay_in_single_precision(method: str, caplog: pytest.LogCaptureFixture) -> None:
    model = attention(causal_mask(8))
    batches = [{"x": items(8)}, {"x": items(3)}]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        found, chosen = quantised(model, batches, CompilerOptions(int8_preset="all", calibration_method=method))
    assert all(np.all(np.isfinite(each)) and np.all(each > 0) for each in scales(found))
    assert set(chosen.excluded) == {"make_masked", "make_weights"}
    assert "2 node(s) stay fp32" in caplog.text
    assert "'make_masked' (Add), 'make_weights' (Softmax)" in caplog.text
    assert quantised_nodes(found) >= {"make_q", "make_wide", "make_y"}
    [wanted], [got] = (run_onnx(each, batches[0]).values() for each in (model, found))
    assert 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - got) ** 2)) > 25


def test_constant_infinity_is_not_quantised() -> None:
    text = "g (float[n,4] x) => (float[n,4] y) { p = MatMul(x, w) s = Where(mask, none, p) e = Exp(s) y = MatMul(e, w) }"
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model = parse(text, {"w": weights, "mask": np.array([True, False, False, True]), "none": np.float32(-np.inf)})
    found, _ = quantised(model, [{"x": samples(8)[:, :4]}], ALL)
    assert all(np.all(np.isfinite(each)) for each in scales(found))


def test_model_of_infinities_only_is_refused() -> None:
    model = parse("g (float[n,4] x) => (float[n,4] y) { y = MatMul(x, w) }", {"w": np.full((4, 4), np.inf, np.float32)})
    with pytest.raises(CompileError, match=r"nothing can be quantised: .* 1 node\(s\) stay fp32"):
        quantised(model, [{"x": np.ones((2, 4), np.float32)}], ALL)
    with pytest.raises(CompileError, match="nothing can be quantised"):
        quantised_dynamically(model, CompilerOptions())


def test_model_without_quantisable_operators_is_refused() -> None:
    turned = parse("g (float[n,4] x) => (float[4,n] y) { y = Transpose <perm = [1, 0]> (x) }")
    with pytest.raises(CompileError, match="the quantiser left the model's operators Transpose as they are"):
        quantised(turned, [{"x": np.ones((2, 4), np.float32)}], ALL)
    product = parse("g (float[n,4] x, float[4,n] z) => (float[n,n] y) { y = MatMul(x, z) }")
    with pytest.raises(CompileError, match="none is left for int8; int8_dynamic is for MatMul and Gemm with constant weights"):
        quantised_dynamically(product, CompilerOptions())


@pytest.mark.parametrize("scale", [np.inf, np.nan, 0.0, -1.0])
def test_invalid_scale_is_refused(scale: float) -> None:
    text = "g (float[n,4] x) => (float[n,4] y) { c = QuantizeLinear(x, s, z) y = DequantizeLinear(c, s, z) }"
    made = parse(text, {"s": np.float32(scale), "z": np.uint8(0)})
    with pytest.raises(CompileError, match="the quantiser made 's' with a value that is no scale"):
        check_scales(parse("g (float[n,4] x) => (float[n,4] y) { y = Identity(x) }"), made)


def test_transformer_quantises_products_only_and_the_summary_reports_it(compile_cpu: Compile, folder: Path) -> None:
    onnx.save(attention(causal_mask(8)), folder / "model.onnx")
    np.savez(folder / "samples.npz", x=items(40))
    ran = compile_cpu(*INT8, *OUT)
    assert ran.code == 0, ran.err
    assert "int8_preset: transformer, since the graph has attention: MatMul and Gemm with constant weights" in ran.out
    assert compile_cpu(*INT8, "--int8_preset", "all", *OUT).out.endswith("int8_preset: all\n")


def test_transformer_preset_skips_additions_and_softmax() -> None:
    model, batches = attention(causal_mask(8)), [{"x": items(8)}]
    assert select(model, CompilerOptions(), is_dynamic=False).op_types == ("MatMul",)
    assert {"Add", "MatMul", "Relu", "Softmax"} <= set(select(model, ALL, is_dynamic=False).op_types)
    found, chosen = quantised(model, batches, CompilerOptions())
    assert chosen.excluded == ("make_scores", "make_mixed")  # of two activations
    made = {node.output[0]: node.op_type for node in found.graph.node}
    readers = {node.name: [made.get(name) for name in node.input] for node in found.graph.node}
    assert readers["make_weights"] == ["Add"]
    assert readers["make_bent"] == ["MatMul"]
    assert readers["make_mixed"][0] == "Softmax"
    assert readers["make_q"] == readers["make_y"] == ["DequantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize("options", [CompilerOptions(), ALL])
def test_softmax_of_one_element_is_one(options: CompilerOptions) -> None:
    model = attention()
    found, _ = quantised(model, [{"x": items(8)}], options)
    for size in (1, 2, 24):
        wanted, got = (optimised_run(each, items(2, size)) for each in (model, found))
        np.testing.assert_allclose(got, wanted, atol=0.3)


def test_attention_identifies_a_transformer_and_a_softmax_alone_does_not() -> None:
    assert is_transformer(attention())
    assert not is_transformer(network())
    text = """g (float[n,3,8,8] x) => (float[n,4,4] y) {
        c = Conv(x, w) f = Reshape(c, rows) t = Transpose <perm = [0, 2, 1]> (f) s = MatMul(f, t) p = Softmax(s) y = MatMul(p, s)
    }"""
    assert not is_transformer(parse(text, {"w": np.ones((4, 3, 3, 3), np.float32), "rows": np.array([0, 4, -1], np.int64)}))


def test_dynamic_int8_needs_no_samples_and_is_close(compile_cpu: Compile, folder: Path) -> None:
    onnx.save(attention(causal_mask(8)), folder / "model.onnx")
    ran = compile_cpu("--precision", "int8_dynamic", "--check", "--report", "report", *OUT)
    assert ran.code == 0, ran.err
    types = [node.op_type for node in onnx.load(folder / "out" / "model.onnx").graph.node]
    assert types.count("MatMulInteger") == 3
    assert types.count("MatMul") == 2  # of two activations
    assert json.loads((folder / "report" / "comparison.json").read_text())["drift"]["outputs"][0]["snr_db"] > 25


def test_dynamic_int8_skips_the_named_operators() -> None:
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    text = """g (float[n,4] x) => (float[n,4] y, float[n,4] z, float[n,4] v) {
        y = Gemm <transB = 1> (x, w) z = MatMul(x, w) v = Gemm <transB = 1> (x, w)
    }"""
    model = parse(text, {"w": weights})
    for node, name in zip(model.graph.node, ("first", "product", "second"), strict=True):
        node.name = name
    x = samples(4)[:, :4]
    for options, left in ((CompilerOptions(), 3), (CompilerOptions(int8_skip_op_names=("first",)), 2),
                          (CompilerOptions(int8_skip_op_types=("Gemm",)), 1)):  # fmt: skip
        found, _ = quantised_dynamically(model, options)
        assert [node.op_type for node in found.graph.node].count("MatMulInteger") == left
        for wanted, got in zip(run_onnx(model, {"x": x}).values(), run_onnx(found, {"x": x}).values(), strict=True):
            np.testing.assert_allclose(got, wanted, atol=0.1)


def stored_weights(model: onnx.ModelProto) -> list[np.ndarray]:
    return [each for each in (numpy_helper.to_array(one) for one in model.graph.initializer) if each.dtype == np.int8 and each.ndim == 2]


@pytest.mark.parametrize("precision", ["int8", "int8_dynamic"])
@pytest.mark.parametrize(("bits", "largest"), [("7", 64), ("8", 127)])
def test_int8_weights_have_the_requested_bits_and_the_summary_names_them(
    compile_cpu: Compile, folder: Path, precision: str, bits: str, largest: int
) -> None:
    # Eight bits saturate on a CPU without VNNI, which is drift.
    ran = compile_cpu("--precision", precision, "--data_preprocess", "samples.npz", "--int8_weight_bits", bits, "--allow_drift", *OUT)
    assert ran.code == 0, ran.err
    assert f"int8_weight_bits: {bits}\n" in ran.out
    weights = stored_weights(onnx.load(folder / "out" / "model.onnx"))
    assert len(weights) == 2
    assert all(largest - 2 <= np.abs(each.astype(int)).max() <= largest for each in weights)


def test_int8_weights_have_seven_bits_if_eight_would_saturate(compile_cpu: Compile, folder: Path) -> None:
    ran = compile_cpu(*INT8, *OUT)
    largest = max(np.abs(each.astype(int)).max() for each in stored_weights(onnx.load(folder / "out" / "model.onnx")))
    assert (largest <= 64) == is_saturating()
    assert f"int8_weight_bits: {'7, since this CPU adds products in 16 bits' if is_saturating() else '8'}" in ran.out


def test_full_inputs_and_weights_do_not_saturate() -> None:
    model = parse("g (float[n,64] x) => (float[n,4] y) { y = MatMul(x, w) }", {"w": np.ones((64, 4), np.float32)})
    x = np.ones((8, 64), np.float32)
    for found, _ in (quantised(model, [{"x": x}], CompilerOptions()), quantised_dynamically(model, CompilerOptions())):
        np.testing.assert_allclose(optimised_run(found, x), np.full((8, 4), 64), rtol=0.02)


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "fpu avx2", True),
        ("x86_64", "fpu avx2 avx512f", True),
        ("x86_64", "fpu avx2 avx_vnni", False),
        ("AMD64", "fpu avx512f avx512_vnni", False),
        ("aarch64", "", False),
    ],
)
def test_products_saturate_on_x86_without_vnni(tmp_path: Path, machine: str, flags: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert is_saturating(tmp_path / "cpuinfo", machine) is expected


def test_products_of_an_unknown_x86_cpu_count_as_saturating(tmp_path: Path) -> None:
    assert is_saturating(tmp_path / "none", "x86_64")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--int8_weight_bits", "7"), 2, "--int8_weight_bits is for --precision int8 and int8_dynamic, not fp32"),
        (("--precision", "int8", "--int8_weight_bits", "6"), 2, "int8_weight_bits: '6' is none of auto, 7, 8"),
        (("--precision", "int8_dynamic", "--format", "openvino"), 2, "int8_dynamic is computed by ONNX Runtime: give --format onnx"),
        (("--precision", "int8_dynamic", "--int8_preset", "all"), 2, "--int8_preset is for --precision int8, not int8_dynamic"),
        (("--precision", "int8_dynamic", "--int8_skip_op_types", "MatMul"), 1, "nothing can be quantised"),
        (("--min_snr", "loud"), 2, "min_snr: expected a number, got 'loud'"),
        (("--min_speedup", "0"), 2, "min_speedup: expected a number above 0, got '0'"),
    ],
)
def test_errors_are_one_line(compile_cpu: Compile, words: tuple[str, ...], code: int, text: str) -> None:
    ran = compile_cpu(*words, *OUT)
    assert (ran.code, text in ran.err, ran.err.count("\n")) == (code, True, 1), ran.err


def test_operator_missing_in_the_model_is_a_notice(compile_cpu: Compile, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert compile_cpu(*INT8, "--int8_skip_op_types", "Conv,Softmax,FastGelu", *OUT).code == 0
    assert "--int8_skip_op_types: the converted model has no Conv, so that there is none to skip" in caplog.text
    assert "no Softmax" not in caplog.text


def test_result_below_the_accuracy_gate_is_not_written(compile_cpu: Compile, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "model.onnx").write_text("the one before")
    ran = compile_cpu(*INT8, "--min_snr", "90", *OUT, "--model_repository", "repository", "--model_name", "m", "--output_model", "c.onnx")
    assert ran.code == 4
    assert "--min_snr 90: the least signal to noise of an output is " in ran.err
    assert [path.name for path in (folder / "out").iterdir()] == ["model.onnx"]
    assert (folder / "out" / "model.onnx").read_text() == "the one before"
    assert not (folder / "repository").exists()
    assert compile_cpu(*INT8, "--min_snr", "17" if is_saturating() else "20", *OUT).code == 0  # weights of 7 bits or of 8
    assert (folder / "out" / "model.onnx").stat().st_size > 100


def test_random_numbers_are_not_counted_as_noise(compile_cpu: Compile, folder: Path) -> None:
    text = "g (float[n,4] x) => (float[n,4] y, float[n,4] z) { r = RandomNormalLike(x) y = Add(x, r) z = MatMul(x, w) }"
    onnx.save(parse(text, {"w": np.eye(4, dtype=np.float32)}), folder / "model.onnx")
    ran = compile_cpu("--check", "--min_snr", "60", *OUT)
    assert ran.code == 0, ran.err
    assert "output 'y' is not comparable: random numbers" in ran.out


@pytest.mark.parametrize(("demanded", "code"), [("1.9", 0), ("2.1", 4)])
def test_result_below_the_speed_gate_is_not_written(
    compile_cpu: Compile, folder: Path, monkeypatch: pytest.MonkeyPatch, demanded: str, code: int
) -> None:
    monkeypatch.setattr(stoker.backends.cpu.comparison, "measure", lambda *_: Speeds((0.2,) * 6, (0.1,) * 6))
    ran = compile_cpu("--min_speedup", demanded, "--report", "report", *OUT)
    assert ran.code == code
    assert (folder / "out" / "model.onnx").exists() == (code == 0)
    assert len(json.loads((folder / "report" / "comparison.json").read_text())["missed"]) == (code == 4)
    assert ("--min_speedup 2.1: the result is 2 times as fast as the source" in ran.err) == (code == 4)


def test_gate_needs_a_result_and_a_target_that_compares(compile_cpu: Compile) -> None:
    ran = compile_cpu("--min_snr", "20")
    assert (ran.code, "--min_snr judges what is compiled: give --model_repository" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("compiled", "text"),
    [
        ((0.2,) * 6, "what was compiled is slower than its source: 0.500 +- 0 times its speed"),
        ((0.05, 0.2, 0.101, 0.3, 0.103, 0.05), ", which the measurement cannot tell from the same speed"),
    ],
)
def test_slower_result_causes_a_warning(
    compile_cpu: Compile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiled: tuple[float, ...], text: str
) -> None:
    monkeypatch.setattr(stoker.backends.cpu.comparison, "measure", lambda *_: Speeds((0.1,) * 6, compiled))
    with caplog.at_level(logging.WARNING):
        assert compile_cpu("--run", *OUT).code == 0
    assert text in caplog.text


def test_rates_count_the_rows_of_a_model_without_batching(compile_cpu: Compile, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stoker.backends.cpu.comparison, "measure", lambda *_: Speeds((0.1,) * 6, (0.1,) * 6))
    onnx.save(parse("g (float[n,4] x) => (float[n,4] y) { y = Softmax <axis = 0> (x) }"), folder / "model.onnx")
    ran = compile_cpu("--batch_size", "8", "--batch_axis", "0", "--run", *OUT)
    assert "batch 8: 80.0 rows/s, source 80.0 rows/s" in ran.out
    assert "Bs: 8\n" in ran.out
    assert "Tput: 80\n" in ran.out
    ran = compile_cpu.plainly("--run", *OUT)
    assert "no batch: 10.0 calls/s, source 10.0 calls/s" in ran.out
