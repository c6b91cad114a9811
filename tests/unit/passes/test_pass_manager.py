from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from stoker.compiler.errors import OptionError, PassError, ShapeError, Unsupported, UnsupportedOperators
from stoker.compiler.passes import NodePass, Pass, PassManager, get_pass, register, registry
from stoker.compiler.passes.registry import model_pass, node_pass, pass_class
from tests.fakes.graphs import as_ir, assert_same_results, op_types, parse

MODEL = "g (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }"


@pytest.fixture(autouse=True)
def _own_registrations() -> Iterator[None]:
    with registry.temporary_registrations():
        yield


def make(name: str, log: list[str] | None = None, raises: Exception | None = None, **order: Any) -> Pass:
    @register(name, **order)
    class Made(Pass):
        def run(self, model: ir.Model) -> bool:
            if log is not None:
                log.append(name)
            if raises is not None:
                raise raises
            return False

    return Made()


def names(manager: PassManager) -> list[str]:
    manager.sort_passes()
    return [each.name for each in manager.passes]


def test_sorted_list_is_unchanged() -> None:
    assert names(PassManager([make("c"), make("a", depend=["c"]), make("b", before=["d"]), make("d")])) == ["c", "a", "b", "d"]


def test_passes_move_just_behind_their_dependencies() -> None:
    assert names(PassManager([make("a", depend=["c"]), make("b"), make("c"), make("d")])) == ["b", "c", "a", "d"]


def test_passes_move_before_their_successors() -> None:
    assert names(PassManager([make("late"), make("other"), make("early", before=["late"])])) == ["other", "early", "late"]


def test_repeated_pass_is_kept_and_one_earlier_occurrence_is_sufficient() -> None:
    shape, needs = make("shape_"), make("needs", depend=["shape_"])
    assert names(PassManager([shape, needs, shape])) == ["shape_", "needs", "shape_"]


def test_passes_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(PassError, match="'a' may not run together with 'b'"):
        PassManager([make("a", against=["b"]), make("b")]).sort_passes()


def test_missing_dependency_is_named() -> None:
    with pytest.raises(PassError, match="'a' must come after 'nowhere', which is not in the list"):
        PassManager([make("a", depend=["nowhere"])]).run(parse(MODEL))


def test_dependency_cycle_is_printed() -> None:
    passes = [make("x"), make("a", depend=["c"]), make("b", depend=["a"]), make("c", depend=["b"])]
    with pytest.raises(PassError, match=r"cannot be ordered: ('[abc]' before ){3}'[abc]'$"):
        PassManager(passes).sort_passes()


def test_run_sorts_reports_progress_and_keeps_a_proto_unchanged() -> None:
    log: list[str] = []
    steps: list[tuple[int, int, str]] = []
    model = parse(MODEL)
    manager = PassManager([make("b", log, depend=["a"]), make("a", log), "eliminate_identity"])
    after = manager.run(model, lambda done, total, name: steps.append((done, total, name)))
    assert log == ["a", "b"]
    assert steps == [(0, 3, "a"), (1, 3, "b"), (2, 3, "eliminate_identity"), (3, 3, "")]
    assert (op_types(model), op_types(after)) == (["Identity", "Relu"], ["Relu"])


def test_ir_model_is_changed_in_place() -> None:
    model = as_ir(parse(MODEL))
    assert PassManager(["eliminate_identity"]).run(model) is model
    assert op_types(model) == ["Relu"]


def test_unknown_passes_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(PassError, match="no pass 'eliminate_idenity'; did you mean eliminate_identity"):
        PassManager(["eliminate_idenity"])


def test_unknown_settings_of_a_pass_are_refused() -> None:
    with pytest.raises(PassError, match=r"pass 'const_batch_size': .*speed"):
        get_pass("const_batch_size", speed=3)


