"""Attention is recognised, its projections joined, its scale moved and its sums padded; rotary embeddings become products."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from stoker.compiler.errors import OptionError
from stoker.compiler.passes import get_pass
from stoker.compiler.passes.layout.weights import AttentionPadding
from stoker.compiler.passes.matching.attention import find_attentions
from tests.fakes.graphs import assert_same_results, assert_valid, op_types, parse

RANDOM = np.random.default_rng(11)
LAYOUT = {"heads": np.array([0, 0, 2, 4]), "hidden": np.array([0, 0, 8])}
WEIGHTS = {f"w{name}": RANDOM.standard_normal((8, 8)).astype(np.float32) * 0.3 for name in "qkv"}
BIASES = {f"b{name}": RANDOM.standard_normal(8).astype(np.float32) for name in "qkv"}
PROJECT = """
  pq = MatMul(x, wq) q0 = Add(pq, bq) q1 = Reshape(q0, heads) q = Transpose<perm=[0,2,1,3]>(q1)
  pk = MatMul(x, wk) k0 = Add(bk, pk) k1 = Reshape(k0, heads) k = Transpose<perm=[0,2,3,1]>(k1)
  pv = MatMul({value}, wv) v0 = Add(pv, bv) v1 = Reshape(v0, heads) v = Transpose<perm=[0,2,1,3]>(v1)
