"""One model of each class of defects that `scripts/conformance` found, for each target: right, or rejected with node and reason."""

import re

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from stoker.compiler.options import CompilerOptions
from tests.conformance.operators import command
from tests.conformance.operators.case import Case, difference, reference_outputs
from tests.conformance.operators.forms import FORMS
from tests.conformance.operators.opset_models import versions_of_operators
from tests.conformance.operators.report import without_names
from tests.conformance.operators.running import Result, outcome
from tests.fakes.graphs import parse, random_feeds
from tests.fakes.old_forms import Arrays

TARGETS = ("ipu", "gcu", "cpu")
NO_SUCH = {"gcu": "the device has no such operator"}
NO_LOOP = {"gcu": "control flow that depends on values is not compiled"}
NO_DOMAIN = dict.fromkeys(("ipu", "gcu"), r"ai.onnx.ml::Scaler \(node '.*'\): operators of domain 'ai.onnx.ml' are not known")
ATTENTION = "g (float[2,2,4,8] q, float[2,2,4,8] k) => (float[2,2,4,8] y) { y = Attention<is_causal = 1>(q, k, k) }"
SCAN = (
    "g (float16[2,3] h, float16[4,2,3] x) => (float16[2,3] f, float16[4,2,3] y) { f, y = Scan<num_scan_inputs = 1, "
    "body = b (float16[2,3] s, float16[2,3] e) => (float16[2,3] t, float16[2,3] o) "
    "{ a = Cast<to = 1>(s) b = Cast<to = 1>(e) c = Add(a, b) t = Cast<to = 10>(c) o = Cast<to = 10>(b) }>(h, x) }"
)

#: By name: opset, graph, weights, and the rejection by target.
MODELS: dict[str, tuple[int, str, Arrays, dict[str, str]]] = {
    "function body without an optional output": (23, ATTENTION, {}, {}),
    "function body of a newer opset": (24, ATTENTION, {}, {}),
    "function with an attribute": (24, "g (float[2,3] x) => (float[2,3] y) { y = Swish<alpha = 2.0>(x) }", {}, {}),
    "function that splits a constant": (
        20,
        "g (float[1,3,4] t) => (float[1,3,4,5,3] y) { y = AffineGrid(t, s) }",
        {"s": np.array([1, 2, 3, 4, 5], np.int64)},
        {},
    ),
    "attribute left out that inference gets wrong": (
        17,
        "g (float[1,64,1] x) => (float[1,7,9,2] y) { y = STFT(x, s, , f) }",
        {"s": np.array(8, np.int64), "f": np.array(16, np.int64)},
        NO_SUCH,
    ),
    "indices that ONNX prescribes 64 bits for": (
        16,
        "g (float[1,2,8,8] x, int64[2] b) => (float[2,2,2,2] y) "
        "{ z = Sub(b, b) y = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, r, z) }",
        {"r": np.array([[0, 0, 4, 4], [1, 2, 6, 7]], np.float32)},
        NO_SUCH,
    ),
    "sequence that is returned": (
        13,
        "g (float[4,3] x) => (seq(float[a,b]) y) { y = SplitToSequence<axis = 0>(x) }",
        {},
        {
            "ipu": r"SplitToSequence \(node '.*'\): the IPU has neither strings nor sequences",
            "gcu": r"SplitToSequence|'y'",
            "cpu": "'y' is of type sequence: no request can carry it",
        },
    ),
    "remainder of floats": (28, "g (float[3,4] x, float[3,4] y) => (float[3,4] z) { z = Mod(x, y) }", {}, {}),
    "nothing to feed": (18, "g () => (float[5,2] y) { y = Identity(c) }", {"c": np.ones((5, 2), np.float32)}, {}),
    "body that ends in a cast to half": (18, SCAN, {}, NO_LOOP),
    "operator that the runtime reads in older opsets only": (
        28,
        'g (int8[2,3] x) => (int8[2,3] y) { y = BitShift<direction = "LEFT">(x, x) }',
        {},
        dict.fromkeys(TARGETS, r"node '.*' \(BitShift, making 'y'\): 'X' cannot be tensor\(int8\) before opset 28"),
    ),
    "attribute that the runtime rejects": (
        14,
        "g (float[2,3,4] x) => (float[2,3,1,5] y) { y = GRU<hidden_size = 5, layout = 1>(x, w, r) }",
        {"w": np.ones((1, 15, 4), np.float32), "r": np.ones((1, 15, 5), np.float32)},
        dict.fromkeys(TARGETS, r"because of node '.*' \(GRU of opset \d+\): .*layout == 1"),
    ),
}