@pytest.mark.parametrize("error", [ValueError("boom"), ShapeError("boom")])
def test_failure_names_the_pass_and_keeps_its_type(error: Exception) -> None:
    expected = ShapeError if isinstance(error, ShapeError) else PassError
    with pytest.raises(expected, match=r"pass 'bad'.*boom") as caught:
        PassManager([make("bad", raises=error)]).run(parse(MODEL))
    assert caught.value.__cause__ is error


def test_list_of_unsupported_operators_is_passed_through() -> None:
    error = UnsupportedOperators("ipu", [Unsupported("n", "Foo", "unknown")])
    with pytest.raises(UnsupportedOperators) as caught:
        PassManager([make("bad", raises=error)]).run(parse(MODEL))
    assert caught.value is error


def test_failing_node_pass_names_node_operator_and_tensor() -> None:
    @register("tripping")
    class Tripping(NodePass):
        def visit(self, node: ir.Node) -> bool:
            return bool(node.attributes["missing"])

    model = parse(MODEL)
    model.graph.node[0].name = "first"
    with pytest.raises(PassError, match=r"pass 'tripping': node 'first' \(Identity, making 'a'\): KeyError: 'missing'"):
        PassManager([Tripping()]).run(model)


def test_function_becomes_a_pass_for_the_nodes_of_its_operators() -> None:
    visited = []

    @node_pass("Relu")
    def visit_relus(node: ir.Node) -> bool:
        """Visits Relu nodes.

        Changes nothing.
        """
        visited.append(node.op_type)
        return False

    PassManager(["visit_relus"]).run(parse(MODEL))
    assert visited == ["Relu"]
    assert pass_class("visit_relus").description() == "Visits Relu nodes."


def test_failing_function_names_its_pass_and_the_node() -> None:
    @node_pass()
    def stumbling(node: ir.Node) -> bool:
        return bool(node.attributes["missing"])

    with pytest.raises(PassError, match=r"pass 'stumbling': node .*Identity.*KeyError: 'missing'"):
        PassManager(["stumbling"]).run(parse(MODEL))


def test_function_of_a_whole_model_becomes_a_pass_with_its_order() -> None:
    @model_pass(before=("b",))
    def whole(model: ir.Model) -> bool:
        model.graph.name = "seen"
        return True

    manager = PassManager([make("b"), "whole"])
    assert names(manager) == ["whole", "b"]
    assert manager.run(parse(MODEL)).graph.name == "seen"


def test_refusal_that_begins_with_the_passs_name_has_it_once() -> None:
    @register("refusing")
    class Refusing(Pass):
        def run(self, model: ir.Model) -> bool:
            raise OptionError("refusing: there is no node 'nope'")

    with pytest.raises(OptionError, match=r"^refusing: there is no node 'nope'$"):
        PassManager([Refusing()]).run(parse(MODEL))


@register("breaking")
class Breaking(Pass):
    """Makes Relu read a value without a producer."""

    def run(self, model: ir.Model) -> bool:
        model.graph[1].replace_input_with(0, ir.Value(name="nobody"))
        return True


def test_verification_names_the_pass_that_broke_the_model() -> None:
    with pytest.raises(PassError, match=r"invalid after pass 'breaking': .*nobody"):
        PassManager([Breaking()], verify_each=True).run(parse(MODEL))


def test_registration_overrides_an_earlier_one() -> None:
    log: list[str] = []
    make("eliminate_identity", log)
    assert op_types(PassManager(["eliminate_identity"]).run(parse(MODEL))) == ["Identity", "Relu"]
    assert log == ["eliminate_identity"]


def test_renaming_in_a_pass_leaves_the_source_message_unchanged() -> None:
    @register("renaming")
    class Renaming(Pass):
        def run(self, model: ir.Model) -> bool:
            model.graph.initializers["w"].name = "other"
            return True

    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }", {"w": np.array([1, 2], np.float32)})
    copy = model.SerializeToString()
    after = PassManager([Renaming()]).run(model)
    assert [each.name for each in after.graph.initializer] == ["other"]
    assert model.SerializeToString() == copy
    assert_same_results(model, after)
