"""`Target.porting`: which nodes of a source model a target's vendor compiles, and which only this compiler does."""

import numpy as np
import onnx
import pytest

from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.porting import PortingFact, Support
from stoker.compiler.target import find_target
from tests.fakes.graphs import parse


def facts(target: str, text: str, weights: dict[str, np.ndarray] | None = None, *, opset: int = 18, **options) -> list[PortingFact]:
    model = parse(text, weights, opset=opset)
    model.opset_import.append(onnx.helper.make_opsetid("nowhere", 3))
    return list(find_target(target).porting(model, CompilerOptions(), **options))


@pytest.mark.parametrize("target", ["ipu", "gcu"])
def test_fact_of_a_node_names_its_operator_and_the_version_of_its_definition(target: str) -> None:
    [first, second] = facts(target, "g (float[n,4] x) => (float[n,4] y) { [up] a = Relu(x) y = nowhere.Magic(a) }")
    assert (first.node, first.operator, first.opset, first.version) == ("up", "Relu-14", 18, 14)
    assert (second.node, second.operator, second.opset, second.version) == ("y", "nowhere::Magic", 3, 0)
    assert second.verdict.support is Support.IMPOSSIBLE
    assert "nowhere" in second.verdict.reason


@pytest.mark.parametrize("target", ["ipu", "gcu"])
def test_nodes_that_are_computed_at_compile_time_are_omitted(target: str) -> None:
    found = facts(
        target,
        """g (float[n,4] x) => (float[k] y) {
        s = Shape(x) i = Det(m) r = ConstantOfShape(s) u = Unique(x) f = Flatten(x) y = Reshape(f, s) }""",
        {"m": np.eye(2, dtype=np.float32)},
    )
    assert [each.op_type for each in found] == ["Flatten", "Reshape"]


def test_nodes_of_branches_are_judged() -> None:
    found = facts(
        "ipu",
        """g (bool c, float[2] x) => (float[2] y) {
        y = If(c)<then_branch = t () => (float[2] p) { [deep] p = RandomNormalLike(x) },
                  else_branch = e () => (float[2] q) { q = Relu(x) }> }""",
    )
    assert [(each.node, bool(each.verdict.not_simulated)) for each in found] == [("y", False), ("deep", True), ("q", False)]


def test_operator_of_a_newer_opset_is_judged_by_the_operators_that_define_it() -> None:
    [swish] = facts("gcu", "g (float[4] x) => (float[4] y) { y = Swish(x) }", opset=24)
    assert swish.verdict.support is Support.UNPUBLISHED
    [normal] = facts("gcu", "g (float[4] x) => (float[4] y) { y = Bernoulli(x) }", opset=22)
    assert normal.verdict.support is Support.IMPOSSIBLE


def test_operators_of_custom_libraries_are_not_impossible() -> None:
    [fact] = facts("ipu", "g (float[4] x) => (float[4] y) { y = nowhere.Magic(x) }", custom_libraries=["libmagic.so"])
    assert fact.verdict.support is not Support.IMPOSSIBLE


def test_target_without_a_list_of_operators_says_so() -> None:
    target = find_target("cpu")
    assert not target.has_porting
    with pytest.raises(CompileError, match="target 'cpu' has no list of operators"):
        target.porting(onnx.ModelProto(), CompilerOptions())
