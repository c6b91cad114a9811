import io
from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper
from rich.console import Console

from stoker.compiler.errors import CompileError, OptionError, PassError, UnsupportedOperators
from stoker.compiler.passes import get_pass
from stoker.compiler.passes.inspection import CheckWithFakeData, ModelIoInfoStat, ModelOverviewPass
from tests.fakes.graphs import as_ir, as_proto, assert_valid, initializers_of, model_of, op_types, parse, run_onnx, tensor

MODEL = parse(
    "g (float[2,3] x, float[n] v) => (float[2,4] y, float[2,3] z, float[n] u) { a = Relu(x) y = MatMul(a, w) z = Neg(a) u = Relu(v) }",
    {"w": np.ones((3, 4), np.float32)},
)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_model_overview_counts_operators_and_weights(console: Console) -> None:
    overview = ModelOverviewPass(console)
    assert not overview.apply(as_ir(MODEL))
    assert overview.overview is not None
    assert overview.overview.operators == {"Relu": 2, "MatMul": 1, "Neg": 1}
    assert (overview.overview.parameters, overview.overview.parameter_bytes, overview.overview.opsets) == (12, 48, {"": 18})
    assert "MatMul" in printed(console)
    assert "opset ai.onnx 18" in printed(console)


def test_names_in_brackets_are_printed_as_they_are(console: Console) -> None:
    model = parse("g (float[b,3] x) => (float[b,3] y) { y = Relu(x) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "[bold]x"
    ModelIoInfoStat(console).apply(as_ir(model))
    assert "[b,3]" in printed(console)
    assert "[bold]x" in printed(console)


def test_model_io_info_stat_lists_inputs_and_outputs(console: Console) -> None:
    stat = ModelIoInfoStat(console)
    assert not stat.apply(as_ir(MODEL))
    found = [(each.name, each.is_input, each.dtype, each.shape, each.bytes) for each in stat.tensors]
    assert found[:2] == [("x", True, "FLOAT", "[2,3]", 24), ("v", True, "FLOAT", "[n]", None)]
    assert found[2:4] == [("y", False, "FLOAT", "[2,4]", 32), ("z", False, "FLOAT", "[2,3]", 24)]
    assert "all outputs" in printed(console)


@pytest.mark.parametrize(
    ("node", "reasons"),
    [
        (helper.make_node("Relu", ["x"], ["y"], name="n", alpha=1.0), ["opset 18 gives it no attribute 'alpha'"]),
        (helper.make_node("Transpose", ["x"], ["y"], name="n", perm=1), ["attribute 'perm' is INT instead of INTS"]),
        (helper.make_node("Cast", ["x"], ["y"], name="n"), ["attribute 'to' is missing"]),
        (helper.make_node("Gelu", ["x"], ["y"], name="n"), ["opset 18 has no such operator"]),
        (helper.make_node("BatchNormalization", ["x"] * 5, ["y"], name="n", training_mode=1), ["attribute 'training_mode' is 1"]),
        (helper.make_node("Einsum", ["x"], ["y"], name="n", sum=1), ["no attribute 'sum'", "attribute 'equation' is missing"]),
        (helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft", anything=1), []),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[0]), []),
    ],
)
def test_check_unsupported_attribute_lists_every_objection(node: object, reasons: list[str]) -> None:
    model = as_ir(model_of([node], [tensor("x", [2])], [tensor("y", [2])]))  # type: ignore[list-item]
    check = get_pass("check_unsupported_attribute")
    if not reasons:
        assert not check.apply(model)
        return
    with pytest.raises(UnsupportedOperators) as caught:
        check.apply(model)
    assert len(caught.value.operators) == len(reasons)
    for reason, operator in zip(reasons, caught.value.operators, strict=True):
        assert operator.node == "n"
        assert reason in operator.reason


def test_check_with_fake_data_prints_the_output_errors(console: Console) -> None:
    source = parse("g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Relu(x) z = Neg(x) }")
    changed = parse(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Relu(x) n = Neg(x) z = Add(n, half) }", {"half": np.float32(0.5)}
    )
    check = CheckWithFakeData(source, console=console)
    check.apply(as_ir(changed))
    exact, off = check.errors
    assert (exact.name, exact.max_error, exact.cosine) == ("y", 0.0, 1.0)
    assert off.name == "z"
    assert off.max_error == pytest.approx(0.5, abs=1e-6)
    assert off.mean_square_error == pytest.approx(0.25, abs=1e-6)
    assert off.cosine < 1
    assert "cosine" in printed(console)


def test_check_with_fake_data_needs_a_source() -> None:
    with pytest.raises(OptionError, match="source"):
        get_pass("check_with_fake_data").apply(as_ir(MODEL))


def test_add_checkpoints_shows_inner_tensors() -> None:
    source = parse("g (float[2,3] x) => (float[2,3] z) { a = Relu(x) z = Neg(a) }")
    after = get_pass("add_checkpoints", checkpoints=["a", "z", "a"])(source)
    assert_valid(after)
    results = run_onnx(after, {"x": np.full((2, 3), 2, np.float32)})
    assert list(results) == ["z", "a"]
    assert results["a"].tolist() == [[2.0] * 3] * 2


def test_add_checkpoints_names_tensors_without_a_producer() -> None:
    with pytest.raises(PassError, match="makes 'nope', 'x'"):
        get_pass("add_checkpoints", checkpoints=["a", "nope", "x"]).apply(as_ir(MODEL))


def test_remove_outputs_removes_their_exclusive_nodes() -> None:
    after = get_pass("remove_outputs", remove_outputs=["y", "u"])(MODEL)
    assert op_types(after) == ["Relu", "Neg"]
    assert initializers_of(after) == {}
    assert [value.name for value in as_proto(after).graph.input] == ["x", "v"]
    assert_valid(after)


@pytest.mark.parametrize(
    ("names", "message"), [(["y", "q"], "no output 'q'; the outputs are y, z, u"), (["y", "z", "u"], "no output would be left")]
)
def test_remove_outputs_refuses_unknown_outputs_and_the_last(names: list[str], message: str) -> None:
    with pytest.raises(PassError, match=message):
        get_pass("remove_outputs", remove_outputs=names).apply(as_ir(MODEL))


def _share_names() -> object:
    model = parse("g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }")
    for node in model.graph.node:
        node.name = "same"
    return model


@pytest.mark.parametrize(
    ("make", "messages"),
    [
        (lambda: MODEL, [r"input 'v' is of shape \[n\], not static", r"output 'u' is of shape \[n\], not static"]),
        (_share_names, ["2 nodes are named 'same'"]),
        (lambda: parse("g (float[2] x) => (float[3] y) { y = Relu(x) }"), ["the model is invalid after all passes"]),
    ],
)
def test_final_check_lists_all_reasons(make: Callable[[], object], messages: list[str]) -> None:
    with pytest.raises(CompileError) as caught:
        get_pass("final_check").apply(as_ir(make()))  # type: ignore[arg-type]
    for message in messages:
        assert caught.match(message)


def test_final_check_passes_a_valid_model() -> None:
    assert not get_pass("final_check").apply(as_ir(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")))
