"""Reports of accuracy: drift of the outputs, distance of each layer; and int8 weights."""

import io
import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.passes import get_pass
from stoker.compiler.precision.drift import DriftReport, drift_between, measure_drift
from tests.fakes.graphs import assert_same_results, assert_valid, initializers_of, op_types, parse, random_feeds

TEXT = """g (float[4,6] x) => (float[4,3] scores, int64[4] winner) {
    h = MatMul(x, w)
    r = Relu(h)
    scores = Gemm(r, v)
    winner = ArgMax<axis=1, keepdims=0>(scores)
}"""


def net() -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    model = parse(
        TEXT, {"w": generator.standard_normal((6, 8)).astype(np.float32), "v": generator.standard_normal((8, 3)).astype(np.float32)}
    )
    for node in model.graph.node:
        node.name = node.op_type.lower()
    return model


def test_model_does_not_drift_from_itself() -> None:
    report = measure_drift(net(), net())
    scores, winner = report.outputs
    assert (scores.mse, scores.mae, scores.max_abs, scores.snr_db, scores.cosine) == (0, 0, 0, math.inf, 1)
    assert scores.top1_agreement == 1
    assert winner.top1_agreement is None


def test_figures_equal_those_of_the_difference() -> None:
    source = parse("g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }")
    converted = parse("g (float16[2,2] x) => (float16[2,2] y) { y = Add(x, shift) }", {"shift": np.array([[0, 0], [3, 0]], np.float16)})
    data = {"x": np.array([[3, 4], [1, 2]], np.float32)}
    [drift] = measure_drift(source, converted, [data]).outputs
    assert (drift.mse, drift.mae, drift.max_abs) == (9 / 4, 3 / 4, 3)
    assert drift.snr_db == pytest.approx(10 * math.log10(30 / 9))
    assert drift.cosine == pytest.approx((9 + 16 + 4 + 4) / math.sqrt(30 * (9 + 16 + 16 + 4)))
    assert drift.top1_agreement == 0.5


def printed(report: DriftReport, width: int) -> str:
    """The table of `report` in a terminal of `width` columns."""
    stream = io.StringIO()
    Console(file=stream, width=width).print(report.table())
    return stream.getvalue()


def test_report_is_a_table_and_json() -> None:
    report = measure_drift(net(), get_pass("float_to_half")(net()))
    text = printed(report, 160)
    assert "scores" in text
    figures = json.loads(measure_drift(net(), net()).to_json())
    assert figures["samples"] == 4
    assert figures["outputs"][0]["snr_db"] is None
    snr_db = report.outputs[0].snr_db
    assert snr_db is not None
    assert 50 < snr_db < 120


def test_same_infinity_in_both_models_agrees_and_is_counted() -> None:
    exact, other = np.array([[1, -np.inf, np.nan, np.inf]], np.float32), np.array([[1.5, -np.inf, np.nan, np.inf]], np.float32)
    (same,) = drift_between(["y"], [{"y": exact}], [{"y": exact}]).outputs
    assert (same.mse, same.max_abs, same.snr_db, same.cosine, same.not_finite, same.not_finite_differ) == (0, 0, math.inf, 1, 3, 0)
    (near,) = drift_between(["y"], [{"y": exact}], [{"y": other}]).outputs
    assert (near.mse, near.max_abs, near.not_finite, near.not_finite_differ) == (0.25, 0.5, 3, 0)


@pytest.mark.parametrize("found", [0.0, np.inf, np.nan])
def test_infinity_in_one_model_only_is_an_infinite_error(found: float) -> None:
    report = drift_between(["y"], [{"y": np.array([1, -np.inf], np.float32)}], [{"y": np.array([1, found], np.float32)}])
    (drift,) = report.outputs
    assert (drift.mse, drift.mae, drift.max_abs, drift.snr_db) == (math.inf, math.inf, math.inf, -math.inf)
    assert (drift.not_finite, drift.not_finite_differ) == (1, 1)
    assert report.snr_db == -math.inf
    text = printed(report, 200)
    assert "of these differ" in text


def test_strings_are_compared_for_equality() -> None:
    wanted, got = np.array(["cat", "dog", "cat", "eel"], object), np.array(["cat", "dog", b"cat", "emu"], object)
    report = drift_between(["label"], [{"label": wanted}], [{"label": got}])
    (drift,) = report.outputs
    assert (drift.equal, drift.snr_db, report.snr_db) == (0.75, None, None)
    assert json.loads(report.to_json())["outputs"][0]["equal"] == 0.75
    text = printed(report, 200)
    assert "75.00%" in text


def test_report_contains_the_number_of_samples() -> None:
    feeds = [{"x": np.ones((4, 6), np.float32)}] * 3
    report = measure_drift(net(), net(), feeds, is_held_out=True)
    assert report.about() == "12 samples, none of them calibrated with"


