"""A padded transformer becomes a packed one: each sequence gets its padded result. Operators that mix tokens are refused."""

import json
from typing import Any

import numpy as np
import onnx
import pytest

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import PACKING
from stoker.compiler.passes import get_pass
from stoker.compiler.passes.layout.packed_transformer import PackedTransformer
from tests.fakes.graphs import assert_valid, op_types, parse, run_onnx, tensor
from tests.fakes.transformers import padded, sequence, small_bert

ROWS, LENGTH, LIMIT = 2, 8, 5
#: Lengths and starts of sequences whole within rows, and of sequences that go over the end of a row.
WHOLE = ([3, 4, 5, 2], [0, 3, 8, 13])
SPLIT = ([6, 4, 3, 2], [0, 6, 10, 13])


def note_of(model: onnx.ModelProto) -> dict[str, Any]:
    return json.loads(next(each.value for each in model.metadata_props if each.key == PACKING))


def packed_feeds(packed: onnx.ModelProto, requests, starts) -> dict[str, np.ndarray]:
    note = note_of(packed)
    declared = {each.name: each.type.tensor_type for each in packed.graph.input}
    feeds = {
        name: np.zeros([dim.dim_value for dim in kind.shape.dim], onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        for name, kind in declared.items()
    }
    for number, (request, start) in enumerate(zip(requests, starts, strict=True)):
        length = len(next(iter(request.values())))
        for name in note["token_inputs"]:
            feeds[name].reshape(-1, *feeds[name].shape[2:])[start : start + length] = request[name]
        feeds[note["mask_input"]].reshape(-1)[start : start + length] = number + 1
        if note["position_input"]:
            feeds[note["position_input"]].reshape(-1)[start : start + length] = np.arange(length)
        if note["unpack_input"]:
            feeds[note["unpack_input"]][number] = divmod(start, note["row_length"])
    return feeds


def assert_packed(model: onnx.ModelProto, *, rows: int = ROWS, length: int = LENGTH, places=WHOLE, **settings) -> onnx.ModelProto:
    """Packs `model`, runs sequences through it, and compares with the source model run with one at a time; returns the packed model."""
    packed = PackedTransformer(**{"max_valid_num": LIMIT, **settings})(model)
    assert_valid(packed)
    note = note_of(packed)
    names = {each.name for each in model.graph.input}
    lengths, starts = places
    requests = [{name: array for name, array in sequence(size, seed).items() if name in names} for seed, size in enumerate(lengths)]
    got = run_onnx(packed, packed_feeds(packed, requests, starts))
    for number, (request, size, start) in enumerate(zip(requests, lengths, starts, strict=True)):
        wanted = run_onnx(model, padded(request, rows, length))
        for name in note["token_outputs"]:
            tokens = got[name].reshape(-1, *got[name].shape[2:])[start : start + size]
            np.testing.assert_allclose(tokens, wanted[name][0, :size], rtol=1e-4, atol=1e-5, err_msg=f"{name} of sequence {number}")
        for name in note["sequence_outputs"]:
            np.testing.assert_allclose(got[name][number], wanted[name][0], rtol=1e-4, atol=1e-5, err_msg=f"{name} of sequence {number}")
    return packed


def test_sequences_of_one_row_do_not_attend_to_each_other() -> None:
    model = small_bert(ROWS, LENGTH, layers=2)
    packed = assert_packed(model)
    assert [each.name for each in packed.graph.input] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "position_ids",
        "unpack_info",
    ]
    assert note_of(packed) == {
        "version": 1,
        "rows": ROWS,
        "row_length": LENGTH,
        "max_valid_num": LIMIT,
        "segment_max_size": 0,
        "token_inputs": ["input_ids", "token_type_ids"],
        "mask_input": "attention_mask",
        "position_input": "position_ids",
        "unpack_input": "unpack_info",
        "token_outputs": ["tokens"],
        "sequence_outputs": ["pooled"],
    }
    assert op_types(packed).count("Where") == 1  # one mask for both layers
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in packed.graph.output}
    assert shapes == {"tokens": [ROWS, LENGTH], "pooled": [LIMIT, 2, 4]}


