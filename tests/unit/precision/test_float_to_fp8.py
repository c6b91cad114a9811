"""fp8 and fp8_weight: the converted operators, the choice of layers, and the distance to the source model on ONNX Runtime."""

import logging
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.passes import get_pass
from stoker.compiler.precision.calibration import cosine_distance, mse, noise_to_signal
from stoker.compiler.precision.float8 import Float8Format, round_to_float8
from stoker.compiler.precision.float8_plan import Float8Params
from stoker.compiler.precision.representation import Float8Spec, Float8Use, float8_nodes, float8_use
from tests.fakes.graphs import assert_valid, initializers_of, op_types, parse, random_feeds, run_onnx


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net() -> onnx.ModelProto:
    """A convolution, a product of two activations, and a Gemm."""
    text = """g (float[2,3,8,8] x) => (float[2,5] y) {
        c = Conv<pads=[1,1,1,1]>(x, w)
        r = Relu(c)
        m = Reshape(r, rows)
        t = Transpose<perm=[0,2,1]>(m)
        a = MatMul(m, t)
        f = Flatten(a)
        y = Gemm<transB=1>(f, fw, fb)
    }"""
    weights = {
        "w": normal((4, 3, 3, 3), 0) / 6,
        "rows": np.array([2, 4, 64], np.int64),
        "fw": normal((5, 16), 1) / 50,
        "fb": normal((5,), 2),
    }
    return named(parse(text, weights))


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        node.name = node.op_type.lower()
    return model


def uses(model: onnx.ModelProto) -> dict[str, Float8Use]:
    return {str(node.name): use for node, use in float8_nodes(ir.from_proto(model))}


def halved(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float16) for name, array in feeds.items()}


def test_convolutions_and_products_compute_in_fp8_with_half_outputs() -> None:
    before = net()
    half = get_pass("float_to_half")(before)
    after = get_pass("float_to_fp8", fp8_params="F143,F152,-2,-5")(half)
    assert_valid(after)
    found = uses(after)
    assert list(found) == ["conv", "matmul", "gemm"]
    for name, use in found.items():
        assert use.activation == Float8Spec(Float8Format.F143, -2)
        # The second factor of a product of activations is an activation.
        assert use.weight == (Float8Spec(Float8Format.F143, -2) if name == "matmul" else Float8Spec(Float8Format.F152, -5))
    assert initializers_of(after)["fb"].dtype == np.float16
    assert after.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    feeds = random_feeds(before)
    assert cosine_distance(run_onnx(before, feeds)["y"], run_onnx(after, halved(feeds))["y"]) < 0.02


def test_result_equals_the_arithmetic_on_rounded_operands() -> None:
    before = named(parse("g (float[4,6] x) => (float[4,3] y) { y = MatMul(x, w) }", {"w": normal((6, 3), 3)}))
    after = get_pass("float_to_fp8", fp8_params="F143,F152,-2,-8")(before)
    x, w = random_feeds(before)["x"], initializers_of(before)["w"]
    rounded = round_to_float8(x, Float8Format.F143, -2) @ round_to_float8(w, Float8Format.F152, -8)
    np.testing.assert_allclose(run_onnx(after, {"x": x})["y"], rounded, rtol=1e-5, atol=1e-6)


def test_named_layers_keep_their_type_and_unknown_names_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        after = get_pass("float_to_fp8", fp8_skip_op_names=["conv", "nothing"])(net())
    assert list(uses(after)) == ["matmul", "gemm"]
    assert [record.message for record in caplog.records] == [
        "fp8_skip_op_names has 'nothing': the model has no Conv, MatMul or Gemm of that name"
    ]


def test_fp8_weight_stores_weights_only() -> None:
    before = net()
    after = get_pass("float_to_fp8", weight_only=True, fp8_params="F143,F143,0,-7")(before)
    assert_valid(after)
    assert {name: use.computes for name, use in uses(after).items()} == {"conv": False, "gemm": False}
    assert "QuantizeLinear" not in op_types(after)
    held = [each.data_type for each in after.graph.initializer if numpy_helper.to_array(each).size in (4 * 3 * 9, 5 * 16)]
    assert held == [onnx.TensorProto.FLOAT8E4M3FNUZ] * 2
    feeds = random_feeds(before)
    assert cosine_distance(run_onnx(before, feeds)["y"], run_onnx(after, feeds)["y"]) < 0.01