def test_output_lost_by_conversion_is_named() -> None:
    converted = net()
    del converted.graph.output[0]
    with pytest.raises(CompileError, match=r"the converted model has no output\(s\) scores"):
        measure_drift(net(), converted)


def test_output_of_another_shape_is_named() -> None:
    source = parse("g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }")
    converted = parse("g (float[2,2] x) => (float[4] y) { y = Reshape(x, s) }", {"s": np.array([4], np.int64)})
    with pytest.raises(CompileError, match=r"output 'y' has shape \[4\] after conversion and \[2, 2\] before"):
        measure_drift(source, converted)


@pytest.mark.parametrize("keeps_io", [False, True])
def test_layers_are_compared_and_logged(tmp_path: Path, keeps_io: bool) -> None:
    half = get_pass("float_to_half", keep_io_types=keeps_io)(net())
    converted = get_pass("float_to_fp8", fp8_skip_op_names=["matmul"])(half)
    path = tmp_path / "precision_compare.log"
    after = get_pass("layer_precision_compare", source=net(), precision_compare_log=path, data_preprocess=random_feeds(net()))(converted)
    assert op_types(after) == op_types(converted)
    matmul, gemm = path.read_text().splitlines()
    assert matmul.startswith("node 'matmul' (MatMul), tensor 'h': cosine distance ")
    assert matmul.endswith("computed in FLOAT16")
    assert gemm.endswith("computed in fp8 F143 x 2^-1, F143 x 2^-1")
    distances = [float(line.split("cosine distance ")[1].split(",")[0]) for line in (matmul, gemm)]
    assert 0 < distances[0] < 1e-5 < distances[1] < 1e-2


@pytest.mark.parametrize(("scale", "distance"), [(1.0, 0.0), (np.inf, 1.0)])
def test_infinities_of_both_models_do_not_hide_a_layers_distance(tmp_path: Path, scale: float, distance: float) -> None:
    text = "g (float[2,2] x) => (float[2,2] y) { y = MatMul(x, w) }"
    weights = np.array([[np.inf, 1], [np.inf, 2]], np.float32)
    changed = parse(text, {"w": weights * np.array([1, scale], np.float32)})
    log = tmp_path / "log"
    before = parse(text, {"w": weights})
    get_pass("layer_precision_compare", source=before, data_preprocess={"x": np.ones((2, 2), np.float32)}, precision_compare_log=log)(
        changed
    )
    assert f"cosine distance {distance:.3e}" in log.read_text()


def test_layer_without_a_counterpart_is_reported(tmp_path: Path) -> None:
    converted = parse(TEXT.replace("MatMul(x, w)", "Einsum<equation=\"ij,jk->ik\">(x, w)"), initializers_of(net()))  # fmt: skip
    path = tmp_path / "precision_compare.log"
    get_pass("layer_precision_compare", source=net(), precision_compare_log=path)(converted)
    assert path.read_text().splitlines()[0] == "node 'matmul' (MatMul), tensor 'h': not in the converted model (fused or replaced)"


def test_comparison_needs_the_source() -> None:
    with pytest.raises(OptionError, match="needs the source model to compare with"):
        get_pass("layer_precision_compare")(net())


def test_int8_weights_are_within_half_a_scale() -> None:
    before = net()
    after = get_pass("float_to_int8")(before)
    assert_valid(after)
    assert op_types(after).count("DequantizeLinear") == 2
    assert {array.dtype for array in initializers_of(after).values()} == {np.dtype(np.int8), np.dtype(np.float32)}
    [scores, _] = measure_drift(before, after).outputs
    assert scores.snr_db is not None
    assert scores.snr_db > 30


def test_int8_applies_scale_and_offset_and_accepts_half_models() -> None:
    before = get_pass("float_to_half")(net())
    after = get_pass("float_to_int8", tensors={"w": {"scale": 0.03125, "offset": 3}})(before)
    assert_valid(after)
    held = initializers_of(after)
    expected = np.clip(np.rint(initializers_of(before)["w"].astype(np.float64) / 0.03125) + 3, -128, 127)
    [codes] = [array for array in held.values() if array.dtype == np.int8 and array.ndim]
    np.testing.assert_array_equal(codes, expected)
    snr_db = measure_drift(net(), after).outputs[0].snr_db
    assert snr_db is not None
    assert snr_db > 20


def test_weight_of_integer_codes_is_kept_exactly() -> None:
    before = parse("g (float[2,3] x) => (float[2,2] y) { y = MatMul(x, w) }", {"w": np.array([[1, -2], [3, 127], [0, 5]], np.float32)})
    assert_same_results(before, get_pass("float_to_int8")(before), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": 0}, "the scale of tensor 'w' is 0; expected a number above 0"),
        ({"scale": 1, "offset": 128}, r"the offset of tensor 'w' is 128; expected an integer in \[-128, 127\]"),
        ({"scale": 1, "zero": 0}, "tensor 'w' has zero; expected scale and offset"),
    ],
)
def test_unknown_int8_settings_are_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        get_pass("float_to_int8", tensors={"w": given})