@pytest.mark.parametrize("places", [WHOLE, SPLIT])
def test_sequences_may_cross_the_end_of_a_row_in_the_by_sequence_mode(places) -> None:
    packed = assert_packed(small_bert(ROWS, LENGTH, layers=2), segment_max_size=6, places=places)
    softmax = next(node for node in onnx.shape_inference.infer_shapes(packed).graph.node if node.op_type == "Softmax")
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in packed.graph.value_info}
    assert shapes[softmax.output[0]] == [LIMIT, 2, 6, 6]


CAUSAL = np.where(np.tril(np.ones((1, 1, LENGTH, LENGTH))) > 0, 0, -10000).astype(np.float32)
HEAD_SLOPES = np.array([0.5, 0.25], np.float32).reshape(1, 2, 1, 1)
DISTANCES = -HEAD_SLOPES * np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH)).astype(np.float32)
SCORES: dict[str, tuple[str, dict[str, Any]]] = {
    "where": ("{n}is = Cast<to=9>(m0) {n}s = Where({n}is, {n}s1, low)", {"low": np.float32(-10000)}),
    "scaled after": ("{n}m = Add({n}s1, mask) {n}s = Mul({n}m, half)", {"half": np.float32(0.5)}),
    "no mask": ("{n}s = Identity({n}s1)", {}),
    "causal": ("{n}t = Add({n}s1, causal) {n}s = Add({n}t, mask)", {"causal": CAUSAL}),
    "by distance": ("{n}t = Add({n}s1, distances) {n}s = Add({n}t, mask)", {"distances": DISTANCES}),
    "by key": ("{n}t = Add({n}s1, tilt) {n}s = Add({n}t, mask)", {"tilt": np.linspace(0, 1, LENGTH, dtype=np.float32)}),
    "by token": ("{n}t = Mul({n}s1, tilt) {n}s = Add({n}t, mask)", {"tilt": np.linspace(1, 2, LENGTH, dtype=np.float32).reshape(-1, 1)}),
    "expanded": (
        "{n}t = Expand(m0, square) {n}w = Cast<to=9>({n}t) {n}s = Where({n}w, {n}s1, low)",
        {"square": np.array([ROWS, 1, LENGTH, LENGTH]), "low": np.float32(-10000)},
    ),
    "expanded sum": ("{n}t = Expand(mask, square) {n}s = Add({n}s1, {n}t)", {"square": np.array([ROWS, 1, LENGTH, LENGTH])}),
    "by pairs of masks": (
        "{n}t = Unsqueeze(attention_mask, one_three) {n}u = Mul({n}t, m0) {n}w = Cast<to=9>({n}u) {n}s = Where({n}w, {n}s1, low)",
        {"one_three": np.array([1, 3]), "low": np.float32(-10000)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("segment", [None, 5])
@pytest.mark.parametrize("form", SCORES)
def test_masks_and_biases_of_every_form_are_kept(form, segment) -> None:
    scores, constants = SCORES[form]
    model = small_bert(ROWS, LENGTH, scores=scores, constants=constants)
    if form == "no mask":  # the source model would attend to padding: sequences as long as a row, then
        assert_packed(model, places=([8, 8], [0, 8]), segment_max_size=8 if segment else None)
        return
    assert_packed(model, segment_max_size=segment)


#: As `torch.nn.TransformerEncoder` masks padding. Only small fills are folded; this one has 80 elements.
INFINITE_MASK = """
  is_padding = Equal(attention_mask, none) filled = Shape(is_padding) zeros2 = ConstantOfShape(filled)
  m0 = Where(is_padding, lowest, zeros2) mask = Reshape(m0, by_key)
"""


@pytest.mark.parametrize(
    ("places", "segment"),
    [(WHOLE, None), (([6, 4, 30, 5], [0, 6, 10, 40]), None), (WHOLE, 40), (([6, 4, 38, 5], [0, 6, 10, 48]), 40)],
)
def test_mask_of_minus_infinity_and_filled_zeros_is_packed(places, segment) -> None:
    constants = {"none": np.array(0, np.int32), "lowest": np.array(-np.inf, np.float32), "by_key": np.array([ROWS, 1, 1, 40])}
    model = small_bert(ROWS, 40, layers=3, mask=INFINITE_MASK, constants=constants)
    assert_packed(model, length=40, places=places, segment_max_size=segment)


SELECTIONS = {
    "one of a list": "first3 = Gather<axis=1>({h}, zeros) first = Squeeze(first3, axis)",
    "a slice": "first3 = Slice({h}, zeros, axis, axis) first = Squeeze(first3, axis)",
    "tokens first": "turned = Transpose<perm=[1,0,2]>({h}) first = Gather<axis=0>(turned, zero)",
    "last of all": "turned = Transpose<perm=[2,0,1]>({h}) first2 = Gather<axis=2>(turned, zero) first = Transpose<perm=[1,0]>(first2)",
}


@pytest.mark.parametrize("segment", [None, 5])
@pytest.mark.parametrize("form", SELECTIONS)
def test_first_token_is_found_however_it_is_selected(form, segment) -> None:
    body = SELECTIONS[form].replace("first", "own").format(h="h") + " q = Gemm(own, w_pool) wide = ReduceSum<keepdims=0>(q, axis)"
    constants = {"zeros": np.array([0]), "axis": np.array([1])}
    model = small_bert(ROWS, LENGTH, extra=body, outputs=("pooled", "wide"), constants=constants)
    packed = assert_packed(model, segment_max_size=segment)
    assert note_of(packed)["sequence_outputs"] == ["pooled", "wide"]


BY_TOKEN = {
    "rows and tokens as one dimension": (
        "a = Reshape(h, flat) b = Gemm(a, w_pool, b_pool) c = Reshape(b, back) wide = ReduceSum<keepdims=0>(c, last)"
    ),
    "pieces joined again": "a, b = Split<axis=-1, num_outputs=2>(h) c = Concat<axis=-1>(b, a) wide = ReduceMax<keepdims=0>(c, last)",
    "the best of each token": "a = ArgMax<axis=-1, keepdims=0>(h) wide = Cast<to=1>(a)",
    "softmax of each token": "a = Softmax<axis=-1>(h) b = Slice(a, start, stop, last) wide = Squeeze(b, last)",
    "a one-hot vector for each token": (
        "i = Cast<to=7>(token_type_ids) a = OneHot(i, depth, values) b = MatMul(a, kind_table) wide = ReduceSum<keepdims=0>(b, last)"
    ),
    "another order": "a = Transpose<perm=[2,1,0]>(h) b = Mul(a, tilt) c = Transpose(b) wide = ReduceSum<keepdims=0>(c, last)",
}


@pytest.mark.slow
@pytest.mark.parametrize("segment", [None, 5])
@pytest.mark.parametrize("form", BY_TOKEN)
def test_per_token_operators_are_unchanged(form, segment) -> None:
    constants = {
        "flat": np.array([-1, 8]),
        "back": np.array([ROWS, LENGTH, 8]),
        "start": np.array([2]),
        "stop": np.array([3]),
        "depth": np.array(2),
        "values": np.array([0, 1], np.float32),
        "tilt": np.linspace(1, 2, LENGTH, dtype=np.float32).reshape(1, LENGTH, 1),
    }
    model = small_bert(ROWS, LENGTH, extra=BY_TOKEN[form], outputs=("tokens", "wide"), constants=constants)
    model.graph.output[1].CopyFrom(tensor("wide", (ROWS, LENGTH)))
    packed = assert_packed(model, segment_max_size=segment)
    assert note_of(packed)["token_outputs"] == ["tokens", "wide"]


@pytest.mark.parametrize(("places", "segment"), [(WHOLE, None), (SPLIT, 6)])
def test_positions_counted_by_the_model_restart_with_each_sequence(places, segment) -> None:
    mask = """m0 = Unsqueeze(attention_mask, middle) m1 = Cast<to=1>(m0) m2 = Sub(one, m1) mask = Mul(m2, lowest)
        c = CumSum(attention_mask, axis1) p = Mul(c, attention_mask) counted = Gather(positions_table, p) """
    scores = "{n}s = Add({n}s1, mask)"
    table = np.random.default_rng(1).standard_normal((LENGTH + 1, 8)).astype(np.float32)
    body = "k = Add(h, counted) wide = ReduceSum<keepdims=0>(k, last)"
    model = small_bert(
        ROWS,
        LENGTH,
        mask=mask,
        scores=scores,
        extra=body,
        outputs=("pooled", "wide"),
        constants={"axis1": np.array(1), "positions_table": table},
    )
    model.graph.output[1].CopyFrom(tensor("wide", (ROWS, LENGTH)))
    packed = assert_packed(model, places=places, segment_max_size=segment)
    assert note_of(packed)["token_outputs"] == ["wide"]


@pytest.mark.parametrize("rows", [1, 3])
def test_any_number_of_rows_is_packed(rows) -> None:
    assert_packed(small_bert(rows, LENGTH), rows=rows, places=([3, 4], [0, 3]))


def test_constant_that_is_equal_for_all_tokens_needs_no_positions() -> None:
    model = small_bert(ROWS, LENGTH, outputs=("tokens",), constants={"positions": np.ones((ROWS, LENGTH, 8), np.float32)})
    note = note_of(assert_packed(model))
    assert (note["position_input"], note["unpack_input"], note["sequence_outputs"]) == ("", "", [])


def test_boolean_and_float_masks_accept_sequence_numbers() -> None:
    for kind, mask in (("bool", "c = Cast<to=1>(attention_mask)"), ("float", "c = Identity(attention_mask)")):
        text = f"""g (float[2,4,3] x, {kind}[2,4] attention_mask) => (float[2,4,3] y) {{
            {mask} m = Unsqueeze(c, middle) n = Sub(one, m) b = Mul(n, low) k = Transpose<perm=[0,2,1]>(x) s = MatMul(x, k)
            t = Add(s, b) p = Softmax<axis=-1>(t) y = MatMul(p, x) }}"""
        constants = {"middle": np.array([1]), "one": np.float32(1), "low": np.float32(-10000)}
        packed = PackedTransformer(max_valid_num=3)(parse(text, constants))
        assert_valid(packed)
        x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
        numbers = np.array([[1, 1, 2, 2], [3, 3, 3, 0]])
        given = next(each for each in packed.graph.input if each.name == "attention_mask").type.tensor_type.elem_type
        got = run_onnx(packed, {"x": x, "attention_mask": numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(given))})["y"]
        for row, span in ((0, slice(0, 2)), (0, slice(2, 4)), (1, slice(0, 3))):
            part = x[row, span]
            weights = np.exp(part @ part.T)
            np.testing.assert_allclose(got[row, span], weights / weights.sum(-1, keepdims=True) @ part, rtol=1e-4, atol=1e-5)


EXTRA = {
    "ReduceMean": ("mean = ReduceMean<keepdims=0>(h, axis) wide = ReduceSum<keepdims=0>(mean, axis)", "ReduceMean is over them"),
    "Conv": ("turned = Transpose<perm=[0,2,1]>(h) c = Conv(turned, kernel) wide = ReduceSum<keepdims=0>(c, both)", "nothing is known of"),
    "CumSum": ("c = CumSum(h, axis0) wide = ReduceSum<keepdims=0>(c, both)", "it sums over them"),
    "Gather": ("g = Gather<axis=1>(h, three) wide = ReduceSum<keepdims=0>(g, axis)", "tokens other than the first"),
    "Slice": ("g = Slice(h, ones, twos, axis) wide = ReduceSum<keepdims=0>(g, both)", "tokens other than the first"),
    "MatMul": ("t = Transpose<perm=[0,2,1]>(h) g = MatMul(t, h) wide = ReduceSum<keepdims=0>(g, both)", "it sums over them"),
    "Concat": ("g = Concat<axis=1>(h, h) wide = ReduceSum<keepdims=0>(g, both)", "it concatenates along them"),
    "Split": ("g, i = Split<axis=1, num_outputs=2>(h) wide = ReduceSum<keepdims=0>(g, both)", "it splits along them"),
    "LayerNormalization": ("g = LayerNormalization<axis=1>(h, tall) wide = ReduceSum<keepdims=0>(g, both)", "it normalises over them"),
    "Softmax": ("g = Softmax<axis=1>(h) wide = ReduceSum<keepdims=0>(g, both)", "it normalises over them"),
    "Reshape": ("g = Reshape(h, halves) wide = ReduceSum<keepdims=0>(g, three_axes)", "it cuts 8 tokens into pieces of 2"),
}
EXTRA_CONSTANTS = {
    "axis": np.array([1]),
    "axis0": np.array(1),
    "both": np.array([1, 2]),
    "three": np.array(3),
    "ones": np.array([1]),
    "twos": np.array([2]),
    "halves": np.array([2, 2, 4, 8]),
    "three_axes": np.array([1, 2, 3]),
    "kernel": np.ones((4, 8, 3), np.float32),
    "tall": np.ones((8, 8), np.float32),
}


@pytest.mark.parametrize("op_type", EXTRA)
def test_operator_that_mixes_tokens_outside_attention_is_refused_by_name(op_type) -> None:
    body, reason = EXTRA[op_type]
    model = small_bert(ROWS, LENGTH, extra=body, outputs=("tokens", "wide"), constants=EXTRA_CONSTANTS)
    node = next(node for node in model.graph.node if node.op_type == op_type and node.output[0] in ("mean", "c", "g"))
    with pytest.raises(PassError, match=rf"node '.*' \({op_type}, making '{node.output[0]}'.*mixes the tokens.*{reason}"):
        PackedTransformer()(model)


def test_constants_that_cannot_be_packed_are_refused_by_name() -> None:
    pairs = np.random.default_rng(0).standard_normal((1, 1, LENGTH, LENGTH)).astype(np.float32)
    with pytest.raises(PassError, match="constant 'pairs' differs by pairs of tokens"):
        PackedTransformer()(small_bert(ROWS, LENGTH, scores="{n}t = Add({n}s1, pairs) {n}s = Add({n}t, mask)", constants={"pairs": pairs}))
    by_row = np.arange(ROWS * LENGTH * 8, dtype=np.float32).reshape(ROWS, LENGTH, 8)
    with pytest.raises(PassError, match="constant 'positions' differs by row of the batch"):
        PackedTransformer()(small_bert(ROWS, LENGTH, constants={"positions": by_row}))


def test_outputs_neither_by_token_nor_by_sequence_are_refused() -> None:
    model = small_bert(ROWS, LENGTH)
    model.graph.output.append(onnx.helper.make_tensor_value_info("l0_p", onnx.TensorProto.FLOAT, [ROWS, 2, LENGTH, LENGTH]))
    with pytest.raises(PassError, match=r"output 'l0_p' .* has dimensions by key, row, token"):
        PackedTransformer()(model)


def test_model_without_attention_gets_no_mask() -> None:
    packed = PackedTransformer(max_valid_num=3)(parse("g (float[2,4,3] x) => (float[2,4,3] y) { y = Relu(x) }"))
    assert [each.name for each in packed.graph.input] == ["x"]
    assert note_of(packed)["mask_input"] == ""


def test_models_without_rows_and_packed_models_are_refused() -> None:
    with pytest.raises(PassError, match=r"an input \[rows, row length\] of fixed sizes is needed"):
        PackedTransformer()(parse("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"))
    packed = PackedTransformer()(small_bert(ROWS, LENGTH))
    with pytest.raises(PassError, match="packed already"):
        PackedTransformer()(packed)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_valid_num": 0}, "max_valid_num is 0"),
        ({"segment_max_size": "4"}, "segment_max_size is '4'"),
        ({"dynamic_groups": [["a"], ["b"]]}, "2 groups"),
    ],
)
def test_invalid_settings_are_refused(settings, text) -> None:
    with pytest.raises(OptionError, match=text):
        get_pass("packed_transformer", **settings)


def test_groups_and_sizes_must_match_the_model() -> None:
    model = small_bert(ROWS, LENGTH)
    with pytest.raises(PassError, match="no input 'words'; it has input_ids"):
        PackedTransformer(dynamic_groups="input_ids, words")(model)
    with pytest.raises(OptionError, match="segment_max_size is 9, a row of the model has 8"):
        PackedTransformer(segment_max_size=9)(model)
    assert note_of(PackedTransformer(dynamic_groups=[["input_ids", "attention_mask", "token_type_ids"]])(model))["max_valid_num"] == 4


def test_settings_without_effect_are_reported(caplog) -> None:
    PackedTransformer(enable_double_batch_unpack=True, head_pattern="pooler")
    assert [record.args[0] for record in caplog.records] == ["enable_double_batch_unpack", "head_pattern"]
