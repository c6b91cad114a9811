"""Clean-up passes over more than one node: unused, duplicate, unnamed or unordered parts."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from stoker.compiler.errors import PassError
from stoker.compiler.passes import PassManager, get_pass, traverse_nodes
from tests.fakes.graphs import (
    all_graphs,
    as_ir,
    assert_same_results,
    assert_valid,
    initializers_of,
    model_of,
    op_types,
    parse,
    random_feeds,
    tensor,
)

BRANCHES = """g (bool c, float[2] x) => (float[2] y) {
    a = Add(x, w)
    y = If(c) <then_branch = t () => (float[2] p) <float[2] u = {1.0, 2.0}> { p = Mul(a, u) },
               else_branch = e () => (float[2] q) <float[2] u = {3.0, 4.0}> { q = Mul(a, u) }>
}"""


def after(name: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """The operators after pass `name`: the model is valid, has the same results, and a second run changes nothing."""
    manager = PassManager([name], verify_each=True)
    made = manager.run(model)
    for seed in range(2):
        assert_same_results(model, made, random_feeds(model, seed), rtol=0, atol=0)
    assert manager.run(made) == made
    return made


def test_deadend_removes_unread_nodes_and_weights() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Mul(x, u) b = Relu(a) y = Add(x, w) }"
    made = after("eliminate_deadend", parse(text, {"u": np.array([1, 2], np.float32), "w": np.array([3, 4], np.float32)}))
    assert (op_types(made), list(initializers_of(made))) == (["Add"], ["w"])


def test_deadend_keeps_values_read_by_branches_and_cleans_branches() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) { a = Relu(x) z = Neg(x)
        y = If(c) <then_branch = t () => (float[2] p) { d = Abs(a) p = Exp(a) }, else_branch = e () => (float[2] q) { q = Neg(x) }> }"""
    assert op_types(after("eliminate_deadend", parse(text))) == ["Relu", "If", "Exp", "Neg"]


def test_unused_initializers_are_removed_unless_callers_see_them() -> None:
    text = "g (float[2] x, float[2] seen) => (float[2] y, float[2] out) { y = Relu(x) }"
    made = after("eliminate_unused_initializer", parse(text, {name: np.array([1, 2], np.float32) for name in ("seen", "out", "gone")}))
    assert sorted(initializers_of(made)) == ["out", "seen"]


def test_equal_nodes_are_computed_once() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) {
        a = Relu(x) b = Relu(x) c = Neg(a) y = Neg(b) d = Cast<to = 1>(c) z = Cast<to = 1>(y)
    }"""
    made = after("eliminate_duplicate_nodes", parse(text))
    assert op_types(made) == ["Relu", "Neg", "Cast"]


def test_equal_nodes_that_are_both_outputs_keep_both_names() -> None:
    made = after("eliminate_duplicate_nodes", parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Relu(x) }"))
    assert op_types(made) == ["Relu", "Identity"]


def test_identities_of_one_input_that_are_both_outputs_are_kept() -> None:
    model = as_ir(parse("g (float[2] x) => (float[2] y, float[2] z) { y = Identity(x) z = Identity(x) }"))
    assert not get_pass("eliminate_duplicate_nodes").apply(model)


@pytest.mark.parametrize(
    "body",
    [
        "a = Cast<to = 6>(x) b = Cast<to = 7>(x) c = Cast<to = 1>(a) d = Cast<to = 1>(b)",
        "c = RandomUniformLike(x) d = RandomUniformLike(x)",
        "c = Sub(x, w) d = Sub(w, x)",
    ],
)
def test_different_nodes_are_not_merged(body: str) -> None:
    model = parse(f"g (float[2] x) => (float[2] y) {{ {body} y = Add(c, d) }}", {"w": np.array([1, 2], np.float32)})
    assert not get_pass("eliminate_duplicate_nodes").apply(as_ir(model))


def test_nodes_with_different_metadata_are_not_merged() -> None:
    model = as_ir(parse("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(x) y = Add(a, b) }"))
    model.graph[0].metadata_props["device"] = "1"
    assert not get_pass("eliminate_duplicate_nodes").apply(model)


def test_equal_nodes_of_different_branches_are_not_merged() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] p) { a = Relu(x) p = Abs(a) },
                   else_branch = e () => (float[2] q) { a = Relu(x) b = Relu(x) q = Add(a, b) }> }"""
    assert op_types(after("eliminate_duplicate_nodes", parse(text))) == ["If", "Relu", "Abs", "Relu", "Add"]


def test_equal_initializers_are_stored_once() -> None:
    text = "g (float[2] x, float[2] d) => (float[2] y) { p = Add(x, a) q = Add(p, b) r = Add(q, c) s = Add(r, d) y = Add(s, n) }"
    weights = {name: np.array([0, 2], np.float32) for name in "abd"} | {
        "c": np.array([0, 3], np.float32),
        "n": np.array([-0.0, 2], np.float32),
    }
    made = after("eliminate_duplicate_initializer", parse(text, weights))
    assert sorted(initializers_of(made)) == ["a", "c", "d", "n"]


def test_equal_initializers_of_other_types_are_not_merged() -> None:
    text = "g (float[1] x) => (float[1] y, int32[1] z) { y = Add(x, a) z = Add(b, b) }"
    made = after("eliminate_duplicate_initializer", parse(text, {"a": np.array([0], np.float32), "b": np.array([0], np.int32)}))
    assert sorted(initializers_of(made)) == ["a", "b"]


