"""Choices become sums, masks keep sequences apart, and inputs are given in the type that is used."""

import logging
import re

import numpy as np
import onnx
import pytest

from stoker.compiler.passes import get_pass
from tests.fakes.graphs import after_pass, assert_same_results, assert_valid, is_kept, op_types, parse, random_feeds, run_onnx

MASK = np.array([[True, False, True, True], [False, True, False, False]])


@pytest.mark.parametrize("low", [-1e4, -3.4028234663852886e38, -np.inf])
@pytest.mark.parametrize(("where", "ops"), [("m, low, x", []), ("m, x, low", ["Not"])])
def test_masked_scores_are_lowered_by_a_sum(where: str, ops: list[str], low: float) -> None:
    text = f"g (bool[2,4] m, float[3,2,4] x) => (float[3,2,4] y) {{ s = Where({where}) y = Softmax(s) }}"
    model = parse(text, {"low": np.float32(low)})
    made = after_pass("replace_where_mask", model)
    assert op_types(made) == [*ops, "Cast", "Mul", "Add", "Softmax"]
    assert_same_results(model, made, random_feeds(model) | {"m": MASK}, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("body", "low"),
    [
        ("s = Where(m, x, low) y = Softmax(s)", -5),
        ("s = Where(m, x, low) y = Softmax(s)", 1e4),
        ("s = Where(m, low, low) t = Add(s, x) y = Softmax(t)", -1e4),
        ("s = Where(m, x, low) y = Relu(s)", -1e4),
        ("s = Where(m, x, low) a = Softmax(s) y = Add(a, s)", -1e4),
    ],
    ids=["not low", "high", "no scores", "no softmax", "scores read elsewhere"],
)
def test_other_wheres_are_not_masks(body: str, low: float) -> None:
    assert is_kept("replace_where_mask", parse(f"g (bool[2,4] m, float[2,4] x) => (float[2,4] y) {{ {body} }}", {"low": np.float32(low)}))


@pytest.mark.parametrize(
    ("where", "ops"),
    [
        ("m, x, z", ["Cast", "Mul", "Not", "Cast", "Mul", "Add"]),
        ("m, x, zero", ["Cast", "Mul"]),
        ("m, zero, x", ["Not", "Cast", "Mul"]),
        ("m, row, x", ["Cast", "Mul", "Not", "Cast", "Mul", "Add"]),
    ],
)
def test_where_becomes_a_sum_of_products(where: str, ops: list[str]) -> None:
    constants = {name: value for name, value in {"zero": np.float32(0), "row": np.array([0, 1, 2, 3], np.float32)}.items() if name in where}
    model = parse(f"g (bool[2,4] m, float[3,1,4] x, float[2,1] z) => (float[3,2,4] y) {{ y = Where({where}) }}", constants)
    made = after_pass("replace_where_with_mul_add", model)
    assert op_types(made) == ops
    assert_same_results(model, made, random_feeds(model) | {"m": MASK}, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "constant"), [("float", np.float32(-np.inf)), ("float", np.float32(np.nan)), ("int32", np.int32(0))])
def test_wheres_of_infinities_and_integers_are_kept(kind: str, constant: np.ndarray) -> None:
    text = f"g (bool[2,4] m, {kind}[2,4] x) => ({kind}[2,4] y) {{ y = Where(m, x, c) }}"
    assert is_kept("replace_where_with_mul_add", parse(text, {"c": constant}))


def test_where_v2_changes_nothing_and_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    model = parse("g (bool[2] m, float[2] x) => (float[2] y) { y = Where(m, x, x) }")
    with caplog.at_level(logging.INFO):
        assert is_kept("replace_where_with_wherev2", model)
    assert "no effect on a simulated device: 1 Where node(s)" in caplog.text
    assert get_pass("replace_where_with_wherev2").description().startswith("No effect on a simulated device")


ATTENTION = """q = MatMul(x, w) k = Transpose<perm = [0,1,3,2]>(q) s = MatMul(q, k) t = Add(s, mask) p = Softmax(t) y = MatMul(p, q)"""
BERT_MASKS = {
    "subtracted": "a = Unsqueeze(ids, a1) b = Unsqueeze(a, a2) c = Cast<to = 1>(b) d = Sub(one, c) mask = Mul(d, low)",
    "filled": "a = Unsqueeze(ids, axes) c = Cast<to = 1>(a) d = Sub(one, c) e = Cast<to = 9>(d) mask = Where(e, low, d)",
    "compared": "z = Equal(ids, none) a = Unsqueeze(z, axes) mask = Where(a, low, zero)",
}
MASK_CONSTANTS = {
    "a1": np.array([1]),
    "a2": np.array([2]),
    "axes": np.array([1, 2]),
    "one": np.float32(1),
    "zero": np.float32(0),
    "low": np.float32(-1e4),
    "none": np.int32(0),
}


