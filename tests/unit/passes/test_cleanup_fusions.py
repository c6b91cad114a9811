import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.compiler.passes import PassManager, get_pass
from stoker.compiler.passes.cleanup.consecutive import holds_every_value
from tests.fakes.graphs import Constants, assert_same_results, initializers_of, op_types, parse, random_feeds


def fused(name: str, text: str, initializers: Constants | None = None, rtol: float = 0, atol: float = 0) -> list[str]:
    """Operators left after pass `name`; results must agree, and a second run must change nothing."""
    model = parse(text, initializers)
    manager = PassManager(["shape_inference", name], verify_each=True)
    after = manager.run(model)
    for seed in range(2):
        assert_same_results(model, after, random_feeds(model, seed), rtol=rtol, atol=atol)
    assert op_types(manager.run(after)) == op_types(after)
    return op_types(after)


def test_transposes_are_composed_or_cancel() -> None:
    text = "g (float[2,3,4] x) => (float[3,4,2] y) { a = Transpose<perm = [2,0,1]>(x) b = Transpose<perm = [2,0,1]>(a) y = Relu(b) }"
    assert fused("fuse_consecutive_transpose", text) == ["Transpose", "Relu"]
    text = "g (float[2,3] x) => (float[2,3] y) { a = Transpose(x) b = Transpose<perm = [1,0]>(a) y = Relu(b) }"
    assert fused("fuse_consecutive_transpose", text) == ["Relu"]


def test_transpose_with_other_readers_is_kept_for_them() -> None:
    text = "g (float[2,3] x) => (float[2,3] y, float[3,2] z) { a = Transpose(x) b = Transpose(a) y = Relu(b) z = Neg(a) }"
    assert fused("fuse_consecutive_transpose", text) == ["Transpose", "Relu", "Neg"]


def test_three_transposes_become_one() -> None:
    text = """g (float[2,3,4] x) => (float[3,2,4] y) {
        a = Transpose<perm = [2,0,1]>(x) b = Transpose<perm = [0,2,1]>(a) y = Transpose<perm = [1,2,0]>(b)
    }"""
    assert fused("fuse_consecutive_transpose", text) == ["Transpose"]


@pytest.mark.parametrize(
    ("source", "between", "wanted", "left"),
    [
        ("float16", 1, 10, ["Neg"]),  # there and back without loss
        ("float16", 1, 11, ["Cast", "Neg"]),
        ("int32", 11, 1, ["Cast", "Neg"]),  # every int32 is a double
        ("float", 10, 1, ["Cast", "Cast", "Neg"]),  # the rounding in the middle counts
        ("float", 7, 1, ["Cast", "Cast", "Neg"]),
        ("int32", 1, 7, ["Cast", "Cast", "Neg"]),  # float has 24 digits
        ("int64", 6, 7, ["Cast", "Cast", "Neg"]),
    ],
)
def test_casts_are_fused_only_if_the_middle_type_loses_nothing(source: str, between: int, wanted: int, left: list[str]) -> None:
    name = {1: "float", 10: "float16", 11: "double", 7: "int64", 6: "int32"}[wanted]
    text = f"g ({source}[5] x) => ({name}[5] y) {{ a = Cast<to = {between}>(x) b = Cast<to = {wanted}>(a) y = Neg(b) }}"
    assert fused("fuse_consecutive_cast", text) == left


_NUMBERS = [
    ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32,
    ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE,
    ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ, ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2,
]  # fmt: skip


@pytest.mark.parametrize("narrow", _NUMBERS)
@pytest.mark.parametrize("wide", _NUMBERS)
def test_lossless_casts_equal_numpys(narrow: ir.DataType, wide: ir.DataType) -> None:
    if not holds_every_value(wide, narrow):
        return
    bits = np.dtype(narrow.numpy()).itemsize * 8
    codes = np.arange(1 << min(bits, 16), dtype=np.uint64).astype(f"u{bits // 8}") << (bits - 16 if bits > 16 else 0)
    values = np.array([False, True]) if narrow == ir.DataType.BOOL else codes.view(narrow.numpy())
    with np.errstate(all="ignore"):
        back = values.astype(wide.numpy()).astype(narrow.numpy())
        same = (back == values) | (np.isnan(values.astype(np.float64)) & np.isnan(back.astype(np.float64)))
    assert same.all()