@pytest.mark.parametrize("loss", ["mse", "mae", "snr", "kld", "cos_dist"])
def test_calibration_is_better_than_a_bad_guess_and_writes_its_choices(tmp_path: Path, loss: str) -> None:
    before = net()
    feeds = random_feeds(before, 5)
    data = tmp_path / "data.pkl"
    data.write_bytes(pickle.dumps({"x": np.concatenate([feeds["x"], random_feeds(before, 6)["x"]])}))
    log = tmp_path / "quantize.log"
    guessed = get_pass("float_to_fp8", fp8_params="F143,F143,9,0")(before)
    settings = {"calibration_with_data": True, "calibration_loss_type": loss, "data_preprocess": data, "quantize_log": log}
    calibrated = get_pass("float_to_fp8", fp8_params="F143,F143,9,0", **settings)(before)
    expected = run_onnx(before, feeds)["y"]
    noise = [noise_to_signal(expected, run_onnx(model, feeds)["y"]) for model in (guessed, calibrated)]
    assert noise[1] < noise[0]
    assert noise[1] < 0.05
    lines = log.read_text().splitlines()
    assert f"calibration: {loss} over 2 batch(es) of the data given" in lines
    layers = [line for line in lines if line.startswith("node ")]
    assert [line.split("'")[1] for line in layers] == ["conv", "matmul", "gemm"]
    assert all(" x 2^" in line and "loss" in line for line in layers)


def test_calibration_of_a_half_model_uses_the_sources_data() -> None:
    half = get_pass("float_to_half")(net())
    data = {"x": random_feeds(net(), 5)["x"]}
    after = get_pass("float_to_fp8", calibration_with_data=True, calibration_loss_type="mse", data_preprocess=data)(half)
    assert len(uses(after)) == 3


def test_noisiest_layers_are_kept(tmp_path: Path) -> None:
    before = net()
    # With these parameters the tiny weights of the Gemm are all rounded to zero.
    after = get_pass("float_to_fp8", fp8_params="F143,F143,-2,6", num_of_layers_keep_fp16=1, quantize_log=tmp_path / "q.log")(before)
    assert list(uses(after)) == ["conv", "matmul"]
    assert "node 'gemm' (Gemm): keeps its type" in (tmp_path / "q.log").read_text()


def correlated(rows: int, channels: int) -> np.ndarray:
    """Inputs with correlated channels, so that the error of one can be compensated by another."""
    return normal((rows, 3), 4) @ normal((3, channels), 5) + 0.05 * normal((rows, channels), 6)


def test_gptq_minimises_the_error_of_a_products_output() -> None:
    weight = normal((24, 16), 7)
    before = named(parse("g (float[64,24] x) => (float[64,16] y) { y = MatMul(x, w) }", {"w": weight}))
    x = correlated(128, 24)
    settings = {"weight_only": True, "fp8_params": "F143,F143,-1,-6", "data_preprocess": {"x": x[:64]}}
    nearest = get_pass("float_to_fp8", **settings)(before)
    gptq = get_pass("float_to_fp8", calibration_loss_type="gptq", **settings)(before)
    unseen = {"x": x[64:]}
    errors = [mse(run_onnx(before, unseen)["y"], run_onnx(model, unseen)["y"]) for model in (nearest, gptq)]
    assert errors[1] < errors[0] / 2
    assert uses(gptq)["matmul"].weight == Float8Spec(Float8Format.F143, -6)


def test_gptq_rounds_convolutions_and_transposed_gemms() -> None:
    text = """g (float[8,3,6,6] x) => (float[8,4] y) {
        c = Conv<strides=[2,1], pads=[1,0,0,1], dilations=[1,2]>(x, w)
        p = GlobalAveragePool(c)
        f = Flatten(p)
        y = Gemm<transB=1, alpha=2.0>(f, fw)
    }"""
    weights = {
        "w": normal((6, 3, 2, 3), 8),
        "fw": normal((4, 6), 9),
    }
    before = named(parse(text, weights))
    x = correlated(16, 108).reshape(16, 3, 6, 6)
    settings = {"weight_only": True, "fp8_params": "F143,F143,-1,-6", "data_preprocess": {"x": x}}
    nearest = get_pass("float_to_fp8", **settings)(before)
    gptq = get_pass("float_to_fp8", calibration_loss_type="gptq", **settings)(before)
    errors = [mse(run_onnx(before, {"x": x[:8]})["y"], run_onnx(model, {"x": x[:8]})["y"]) for model in (nearest, gptq)]
    assert errors[1] < errors[0]


