"""Operators whose meaning or form changed between opsets compute the same at the internal opset."""

import numpy as np
import onnx
import pytest

from stoker.compiler.convert.opset import convert_for_output, convert_to_internal, opset_of
from stoker.compiler.errors import CompileError
from tests.fakes.graphs import assert_same_results, op_types, parse
from tests.fakes.old_forms import FEEDS, OLD_FORMS, Arrays, floats, ints


@pytest.mark.parametrize(("name", "opset"), [(name, opset) for name, (opsets, _, _) in OLD_FORMS.items() for opset in opsets])
def test_old_forms_compute_the_same_at_the_internal_opset(name: str, opset: int) -> None:
    _, text, weights = OLD_FORMS[name]
    model = parse(text, weights, opset=opset)
    before = model.SerializeToString()
    internal = convert_to_internal(model)
    assert opset_of(internal) == 18
    onnx.checker.check_model(internal)
    assert_same_results(model, internal, FEEDS.get(name))
    assert model.SerializeToString() == before


@pytest.mark.parametrize("name", [name for name, (opsets, _, weights) in OLD_FORMS.items() if opsets[0] == 7 and not weights])
def test_old_forms_are_read_from_old_files(name: str) -> None:
    """Exporters of opset 7 and 8 wrote IR version 3, where every initializer is an input as well."""
    model = parse(OLD_FORMS[name][1], opset=7)
    model.ir_version = 3
    converted = convert_to_internal(model)
    assert opset_of(converted) == 18
    assert_same_results(model, converted)


@pytest.mark.parametrize(
    ("opset", "text", "weights", "reason"),
    [
        (
            10,
            "g (float[1,1,4,4] x, float[4] s) => (float[a,b,c,d] y) { y = Resize(x, s) }",
            {},
            r"Resize, making 'y'\): its scales are computed",
        ),
        (
            10,
            "g (float[1,1,4,4] x) => (float[1,1,8,2] y) { y = Resize(x, s) }",
            {"s": np.array([1, 1, 2, 0.5], np.float32)},
            "shrinks some dimensions and stretches others",
        ),
        (
            11,
            'g (float[1,1,4,4] x) => (float[1,1,8,8] y) { y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn">(x, r, s) }',
            {"r": floats(0), "s": np.array([1, 1, 2, 2], np.float32)},
            "opset 13 removed coordinate_transformation_mode 'tf_half_pixel_for_nn'",
        ),
        (
            7,
            "g (float[2,3,2] x) => (float[2,3,2] y) { y = BatchNormalization<spatial = 0>(x, w, w, w, w) }",
            {"w": floats(3, 2)},
            "spatial = 0",
        ),
        (
            7,
            "g (float[2,3] x) => (float[2,3] y, float[2,3] m) { y, m = Dropout(x) }",
            {},
            "its mask is read",
        ),
        (
            10,
            "g (float[2,3] x) => (float[2,3] y, bool[2,3] m) { y, m = Dropout(x) }",
            {},
            "its mask is read",
        ),
        (
            8,
            "g (int64[2] n, float[2,3] h, float[2,4,3] x) => (float[2,3] f) { f = Scan<num_scan_inputs = 1, "
            "body = b (float[3] s, float[3] e) => (float[3] t) { t = Add(s, e) }>(n, h, x) }",
            {},
            "rows have lengths of their own",
        ),
        (9, "g (int32[2] x) => (int32[2] y) { y = Erf(x) }", {}, r"'input' cannot be tensor\(int32\) since opset 13"),
    ],
)
def test_form_without_a_counterpart_is_refused_with_its_node(opset: int, text: str, weights: Arrays, reason: str) -> None:
    with pytest.raises(CompileError, match=f"opset {opset} cannot be converted to 18: node .*{reason}"):
        convert_to_internal(parse(text, weights, opset=opset))


@pytest.mark.parametrize(
    ("opset", "text", "weights"),
    [
        (20, 'g (float[1,1,4,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample<mode = "bilinear">(x, g) }', {}),
        (
            21,
            "g (float[2,4,3] x) => (float[2,4,3] y) { y = GroupNormalization<num_groups = 2>(x, s, b) }",
            {"s": np.array([0.5, 2], np.float32), "b": np.array([1, -1], np.float32)},
        ),
        (20, "g (float[1,8,1] x) => (float[1,8,2] y) { y = DFT<axis = 1>(x) }", {}),
    ],
)
def test_models_are_converted_to_newer_opsets_with_the_same_meaning(opset: int, text: str, weights: Arrays) -> None:
    model = parse(text, weights)
    made = convert_for_output(model, opset, is_explicit=True)
    assert opset_of(made) == opset
    assert_same_results(model, made)


@pytest.mark.parametrize(
    ("text", "weights", "reason"),
    [
        ('g (float[2,4] x) => (float[2,6] y) { y = Pad<mode = "wrap">(x, p) }', {"p": ints(0, 1, 0, 1)}, "mode 'wrap' is new in opset 19"),
        (
            'g (float[1,1,4,4] x) => (float[1,1,8,8] y) { y = Resize<coordinate_transformation_mode = "half_pixel_symmetric">(x, , s) }',
            {"s": np.array([1, 1, 2, 2], np.float32)},
            "'half_pixel_symmetric' is new in opset 19",
        ),
    ],
)
def test_newer_attribute_values_are_not_written_at_older_opsets(text: str, weights: Arrays, reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        convert_for_output(parse(text, weights, opset=19), 18, is_explicit=True)


def test_dropout_mask_is_not_written_at_opsets_with_another_meaning() -> None:
    with pytest.raises(CompileError, match="its mask is read"):
        convert_for_output(parse("g (float[3] x) => (float[3] y, bool[3] m) { y, m = Dropout(x) }"), 11, is_explicit=True)


def test_scatter_reductions_are_not_written_at_older_opsets() -> None:
    text = 'g (float[3] x, float[1] u) => (float[3] y) { y = ScatterElements<reduction = "max">(x, i, u) }'
    with pytest.raises(CompileError, match="reduction 'max' is new in opset 18"):
        convert_for_output(parse(text, {"i": ints(1)}), 17, is_explicit=True)


def test_batched_scan_runs_row_by_row() -> None:
    opsets, text, weights = OLD_FORMS["scan of a batch"]
    assert op_types(convert_to_internal(parse(text, weights, opset=opsets[0]))) == ["Scan", "Scan", "Add", "Mul"]
