import logging

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.passes import PassManager, get_pass
from stoker.compiler.passes.shape import require_static_inputs
from tests.fakes.graphs import (
    as_ir,
    as_proto,
    assert_same_results,
    assert_valid,
    initializers_of,
    model_of,
    op_types,
    parse,
    random_feeds,
    tensor,
)


def shape(model: object, name: str) -> list[object]:
    graph = as_proto(model).graph  # type: ignore[arg-type]
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.name == name:
            return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in value.type.tensor_type.shape.dim]
    raise AssertionError(f"{name} has no shape")


TWO_INPUTS = "g (float[n,3] a, float[n,s] b, float t) => (float[n,3] y, float[n,s] z) { y = Add(a, t) z = Relu(b) }"


def test_const_batch_size_sets_every_input_and_equal_names() -> None:
    after = get_pass("const_batch_size", batch_size=4)(parse(TWO_INPUTS))
    assert [shape(after, name) for name in "abtyz"] == [[4, 3], [4, "s"], [], [4, 3], [4, "s"]]
    assert_same_results(parse(TWO_INPUTS), after, random_feeds(after))


def test_const_batch_size_accepts_another_axis() -> None:
    model = parse("g (float[3,n] a) => (float[3,n] y) { y = Relu(a) }")
    assert shape(get_pass("const_batch_size", batch_size=4, batch_axis=-1)(model), "y") == [3, 4]


@pytest.mark.parametrize(
    ("inputs", "axis", "message"),
    [
        ("float[2,3] a", 0, "input 'a' dimension 0 is 2 in the model and cannot be changed to 4"),
        ("float[n] a", 1, "input 'a' has 1 dimensions .* no batch axis 1"),
    ],
)
def test_const_batch_size_refuses_fixed_dimensions(inputs: str, axis: int, message: str) -> None:
    model = parse(f"g ({inputs}) => (float[p] y) {{ y = Relu(a) }}")
    with pytest.raises(ShapeError, match=message):
        PassManager([get_pass("const_batch_size", batch_size=4, batch_axis=axis)]).run(model)


def test_const_batch_size_of_none_changes_nothing_and_of_zero_is_refused() -> None:
    assert not get_pass("const_batch_size").apply(as_ir(parse(TWO_INPUTS)))
    with pytest.raises(OptionError, match="batch_size 0"):
        get_pass("const_batch_size", batch_size=0)


