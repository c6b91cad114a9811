import numpy as np
import onnx
import pytest
from onnx import helper

from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.lowering.typed_graph import check_output_shapes, static_shape, typed_graph
from tests.fakes.graphs import model_of, op_types, parse, tensor


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return {str(value.name): static_shape(value) for node in typed_graph(model).graph for value in node.outputs if value.shape is not None}


def test_variable_dimension_is_named() -> None:
    with pytest.raises(ShapeError, match=r"input 'x': dimension 1 is variable \(n\); fix it by input_shape or batch_size"):
        typed_graph(parse("g (float[2,n] x) => (float[2,n] y) { y = Relu(x) }"))


def test_size_that_depends_on_values_is_named() -> None:
    with pytest.raises(ShapeError, match="output 'y'"):
        check_output_shapes(typed_graph(parse("g (float[4] x) => (int64[1,n] y) { y = NonZero(x) }")))


def test_shapes_are_inferred_through_arithmetic_on_shapes() -> None:
    model = parse(
        """g (float[2,3,4] x) => (float[2,12] y) {
        s = Shape(x) h = Gather(s, zero) u = Unsqueeze(h, axes) t = Concat<axis=0>(u, rest) a = Reshape(x, t) y = Exp(a) }""",
        {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])},
    )
    assert shapes(model)["a"] == (2, 12)


def test_shapes_are_inferred_through_onnxruntime_s_own_operators() -> None:
    model = parse(
        """g (float[2,3,8] x) => (float[2,3,3] y, float[2,3,8] z) {
        a = com.microsoft.Gelu(x)
        b = com.microsoft.FusedMatMul<transB=1>(a, a)
        y = Exp(b)
        n, _m, _v, s = com.microsoft.SkipLayerNormalization(a, x, g, g)
        z = Add(n, s) }""",
        {"g": np.ones(8, np.float32)},
    )
    found = shapes(model)
    assert (found["a"], found["b"], found["n"], found["s"]) == ((2, 3, 8), (2, 3, 3), (2, 3, 8), (2, 3, 8))


def test_attention_is_as_wide_as_its_values() -> None:
    model = parse(
        "g (float[2,5,8] x) => (float[2,5,16] y) { a = com.microsoft.Attention<num_heads=2>(x, w, b) y = Relu(a) }",
        {"w": np.ones((8, 48), np.float32), "b": np.ones(48, np.float32)},
    )
    assert shapes(model)["a"] == (2, 5, 16)


def test_only_nodes_needed_by_the_requested_outputs_are_kept() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) a = Exp(x) z = Add(a, w) }", {"w": np.ones(2, np.float32)})
    kept = typed_graph(model, ("y",))
    assert op_types(kept) == ["Relu"]
    assert not kept.graph.initializers
    with pytest.raises(OptionError, match="no output 'q'; it has 'y', 'z'"):
        typed_graph(model, ("q",))


def test_input_with_a_default_is_a_weight() -> None:
    declared = [tensor("x", (2,)), tensor("w", (2,))]
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], declared, [tensor("y", (2,))], {"w": np.ones(2, np.float32)})
    assert [value.name for value in typed_graph(model).graph.inputs] == ["x"]


def test_functions_are_inlined() -> None:
    function = helper.make_function(
        "own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    node = helper.make_node("Double", ["x"], ["y"], domain="own")
    model = model_of([node], [tensor("x", (2,))], [tensor("y", (2,))], functions=[function], domains=["own"])
    assert op_types(typed_graph(model)) == ["Add"]


def test_given_model_is_unchanged() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Exp(y) }")
    before = model.SerializeToString()
    typed_graph(model, ("y",))
    assert model.SerializeToString() == before


@pytest.mark.parametrize(("declared", "shape"), [("4,4", r"\[4, 4\]"), ("1,1,4,5", r"\[1, 1, 4, 5\]")])
def test_output_with_another_shape_than_its_nodes_is_refused(declared: str, shape: str) -> None:
    model = parse(f"g (float[1,1,4,4] x) => (float[{declared}] y) {{ y = MatMul(x, x) }}")
    model.graph.node[0].name = "product"
    with pytest.raises(ShapeError, match=rf"'y' is declared as {shape}, but node 'product' \(MatMul\) gives \[1, 1, 4, 4\]"):
        check_output_shapes(typed_graph(model))