def test_grouped_convolution_is_rounded_to_nearest_under_gptq(tmp_path: Path) -> None:
    text = "g (float[1,4,5,5] x) => (float[1,4,5,5] y) { y = Conv<group=2, pads=[1,1,1,1]>(x, w) }"
    before = named(parse(text, {"w": normal((4, 2, 3, 3), 10)}))
    after = get_pass("float_to_fp8", weight_only=True, calibration_loss_type="gptq", quantize_log=tmp_path / "q.log")(before)
    assert list(uses(after)) == ["conv"]
    assert "fp8 (nearest)" in (tmp_path / "q.log").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"calibration_loss_type": "gptq"}, "gptq rounds weights; it goes with precision fp8_weight only"),
        ({"num_of_layers_keep_fp16": -1}, "num_of_layers_keep_fp16 is -1"),
        ({"fp8_params": "F143,F143,-1"}, r"fp8_params is 'F143,F143,-1'; expected input format, weight format"),
        ({"fp8_params": "F143,E5M2,-1,-1"}, "'E5M2' is no 8-bit float format; expected F143 or F152"),
        ({"fp8_params": "F143,F143,-1,32"}, r"the weight scale of fp8_params is 32; expected an integer in \[-32, 32\)"),
        ({"fp8_params": "F143,F143,half,0"}, "the input scale of fp8_params is 'half'; expected an integer"),
    ],
)
def test_unknown_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        get_pass("float_to_fp8", **settings)


def test_parameters_are_read_from_text_and_from_a_tuple() -> None:
    expected = Float8Params(Float8Spec(Float8Format.F143, -3), Float8Spec(Float8Format.F152, 4))
    assert Float8Params.parse("f143, F152, -3, 4") == expected
    assert Float8Params.parse(("F143", "F152", -3, 4)) == expected


def test_unknown_loss_is_refused_when_it_is_needed() -> None:
    with pytest.raises(OptionError, match="calibration loss 'psnr' is not known"):
        get_pass("float_to_fp8", calibration_with_data=True, calibration_loss_type="psnr")(net())


def test_model_that_onnx_runtime_cannot_run_cannot_be_calibrated() -> None:
    before = net()
    before.graph.node[1].op_type = "Relux"
    with pytest.raises(CompileError, match="Relux"):
        get_pass("float_to_fp8", calibration_with_data=True)(before)


def test_model_without_such_layers_is_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    before = parse("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    with caplog.at_level(logging.WARNING):
        after = get_pass("float_to_fp8")(before)
    assert op_types(after) == ["Relu"]
    assert after.opset_import[0].version == 18
    assert len(caplog.records) == 1


def test_nan_on_overflow_is_passed_to_activations_and_weights() -> None:
    before = named(parse("g (float[1,2] x) => (float[1,2] y) { y = MatMul(x, w) }", {"w": np.array([[1, 0], [0, 100]], np.float32)}))
    saturating = get_pass("float_to_fp8", fp8_params="F143,F143,-2,-2")(before)
    strict = get_pass("float_to_fp8", fp8_params="F143,F143,-2,-2", nan_on_overflow=True)(before)
    feeds = {"x": np.array([[1000, 1]], np.float32)}
    assert run_onnx(saturating, feeds)["y"].tolist() == [[60, 60]]
    assert np.all(np.isnan(run_onnx(strict, feeds)["y"]))
    node = next(node for node in ir.from_proto(strict).graph if node.op_type == "MatMul")
    use = float8_use(node)
    assert use is not None
    assert not use.saturates


def test_layers_of_tensors_that_are_not_finite_keep_their_type(caplog: pytest.LogCaptureFixture) -> None:
    text = """g (float[2,4] x) => (float[2,4] y, float[2,4] z) {
        masked = Add(x, mask)
        p = MatMul(masked, w)
        y = MatMul(x, w)
        z = MatMul(x, bad)
    }"""
    masks = {"mask": np.array([0, 0, 0, -np.inf], np.float32), "w": normal((4, 4), 0), "bad": np.full((4, 4), np.inf, np.float32)}
    model = parse(text, masks)
    model.graph.output.append(onnx.helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [2, 4]))
    for node, name in zip(model.graph.node, ("add", "of_mask", "plain", "of_weight"), strict=True):
        node.name = name
    with caplog.at_level(logging.WARNING):
        after = get_pass("float_to_fp8", calibration_with_data=True, data_preprocess={"x": normal((2, 4), 1)})(model)
    assert list(uses(after)) == ["plain"]
    assert "node 'of_mask' (MatMul) keeps its type: its input 'masked' is NaN or infinite in 2 place(s) over the samples" in caplog.text
    assert "node 'of_weight' (MatMul) keeps its type: its weight 'bad' has NaN or infinity" in caplog.text