def test_const_input_shape_fixes_variable_dimensions() -> None:
    after = get_pass("const_input_shape", input_shape={"b": [2, 5]})(parse(TWO_INPUTS))
    assert [shape(after, name) for name in "abyz"] == [[2, 3], [2, 5], [2, 3], [2, 5]]
    require_static_inputs(as_ir(after))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": [2, 4]}, "input 'a' dimension 1 is 3 in the model and cannot be changed to 4"),
        ({"a": [2, 3], "b": [5, 1]}, "input 'b' dimension 0 is named 'n' like that of input 'a' dimension 0, which is 2; it cannot be 5"),
        ({"a": [2]}, r"input 'a' has 2 dimensions \[n,3\], not 1"),
        ({"a": [-2, 3]}, "input 'a' dimension 0: -2 is no size"),
        ({"c": [2]}, "no input 'c' to give a shape to; the inputs are a, b, t"),
    ],
)
def test_const_input_shape_refuses_contradictions(given: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        get_pass("const_input_shape", input_shape=given)(parse(TWO_INPUTS))


def test_const_input_shape_ranks_an_input_without_a_shape() -> None:
    model = model_of([helper.make_node("Relu", ["a"], ["y"])], [tensor("a", None)], [tensor("y", [None, None])])
    after = PassManager([get_pass("const_input_shape", input_shape={"a": [2, 3]}), "shape_inference"]).run(model)
    assert (shape(after, "a"), shape(after, "y")) == ([2, 3], [2, 3])


def test_all_missing_dimensions_are_listed_at_once() -> None:
    with pytest.raises(ShapeError, match=r"input 'a' dimension 0 \('n'\); input 'b' dimension 0 \('n'\); input 'b' dimension 1 \('s'\)"):
        require_static_inputs(as_ir(parse(TWO_INPUTS)))


def test_overridable_initialiser_is_not_an_input_to_fix() -> None:
    model = parse("g (float[n,2] x, float[2] w) => (float[n,2] y) { y = Add(x, w) }", {"w": np.ones(2, np.float32)})
    after = get_pass("const_batch_size", batch_size=3)(model)
    assert shape(after, "x") == [3, 2]


def test_shape_inference_fills_values_outputs_and_branches() -> None:
    model = parse("""g (bool c, float[2,3] x) => (float[p,q] y) {
        t = Transpose(x)
        y = If(c) <
            then_branch = a () => (float[u,v] p1) { r = Relu(t) p1 = Relu(r) },
            else_branch = b () => (float[w,z] p2) { p2 = Neg(t) }>
    }""")
    graph = as_ir(model)
    assert get_pass("shape_inference").apply(graph)
    assert shape(graph, "t") == [3, 2]
    inner = graph.graph[1].attributes["then_branch"].as_graph()
    assert inner[0].outputs[0].shape == ir.Shape([3, 2])
    assert_valid(graph)
    assert not get_pass("shape_inference").apply(graph)


def test_shape_inference_keeps_large_weights_and_follows_small_ones() -> None:
    weights = {"w": np.ones((64, 64), np.float32), "s": np.array([4, 32])}
    model = as_ir(parse("g (float[2,64] x) => (float[p,q] y) { z = MatMul(x, w) y = Reshape(z, s) }", weights))
    get_pass("shape_inference").apply(model)
    assert shape(model, "y") == [4, 32]
    assert list(model.graph.initializers) == ["w", "s"]
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_shape_inference_reports_contradictions_and_keeps_other_shapes(caplog: pytest.LogCaptureFixture) -> None:
    model = as_ir(parse("g (float[2,3] x) => (float[p,q] y) { a = Relu(x) b = MatMul(a, a) y = Relu(b) }"))
    with caplog.at_level(logging.WARNING):
        get_pass("shape_inference").apply(model)
    assert "MatMul" in caplog.text
    assert shape(model, "a") == [2, 3]


def test_fill_squeeze_axes_names_the_dimensions_of_one() -> None:
    model = parse("g (float[1,2,1] x) => (float[2] y) { y = Squeeze(x) }")
    after = get_pass("fill_squeeze_axes")(model)
    assert [array.tolist() for array in initializers_of(after).values()] == [[0, 2]]
    assert_same_results(model, after)
    assert not get_pass("fill_squeeze_axes").apply(as_ir(after))


def test_fill_squeeze_axes_skips_unknown_shapes() -> None:
    assert not get_pass("fill_squeeze_axes").apply(as_ir(parse("g (float[1,n] x) => (float[n] y) { y = Squeeze(x) }")))


def test_constant_folding_computes_nodes_without_inputs() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { t = Transpose(w) s = Mul(t, c) y = Add(x, s) }",
                  {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "c": np.float32(2)})  # fmt: skip
    after = PassManager(["constant_folding"], verify_each=True).run(model)
    assert op_types(after) == ["Add"]
    assert_same_results(model, after)


def test_constant_folding_creates_nothing_above_its_limit() -> None:
    model = parse("g (float[4,4] x) => (float[4,4] y) { e = Expand(c, s) f = Add(c, c) g1 = Add(e, f) y = Add(x, g1) }",
                  {"c": np.float32(2), "s": np.array([4, 4])})  # fmt: skip
    after = get_pass("constant_folding", max_tensor_size=63)(model)
    assert op_types(after) == ["Expand", "Add", "Add"]
    assert_same_results(model, after)
    assert op_types(get_pass("constant_folding", max_tensor_size=64)(model)) == ["Add"]
    with pytest.raises(OptionError):
        get_pass("constant_folding", max_tensor_size=-2)


def test_constant_folding_keeps_inputs_with_defaults_and_random_numbers() -> None:
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { r = RandomNormal<shape = [2]>() z = Neg(w) q = Add(z, r) y = Add(x, q) }",
                  {"w": np.ones(2, np.float32)})  # fmt: skip
    assert op_types(get_pass("constant_folding")(model)) == ["RandomNormal", "Neg", "Add", "Add"]


def test_trace_folding_computes_shapes_but_no_weights() -> None:
    model = parse("""g (float[2,3,4] x) => (float[p,q] y) {
        s = Shape(x) b = Gather(s, zero) b1 = Unsqueeze(b, axes) t = Concat<axis = 0>(b1, rest)
        r = Reshape(x, t) n = Neg(w) y = Mul(r, n)
    }""", {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1]), "w": np.ones(12, np.float32)})  # fmt: skip
    after = get_pass("trace_folding")(model)
    assert op_types(after) == ["Reshape", "Neg", "Mul"]
    assert shape(after, "y") == [2, 12]
    assert_same_results(model, after)