def test_lossless_casts_between_types_are_known() -> None:
    half, brain, single = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT
    assert holds_every_value(single, half)
    assert holds_every_value(single, brain)
    assert holds_every_value(half, ir.DataType.FLOAT8E4M3FNUZ)
    assert holds_every_value(half, ir.DataType.UINT8)
    assert not holds_every_value(half, brain)
    assert not holds_every_value(brain, half)
    assert not holds_every_value(half, ir.DataType.INT16)
    assert not holds_every_value(ir.DataType.UINT8, ir.DataType.INT8)
    assert not holds_every_value(ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2)
    assert not holds_every_value(single, ir.DataType.STRING)


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ("Reshape(x, a)", [4, 6], ["Reshape"]),
        ("Reshape(x, a)", [-1], ["Reshape"]),
        ("Reshape(x, a)", [0, 3, 4], ["Reshape"]),  # the 0 is the 2 of between
        ("Flatten<axis = 2>(x)", [24], ["Reshape"]),
        ("Unsqueeze(x, one)", [6, 4], ["Reshape"]),
    ],
)
def test_consecutive_reshapes_become_the_last(first: str, second: list[int], left: list[str]) -> None:
    out = ",".join(str(size) for size in np.zeros(24).reshape([2 if size == 0 else size for size in second]).shape)
    text = f"g (float[2,3,4] x) => (float[{out}] y) {{ m = {first} y = Reshape(m, b) }}"
    assert fused("fuse_consecutive_reshape", text, {"a": np.array([2, 12]), "b": np.array(second), "one": np.array([1])}) == left


def test_zero_for_an_unknown_dimension_keeps_both_reshapes() -> None:
    text = "g (float[n,3] x) => (float[p,q] y) { m = Reshape(x, a) y = Reshape(m, b) }"
    assert fused("fuse_consecutive_reshape", text, {"a": np.array([-1, 1]), "b": np.array([0, 1])}) == ["Reshape", "Reshape"]


def axes_of(data: st.DataObject, count: int, rank: int) -> list[int]:
    """`count` different axes of a tensor of `rank` dimensions, from the front or the back."""
    return data.draw(st.lists(st.integers(-rank, rank - 1), min_size=count, max_size=count, unique_by=lambda axis: axis % rank))


@given(st.data())
def test_squeezes_and_unsqueezes_are_fused_for_any_axes(data: st.DataObject) -> None:
    rank, few, more = data.draw(st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(1, 2)))
    inner, outer = axes_of(data, few, rank + few), axes_of(data, more, rank + few + more)
    x = np.zeros((2, 3, 4)[:rank])
    wide = np.expand_dims(np.expand_dims(x, tuple(inner)), tuple(outer))
    narrow_dims, wide_dims = ("".join(f"{size}," for size in array.shape).rstrip(",") for array in (x, wide))
    narrow = f"float[{narrow_dims}]" if rank else "float"
    axes: dict[str, object] = {"a": np.array(inner), "b": np.array(outer)}
    there = f"g ({narrow} x) => (float[{wide_dims}] y) {{ m = Unsqueeze(x, a) y = Unsqueeze(m, b) }}"
    assert fused("fuse_consecutive_unsqueeze", there, axes) == ["Unsqueeze"]
    back = f"g (float[{wide_dims}] x) => ({narrow} y) {{ m = Squeeze(x, b) y = Squeeze(m, a) }}"
    assert fused("fuse_consecutive_squeeze", back, axes) == ["Squeeze"]


def test_unsqueezes_of_unknown_rank_are_fused_only_from_the_front() -> None:
    model = parse(
        "g (float[2,3] x) => (float[1,1,2,3] y) { m = Unsqueeze(x, a) y = Unsqueeze(m, b) }", {"a": np.array([0]), "b": np.array([1])}
    )
    model.graph.input[0].type.tensor_type.ClearField("shape")
    after = get_pass("fuse_consecutive_unsqueeze")(model)
    assert op_types(after) == ["Unsqueeze"]
    assert [array.tolist() for name, array in initializers_of(after).items() if name not in "ab"] == [[0, 1]]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Add(x, c) y = Add(d, a)", ["Add"]),
        ("a = Sub(x, c) y = Add(a, d)", ["Add"]),
        ("a = Add(x, c) y = Sub(a, d)", ["Add"]),
        ("a = Mul(c, x) y = Mul(a, d)", ["Mul"]),
        ("a = Div(x, c) y = Mul(a, d)", ["Mul"]),
        ("a = Mul(x, c) b = Div(a, d) y = Mul(b, d)", ["Mul"]),
        ("a = Mul(x, c) y = Add(a, d)", ["Mul", "Add"]),
        ("a = Sub(c, x) y = Add(a, d)", ["Sub", "Add"]),
        ("a = Div(c, x) y = Mul(a, d)", ["Div", "Mul"]),
        ("a = Add(x, c) b = Neg(a) d1 = Add(a, d) y = Add(b, d1)", ["Add", "Neg", "Add", "Add"]),
    ],
)
def test_consecutive_constants_are_combined(body: str, left: list[str]) -> None:
    initializers = {"c": np.array([3, 0.7], np.float32), "d": np.float32(1.3)}
    assert fused("fuse_consecutive_arithmetic", f"g (float[2] x) => (float[2] y) {{ {body} }}", initializers, rtol=1e-6, atol=1e-6) == left