def case_of(name: str, model: onnx.ModelProto) -> Case:
    feeds = random_feeds(model)
    return Case(name, "tests", name, model, feeds, reference_outputs(model, feeds))


def expected(name: str, model: onnx.ModelProto, feeds: Arrays) -> list[NDArray]:
    """Returns the outputs of a model; of one that every target rejects, which may run nowhere, anything."""
    rejections = MODELS[name][3]
    if set(rejections) == set(TARGETS):
        return [np.zeros(1, np.float32)]
    if name == "remainder of floats":  # ONNX Runtime reads no opset 28
        return [np.mod(feeds["x"], feeds["y"])]
    return reference_outputs(model, feeds)


def check(case: Case, target: str, rejection: str | None) -> None:
    found = outcome(case, target)
    if rejection is None:
        assert (found.result, found.reason) == (Result.RIGHT, "")
    else:
        assert found.result is Result.REFUSED
        assert re.search(rejection, found.reason), found.reason


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_classes_of_defects(name: str, target: str) -> None:
    opset, text, weights, rejections = MODELS[name]
    model = parse(text, weights, opset=opset)
    feeds = random_feeds(model)
    case = Case(name, "tests", name, model, feeds, expected(name, model, feeds))
    check(case, target, rejections.get(target))


@pytest.mark.parametrize("target", TARGETS)
def test_model_of_another_domain_needs_no_default_opset(target: str) -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Scaler<offset = [0.5], scale = [2.0]>(x) }")
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    check(case_of("scaler", model), target, NO_DOMAIN.get(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["cast to half", "loop of three turns", "upsample with two forms", "mean and variance", "continuous unit"])
def test_forms_at_each_opset_that_changed_their_operator(name: str, target: str) -> None:
    operator, text, weights = FORMS[name]
    for opset in versions_of_operators()[operator]:
        model = parse(text, weights, opset=opset)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError:
            continue
        found = outcome(case_of(name, model), target)
        assert found.result in (Result.RIGHT, Result.REFUSED), f"opset {opset}: {found.reason}"
        assert found.result is Result.RIGHT or operator in found.reason


def test_differences_are_described() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    feeds = random_feeds(model)
    case = Case("relu", "tests", "Relu", model, feeds, [feeds["x"]])
    found = outcome(case, "cpu")
    assert found.result is Result.RUNTIME
    assert "output 'y': differs by" in found.reason
    assert difference(feeds["x"], feeds["x"][:1]) == "shape [2, 3] instead of [1, 3]"
    assert difference(np.arange(3), np.array([0, 1, 1])) == "1 of 3 elements differ"
    assert not difference(np.array([np.nan, np.inf]), np.array([np.nan, np.inf]))


def test_case_in_one_row_computes_the_same() -> None:
    model = parse(
        "g (float[3,2] x, float[2] y) => (float[3] z) { a = Add(x, y) z = ReduceSum<keepdims = 0>(a, axes) }", {"axes": np.array([1])}
    )
    case = case_of("sum", model)
    assert outcome(case.in_one_row(), "cpu").result is Result.RIGHT
    assert outcome(case, "gcu").result is Result.RIGHT


def test_equal_reasons_are_one_group() -> None:
    assert without_names("stoker compile: error: tensor 'a' has 3 rows") == without_names("tensor 'b' has 12 rows")


def test_nightly_run_compiles_as_the_command_does_by_default() -> None:
    assert command._parser().parse_args([]).operators == CompilerOptions().operators
