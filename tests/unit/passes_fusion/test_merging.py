"""Slices, products, layers and experts become fewer and larger nodes that compute the same."""

import numpy as np
import onnx
import pytest

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.passes import get_pass
from stoker.compiler.passes.fusion.merging import MergeMatmul, MergeMatmulAdd, MergeMoE
from tests.fakes.graphs import assert_same_results, assert_valid, op_types, parse

RANDOM = np.random.default_rng(7)


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def named(text: str, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = parse(text, constants)
    for node in model.graph.node:
        node.name = f"n_{node.output[0]}"
    return onnx.shape_inference.infer_shapes(model)


BOUNDS = {"zero": np.array([0]), "two": np.array([2]), "three": np.array([3]), "last": np.array([-1]), "far": np.array([2**62])}


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("a = Slice(x, zero, two, last) b = Slice(x, two, far, last)", ["Split"]),
        ("b = Slice(x, two, far, last) a = Slice(x, zero, two, last)", ["Split"]),
        ("a = Slice(x, zero, two, last) b = Slice(x, two, far, last) c = Slice(x, zero, two, last)", ["Split"]),
        ("a = Slice(x, zero, two, last) b = Slice(x, three, far, last)", ["Slice", "Slice"]),
        ("a = Slice(x, zero, three, last) b = Slice(x, two, far, last)", ["Slice", "Slice"]),
        ("a = Slice(x, zero, two, last) b = Slice(x, two, far, zero)", ["Slice", "Slice"]),
        ("a = Slice(x, zero, far, last)", ["Slice"]),
    ],
    ids=["two", "in another order", "one twice", "a gap", "overlap", "two dimensions", "one"],
)
def test_slices_that_partition_a_tensor_become_a_split(body, ops):
    outputs = ", ".join(f"float[N,M] {name}r" for name in "abc" if f"{name} = " in body)
    body += " " + " ".join(f"{name}r = Relu({name})" for name in "abc" if f"{name} = " in body)
    model = named(f"g (float[4,5] x) => ({outputs}) {{ {body} }}", BOUNDS)
    merged = get_pass("merge_multi_slice")(model)
    assert [op for op in op_types(merged) if op != "Relu"] == ops
    assert_valid(merged)
    assert_same_results(model, merged, rtol=0, atol=0)


def test_slice_that_is_an_output_keeps_its_name():
    model = named("g (float[4,5] x) => (float[4,2] a, float[4,3] b) { a = Slice(x, zero, two, last) b = Slice(x, two, far, last) }", BOUNDS)
    merged = get_pass("merge_multi_slice")(model)
    assert op_types(merged) == ["Split"]
    assert_same_results(model, merged, rtol=0, atol=0)


def test_products_of_one_input_share_one_product_and_a_split():
    text = "g (float[2,3,4] x) => (float[2,3,5] a, float[2,3,6] b) { a = MatMul(x, u) c = MatMul(x, v) b = Relu(c) }"
    model = named(text, {"u": weights(4, 5), "v": weights(4, 6)})
    merged = MergeMatmul("n_a,n_c")(model)
    assert op_types(merged) == ["MatMul", "Split", "Relu"]
    assert_valid(merged)
    assert_same_results(model, merged, rtol=1e-5, atol=1e-5)


def test_products_of_different_inputs_become_one_batched_product():
    text = "g (float[3,4] x, float[3,4] z) => (float[3,5] a, float[3,5] b) { a = MatMul(x, u) r = Relu(a) t = Tanh(z) b = MatMul(t, v) }"
    model = named(text, {"u": weights(4, 5), "v": weights(4, 5)})
    merged = MergeMatmul(["n_a", "n_b"])(model)
    assert op_types(merged).count("MatMul") == 1
    assert_valid(merged)
    assert_same_results(model, merged, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [(5,), (1, 5), (1,)])
def test_layers_of_one_input_share_one_layer(bias):
    text = "g (float[3,4] x) => (float[3,5] a, float[3,5] b) { p = MatMul(x, u) a = Add(p, m) q = MatMul(x, v) b = Add(n, q) }"
    model = named(text, {"u": weights(4, 5), "v": weights(4, 5), "m": weights(*bias), "n": weights(*bias)})
    merged = MergeMatmulAdd(["n_p", "n_a", "n_q", "n_b"])(model)
    assert op_types(merged) == ["MatMul", "Add", "Split"]
    assert_valid(merged)
    assert_same_results(model, merged, rtol=1e-5, atol=1e-5)