@pytest.mark.parametrize(
    ("kind", "op", "c", "d"),
    [
        (np.float16, "Mul", 60000, 2),  # overflows to infinity
        (np.float16, "Mul", 1e-4, 1e-4),  # too small to keep its digits
        (np.float16, "Add", 60000, 60000),
        (np.float32, "Mul", [[1], [2]], [[3, 4]]),  # larger than both
    ],
)
def test_constants_that_combine_inexactly_are_kept(kind: type, op: str, c: object, d: object) -> None:
    name = np.dtype(kind).name.replace("float32", "float")
    text = f"g ({name}[2,2] x) => ({name}[2,2] y) {{ a = {op}(x, c) y = {op}(a, d) }}"
    assert fused("fuse_consecutive_arithmetic", text, {"c": np.array(c, kind), "d": np.array(d, kind)}) == [op, op]


@pytest.mark.parametrize(("body", "left"), [("a = Add(x, c) y = Add(a, d)", ["Add"]), ("a = Mul(x, d) y = Div(a, d)", ["Mul", "Div"])])
def test_integers_add_up_and_are_not_divided(body: str, left: list[str]) -> None:
    initializers: dict[str, object] = {"c": np.int32(2**31 - 1), "d": np.int32(5)}
    assert fused("fuse_consecutive_arithmetic", f"g (int32[2] x) => (int32[2] y) {{ {body} }}", initializers) == left


def batch_norm(channels: int, kind: type = np.float32) -> dict[str, object]:
    generator = np.random.default_rng(1)
    return {name: generator.uniform(0.5, 2, channels).astype(kind) for name in ("s", "b", "m", "v")}


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "shape", "bias"),
    [
        ("Conv", (4, 3, 2, 2), False),
        ("Conv", (4, 3, 2, 2), True),
        ("ConvTranspose", (3, 4, 2, 2), True),
    ],
)
def test_batch_normalization_is_folded_into_the_convolution(op: str, shape: tuple[int, ...], bias: bool) -> None:
    initializers = {**batch_norm(4), "w": weights(*shape), "c": weights(4)}
    size = 4 if op == "Conv" else 6
    conv = f"{op}(x, w, c)" if bias else f"{op}(x, w)"
    text = f"g (float[2,3,5,5] x) => (float[2,4,{size},{size}] y) {{ a = {conv} y = BatchNormalization(a, s, b, m, v) }}"
    assert fused("fuse_bn_into_conv", text, initializers, rtol=1e-4, atol=1e-5) == [op]


def test_batch_normalization_is_folded_into_a_grouped_transposed_convolution() -> None:
    initializers = {**batch_norm(6), "w": weights(4, 3, 2, 2)}
    text = "g (float[1,4,3,3] x) => (float[1,6,4,4] y) { a = ConvTranspose<group = 2>(x, w) y = BatchNormalization(a, s, b, m, v) }"
    assert fused("fuse_bn_into_conv", text, initializers, rtol=1e-4, atol=1e-5) == ["ConvTranspose"]


def test_shared_weights_are_kept_for_other_readers() -> None:
    initializers = {**batch_norm(4), "w": weights(4, 3, 1, 1)}
    text = """g (float[1,3,2,2] x) => (float[1,4,2,2] y, float[1,4,2,2] z) {
        a = Conv(x, w) y = BatchNormalization(a, s, b, m, v) z = Conv(x, w)
    }"""
    assert fused("fuse_bn_into_conv", text, initializers, rtol=1e-4, atol=1e-5) == ["Conv", "Conv"]
    after = get_pass("fuse_bn_into_conv")(parse(text, initializers))
    assert len(initializers_of(after)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,3,2,2] x) => (float[1,4,2,2] y, float[1,4,2,2] z) { a = Conv(x, w) y = BatchNormalization(a, s, b, m, v) z = Relu(a) }",
        "g (float[1,3,2,2] x, float[4] s) => (float[1,4,2,2] y) { a = Conv(x, w) y = BatchNormalization(a, s, b, m, v) }",
    ],
)
def test_batch_normalization_that_cannot_be_folded_is_kept(text: str) -> None:
    assert "BatchNormalization" in fused("fuse_bn_into_conv", text, {**batch_norm(4), "w": weights(4, 3, 1, 1)})


def test_half_weights_that_would_overflow_are_kept() -> None:
    values = batch_norm(1, np.float16) | {"v": np.array([0], np.float16), "s": np.array([60000], np.float16)}
    text = "g (float16[1,1,2,2] x) => (float16[1,1,2,2] y) { a = Conv(x, w) y = BatchNormalization<epsilon = 1e-6>(a, s, b, m, v) }"
    after = get_pass("fuse_bn_into_conv")(parse(text, {**values, "w": np.array([[[[100]]]], np.float16)}))
    assert op_types(after) == ["Conv", "BatchNormalization"]


def test_bfloat16_constants_are_combined_in_their_own_type() -> None:
    constants = {"c": np.array(3, ml_dtypes.bfloat16), "d": np.array(5, ml_dtypes.bfloat16)}
    model = parse("g (bfloat16[2] x) => (bfloat16[2] y) { a = Mul(x, c) y = Mul(a, d) }", constants)
    after = get_pass("fuse_consecutive_arithmetic")(model)
    assert [(str(array.dtype), float(array)) for name, array in initializers_of(after).items() if name not in "cd"] == [("bfloat16", 15.0)]
