"""Layer normalisation in the spellings of exporters becomes one node."""

from typing import Any

import numpy as np
import pytest

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import assert_same_results, assert_valid, initializers_of, op_types, parse

MEAN = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m)"
SPELLINGS = {
    "torch": "d2 = Pow(d, two) v = ReduceMean<axes=[-1]>(d2) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) w = Mul(n, scale) y = Add(w, bias)",
    "products": """d2 = Mul(d, d) v = ReduceMean<axes=[2]>(d2) e = Add(eps, v) s = Sqrt(e) r = Reciprocal(s)
        n = Mul(r, d) w = Mul(scale, n) y = Add(bias, w)""",
    "twice the deviation": """k = Sub(x, m) d2 = Mul(k, k) v = ReduceMean<axes=[-1]>(d2) e = Add(v, eps) s = Sqrt(e)
        n = Div(d, s) w = Mul(n, scale) y = Add(w, bias)""",
    "tensorflow": """d2 = Mul(d, d) v = ReduceMean<axes=[-1]>(d2) e = Add(v, eps) s = Sqrt(e) r = Reciprocal(s) f = Mul(r, scale)
        a = Mul(x, f) c = Mul(m, f) b = Sub(bias, c) y = Add(b, a)""",
}


def norm_graph(body: str, *, head: str = MEAN, outputs: str = "", **changed):
    constants = {
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "scale": np.linspace(0.5, 1.5, 4, dtype=np.float32),
        "bias": np.linspace(-1, 1, 4, dtype=np.float32),
    } | changed
    used = {name: array for name, array in constants.items() if f"{name})" in body or f"{name}," in body}
    return parse(f"g (float[2,3,4] x) => (float[2,3,4] y{outputs}) {{ {head} {body} }}", used, opset=17)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_one_node_with_the_models_own_weights(spelling):
    model = norm_graph(SPELLINGS[spelling])
    fused = get_pass("layer_norm_pattern")(model)
    assert op_types(fused) == ["LayerNormalization"]
    assert set(initializers_of(fused)) == {"scale", "bias"}
    assert_valid(fused)
    assert_same_results(model, fused, rtol=1e-5, atol=1e-5)


def test_means_with_their_axes_as_an_input_are_recognised():
    body = "d2 = Mul(d, d) v = ReduceMean(d2, axes) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) w = Mul(n, scale) y = Add(w, bias)"
    model = norm_graph(body, head="m = ReduceMean(x, axes) d = Sub(x, m)", axes=np.array([-1]))
    model.opset_import[0].version = 18
    fused = get_pass("layer_norm_pattern")(model)
    assert op_types(fused) == ["LayerNormalization"]
    assert_same_results(model, fused, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tail", "inputs"), [("y = Identity(n)", 2), ("y = Mul(n, scale)", 2), ("y = Add(n, bias)", 3)])
def test_scale_and_bias_may_be_omitted(tail, inputs):
    model = norm_graph("d2 = Mul(d, d) v = ReduceMean<axes=[-1]>(d2) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) " + tail)
    fused = get_pass("layer_norm_pattern")(model)
    norm = next(node for node in fused.graph.node if node.op_type == "LayerNormalization")
    assert len(norm.input) == inputs
    assert_same_results(model, fused, rtol=1e-5, atol=1e-5)


def test_several_normalised_dimensions_and_scalars_get_one_shape():
    head = "m = ReduceMean<axes=[1,2]>(x) d = Sub(x, m)"
    body = "d2 = Mul(d, d) v = ReduceMean<axes=[-1,-2]>(d2) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) w = Mul(n, scale) y = Add(w, bias)"
    model = norm_graph(body, head=head, scale=np.array([2.0], np.float32), bias=np.arange(12, dtype=np.float32).reshape(1, 3, 4))
    fused = get_pass("layer_norm_pattern")(model)
    assert op_types(fused) == ["LayerNormalization"]
    assert {array.shape for array in initializers_of(fused).values()} == {(3, 4)}
    assert_same_results(model, fused, rtol=1e-5, atol=1e-5)


NOT_NORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "another axis": ("m = ReduceMean<axes=[1]>(x) d = Sub(x, m)", SPELLINGS["torch"].replace("[-1]", "[1]"), {}),
    "two different axes": ("m = ReduceMean<axes=[1]>(x) d = Sub(x, m)", SPELLINGS["torch"], {}),
    "cubed": (MEAN, SPELLINGS["torch"], {"two": np.float32(3)}),
    "squares of x itself": (MEAN, SPELLINGS["torch"].replace("Pow(d, two)", "Pow(x, two)"), {}),
    "an epsilon for each row": (MEAN, SPELLINGS["torch"], {"eps": np.full((3, 1), 1e-5, np.float32)}),
}


@pytest.mark.parametrize("name", NOT_NORMS)
def test_other_graphs_than_layer_normalisation_are_kept(name):
    head, body, changed = NOT_NORMS[name]
    model = norm_graph(body, head=head, **changed)
    assert op_types(get_pass("layer_norm_pattern")(model)) == op_types(model)


def test_standard_deviation_that_is_an_output_is_kept():
    model = norm_graph(SPELLINGS["torch"], outputs=", float[2,3,1] s")
    assert op_types(get_pass("layer_norm_pattern")(model)) == op_types(model)


def test_scale_along_another_dimension_is_not_folded():
    model = norm_graph(SPELLINGS["torch"], scale=np.linspace(1, 2, 3, dtype=np.float32).reshape(3, 1))
    fused = get_pass("layer_norm_pattern")(model)
    assert op_types(fused) == ["LayerNormalization", "Mul", "Add"]
    assert_same_results(model, fused, rtol=1e-5, atol=1e-5)
