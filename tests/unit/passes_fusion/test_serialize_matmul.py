"""Named products are cut into pieces that together compute the same."""

import numpy as np
import onnx
import pytest

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import SERIAL_OF, SERIAL_PIECE
from stoker.compiler.passes.layout.serialize import SerializeMatmul, SerializeMatmulAdd
from tests.fakes.graphs import assert_same_results, assert_valid, initializers_of, op_types, parse

WEIGHTS = np.random.default_rng(5).standard_normal((8, 6)).astype(np.float32)


def named(model: onnx.ModelProto, **names: str) -> onnx.ModelProto:
    """Names nodes by their outputs, and infers shapes."""
    for node in model.graph.node:
        node.name = names.get(node.output[0], node.output[0])
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def product(dtype: str = "float") -> onnx.ModelProto:
    weights = WEIGHTS.astype({"float": np.float32, "float16": np.float16}[dtype])
    return named(parse(f"g ({dtype}[2,4,8] x) => ({dtype}[2,4,6] y) {{ y = MatMul(x, w) }}", {"w": weights}), y="mm")


@pytest.mark.parametrize(
    ("setting", "ops"),
    [
        ("3", ["MatMul"] * 3 + ["Concat"]),
        ("2/output_channels", ["MatMul"] * 2 + ["Concat"]),
        ("4/input_channels", ["Split"] + ["MatMul"] * 4 + ["Concat"]),
        ("2/reducing_dim", ["Split"] + ["MatMul"] * 2 + ["Add"]),
    ],
)
def test_each_mode_equals_the_unserialised_product(setting, ops):
    model = product()
    pieces = SerializeMatmul({"mm": setting})(model)
    assert op_types(pieces) == ops
    assert_valid(pieces)
    assert_same_results(model, pieces, rtol=1e-5, atol=1e-5)


def test_constant_weights_are_split_and_stored_once():
    pieces = SerializeMatmul({"mm": 2})(product())
    weights = [array for array in initializers_of(pieces).values() if array.dtype == np.float32]
    assert [array.shape for array in weights] == [(8, 3), (8, 3)]
    np.testing.assert_array_equal(np.hstack(weights), WEIGHTS)


def test_pieces_record_their_origin_and_its_marks():
    model = product()
    model.graph.node[0].metadata_props.add(key="__ipu_number", value="1")
    pieces = SerializeMatmul({"mm": "2"})(model)
    marks = [{each.key: each.value for each in node.metadata_props} for node in pieces.graph.node if node.op_type == "MatMul"]
    assert [(mark[SERIAL_OF], mark[SERIAL_PIECE], mark["__ipu_number"]) for mark in marks] == [("mm", "0/2", "1"), ("mm", "1/2", "1")]


def test_partial_products_in_half_are_summed_in_float_to_preserve_precision():
    model = product("float16")
    kept = SerializeMatmul({"mm": "2/reducing_dim/True"})(model)
    assert op_types(kept) == ["Split", "MatMul", "MatMul", "Cast", "Cast", "Add", "Cast"]
    assert_valid(kept)
    assert_same_results(model, kept, rtol=1e-2, atol=1e-2)
    assert "Cast" not in op_types(SerializeMatmul({"mm": "2/reducing_dim"})(model))
    assert "Cast" not in op_types(SerializeMatmul({"mm": "2/reducing_dim/True"})(product()))


@pytest.mark.parametrize("setting", ["1", "4/none", "1/reducing_dim/True"])
def test_one_piece_or_no_mode_keeps_the_node(setting):
    assert op_types(SerializeMatmul({"mm": setting})(product())) == ["MatMul"]


def test_weights_with_other_readers_are_split_on_the_device():
    model = named(parse("g (float[4,8] x) => (float[4,6] y, float[4,6] z) { y = MatMul(x, w) z = MatMul(x, w) }", {"w": WEIGHTS}))
    pieces = SerializeMatmul({"y": 2})(model)
    assert op_types(pieces) == ["Split", "MatMul", "MatMul", "Concat", "MatMul"]
    assert_same_results(model, pieces, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("setting", ["0", "two", "2/columns", "2/reducing_dim/maybe", "2/none/True/more"])
def test_unreadable_setting_is_refused_by_name(setting):
    with pytest.raises(OptionError, match="serialize_matmul mm="):
        SerializeMatmul({"mm": setting})


def test_factor_that_does_not_divide_names_node_tensor_and_size():
    with pytest.raises(PassError, match=r"4 pieces do not divide dimension 1 of 'w' \(size 6\), node 'mm'"):
        SerializeMatmul({"mm": 4})(product())


def test_unknown_node_is_refused_with_the_nearest():
    with pytest.raises(PassError, match="no MatMul node named 'mn'; nearest: mm"):
        SerializeMatmul({"mn": 2})(product())


def test_node_of_another_type_is_refused():
    model = named(parse("g (float[4,8] x) => (float[4,8] y) { y = Relu(x) }"), y="relu")
    with pytest.raises(PassError, match="node 'relu' is a Relu, not a MatMul"):
        SerializeMatmul({"relu": 2})(model)


@pytest.mark.parametrize("bias", [np.linspace(-1, 1, 6, dtype=np.float32), np.array([0.5], np.float32), np.ones((4, 1), np.float32)])
@pytest.mark.parametrize("name", ["mm", "layer/mm"])
def test_layer_is_split_with_its_bias(bias, name):
    model = named(
        parse("g (float[4,8] x) => (float[4,6] y) { p = MatMul(x, w) y = Add(p, b) }", {"w": WEIGHTS, "b": bias}), p=name, y="a/dd"
    )
    pieces = SerializeMatmulAdd({f"{name}/a/dd": "3"})(model)
    assert op_types(pieces) == ["MatMul", "Add"] * 3 + ["Concat"]
    assert_valid(pieces)
    assert_same_results(model, pieces, rtol=1e-5, atol=1e-5)


def test_malformed_pair_is_refused():
    text = "g (float[4,8] x) => (float[4,6] y, float[4,6] p) { p = MatMul(x, w) y = Add(p, b) }"
    model = named(parse(text, {"w": WEIGHTS, "b": WEIGHTS[0]}))
    with pytest.raises(PassError, match="must be the only reader"):
        SerializeMatmulAdd({"p/y": 2})(model)
    with pytest.raises(OptionError, match="must be MATMUL/ADD"):
        SerializeMatmulAdd({"py": 2})(model)
