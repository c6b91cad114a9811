import onnx_ir as ir
from onnx import helper

from stoker.compiler.passes import NodePass, PassManager, traverse_graphs, traverse_nodes
from tests.fakes.graphs import as_ir, assert_same_results, model_of, op_types, parse, random_feeds, tensor

NESTED = """g (bool c, float[2] x) => (float[2] y) {
    y = If(c) <
        then_branch = t () => (float[2] a) { a = If(c) <then_branch = tt () => (float[2] p) { p = Relu(x) },
                                                       else_branch = te () => (float[2] q) { q = Neg(x) }> },
        else_branch = e () => (float[2] b) { b0 = Identity(x) b = Abs(b0) }>
}"""


def with_function() -> ir.Model:
    body = [helper.make_node("Identity", ["a"], ["m"]), helper.make_node("Relu", ["m"], ["b"])]
    function = helper.make_function("own", "Act", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    node = helper.make_node("Act", ["x"], ["y"], domain="own")
    return as_ir(model_of([node], [tensor("x", [2])], [tensor("y", [2])], functions=[function], domains=["own"]))


class CountingPass(NodePass):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def visit(self, node: ir.Node) -> bool:
        self.seen.append(node.op_type)
        return False


def test_every_depth_of_sub_graphs_is_visited() -> None:
    model = as_ir(parse(NESTED))
    assert [graph.name for graph in traverse_graphs(model)] == ["g", "t", "tt", "te", "e"]
    counting = CountingPass()
    counting.run(model)
    assert sorted(counting.seen) == sorted(op_types(model))


def test_functions_are_visited_and_changed() -> None:
    model = with_function()
    assert [node.op_type for node in traverse_nodes(model)] == ["Act", "Identity", "Relu"]
    before = ir.to_proto(model)
    after = PassManager(["eliminate_identity"], verify_each=True).run(before)
    assert [node.op_type for node in after.functions[0].node] == ["Relu"]
    assert_same_results(before, after)


def test_passes_reach_branches_that_read_outer_values() -> None:
    model = parse(NESTED)
    after = PassManager(["eliminate_identity"], verify_each=True).run(model)
    assert sorted(op_types(after)) == ["Abs", "If", "If", "Neg", "Relu"]
    for seed in range(3):
        assert_same_results(model, after, random_feeds(model, seed))
