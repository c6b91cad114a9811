"""Ifs are merged, contain their exclusive nodes, or are removed."""

import numpy as np
import onnx
import pytest

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import as_proto, assert_same_results, assert_valid, op_types, parse

X = np.linspace(-2, 2, 4, dtype=np.float32)


def assert_same_for_both_choices(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    assert_valid(after)
    shape = [dim.dim_value for dim in before.graph.input[0].type.tensor_type.shape.dim]
    for chosen in (True, False):
        assert_same_results(before, after, {"p": np.full(shape, chosen), "x": X}, rtol=0, atol=0)


def branch(name: str, body: str, result: str, kind: str = "float[4]") -> str:
    return f"{name} = {name[0]} () => ({kind} {result}) {{ {body} }}"


TWO = f"""g (bool p, float[4] x) => (float[4] y, float[4] z) {{
  a = If (p) <{branch("then_branch", "u = Neg(x) r = Mul(u, k)", "r")}, {branch("else_branch", "r = Exp(x)", "r")}>
  b = Relu(a)
  c = If (p) <{branch("then_branch", "u = Abs(x) r = Add(u, u)", "r")}, {branch("else_branch", "r = Sqrt(b)", "r")}>
  y = Add(b, a)
  z = Identity(c)
}}"""


def test_ifs_on_one_condition_become_one():
    model = parse(TWO.replace("Sqrt(b)", "Sqrt(x)"), {"k": np.float32(3)})
    merged = get_pass("merge_if_with_same_cond")(model)
    assert op_types(merged).count("If") == 1
    assert_same_for_both_choices(model, merged)


def test_if_that_needs_the_result_of_another_is_not_merged():
    model = parse(TWO, {"k": np.float32(3)})
    merged = get_pass("merge_if_with_same_cond")(model)
    assert op_types(merged) == op_types(model)


def test_three_ifs_with_initialisers_in_branches_are_merged():
    text = "g (bool p, float[4] x) => (float[4] a, float[4] b, float[4] c) { " + " ".join(
        f"{name} = If (p) <{branch('then_branch', f'r = {op}(x, w)', 'r')}, {branch('else_branch', 'r = Neg(x)', 'r')}>"
        for name, op in (("a", "Add"), ("b", "Sub"), ("c", "Mul"))
    )
    model = parse(text + " }")
    for index, node in enumerate(model.graph.node):
        node.attribute[0].g.initializer.append(onnx.numpy_helper.from_array(np.full(4, index + 1, np.float32), "w"))
    merged = get_pass("merge_if_with_same_cond")(model)
    assert op_types(merged) == ["If", "Mul", "Sub", "Add", "Neg", "Neg", "Neg"]
    assert_same_for_both_choices(model, merged)


def test_ifs_on_different_conditions_are_not_merged():
    text = TWO.replace("Sqrt(b)", "Sqrt(x)").replace("c = If (p)", "q = Not(p) c = If (q)")
    model = parse(text, {"k": np.float32(3)})
    assert op_types(get_pass("merge_if_with_same_cond")(model)).count("If") == 2


def test_node_read_by_one_branch_moves_into_it():
    text = f"""g (bool p, float[4] x) => (float[4] y) {{
      a = Abs(x)  b = Sqrt(a)  c = Neg(x)
      y = If (p) <{branch("then_branch", "r = Add(b, c)", "r")}, {branch("else_branch", "r = Exp(c)", "r")}>
    }}"""
    model = parse(text)
    sunk = get_pass("merge_variant_if")(model)
    assert [node.op_type for node in as_proto(sunk).graph.node] == ["Neg", "If"]
    assert op_types(sunk) == ["Neg", "If", "Abs", "Sqrt", "Add", "Exp"]
    assert_same_for_both_choices(model, sunk)


def test_node_with_other_readers_or_an_output_is_kept_outside():
    text = f"""g (bool p, float[4] x) => (float[4] y, float[4] z, float[4] a) {{
      a = Abs(x)  b = Sqrt(a)  z = Relu(b)
      y = If (p) <{branch("then_branch", "r = Add(b, a)", "r")}, {branch("else_branch", "r = Exp(x)", "r")}>
    }}"""
    model = parse(text)
    assert op_types(get_pass("merge_variant_if")(model)) == op_types(model)


SELECT = """g (bool{dims} p, float[4] x) => ({kind} y) {{
  y = If (p) <{then}, {other}>
}}"""


def selection(then: str, other: str, kind: str = "float[4]", dims: str = "", typed: bool = True) -> onnx.ModelProto:
    text = SELECT.format(dims=dims, kind=kind, then=branch("then_branch", then, "r", kind), other=branch("else_branch", other, "r", kind))
    model = parse(text, {"zero": np.array([0]), "k": np.float32(2)})
    return onnx.shape_inference.infer_shapes(model) if typed else model


@pytest.mark.parametrize(
    ("model", "ops"),
    [
        (selection("u = Neg(x) r = Mul(u, k)", "u = Exp(x) r = Div(u, k)"), ["Neg", "Mul", "Exp", "Div", "Where"]),
        (selection("r = Neg(x)", "r = Exp(x)", dims="[1]"), ["Reshape", "Neg", "Exp", "Where"]),
        (selection("r = Less(x, k)", "r = Greater(x, k)", kind="bool[4]"), ["Less", "Greater", "Not", "And", "And", "Or"]),
    ],
    ids=["numbers", "condition of one element", "booleans"],
)
def test_if_becomes_a_where(model, ops):
    expanded = get_pass("expand_if")(model)
    assert op_types(expanded) == ops
    assert_same_for_both_choices(model, expanded)


@pytest.mark.parametrize(
    "model",
    [
        selection("u = Gather(x, zero) r = Expand(u, zero)", "r = Exp(x)"),
        selection("i = Cast<to=7>(x) j = Div(i, i) r = Cast<to=1>(j)", "r = Exp(x)"),
        selection("r = Concat<axis=0>(x, x)", "r = Exp(x)", kind="float[N]"),
    ],
    ids=["indices", "division of integers", "two shapes"],
)
def test_if_that_guards_an_operator_is_kept(model):
    assert op_types(get_pass("expand_if")(model)) == op_types(model)