"""
TAIL = "p = Softmax<axis=-1>(m) c = MatMul(p, v) t = Transpose<perm=[0,2,1,3]>(c) y = Reshape(t, hidden)"
SCORES = {
    "hugging face": "s = MatMul(q, k) d = Div(s, root) m = Add(d, mask)",
    "factor": "s = MatMul(q, k) d = Mul(inverse, s) m = Add(mask, d)",
    "no mask": "s = MatMul(q, k) m = Div(s, root)",
    "two factors": "s = MatMul(q, k) e = Mul(s, inverse) d = Mul(e, inverse) m = Add(d, mask)",
}


def attention(scores: str = SCORES["hugging face"], *, value: str = "x", outputs: str = "", body: str = PROJECT) -> onnx.ModelProto:
    whole = f"{body.format(value=value)} {scores} {TAIL}"
    text = f"g (float[2,3,8] x, float[2,3,8] z, float[2,1,1,3] mask) => (float[2,3,8] y{outputs}) {{ {whole} }}"
    numbers = {"root": np.float32(2), "inverse": np.float32(0.5)}
    used = {name: array for name, array in (LAYOUT | WEIGHTS | BIASES | numbers).items() if f"{name})" in text or f"{name}," in text}
    return onnx.shape_inference.infer_shapes(parse(text, used), data_prop=True)


@pytest.mark.parametrize("scores", SCORES)
def test_query_key_and_value_share_one_product(scores):
    model = attention(SCORES[scores])
    fused = get_pass("fused_attention")(model)
    assert (op_types(fused).count("MatMul"), op_types(fused).count("Split")) == (3, 1)
    assert op_types(fused)[:3] == ["MatMul", "Add", "Split"]
    assert_valid(fused)
    assert_same_results(model, fused, rtol=1e-4, atol=1e-5)


def test_biases_behind_reshapes_stay_behind_the_split():
    body = PROJECT
    for name in "qkv":
        body = body.replace(f"Add(p{name}, b{name})", f"Identity(p{name})").replace(f"Add(b{name}, p{name})", f"Identity(p{name})")
    model = attention(body=body)
    fused = get_pass("fused_attention")(model)
    assert op_types(fused)[:2] == ["MatMul", "Split"]
    assert_same_results(model, fused, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [attention(value="z"), attention(outputs=", float[2,2,3,3] p"), attention(outputs=", float[2,2,3,3] s")])
def test_other_inputs_or_readers_prevent_the_merge_of_projections(model):
    assert op_types(get_pass("fused_attention")(model)) == op_types(model)


@pytest.mark.parametrize("scores", SCORES)
def test_scale_is_folded_into_the_weights_of_the_query(scores):
    model = attention(SCORES[scores])
    scaled = get_pass("pre_scale")(model)
    assert not {"Mul", "Div"} & set(op_types(scaled))
    assert_valid(scaled)
    assert_same_results(model, scaled, rtol=1e-4, atol=1e-5)


def test_shared_weights_let_the_query_itself_be_scaled():
    model = get_pass("pre_scale")(get_pass("fused_attention")(attention()))
    assert op_types(model).count("Mul") == 1
    assert "Div" not in op_types(model)
    assert_same_results(attention(), model, rtol=1e-4, atol=1e-5)


def test_scale_of_the_mask_too_is_kept():
    model = attention("s = MatMul(q, k) a = Add(s, mask) m = Div(a, root)")
    assert op_types(get_pass("pre_scale")(model)) == op_types(model)


def test_sums_are_padded_with_zeros_and_keep_their_shapes():
    model = attention()
    padded = AttentionPadding(multiple=8)(model)
    assert op_types(padded).count("Pad") == 4
    assert_valid(padded)
    assert_same_results(model, padded, rtol=1e-5, atol=1e-6)
    assert op_types(AttentionPadding(multiple=1)(model)) == op_types(model)
    with pytest.raises(OptionError, match="at least 1"):
        AttentionPadding(multiple=0)


def test_mask_by_where_is_attention_and_a_softmax_over_another_axis_is_not():
    where = attention("s = MatMul(q, k) b = Greater(mask, root) m = Where(b, s, mask)")
    assert len(list(find_attentions(ir.from_proto(where)))) == 1
    rows = attention()
    next(node for node in rows.graph.node if node.op_type == "Softmax").attribute[0].i = 2
    assert not list(find_attentions(ir.from_proto(rows)))


BOUNDS = {"zero": 0, "one": 1, "two": 2, "three": 3, "far": 2**62, "last": -1}
ROTATIONS = {
    "halves by slices": "b = Slice(x, three, far, last) n = Neg(b) a = Slice(x, zero, three, last) r = Concat<axis=-1>(n, a)",
    "halves by a split": "a, b = Split<axis=-1, num_outputs=2>(x) n = Neg(b) r = Concat<axis=-1>(n, a)",
    "neighbours": """b = Slice(x, one, far, last, two) n = Neg(b) u = Unsqueeze(n, last) a = Slice(x, zero, far, last, two)
        v = Unsqueeze(a, last) w = Concat<axis=-1>(u, v) r = Reshape(w, shape)""",
}


def rotary(body: str, tail: str = "c = Mul(x, cos) s = Mul(r, sin) y = Add(c, s)") -> onnx.ModelProto:
    text = f"g (float[2,4,6] x, float[4,6] cos, float[4,6] sin) => (float[2,4,6] y) {{ {body} {tail} }}"
    constants = {name: np.array([number]) for name, number in BOUNDS.items() if f"{name})" in body or f"{name}," in body}
    if "shape)" in body:
        constants["shape"] = np.array([2, 4, 6])
    return onnx.shape_inference.infer_shapes(parse(text, constants), data_prop=True)


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_rotation_becomes_a_product_with_a_constant(rotation):
    model = rotary(ROTATIONS[rotation])
    turned = get_pass("matmul_rotary_embedding")(model)
    assert sorted(op_types(turned)) == ["Add", "MatMul", "Mul", "Mul"]
    assert_valid(turned)
    assert_same_results(model, turned, rtol=0, atol=0)


@pytest.mark.parametrize(
    "model",
    [
        rotary(ROTATIONS["halves by slices"].replace("Concat<axis=-1>(n, a)", "Concat<axis=-1>(a, n)")),
        rotary(ROTATIONS["halves by slices"].replace("Slice(x, zero, three", "Slice(x, three, far")),
        rotary(ROTATIONS["halves by slices"], "c = Add(x, cos) s = Add(r, sin) y = Add(c, s)"),
        rotary(ROTATIONS["halves by a split"].replace("n = Neg(b)", "n = Relu(b)")),
    ],
    ids=["order", "one half twice", "not multiplied", "no sign"],
)
def test_other_graphs_than_rotations_are_kept(model):
    assert op_types(get_pass("matmul_rotary_embedding")(model)) == op_types(model)