def test_duplicates_in_branches_are_replaced_by_those_of_the_main_graph() -> None:
    model = parse(BRANCHES, {"w": np.array([1, 2], np.float32)})
    made = after("remove_duplicated_initializer", model)
    assert [[each.name for each in graph.initializer] for graph in all_graphs(made)] == [["w"], [], ["u"]]
    assert [len(graph.initializer) for graph in all_graphs(after("eliminate_duplicate_initializer", model))] == [1, 1, 1]


def test_initializers_of_branches_move_to_the_main_graph_under_unique_names() -> None:
    made = after("move_subgraph_initializer", parse(BRANCHES, {"w": np.array([1, 2], np.float32)}))
    main, *branches = all_graphs(made)
    assert len({each.name for each in main.initializer}) == 3
    assert not any(graph.initializer for graph in branches)


def test_initializers_are_not_inputs() -> None:
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", {"w": np.array([1, 2], np.float32)})
    made = after("remove_initializer_from_input", model)
    assert [each.name for each in made.graph.input] == ["x"]


def test_constants_become_initializers_of_their_graph() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        k = Constant<value = float[2] {1.0, 2.0}>() s = Constant<value_float = 3.0>() a = Mul(x, k) b = Add(a, s)
        y = If(c) <then_branch = t () => (float[2] p) { i = Constant<value_ints = [2]>() p = Reshape(b, i) },
                   else_branch = e () => (float[2] q) { q = Neg(b) }> }"""
    made = after("extract_constant_to_initializer", parse(text))
    assert "Constant" not in op_types(made)
    assert [[each.name for each in graph.initializer] for graph in all_graphs(made)] == [["k", "s"], ["i"], []]


def test_constant_that_is_an_output_is_kept() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] k) { k = Constant<value = float[2] {1.0, 2.0}>() y = Mul(x, k) }"
    assert op_types(after("extract_constant_to_initializer", parse(text))) == ["Constant", "Mul"]


def test_constants_of_functions_stay_nodes() -> None:
    body = [helper.make_node("Constant", [], ["k"], value_float=2.0), helper.make_node("Mul", ["a", "k"], ["b"])]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    node = helper.make_node("Twice", ["x"], ["y"], domain="own")
    model = model_of([node], [tensor("x", [2])], [tensor("y", [2])], functions=[function], domains=["own"])
    assert not get_pass("extract_constant_to_initializer").apply(as_ir(model))


def test_nodes_get_unique_names() -> None:
    model = parse(BRANCHES, {"w": np.array([1, 2], np.float32)})
    plain = as_ir(model)
    plain.graph[0].name = plain.graph[1].name = "Mul_1"
    for node in list(traverse_nodes(plain))[2:]:
        node.name = None
    assert get_pass("unique_name_for_nodes").apply(plain)
    assert [node.name for node in traverse_nodes(plain)] == ["Mul_1", "Mul_1_1", "Mul_2", "Mul_3"]
    assert_same_results(model, plain)
    assert not get_pass("unique_name_for_nodes").apply(plain)


def test_nodes_are_sorted_stably() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(x) y = Add(a, b) }")
    shuffled = as_ir(model)
    first = shuffled.graph[0]
    shuffled.graph.remove(first)
    shuffled.graph.append(first)
    assert get_pass("sort_graph").apply(shuffled)
    assert_same_results(model, shuffled)
    assert_valid(shuffled)
    assert not get_pass("sort_graph").apply(shuffled)


def test_cyclic_graph_is_refused() -> None:
    model = as_ir(parse("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = Abs(b) }"))
    model.graph[0].replace_input_with(0, model.graph[1].outputs[0])
    with pytest.raises(PassError, match="graph 'g' goes round in a circle"):
        PassManager(["sort_graph"]).run(model)


def test_every_clean_up_pass_preserves_the_results_of_a_small_network() -> None:
    from stoker.compiler.passes import registry

    registry.load_builtin_passes()
    cleanup = "stoker.compiler.passes.cleanup."
    names = [name for name in registry.get_all_pass_names() if registry.pass_class(name).__module__.startswith(cleanup)]
    assert len(names) == 27  # a new clean-up pass: count it here, and see that the network below has a use for it
    generator = np.random.default_rng(0)
    weights = {"w": generator.standard_normal((4, 3, 3, 3)).astype(np.float32), "one": np.float32(1), "shape": np.array([0, -1])}
    weights |= {name: generator.uniform(0.5, 1, 4).astype(np.float32) for name in ("s", "b", "m", "v")}
    model = parse(
        """g (float[2,3,6,6] x) => (float[2,64] y, float[2,4,4,4] z) {
            i = Identity(x) c = Conv(i, w) n = BatchNormalization(c, s, b, m, v) r = Relu(n) k = Mul(r, one)
            t = Transpose<perm = [0,2,3,1]>(k) u = Transpose<perm = [0,3,1,2]>(t) z = Cast<to = 1>(u) f = Flatten(z) y = Reshape(f, shape)
        }""",
        weights,
    )
    made = ir.to_proto(PassManager(["shape_inference", *names], verify_each=True).run(as_ir(model)))
    assert_same_results(model, made, rtol=1e-4, atol=1e-5)
    assert len(made.graph.node) < len(model.graph.node)
