"""Finding the node for which ONNX Runtime rejects a model."""

from collections.abc import Callable

import numpy as np
import onnx

from stoker.compiler.culprit import culprit
from tests.fakes.graphs import parse

TEXT = """g (float[2,3] x, bool b) => (float[2,3] y) {
    [first] a = Relu(x)
    [second] c = If<then_branch = t () => (float[2,3] d) { d = Tan(a) }, else_branch = e () => (float[2,3] f) { f = Neg(a) }>(b)
    [third] y = Add(c, w) }"""


def rejecting(op_type: str, seen: list[str]) -> Callable[[onnx.ModelProto], bool]:
    def is_rejected(model: onnx.ModelProto) -> bool:
        onnx.checker.check_model(model, full_check=True)
        seen.append(model.graph.node[0].op_type)
        return op_type in model.SerializeToString().decode("latin-1")

    return is_rejected


def test_first_rejected_node_is_named_with_operator_and_opset() -> None:
    model = parse(TEXT, {"w": np.ones(3, np.float32)}, opset=17)
    seen: list[str] = []
    assert culprit(model, rejecting("Add", seen)) == "node 'third' (Add of opset 17)"
    assert seen == ["Relu", "If", "Add"]


def test_node_with_a_rejected_branch_is_named() -> None:
    assert culprit(parse(TEXT, {"w": np.ones(3, np.float32)}), rejecting("Tan", [])) == "node 'second' (If of opset 18)"


def test_equal_nodes_are_tried_once() -> None:
    seen: list[str] = []
    model = parse("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = Relu(b) }")
    assert culprit(model, rejecting("Tan", seen)) == ""
    assert seen == ["Relu"]


def test_node_of_another_domain_is_named_with_it() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Scaler<offset = [0.5], scale = [2.0]>(x) }")
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    assert culprit(model, rejecting("Scaler", [])) == "node 'y' (ai.onnx.ml::Scaler of opset 3)"
