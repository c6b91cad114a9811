"""fp16: structure, operators kept in FLOAT, clipping and epsilons, and agreement with the source model on ONNX Runtime."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import assert_valid, initializers_of, model_of, op_types, parse, random_feeds, run_onnx, tensor


def normal(*shape: int) -> np.ndarray:
    """The same numbers for the same shape, in any order of tests."""
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def half_feeds(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in feeds.items()}


def assert_agrees(before: onnx.ModelProto, after: onnx.ModelProto, rtol: float = 1e-2, atol: float = 1e-2) -> None:
    assert_valid(after)
    feeds = random_feeds(before)
    if "mask" in feeds:
        feeds["mask"] = np.array([[[1, 1, 1, 1, 0, 0]], [[1, 1, 1, 1, 1, 0]]], np.float32)
    expected, actual = run_onnx(before, feeds), run_onnx(after, half_feeds(feeds))
    assert list(actual) == list(expected)
    for name, wanted in expected.items():
        assert actual[name].dtype == (np.float16 if wanted.dtype == np.float32 else wanted.dtype)
        np.testing.assert_allclose(actual[name].astype(np.float64), wanted, rtol=rtol, atol=atol)


def conv_net() -> onnx.ModelProto:
    text = """g (float[2,3,8,8] x) => (float[2,5] y) {
        c = Conv<pads=[1,1,1,1]>(x, w)
        b = BatchNormalization<epsilon=1e-12>(c, scale, shift, mean, var)
        r = Relu(b)
        m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
        u = Resize<mode="nearest">(m, , scales)
        g = GlobalAveragePool(u)
        f = Flatten(g)
        y = Gemm<transB=1>(f, fw, fb)
    }"""
    weights = {
        "w": normal(4, 3, 3, 3) / 3,
        "scale": np.ones(4),
        "shift": np.zeros(4),
        "mean": np.zeros(4),
        "var": np.ones(4),
        "scales": np.array([1, 1, 2, 2]),
        "fw": normal(5, 4),
        "fb": normal(5),
    }
    return parse(text, {name: array.astype(np.float32) for name, array in weights.items()})


def attention() -> onnx.ModelProto:
    text = """g (int64[2,6] ids, float[2,1,6] mask) => (float[2,6,8] y) {
        e = Gather(table, ids)
        q = MatMul(e, wq)
        k = MatMul(e, wk)
        v = MatMul(e, wv)
        kt = Transpose<perm=[0,2,1]>(k)
        s = MatMul(q, kt)
        one = Constant<value_float=1.0>()
        inverted = Sub(one, mask)
        hidden = Mul(inverted, far)
        masked = Add(s, hidden)
        p = Softmax<axis=-1>(masked)
        a = MatMul(p, v)
        r = Add(a, e)
        y = LayerNormalization<epsilon=1e-12>(r, gamma, beta)
    }"""
    weights = {name: np.roll(normal(8, 8), shift) / 3 for shift, name in enumerate(("wq", "wk", "wv"))}
    weights |= {"table": normal(4, 8), "gamma": np.ones(8), "beta": np.zeros(8), "far": np.array(-3.4e38)}
    return parse(text, {name: array.astype(np.float32) for name, array in weights.items()})


def test_convolutional_net_is_half_throughout_and_agrees() -> None:
    before = conv_net()
    after = get_pass("float_to_half")(before)
    assert op_types(after) == op_types(before)  # without one Cast
    assert {name for name, array in initializers_of(after).items() if array.dtype != np.float16} == {"scales"}  # ONNX wants it FLOAT
    assert_agrees(before, after)


def test_attention_with_a_mask_beyond_the_range_agrees(caplog: pytest.LogCaptureFixture) -> None:
    before = attention()
    with caplog.at_level(logging.WARNING):
        after = get_pass("float_to_half")(before)
    assert "Cast" not in op_types(after)
    assert initializers_of(after)["far"] == -65500
    assert_agrees(before, after, atol=3e-2)
    messages = [record.message for record in caplog.records]
    assert messages == [
        "1 constant(s) clipped to +-65500 for FLOAT16: 'far'",
        "1 epsilon(s) below 1e-07 lifted to it for FLOAT16: 'y'",
    ]
    [norm] = [node for node in after.graph.node if node.op_type == "LayerNormalization"]
    assert helper.get_node_attr_value(norm, "epsilon") == pytest.approx(1e-7)


def test_tiny_epsilon_constant_is_raised_and_tiny_weights_are_not() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Mul(x, w) b = Add(a, eps) y = Sqrt(b) }"
    before = parse(text, {"w": np.array([1, 1e-9, 1, 1], np.float32), "eps": np.float32(1e-12)})
    after = initializers_of(get_pass("float_to_half")(before))
    assert after["eps"] == np.float16(1e-7)
    assert after["w"].tolist() == [1, 0, 1, 1]


def test_named_operators_stay_float_between_casts() -> None:
    before = attention()
    after = get_pass("float_to_half", fp16_skip_op_types=["Softmax", "LayerNormalization"])(before)
    kinds = op_types(after)
    at = kinds.index("Softmax")
    assert kinds[at - 1 : at + 2] == ["Cast", "Softmax", "Cast"]
    assert initializers_of(after)["gamma"].dtype == np.float32
    assert kinds[-1] == "Cast"  # back to the FLOAT16 that the model gives
    assert_agrees(before, after, atol=3e-2)


def test_inputs_and_outputs_can_stay_float() -> None:
    before = conv_net()
    after = get_pass("float_to_half", keep_io_types=True)(before)
    feeds = random_feeds(before)
    assert [after.graph.input[0].type.tensor_type.elem_type, after.graph.output[0].type.tensor_type.elem_type] == [TensorProto.FLOAT] * 2
    np.testing.assert_allclose(run_onnx(after, feeds)["y"], run_onnx(before, feeds)["y"], rtol=1e-2, atol=1e-2)
    assert op_types(after)[0] == op_types(after)[-1] == "Cast"


RMS_NORM = """g (float[2,8] x) => (float[2,8] y) {
    two = Constant<value_float=2.0>()
    s = Pow(x, two)
    m = ReduceMean<keepdims=1>(s, axes)
    e = Add(m, eps)
    d = Sqrt(e)
    n = Div(x, d)
    y = MatMul(n, w)
}"""


def test_overflow_patterns_stay_float_on_request() -> None:
    before = parse(RMS_NORM, {"axes": np.array([1], np.int64), "eps": np.float32(1e-6), "w": np.eye(8, dtype=np.float32)})
    feeds = {"x": np.full((2, 8), 1000, np.float32)}
    plain = get_pass("float_to_half")(before)
    careful = get_pass("float_to_half", enable_avoid_overflow_patterns=True)(before)
    assert "Cast" not in op_types(plain)
    assert op_types(careful) == ["Cast", "Pow", "ReduceMean", "Add", "Sqrt", "Cast", "Div", "MatMul"]
    np.testing.assert_allclose(run_onnx(careful, half_feeds(feeds))["y"], run_onnx(before, feeds)["y"], rtol=1e-2)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("g (float[2,8] x) => (float[2,8] y) { e = Exp(x) s = ReduceSum(e, axes) y = Div(e, s) }", {"Exp", "ReduceSum", "Div"}),
        ("g (float[2,8] x) => (float[2,8] y) { e = Exp(x) s = Add(e, one) l = Log(s) y = Relu(l) }", {"Exp", "Add", "Log"}),
        ("g (float[2,8] x) => (float[2,1] y) { r = Relu(x) y = ReduceL2(r, axes) }", {"ReduceL2"}),
        ("g (float[2,5000] x) => (float[2,1] y) { r = Relu(x) y = ReduceSum(r, axes) }", {"ReduceSum"}),
        ("g (float[2,8] x) => (float[2,8] y) { m = Add(x, far) s = Softmax(m) y = Relu(s) }", {"Softmax"}),
        ("g (float[2,8] x) => (float[2,8] y) { c = Mul(x, x) a = Mul(c, one) t = Tanh(a) y = Relu(t) }", {"Mul", "Tanh"}),
        ("g (float[2,8] x) => (float[2,8] y) { r = Relu(x) y = Softmax(r) }", set()),
    ],
)
def test_only_overflow_patterns_are_found(text: str, kept: set[str]) -> None:
    constants = {"axes": np.array([1], np.int64), "one": np.float32(1), "far": np.float32(-1e9)}
    before = parse(text, {name: array for name, array in constants.items() if name in text})
    after = get_pass("float_to_half", enable_avoid_overflow_patterns=True)(before)
    floats = {
        value.name for value in [*after.graph.value_info, *after.graph.output] if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    stayed = {node.op_type for node in after.graph.node if node.op_type != "Cast" and floats & {*node.input, *node.output}}
    assert stayed == kept


def test_operators_with_a_type_attribute_are_converted() -> None:
    text = """g (int32[2,2] i, float[2,2] x) => (float[2,2] y) {
        a = Cast<to=1>(i)
        shape = Shape(x)
        b = ConstantOfShape<value=float[1] {2.5}>(shape)
        c = EyeLike<dtype=1>(x)
        d = CastLike(i, x)
        y = Sum(a, b, c, d, x)
    }"""
    before = parse(text)
    assert_agrees(before, get_pass("float_to_half")(before))


def test_operator_that_onnx_defines_for_float_only_gets_float() -> None:
    text = "g (float[3] x) => (float[5] y) { zero = Constant<value_float=0.0>() r = Range(zero, five, one) y = Add(r, shift) }"
    before = parse(text, {"five": np.float32(5), "one": np.float32(1), "shift": np.ones(5, np.float32)})
    after = get_pass("float_to_half")(before)
    assert op_types(after) == ["Range", "Cast", "Add"]
    assert_agrees(before, after)


def test_constant_needed_in_both_types_is_stored_in_both() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Add(x, c) b = Exp(a) y = Mul(b, c) }"
    before = parse(text, {"c": np.linspace(0, 1, 4, dtype=np.float32)})
    after = get_pass("float_to_half", skip_op_names=["kept"])(_named(before, "Mul", "kept"))
    assert sorted(str(array.dtype) for array in initializers_of(after).values()) == ["float16", "float32"]
    assert_agrees(before, after)


def test_branches_and_loops_are_converted_with_their_captured_values() -> None:
    then_branch = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["t"])], "then", [], [tensor("t", [4])])
    else_branch = helper.make_graph([helper.make_node("Exp", ["x"], ["e"], "kept")], "else", [], [tensor("e", [4])])
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["carried", "f"], ["next"]),
            helper.make_node("Identity", ["on"], ["still"]),
        ],
        "body",
        [tensor("n", [], np.int64), tensor("on", [], np.bool_), tensor("carried", [4])],
        [tensor("still", [], np.bool_), tensor("next", [4])],
    )
    nodes = [
        helper.make_node("If", ["c"], ["branched"], then_branch=then_branch, else_branch=else_branch),
        helper.make_node("Loop", ["trips", "", "branched"], ["y"], body=body),
    ]
    inputs, weights = [tensor("c", [], np.bool_), tensor("x", [4])], {"w": np.ones(4, np.float32) / 3, "trips": np.int64(3)}
    before = model_of(nodes, inputs, [tensor("y", [4])], weights)
    after = get_pass("float_to_half", skip_op_names=["kept"])(before)
    assert_valid(after)
    for c in (True, False):
        feeds = {"c": np.array(c), "x": np.linspace(-1, 1, 4, dtype=np.float32)}
        np.testing.assert_allclose(run_onnx(after, half_feeds(feeds))["y"], run_onnx(before, feeds)["y"], rtol=1e-2, atol=1e-2)


def test_functions_are_inlined() -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    before = model_of(
        [helper.make_node("Twice", ["x"], ["y"], "n", domain="local")],
        [tensor("x", [3])],
        [tensor("y", [3])],
        functions=[function],
        domains=["local"],
    )
    after = get_pass("float_to_half")(before)
    assert op_types(after) == ["Add"]
    assert_agrees(before, after)


def test_operator_of_an_unknown_domain_keeps_float() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Odd", ["r"], ["o"], domain="their.own"),
        helper.make_node("Relu", ["o"], ["y"]),
    ]
    before = model_of(nodes, [tensor("x", [3])], [tensor("y", [3])], domains=["their.own"])
    after = get_pass("float_to_half")(before)
    assert op_types(after) == ["Relu", "Cast", "Odd", "Relu", "Cast"]


def test_model_without_floats_is_unchanged() -> None:
    before = parse("g (int32[3] x) => (int32[3] y) { y = Add(x, x) }")
    after = get_pass("float_to_half")(before)
    assert op_types(after) == ["Add"]
    assert after.graph.output == before.graph.output


def test_mixed_computes_only_products_in_half() -> None:
    before = conv_net()
    after = get_pass("float_to_mixed")(before)
    assert_valid(after)
    kinds = op_types(after)
    assert kinds.count("Cast") == 4
    for product in ("Conv", "Gemm"):
        at = kinds.index(product)
        assert kinds[at - 1 : at + 2] == ["Cast", product, "Cast"]
    held = initializers_of(after)
    assert {name for name, array in held.items() if array.dtype == np.float16} == {"w", "fw", "fb"}
    feeds = random_feeds(before)
    np.testing.assert_allclose(run_onnx(after, feeds)["y"], run_onnx(before, feeds)["y"], rtol=1e-2, atol=1e-2)


def _named(model: onnx.ModelProto, op_type: str, name: str) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == op_type:
            node.name = name
    return model
