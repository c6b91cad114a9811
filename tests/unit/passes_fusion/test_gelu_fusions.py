"""GELU in the spellings of exporters becomes one node, and similar graphs are kept."""

import numpy as np
import pytest

from stoker.compiler.convert.converter import Converter
from stoker.compiler.passes import get_pass
from tests.fakes.graphs import assert_same_results, op_types, parse, random_feeds
from tests.fakes.networks import transformer

ERF_SPELLINGS = {
    "torch: x / sqrt2, x * (1 + erf), * 0.5": "d = Div(x, s2) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
    "tf2onnx: 0.5 * (1 + erf(x * 0.707)) * x": "d = Mul(r2, x) e = Erf(d) a = Add(one, e) m = Mul(half, a) y = Mul(m, x)",
    "half of x first": "h = Mul(half, x) d = Div(x, s2) e = Erf(d) a = Add(e, one) y = Mul(h, a)",
    "divided by two": "d = Div(x, s2) e = Erf(d) a = Add(e, one) m = Mul(a, x) y = Div(m, two)",
}
TANH_SPELLINGS = {
    "pow": "p = Pow(x, three) k = Mul(k3, p) s = Add(x, k) t = Mul(r2pi, s) h = Tanh(t) a = Add(h, one) m = Mul(x, a) y = Mul(half, m)",
    "squares": """q = Mul(x, x) p = Mul(x, q) k = Mul(p, k3) s = Add(k, x) t = Mul(s, r2pi)
        h = Tanh(t) a = Add(one, h) g = Mul(half, x) y = Mul(g, a)""",
    "factored": """q = Mul(x, x) k = Mul(k3, q) b = Add(one, k) u = Mul(r2pi, x) t = Mul(u, b)
        h = Tanh(t) a = Add(one, h) m = Mul(a, half) y = Mul(m, x)""",
    "pow of two": """q = Pow(x, two) p = Mul(q, x) k = Mul(k3, p) s = Add(x, k) t = Mul(r2pi, s)
        h = Tanh(t) a = Add(h, one) m = Mul(half, a) y = Mul(x, m)""",
}


def gelu_graph(body: str, *, dtype: str = "float", outputs: str = "", rank: int = 0, **changed: float):
    np_dtype = {"float": np.float32, "float16": np.float16}[dtype]
    numbers = {
        "s2": 2**0.5,
        "r2": 0.5**0.5,
        "half": 0.5,
        "one": 1.0,
        "two": 2.0,
        "three": 3.0,
        "k3": 0.044715,
        "r2pi": (2 / np.pi) ** 0.5,
    } | changed
    text = f"g ({dtype}[2,3] x) => ({dtype}[2,3] y{outputs}) {{ {body} }}"
    shape = (1,) * rank
    constants = {name: np.full(shape, number, np_dtype) for name, number in numbers.items() if f"{name})" in body or f"{name}," in body}
    return parse(text, constants)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("spelling", ERF_SPELLINGS)
def test_every_spelling_of_the_erf_gelu_becomes_one_node(spelling, rank):
    model = gelu_graph(ERF_SPELLINGS[spelling], rank=rank)
    fused = get_pass("erf_gelu_pattern")(model)
    assert op_types(fused) == ["Gelu"]
    assert [node.domain for node in fused.graph.node] == ["com.microsoft"]
    assert not fused.graph.initializer
    assert_same_results(model, fused, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("spelling", TANH_SPELLINGS)
def test_every_spelling_of_the_tanh_gelu_becomes_one_node(spelling, rank):
    model = gelu_graph(TANH_SPELLINGS[spelling], rank=rank)
    fused = get_pass("gelu_pattern")(model)
    assert op_types(fused) == ["FastGelu"]
    assert_same_results(model, fused, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fusion", "spellings"), [(get_pass("erf_gelu_pattern"), ERF_SPELLINGS), (get_pass("gelu_pattern"), TANH_SPELLINGS)]
)
def test_half_precision_constants_are_recognised_and_the_node_runs(fusion, spellings):
    model = gelu_graph(next(iter(spellings.values())), dtype="float16")
    fused = fusion(model)
    assert len(op_types(fused)) == 1
    assert_same_results(model, fused, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("fusion", "spellings"), [(get_pass("erf_gelu_pattern"), ERF_SPELLINGS), (get_pass("gelu_pattern"), TANH_SPELLINGS)]
)
def test_gelu_with_another_reader_of_an_inner_value_is_kept(fusion, spellings):
    model = gelu_graph(next(iter(spellings.values())), outputs=", float[2,3] a")
    assert op_types(fusion(model)) == op_types(model)


@pytest.mark.parametrize("wrong", [{"s2": 1.5}, {"one": 2.0}, {"half": 0.25}])
def test_erf_with_other_constants_is_not_a_gelu(wrong):
    model = gelu_graph(next(iter(ERF_SPELLINGS.values())), **wrong)
    assert op_types(get_pass("erf_gelu_pattern")(model)) == op_types(model)


@pytest.mark.parametrize("wrong", [{"k3": 0.05}, {"r2pi": 1.0}, {"three": 2.0}, {"half": 1.0}])
def test_tanh_with_other_constants_is_not_a_gelu(wrong):
    model = gelu_graph(next(iter(TANH_SPELLINGS.values())), **wrong)
    assert op_types(get_pass("gelu_pattern")(model)) == op_types(model)


def test_gate_after_the_gelu_is_kept():
    body = "d = Div(x, s2) e = Erf(d) a = Add(e, one) m = Mul(x, a) g = Mul(m, half) y = Mul(g, x)"
    model = gelu_graph(body)
    fused = get_pass("erf_gelu_pattern")(model)
    assert op_types(fused) == ["Gelu", "Mul"]
    assert_same_results(model, fused, random_feeds(model), rtol=1e-5, atol=1e-6)


def test_gelu_inside_a_branch_is_found():
    text = """g (bool c, float[2,3] x) => (float[2,3] y) {
      y = If (c) <
        then_branch = t () => (float[2,3] ty) { d = Div(x, s2) e = Erf(d) a = Add(e, one) m = Mul(x, a) ty = Mul(m, half) },
        else_branch = f () => (float[2,3] fy) { fy = Relu(x) }
      >
    }"""
    model = parse(text, {"s2": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)})
    fused = get_pass("erf_gelu_pattern")(model)
    assert op_types(fused) == ["If", "Gelu", "Relu"]
    for chosen in (True, False):
        feeds = {"c": np.array(chosen), "x": np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)}
        assert_same_results(model, fused, feeds)


def test_converted_transformer_has_its_gelu_as_one_node_after_weight_folding() -> None:
    network = transformer()
    converted = Converter(enable_erf_gelu=True, skip_passes=["int64_to_int32"]).convert(network.model)
    assert op_types(converted).count("Gelu") == 1
    assert "Erf" not in op_types(converted)
    assert_same_results(network.model, converted, network.feeds, rtol=1e-4, atol=1e-5)
