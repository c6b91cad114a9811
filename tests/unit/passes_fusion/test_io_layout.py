"""Inputs as bytes, inputs joined, and weights stored once."""

import json

import numpy as np
import onnx
import pytest

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import EIGHT_BITS_IO, HOST_CONCAT
from stoker.compiler.passes.layout.host_io import IMAGENET_MEAN, IMAGENET_STD, ApplyHostConcatSplit, EightBitsIO
from stoker.compiler.passes.layout.weights import FoldPeriodicInitializer, period_along
from tests.fakes.graphs import assert_same_results, assert_valid, initializers_of, input_names, op_types, parse, random_feeds, run_onnx


def metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {each.key: each.value for each in model.metadata_props}


@pytest.mark.parametrize(("shape", "axis"), [("2,3,4,5", 1), ("2,4,5,3", 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float", 1e-5), ("float16", 1e-2)])
def test_pixels_are_normalised_on_the_device(shape, axis, dtype, tolerance):
    model = parse(f"g ({dtype}[{shape}] image) => ({dtype}[{shape}] y) {{ y = Relu(image) }}")
    bytes_in = EightBitsIO()(model)
    assert op_types(bytes_in) == ["Cast", "Mul", "Add", "Relu"]
    assert bytes_in.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert json.loads(metadata(bytes_in)[EIGHT_BITS_IO])["image"]["axis"] == axis
    assert_valid(bytes_in)
    pixels = np.random.default_rng(0).integers(0, 256, [int(size) for size in shape.split(",")]).astype(np.uint8)
    wide = [1, 1, 1, 1]
    wide[axis] = 3
    image = (pixels / 255 - np.reshape(IMAGENET_MEAN, wide)) / np.reshape(IMAGENET_STD, wide)
    np_dtype = np.float32 if dtype == "float" else np.float16
    expected = run_onnx(model, {"image": image.astype(np_dtype)})["y"]
    np.testing.assert_allclose(run_onnx(bytes_in, {"image": pixels})["y"], expected, rtol=tolerance, atol=tolerance)


def test_named_images_use_the_given_statistics():
    model = parse("g (float[1,1,2,2] a, float[1,1,2,2] b) => (float[1,1,2,2] y) { y = Add(a, b) }")
    bytes_in = EightBitsIO(inputs=["b"], mean=[0.5], std=[0.25])(model)
    feeds: dict[str, np.ndarray] = {"a": np.zeros((1, 1, 2, 2), np.float32), "b": np.full((1, 1, 2, 2), 255, np.uint8)}
    np.testing.assert_allclose(run_onnx(bytes_in, feeds)["y"], np.full((1, 1, 2, 2), 2.0), rtol=1e-6)


def test_input_that_is_not_an_image_is_refused_with_its_shape():
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    with pytest.raises(PassError, match=r"expected floating-point images with 3 colours.*'x'"):
        EightBitsIO()(model)
    with pytest.raises(PassError, match="no input 'z'; it has x"):
        EightBitsIO(inputs=["z"])(model)
    with pytest.raises(OptionError, match="std must be positive"):
        EightBitsIO(std=[1, 0, 1])


WIDE = "g (float[2,1] a, float[2,5] o, float[2,1] b, float[2,1] c) => (float[2,8] y) { y = Concat<axis=1>(a, b, o, c) }"


@pytest.mark.parametrize(
    ("group", "joined"), [("fp32,[2,1]", ["a", "b", "c"]), ("fp32,[2,1],2", ["a", "b"]), (" fp32 , [2, 1] , 3 ", ["a", "b", "c"])]
)
def test_inputs_of_one_shape_become_one_that_the_device_splits(group, joined):
    model = parse(WIDE)
    merged = ApplyHostConcatSplit([group])(model)
    (record,) = json.loads(metadata(merged)[HOST_CONCAT])
    assert record["input_tensor_names"] == joined
    assert (record["shape"], record["data_size_bytes"], record["dtype"]) == ([2, 1], 8, "float")
    assert isinstance(record["data_size_bytes"], int)
    assert input_names(merged)[0] == record["tensor_name"]
    assert set(input_names(merged)) == {record["tensor_name"], "a", "b", "c", "o"} - set(joined)
    assert op_types(merged) == ["Split", *["Reshape"] * len(joined), "Concat"]
    assert_valid(merged)
    feeds = random_feeds(model)
    whole = {record["tensor_name"]: np.stack([feeds[name] for name in joined])} | {k: v for k, v in feeds.items() if k not in joined}
    np.testing.assert_array_equal(run_onnx(merged, whole)["y"], run_onnx(model, feeds)["y"])


def test_invalid_groups_are_refused():
    with pytest.raises(PassError, match=r"4 inputs of FLOAT \[2, 1\] are needed, there are 3"):
        ApplyHostConcatSplit(["fp32,[2,1],4"])(parse(WIDE))
    with pytest.raises(PassError, match="at least 2 inputs"):
        ApplyHostConcatSplit(["fp32,[2,5]"])(parse(WIDE))
    for text in ("fp32", "fp32,2x1", "float8,[2]", "fp32,[2,1],1"):
        with pytest.raises(OptionError, match="apply_hcsr"):
            ApplyHostConcatSplit([text])


@pytest.mark.parametrize(
    ("array", "op_type", "period"),
    [
        (np.tile(np.arange(8, dtype=np.float32), (4, 3)), "Tile", (1, 8)),
        (np.broadcast_to(np.arange(16, dtype=np.float32)[:, None], (16, 24)), "Expand", (16, 1)),
        (np.full((12, 32), np.nan, np.float32), "Expand", (1, 1)),
        (np.tile(np.arange(6, dtype=np.float32).reshape(2, 3), (6, 8)), "Tile", (2, 3)),
    ],
)
def test_repeating_weight_is_stored_once(array, op_type, period):
    rows, columns = array.shape
    model = parse(f"g (float[{rows},{columns}] x) => (float[{rows},{columns}] y) {{ y = Add(x, w) }}", {"w": array})
    folded = FoldPeriodicInitializer(min_bytes=64)(model)
    assert op_types(folded) == [op_type, "Add"]
    assert [each.shape for each in initializers_of(folded).values() if each.dtype == np.float32] == [period]
    assert_valid(folded)
    assert_same_results(model, folded, rtol=0, atol=0)


def test_weights_that_are_unique_small_or_outputs_are_kept():
    noise = np.random.default_rng(1).standard_normal((8, 40)).astype(np.float32)
    same = np.ones((8, 40), np.float32)
    for array, limit in ((noise, 64), (same, 10_000)):
        model = parse("g (float[8,40] x) => (float[8,40] y) { y = Add(x, w) }", {"w": array})
        assert op_types(FoldPeriodicInitializer(min_bytes=limit)(model)) == ["Add"]


def test_weight_read_twice_and_in_a_branch_is_expanded_once():
    text = """g (float[8,40] x, bool p) => (float[8,40] y) {
      a = Relu(x)
      b = If (p) <then_branch = t () => (float[8,40] u) { u = Add(a, w) }, else_branch = f () => (float[8,40] v) { v = Sub(a, w) }>
      y = Mul(b, w)
    }"""
    model = parse(text, {"w": np.full((8, 40), 3, np.float32)})
    folded = FoldPeriodicInitializer(min_bytes=64)(model)
    assert op_types(folded) == ["Relu", "Expand", "If", "Mul", "Add", "Sub"]
    assert_same_results(model, folded, rtol=0, atol=0)


def test_smallest_dividing_period_is_used_and_minus_zero_is_not_zero():
    assert period_along(np.array([1, 2, 1, 2, 1, 2]), 0) == 2
    assert period_along(np.array([1, 2, 1, 2, 1]), 0) == 5
    assert period_along(np.array([0.0, -0.0]), 0) == 2
    assert period_along(np.array([np.nan, np.nan], np.float32), 0) == 1