def test_layers_of_different_inputs_are_stacked_with_their_biases():
    text = (
        "g (float[3,4] x, float[3,4] z) => (float[3,5] a, float[3,5] b) { p = MatMul(x, u) a = Add(p, m) q = MatMul(z, v) b = Add(q, n) }"
    )
    model = named(text, {"u": weights(4, 5), "v": weights(4, 5), "m": weights(5), "n": weights(5)})
    merged = MergeMatmulAdd("n_p,n_a,n_q,n_b")(model)
    assert (op_types(merged).count("MatMul"), op_types(merged).count("Add")) == (1, 1)
    assert_valid(merged)
    assert_same_results(model, merged, rtol=1e-5, atol=1e-5)


EXPERTS = """g (float[2,3,4] x, float[2,3,4] z) => (float[2,3,4] y) {{
  p0 = MatMul({first}, u0) a0 = Add(p0, m0) r0 = Relu(a0) q0 = MatMul(r0, v0) e0 = Add(q0, n0)
  p1 = MatMul({second}, u1) a1 = Add(m1, p1) r1 = {activation}(a1) q1 = MatMul(r1, v1) e1 = Add(q1, n1)
  s = Add(e0, e1) y = Mul(s, half)
}}"""


def experts(first: str = "x", second: str = "x", activation: str = "Relu", swapped: bool = True) -> onnx.ModelProto:
    text = EXPERTS.format(first=first, second=second, activation=activation)
    text = text if swapped else text.replace("Add(m1, p1)", "Add(p1, m1)")
    constants = {
        f"{name}{i}": weights(*shape) for i in range(2) for name, shape in (("u", (4, 6)), ("v", (6, 4)), ("m", (6,)), ("n", (4,)))
    }
    return named(text, constants | {"half": np.array(0.5, np.float32)})


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("second", ["x", "z"])
def test_experts_are_computed_in_one_batch(second, swapped):
    model = experts(second=second, swapped=swapped)
    merged = MergeMoE("n_p0,n_e0,n_p1,n_e1")(model)
    assert (op_types(merged).count("MatMul"), op_types(merged).count("Relu")) == (2, 1)
    assert_valid(merged)
    assert_same_results(model, merged, rtol=1e-4, atol=1e-5)


def test_gelu_whose_input_is_read_twice_is_stacked_too():
    text = """g (float[3,4] x) => (float[3,4] a, float[3,4] b) {
      p = MatMul(x, u) d = Div(p, k) e = Erf(d) f = Add(e, one) a = Mul(p, f)
      q = MatMul(x, v) g = Div(q, k) h = Erf(g) i = Add(h, one) b = Mul(q, i)
    }"""
    model = named(text, {"u": weights(4, 4), "v": weights(4, 4), "k": np.array(2**0.5, np.float32), "one": np.array(1, np.float32)})
    merged = MergeMoE("n_p,n_a,n_q,n_b")(model)
    assert (op_types(merged).count("MatMul"), op_types(merged).count("Erf")) == (1, 1)
    assert_same_results(model, merged, rtol=1e-4, atol=1e-5)


def test_different_experts_are_refused_with_their_nodes():
    with pytest.raises(PassError, match=r"node 'n_r1' \(Tanh.*and node 'n_r0' \(Relu.*differ"):
        MergeMoE("n_p0,n_e0,n_p1,n_e1")(experts(activation="Tanh", swapped=False))
    with pytest.raises(PassError, match="cannot be computed for several branches at once"):
        MergeMoE("n_p0,n_e0,n_p1,n_e1")(_with_softmax())


def _with_softmax() -> onnx.ModelProto:
    model = experts(activation="Softmax", swapped=False)
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Softmax"
    return model


def test_dependent_nodes_cannot_be_merged():
    model = named("g (float[3,4] x) => (float[3,4] b) { a = MatMul(x, u) b = MatMul(a, v) }", {"u": weights(4, 4), "v": weights(4, 4)})
    with pytest.raises(PassError, match=r"node 'n_b'.* needs the result of node 'n_a'"):
        MergeMatmul("n_a,n_b")(model)


def test_inputs_of_different_shapes_cannot_be_stacked():
    text = "g (float[3,4] x, float[2,4] z) => (float[3,5] a, float[2,5] b) { a = MatMul(x, u) b = MatMul(z, v) }"
    model = named(text, {"u": weights(4, 5), "v": weights(4, 5)})
    with pytest.raises(PassError, match="must have one known shape"):
        MergeMatmul("n_a,n_b")(model)


def test_names_without_branches_are_refused():
    for names in ("", "n_a", "n_a,n_a"):
        with pytest.raises(OptionError, match="merge_matmul"):
            MergeMatmul(names)
    with pytest.raises(OptionError, match="at least two pairs"):
        MergeMoE("n_a,n_b,n_c")
    with pytest.raises(PassError, match="no node named 'n_p2'; nearest: n_p"):
        MergeMoE("n_p0,n_e0,n_p2,n_e1")(experts())
    with pytest.raises(PassError, match=r"node 'n_e1'.* does not depend on node 'n_s'"):
        MergeMoE("n_p0,n_e0,n_s,n_e1")(experts())
