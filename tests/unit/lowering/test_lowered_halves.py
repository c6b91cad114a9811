"""The lowered graph rounds where the device stores halves: bit by bit against numpy."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from stoker.compiler.lowering.rounding import lower
from stoker.compiler.lowering.typed_graph import typed_graph
from tests.fakes.graphs import assert_same_results, model_of, op_types, parse, random_feeds, run_onnx, tensor
from tests.fakes.half_graphs import emulate, lowered_graph, run_lowered

UNARY = ("Sqrt", "Neg", "Abs", "Relu", "Identity", "Transpose")
#: Without Div: which zero Max(0, -0) gives is open, and division by it would show.
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


@st.composite
def graphs(draw) -> onnx.ModelProto:
    """A random graph on three square halves; every value without a consumer is an output, as are some others."""
    names, nodes = ["x", "y", "w"], []
    for number in range(draw(st.integers(1, 8))):
        op_type = draw(st.sampled_from(UNARY + BINARY))
        inputs = [draw(st.sampled_from(names)) for _ in range(1 if op_type in UNARY else 2)]
        nodes.append(helper.make_node(op_type, inputs, [f"t{number}"]))
        names.append(f"t{number}")
    read = {name for node in nodes for name in node.input}
    shown = [name for name in names[3:] if name not in read or draw(st.booleans())]
    weights = {"w": np.linspace(-300, 300, 16).reshape(4, 4).astype(np.float16)}
    declared = [tensor(name, (4, 4), np.float16) for name in ("x", "y")]
    return model_of(nodes, declared, [tensor(name, (4, 4), np.float16) for name in shown], weights)


@given(graphs(), st.integers(0, 1000), st.sampled_from([1e-6, 1.0, 300.0]))
def test_every_stored_half_is_rounded_once(model, seed, scale) -> None:
    generator = np.random.default_rng(seed)
    feeds = {name: (generator.standard_normal((4, 4)) * scale).astype(np.float16) for name in ("x", "y")}
    expected, actual = emulate(model, feeds), run_lowered(model, feeds)
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)  # NaN = NaN here


@pytest.mark.parametrize("op_type", [*BINARY, "Div"])
def test_halves_of_every_kind_are_rounded_by_ieee_754(op_type) -> None:
    model = parse(f"g (float16[64,64] x, float16[64,64] y) => (float16[64,64] z) {{ z = {op_type}(x, y) }}")
    special = np.array([0, 1, 6e-8, 6.1e-5, 65504, np.inf, np.nan, 2049, 0.1], np.float16)
    bits = np.random.default_rng(3).integers(0, 1 << 16, (2, 64, 64), dtype=np.uint16).view(np.float16)
    bits[:, 0, : special.size] = special
    feeds = dict(zip("xy", bits, strict=True))
    np.testing.assert_array_equal(run_lowered(model, feeds)["z"], emulate(model, feeds)["z"])


def test_onnxruntime_alone_rounds_less_often() -> None:
    """Why lowering exists: if this fails, ONNX Runtime has learnt to round between halves."""
    model = parse("g (float16[64] x) => (float16[64] y) { a = Mul(x, x) b = Mul(a, x) y = Sub(b, x) }")
    feeds = random_feeds(model)
    expected = emulate(model, feeds)["y"]
    np.testing.assert_array_equal(run_lowered(model, feeds)["y"], expected)
    assert not np.array_equal(run_onnx(model, feeds)["y"], expected)


def test_matrix_products_are_accumulated_in_float_and_rounded_once() -> None:
    model = parse("g (float16[4,256] x) => (float16[4,8] y) { y = MatMul(x, w) }", {"w": np.full((256, 8), 1.25, np.float16)})
    feeds = {"x": np.random.default_rng(0).integers(-8, 9, (4, 256)).astype(np.float16)}  # sums of these are exact in float32
    np.testing.assert_array_equal(run_lowered(model, feeds)["y"], emulate(model, feeds)["y"])


def test_streams_keep_names_types_and_shapes() -> None:
    model = parse(
        "g (float16[2,3] x, float[3] s, int32[2] i) => (float16[2,3] y, float[3] t, int32[2] j) { y = Relu(x) t = Exp(s) j = Abs(i) }"
    )
    lowered = lowered_graph(model)
    for before, after in ((model.graph.input, lowered.graph.inputs), (model.graph.output, lowered.graph.outputs)):
        assert [ir.to_proto(each) for each in after] == list(before)


def test_operators_that_move_values_do_not_round() -> None:
    model = parse("g (float16[2,3] x) => (float16[3,2] y) { a = Relu(x) b = Neg(a) y = Transpose(b) }")
    assert sorted(op_types(lowered_graph(model))) == ["Cast", "Cast", "Neg", "Relu", "Transpose"]  # in and out at the border


def test_weights_are_stored_in_the_width_of_the_device() -> None:
    model = parse("g (float16[1,64] x) => (float16[1,64] y) { y = MatMul(x, w) }", {"w": np.ones((64, 64), np.float16)})
    lowered = lowered_graph(model)
    assert [str(each.dtype) for each in lowered.graph.initializers.values()] == ["FLOAT16"]


def test_output_with_other_readers_is_rounded_for_both() -> None:
    model = parse("g (float16[5] x) => (float16[5] y, float16[5] z) { y = Mul(x, x) z = Sub(y, x) }")
    feeds = random_feeds(model)
    expected = emulate(model, feeds)
    for name, values in run_lowered(model, feeds).items():
        np.testing.assert_array_equal(values, expected[name])


def test_input_and_weight_may_be_outputs() -> None:
    model = parse("g (float16[2] x) => (float16[2] x, float16[2] w, float16[2] y) { y = Add(x, w) }", {"w": np.ones(2, np.float16)})
    results = run_lowered(model, {"x": np.array([1, 2], np.float16)})
    assert {name: list(values) for name, values in results.items()} == {"x": [1, 2], "w": [1, 1], "y": [2, 3]}


def test_casts_round_if_they_narrow() -> None:
    model = parse(
        """g (float[4] x, int32[4] i, float16[4] h) => (float[4] y, float16[4] z, int32[4] k) {
        a = Cast<to=10>(x) y = Cast<to=1>(a) b = Cast<to=10>(i) c = Add(b, h) z = CastLike(c, h) k = Cast<to=6>(h) }"""
    )
    x = np.array([1.0005, 65519.9, 65520, 1e-9], np.float32)
    i = np.array([2049, 2051, -3, 100000], np.int32)
    h = np.array([0.5, -0.5, 2.75, 3], np.float16)
    results = run_lowered(model, {"x": x, "i": i, "h": h})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(results["y"], x.astype(np.float16).astype(np.float32))
        wide = i.astype(np.float16).astype(np.float32) + h.astype(np.float32)
        np.testing.assert_array_equal(results["z"], wide.astype(np.float16))
    np.testing.assert_array_equal(results["k"], [0, 0, 2, 3])


def test_constants_of_nodes_are_halves() -> None:
    model = parse("g (float16[2] x) => (float16[2] y, float16[3] z) { y = Add(x, c) z = Mul(f, f) }")
    constant = helper.make_tensor("v", TensorProto.FLOAT16, [2], np.array([0.1, 0.2], np.float16))
    fill = helper.make_tensor("v", TensorProto.FLOAT16, [1], np.array([0.1], np.float16))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=constant))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["n"], ["f"], value=fill))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3], np.int64), "n"))
    x = np.array([0.3, 0.4], np.float16)
    results = run_lowered(model, {"x": x})
    np.testing.assert_array_equal(results["y"], (x.astype(np.float32) + np.array([0.1, 0.2], np.float16)).astype(np.float16))
    np.testing.assert_array_equal(results["z"], np.full(3, np.float32(np.float16(0.1)) ** 2).astype(np.float16))


@pytest.mark.parametrize("choice", [True, False])
def test_branches_read_and_return_rounded_values(choice) -> None:
    model = parse(
        """g (bool c, float16[4] x) => (float16[4] y) {
        a = Mul(x, x)
        b = If(c)<then_branch = t () => (float16[4] p) { p = Mul(a, x) }, else_branch = e () => (float16[4] q) { q = Add(a, k) }>
        y = Sub(b, a) }""",
        {"k": np.array([0.1, 0.2, 0.3, 0.4], np.float16)},
    )
    x = np.array([1.001, 2.003, -3.005, 0.7], np.float16)

    def half(values):
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)

    a = half(x.astype(np.float32) ** 2)
    b = half(a * x) if choice else half(a + np.array([0.1, 0.2, 0.3, 0.4], np.float16).astype(np.float32))
    np.testing.assert_array_equal(run_lowered(model, {"c": np.array(choice), "x": x})["y"], half(b - a).astype(np.float16))


def test_loops_carry_rounded_values() -> None:
    model = parse(
        """g (float16[2] x) => (float16[2] y) {
        y = Loop(n, c, x)<body = b (int64 i, bool go, float16[2] v) => (bool on, float16[2] w) { on = Identity(go) w = Mul(v, v) }> }""",
        {"n": np.array(3, np.int64), "c": np.array(True)},
    )
    x = np.array([1.01, 0.9], np.float16)
    expected = x.astype(np.float32)
    for _ in range(3):
        expected = (expected * expected).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run_lowered(model, {"x": x})["y"], expected.astype(np.float16))


def test_clip_by_attributes_may_return_values_beyond_half() -> None:
    model = parse("g (float16[2] x) => (float16[2] y) { a = Clip<max=0.1>(x) y = Mul(a, x) }", opset=9)
    x = np.array([100, -1], np.float16)
    clipped = np.minimum(x, np.float16(0.1)).astype(np.float32)
    np.testing.assert_array_equal(run_lowered(model, {"x": x})["y"], (clipped * x).astype(np.float16))


def test_scatter_that_adds_is_rounded() -> None:
    model = parse(
        'g (float16[3] x, float16[3] u) => (float16[3] y) { a = ScatterElements<reduction="add">(x, i, u) y = Mul(a, x) }',
        {"i": np.array([0, 1, 2], np.int64)},
    )
    x, u = np.array([100, 0.1, 3], np.float16), np.array([0.3, 0.2, 0.1], np.float16)
    a = (x.astype(np.float32) + u).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run_lowered(model, {"x": x, "u": u})["y"], (a * x).astype(np.float16))


def test_existing_names_are_avoided() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y.exact"]), helper.make_node("Add", ["y.exact", "x"], ["y"], name="x.float/cast")]
    model = model_of(nodes, [tensor("x", (2,), np.float16)], [tensor("y", (2,), np.float16)])
    feeds = random_feeds(model)
    np.testing.assert_array_equal(run_lowered(model, feeds)["y"], emulate(model, feeds)["y"])


def test_float_graphs_are_unchanged() -> None:
    model = parse("g (float[4,4] x) => (float[4,4] y) { a = MatMul(x, x) b = Softmax(a) y = Gelu(b) }", opset=20)
    lowered = lowered_graph(model)
    assert op_types(lowered) == op_types(model)
    assert_same_results(model, lowered, rtol=0, atol=0)


def test_same_model_is_lowered_to_the_same_bytes() -> None:
    model = parse("g (float16[4,4] x) => (float16[4,4] y) { a = MatMul(x, w) y = Softmax(a) }", {"w": np.eye(4, dtype=np.float16)})
    assert lower(typed_graph(model)) == lower(typed_graph(model))