def bert(mask: str) -> onnx.ModelProto:
    """An attention of 2 heads over 2 rows of 6 positions, with a mask computed from `ids`."""
    used = {name: array for name, array in MASK_CONSTANTS.items() if name in re.findall(r"\w+", mask)}
    used["w"] = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    return parse(f"g (int32[2,6] ids, float[2,2,6,4] x) => (float[2,2,6,4] y) {{ {mask} {ATTENTION} }}", used)


@pytest.mark.parametrize("mask", BERT_MASKS.values(), ids=BERT_MASKS)
def test_sequences_in_one_row_do_not_attend_to_each_other(mask: str) -> None:
    model = bert(mask)
    made = after_pass("insert_attention_mask", model)
    feeds = random_feeds(model)
    plain = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
    assert_same_results(model, made, feeds | {"ids": plain}, rtol=0, atol=0)
    packed = np.array([[1, 1, 2, 2, 2, 0], [1, 2, 2, 3, 3, 3]], np.int32)
    together = run_onnx(made, feeds | {"ids": packed})["y"]
    for number in (1, 2, 3):  # each sequence by itself, in the same place
        alone = run_onnx(model, feeds | {"ids": (packed == number).astype(np.int32)})["y"]
        chosen = np.broadcast_to((packed == number)[:, None, :, None], together.shape)
        np.testing.assert_allclose(together[chosen], alone[chosen], rtol=1e-5, atol=1e-6)


def test_attentions_share_the_mask_that_separates_sequences() -> None:
    first = bert(BERT_MASKS["subtracted"])
    text = f"g (int32[2,6] ids, float[2,2,6,4] x) => (float[2,2,6,4] z) {{ {BERT_MASKS['subtracted']} {ATTENTION} "
    text += "k2 = Transpose<perm = [0,1,3,2]>(y) s2 = MatMul(y, k2) t2 = Add(s2, mask) p2 = Softmax(t2) z = MatMul(p2, y) }"
    model = parse(text, {each.name: onnx.numpy_helper.to_array(each) for each in first.graph.initializer})
    made = after_pass("insert_attention_mask", model)
    assert op_types(made).count("And") == 1
    assert op_types(made).count("Softmax") == 2
    assert_same_results(model, made, random_feeds(model) | {"ids": np.ones((2, 6), np.int32)}, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("inputs", "mask"),
    [
        ("float[2,1,6,6] given", "mask = Mul(given, low)"),
        ("float[2,6] ids, float[2,6] more", "a = Add(ids, more) mask = Unsqueeze(a, axes)"),
        ("bool[2,6] ids", "a = Cast<to = 1>(ids) b = Unsqueeze(a, axes) mask = Mul(b, low)"),
        ("float[2,6] ids", "r = Relu(ids) sum = ReduceSum<keepdims = 1>(r, a1) a = Unsqueeze(sum, axes) mask = Mul(a, low)"),
    ],
    ids=["given as a matrix", "from two tensors", "from truth values", "from a sum"],
)
def test_masks_of_another_form_are_kept(inputs: str, mask: str) -> None:
    used = {name: array for name, array in MASK_CONSTANTS.items() if name in re.findall(r"\w+", mask)}
    used["w"] = np.ones((4, 4), np.float32)
    assert is_kept("insert_attention_mask", parse(f"g ({inputs}, float[2,2,6,4] x) => (float[2,2,6,4] y) {{ {mask} {ATTENTION} }}", used))


def test_input_that_is_only_cast_gets_that_type() -> None:
    model = parse("g (int64[3] x) => (float[3] y, float[3] z) { a = Cast<to = 1>(x) b = Cast<to = 1>(x) y = Relu(a) z = Neg(b) }")
    made = get_pass("remove_input_cast")(model)
    assert op_types(made) == ["Relu", "Neg"]
    assert made.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert_valid(made)
    x = np.array([-1, 0, 5])
    for name, wanted in run_onnx(model, {"x": x}).items():
        np.testing.assert_array_equal(run_onnx(made, {"x": x.astype(np.float32)})[name], wanted)


def test_cast_input_that_is_an_output_keeps_both_names() -> None:
    made = get_pass("remove_input_cast")(parse("g (int64[3] x) => (float[3] y) { y = Cast<to = 1>(x) }"))
    assert op_types(made) == ["Identity"]
    assert_valid(made)


@pytest.mark.parametrize(
    "text",
    [
        "g (int64[3] x) => (float[3] y, int32[3] z) { y = Cast<to = 1>(x) z = Cast<to = 6>(x) }",
        "g (int64[3] x) => (float[3] y, int64[3] z) { y = Cast<to = 1>(x) z = Neg(x) }",
        "g (float[3] x) => (string[3] y) { y = Cast<to = 8>(x) }",
    ],
    ids=["two types", "another reader", "strings"],
)
def test_inputs_with_other_readers_are_kept(text: str) -> None:
    assert is_kept("remove_input_cast", parse(text))
