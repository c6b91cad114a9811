import logging

import numpy as np
import onnx
import pytest
from onnx import helper

from stoker.compiler.convert.opset import convert_for_output, convert_to_internal, opset_of
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.simplify import fold_constants
from tests.fakes.graphs import Feeds, as_ir, assert_same_results, assert_valid, model_of, op_types, parse, random_feeds, run_onnx, tensor


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def lowered(text: str, initializers: dict[str, object] | None = None, *, to: int = 11, feeds: Feeds | None = None) -> list[str]:
    """The operators at opset `to`; the model there is valid and has the same results."""
    model = parse(text, initializers)
    copy = model.SerializeToString()
    made = convert_for_output(model, to, is_explicit=True)
    assert opset_of(made) == to
    assert_valid(made)
    assert_same_results(model, made, feeds, rtol=1e-5, atol=1e-5)
    assert model.SerializeToString() == copy
    return op_types(made)


@pytest.mark.parametrize(
    ("text", "initializers", "operators"),
    [
        ("g (float[2,3] x) => (float[2] y) { y = ReduceMean<keepdims = 0>(x, a) }", {"a": ints(1)}, ["ReduceMean"]),
        ("g (float[2,3] x) => (float y) { y = ReduceMax<keepdims = 0>(x) }", {}, ["ReduceMax"]),
        ("g (float[2,3] x) => (float[2,1] y) { y = ReduceSum(x, a) }", {"a": ints(-1)}, ["ReduceSum"]),
        ("g (float[2,3] x) => (float[2,3] y) { a = ReduceMean<noop_with_empty_axes = 1>(x) y = Relu(a) }", {}, ["Relu"]),
        ("g (float[4,3] x) => (float[2,3] y, float[2,3] z) { y, z = Split<num_outputs = 2>(x) }", {}, ["Split"]),
        ("g (float[5,3] x) => (float[3,3] y, float[2,3] z) { y, z = Split<num_outputs = 2>(x) }", {}, ["Split"]),
        ("g (float[5,3] x) => (float[1,3] y, float[4,3] z) { y, z = Split(x, s) }", {"s": ints(1, 4)}, ["Split"]),
        (
            "g (float[2,1,4] x) => (float[1,2,4] y) { z = Squeeze(x, a) y = Unsqueeze(z, b) }",
            {"a": ints(1), "b": ints(0)},
            ["Squeeze", "Unsqueeze"],
        ),
        ("g (float[1,2,1] x) => (float[2] y) { y = Squeeze(x) }", {}, ["Squeeze"]),
        ("g (float[2,4] x) => (float[2,7] y) { y = Pad(x, p, v, a) }", {"p": ints(1, 2), "v": np.float32(3), "a": ints(-1)}, ["Pad"]),
        ("g (float[4,4] x) => (float[2,4] y) { y = Slice(x, b, e) }", {"b": ints(1), "e": ints(3)}, ["Slice"]),
        ("g (float[2,4] x) => (float[2,4] y) { y = Clip(x, , m) }", {"m": np.float32(0.3)}, ["Clip"]),
        ('g (float[1,1,2,4] x) => (float[1,1,4,8] y) { y = Resize<mode = "linear">(x, , , s) }', {"s": ints(1, 1, 4, 8)}, ["Resize"]),
        (
            'g (float[1,1,2,4] x) => (float[1,1,4,8] y) { y = Resize<mode = "nearest">(x, , s) }',
            {"s": np.array([1, 1, 2, 2], np.float32)},
            ["Resize"],
        ),
        ("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", {}, ["Softmax"]),
        ("g (float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax<axis = 1>(x) }", {}, ["Transpose", "LogSoftmax", "Transpose"]),
        ("g (float[2,4] x) => (float[2,1,4] y) { c = Constant<value_ints = [2, 1, 4]>() y = Reshape(x, c) }", {}, ["Constant", "Reshape"]),
        ("g (float[2,4] x) => (float[2,4] y) { y = Dropout(x, r) }", {"r": np.float32(0.3)}, ["Dropout"]),
        ("g (float[2,4,5] x) => (int64[2] y) { y = Shape<start = 1>(x) }", {}, ["Shape", "Slice"]),
        ("g (float[2,4] x) => (bool[2,4] y) { y = GreaterOrEqual(x, x) }", {}, ["Greater", "Equal", "Or"]),
        ("g (float[2,4] x) => (float[2,4] y) { y = HardSwish(x) }", {}, ["HardSigmoid", "Mul"]),
        ("g (float[2,4] x) => (float[2,4] y) { y = Mish(x) }", {}, ["Softplus", "Tanh", "Mul"]),
        (
            "g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = BatchNormalization(x, w, w, w, w) }",
            {"w": np.array([1, 2, 3], np.float32)},
            ["BatchNormalization"],
        ),
    ],
)
def test_operators_of_opset_18_are_converted_to_11(text: str, initializers: dict[str, object], operators: list[str]) -> None:
    assert lowered(text, initializers) == operators


@pytest.mark.parametrize("axis", [-1, 1, -2])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_normalization_is_decomposed(axis: int, has_bias: bool) -> None:
    shape = (3, 4) if axis != -1 else (4,)
    text = f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = LayerNormalization<axis = {axis}>(x, w{', b' if has_bias else ''}) }}"
    operators = ["ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div", "Mul", *(["Add"] if has_bias else [])]
    assert lowered(text, {"w": floats(*shape), "b": floats(*shape)}) == operators


def test_layer_normalization_of_halves_keeps_its_statistics_in_float() -> None:
    text = "g (float16[2,4] x) => (float16[2,4] y) { y = LayerNormalization(x, w) }"
    made = lowered(text, {"w": floats(4).astype(np.float16)}, feeds={"x": np.array([[300, -300, 200, 100], [1, 2, 3, 4]], np.float16)})
    assert (made[0], made[-2:]) == ("Cast", ["Cast", "Mul"])


def test_clip_pad_and_slice_are_lowered_to_their_attributes() -> None:
    text = "g (float[4,4] x) => (float[4,5] y) { a = Clip(x, lo, hi) b = Pad(a, p, v) y = Slice(b, s, e, ax) }"
    weights = {"lo": np.float32(-0.5), "hi": np.float32(0.5), "p": ints(0, 1, 0, 0), "v": np.float32(2)}
    assert lowered(text, {**weights, "s": ints(0), "e": ints(9), "ax": ints(1)}, to=9) == ["Clip", "Pad", "Slice"]


def test_branches_are_lowered_too() -> None:
    text = """g (bool c, float[1,3] x) => (float[3] y) {
        y = If(c) <then_branch = t () => (float[3] a) { a = Squeeze(x, ax) },
                   else_branch = e () => (float[3] b) { b = ReduceMean<keepdims = 0>(x, ax) }> }"""
    for condition in (True, False):
        assert lowered(text, {"ax": ints(0)}, feeds={"c": np.array(condition), "x": floats(1, 3)}) == ["If", "Squeeze", "ReduceMean"]


@pytest.mark.parametrize(
    ("opset", "text", "initializers"),
    [
        (20, "g (float[2,4] x) => (float[2,4] y) { y = Gelu(x) }", {}),
        (20, 'g (float[2,4] x) => (float[2,4] y) { y = Gelu<approximate = "tanh">(x) }', {}),
        (
            21,
            "g (float[2,4,3] x) => (float[2,4,3] y) { y = GroupNormalization<num_groups = 2>(x, s, s) }",
            {"s": np.array([0.5, 2, 3, 4], np.float32)},
        ),
        (23, "g (float[2,4] x) => (float[2,4] y) { y = RMSNormalization(x, w) }", {"w": np.array([0.5, 2, 3, 4], np.float32)}),
        (22, "g (float[1,1,4,4] x) => (float[1,1,3,3] y) { y = AveragePool<kernel_shape = [2, 2], dilations = [1, 1]>(x) }", {}),
    ],
)
def test_newer_models_are_lowered_to_the_internal_opset_and_on_to_11(opset: int, text: str, initializers: dict[str, object]) -> None:
    model = parse(text, initializers, opset=opset)
    internal = convert_to_internal(model)
    assert opset_of(internal) == 18
    assert_valid(internal)
    assert_same_results(model, internal, atol=1e-5)
    assert_same_results(model, convert_for_output(internal, 11, is_explicit=True), atol=1e-5)


@pytest.mark.parametrize(
    ("opset", "text", "initializers"),
    [
        (11, "g (float[1,3] x) => (float[3] y) { y = Squeeze<axes = [0]>(x) }", {}),
        (11, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", {}),
        (11, "g (float[2,3] x) => (float[2] y) { y = ReduceMean<axes = [1], keepdims = 0>(x) }", {}),
        (9, "g (float[4,3] x) => (float[2,3] y) { y = Slice<starts = [1], ends = [3], axes = [0]>(x) }", {}),
        (7, "g (float[2,3] x) => (float[2,3] y) { z = MatMul(x, w) y = Add(z, x) }", {"w": floats(3, 3)}),
    ],
)
def test_older_models_are_raised_to_the_internal_opset(opset: int, text: str, initializers: dict[str, object]) -> None:
    model = parse(text, initializers, opset=opset)
    internal = convert_to_internal(model)
    assert opset_of(internal) == 18
    assert_valid(internal)
    assert_same_results(model, internal)


def test_weights_and_inputs_with_a_default_are_preserved() -> None:
    text = "g (float[2,64] x, float[64] d) => (float[2,64] y) { z = MatMul(x, w) a = Add(z, d) y = Mul(a, s) }"
    model = parse(text, {"w": floats(64, 64), "d": floats(64), "s": np.float32(2)}, opset=13)
    internal = convert_to_internal(model)
    assert [each.name for each in internal.graph.input] == ["x", "d"]
    assert sorted(each.name for each in internal.graph.initializer) == ["d", "s", "w"]
    assert_same_results(model, internal)


HEADS = "float[1,2,4,8] q, float[1,2,6,8] k, float[1,2,6,8] v"
PAST = "float[1,2,3,8] pk, float[1,2,3,8] pv"


@pytest.mark.parametrize(
    ("opset", "text", "initializers"),
    [
        (23, f"g ({HEADS}) => (float[1,2,4,8] y) {{ y = Attention<is_causal = 1, scale = 0.5>(q, k, v) }}", {}),
        (23, f"g ({HEADS}, bool[4,6] m) => (float[1,2,4,8] y) {{ y = Attention(q, k, v, m) }}", {}),
        (
            23,
            f"g ({HEADS}, {PAST}) => (float[1,2,4,8] y, float[1,2,9,8] nk, float[1,2,9,8] nv) "
            "{ y, nk, nv = Attention(q, k, v, , pk, pv) }",
            {},
        ),
        (23, f"g ({HEADS}) => (float[1,2,4,8] y, float[1,2,4,6] w) {{ y, , , w = Attention<qk_matmul_output_mode = 3>(q, k, v) }}", {}),
        (
            23,
            "g (float[1,4,16] q, float[1,6,16] k) => (float[1,4,16] y) { y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, k) }",
            {},
        ),
        (
            23,
            f"g ({HEADS}) => (float[1,2,4,8] y, float[1,2,6,8] nk, float[1,2,6,8] nv) {{ y, nk, nv = Attention(q, k, v) }}",
            {},
        ),
        (13, "g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = MeanVarianceNormalization(x) }", {}),
        (12, "g (float[2,4] x) => (float[2,4] y) { y = Celu<alpha = 2.0>(x) }", {}),
    ],
)
def test_operators_defined_by_functions_are_converted_to_the_internal_opset(opset: int, text: str, initializers: dict[str, object]) -> None:
    model = parse(text, initializers, opset=opset)
    internal = convert_to_internal(model)
    assert opset_of(internal) == 18
    assert_valid(internal)
    assert_same_results(model, internal, atol=1e-5)


@pytest.mark.parametrize("alpha", ["", "<alpha = 1.5>"])
def test_swish_and_swiglu_are_decomposed(alpha: str) -> None:
    """ONNX Runtime has no kernel for them at opset 24; the form they get is the definition."""
    text = f"g (float[2,8] x) => (float[2,4] y) {{ a, b = Split<axis = 1, num_outputs = 2>(x) s = Swish{alpha}(b) y = Mul(a, s) }}"
    x = floats(2, 8)
    a, b = x[:, :4], x[:, 4:]
    (y,) = run_onnx(convert_to_internal(parse(text, opset=24)), {"x": x}).values()
    np.testing.assert_allclose(y, a * b / (1 + np.exp(-(1.5 if alpha else 1.0) * b)), rtol=1e-5)


def test_celu_of_halves_is_converted_to_opset_11() -> None:
    model = parse("g (float16[2,4] x) => (float16[2,4] y) { y = Celu<alpha = 2.0>(x) }", opset=28)
    made = convert_for_output(model, 11, is_explicit=True)
    assert opset_of(made) == 11
    assert "Celu" not in op_types(made)


def test_call_may_omit_outputs_of_a_function() -> None:
    body = [helper.make_node("Neg", ["a"], ["m"]), helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("own", "Two", ["a"], ["m", "b"], body, [helper.make_opsetid("", 17)])
    node = helper.make_node("Two", ["x"], ["y"], domain="own")
    model = model_of([node], [tensor("x", [2])], [tensor("y", [2])], functions=[function], domains=["own"])
    internal = convert_to_internal(model)
    assert (op_types(internal)[0], len(internal.functions)) == ("Neg", 0)
    np.testing.assert_array_equal(run_onnx(internal, {"x": np.array([1, -2], np.float32)})["y"], [-1, 2])


def test_functions_of_the_model_are_inlined() -> None:
    body = [helper.make_node("Neg", ["a"], ["m"]), helper.make_node("Relu", ["m"], ["b"])]
    function = helper.make_function("own", "Act", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    node = helper.make_node("Act", ["x"], ["y"], domain="own")
    model = model_of([node], [tensor("x", [2])], [tensor("y", [2])], functions=[function], domains=["own"])
    internal = convert_to_internal(model)
    assert (op_types(internal), len(internal.functions)) == (["Neg", "Relu"], 0)
    assert_same_results(model, internal)


def test_metadata_of_nodes_are_kept_in_both_directions() -> None:
    for source, target in ((18, 11), (11, 18)):
        model = parse("g (float[2] x) => (float[2] y) { z = Relu(x) y = Abs(z) }", opset=source)
        entry = model.graph.node[0].metadata_props.add()
        entry.key, entry.value = "mark", "1"
        made = convert_for_output(model, target)
        assert opset_of(made) == target
        assert [{each.key: each.value for each in node.metadata_props} for node in made.graph.node] == [{"mark": "1"}, {}]


@pytest.mark.parametrize(
    ("text", "initializers", "reason"),
    [
        ('g (float[2,4] x) => (float[2,2] y) { y = Einsum<equation = "ij,kj->ik">(x, x) }', {}, "(Einsum, making 'y').*new in opset 12"),
        ("g (float[2,4] x) => (float[2,4] y) { y = Trilu(x) }", {}, "(Trilu, making 'y').*new in opset 14"),
        ("g (float[2,4] x, int64[1] a) => (float[p,q] y) { y = ReduceMean(x, a) }", {}, "(ReduceMean, making 'y').*'a'.*computed"),
        ("g (float[2,4] x) => (float[2,4] y) { z = Cast<to = 16>(x) w = Add(z, z) y = Cast<to = 1>(w) }", {}, "bfloat16"),
    ],
)
def test_model_without_an_adapter_keeps_its_opset_with_one_warning(
    text: str, initializers: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = parse(text, initializers)
    with caplog.at_level(logging.WARNING):
        made = convert_for_output(model, 11)
    assert made == model
    assert len(caplog.records) == 1
    assert caplog.text.count("the written model keeps opset 18 instead of 11") == 1
    with pytest.raises(CompileError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        convert_for_output(model, 11, is_explicit=True)


def test_all_operators_without_an_adapter_are_named_at_once() -> None:
    model = parse('g (float[4,4] x) => (float[4,4] y) { a = Trilu(x) y = Einsum<equation = "ij,jk->ik">(a, a) }')
    with pytest.raises(CompileError, match=r"Trilu.*Einsum"):
        convert_for_output(model, 11, is_explicit=True)


def test_newer_model_that_cannot_be_lowered_keeps_its_opset(caplog: pytest.LogCaptureFixture) -> None:
    model = parse("g (float[2] x) => (float[2] y) { z = Cast<to = 18>(x) y = Cast<to = 1>(z) }", opset=19)
    with caplog.at_level(logging.WARNING):
        internal = convert_to_internal(model)
    assert opset_of(internal) == 19
    assert "keeps its opset 19" in caplog.text
    assert_same_results(model, internal)


def test_newer_model_goes_down_to_the_newest_opset_that_is_run(caplog: pytest.LogCaptureFixture) -> None:
    text = "g (float[2,3] x) => (int32[2,3] z, float[2,3] y) { z = BitCast<to = 6>(x) y = Mod<fmod = 1>(x, x) }"
    made = convert_to_internal(parse(text, opset=28))
    assert opset_of(made) == 26
    assert "the model keeps its opset 26" in caplog.text


def test_operator_of_an_opset_that_is_not_run_is_refused_with_its_node() -> None:
    text = 'g (int8[2] x) => (int8[2] y) { [shift] y = BitShift<direction = "LEFT">(x, x) }'
    with pytest.raises(CompileError, match=r"opset 28 cannot be converted to 26.*node 'shift' \(BitShift.*tensor\(int8\) before opset 28"):
        convert_to_internal(parse(text, opset=28))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_remainder_of_floats_has_the_sign_of_the_divisor(kind: type) -> None:
    dividends: np.ndarray = np.array([-5, -2.5, -0.0, 0, 2, 5.25, np.inf, np.nan]).astype(kind)
    divisors: np.ndarray = np.array([[-3], [3], [2.5], [-0.5], [np.inf], [-np.inf]]).astype(kind)
    x, y = np.broadcast_arrays(dividends, divisors)
    inputs = [tensor(name, x.shape, kind) for name in "xy"]
    model = model_of([helper.make_node("Mod", ["x", "y"], ["z"])], inputs, [tensor("z", x.shape, kind)], opset=28)
    made = convert_to_internal(model)
    assert opset_of(made) == 18
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(run_onnx(made, {"x": x, "y": y})["z"], np.mod(x, y))


def test_split_of_a_constant_is_folded() -> None:
    text = "g (float[1] x) => (float[3] y, float[4] z) { a, b = Split<axis = 0, num_outputs = 2>(w) y = Expand(x, a) z = Expand(x, b) }"
    model = as_ir(parse(text, {"w": ints(3, 4)}))
    infer_shapes(model)
    assert fold_constants(model)
    assert op_types(model) == ["Expand", "Expand"]
    assert_same_results(parse(text, {"w": ints(3, 4)}), model)


@pytest.mark.parametrize("version", [6, 99])
def test_nonexistent_opsets_are_refused(version: int) -> None:
    with pytest.raises(OptionError, match=f"convert_version {version}: expected 7 to"):
        convert_for_output(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), version)


@pytest.mark.parametrize(("version", "reason"), [(3, "7 is the oldest"), (99, "the model is of opset 99")])
def test_sources_of_unknown_opsets_are_refused(version: int, reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        convert_to_internal(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=version))


def test_other_spelling_of_the_default_domain_is_understood() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=18)
    model.opset_import[0].domain = "ai.onnx"
    internal = convert_to_internal(model)
    assert [(each.domain, each.version) for each in internal.opset_import] == [("", 18)]


def attention_block() -> onnx.ModelProto:
    """One layer as BERT has it: attention over two heads, its residual and normalisation, and a GELU."""
    text = """g (float[2,4,8] x, float[2,1,1,4] mask) => (float[2,4,8] y) {
        q0 = MatMul(x, wq) q1 = Reshape(q0, heads) q = Transpose<perm = [0,2,1,3]>(q1)
        k0 = MatMul(x, wk) k1 = Reshape(k0, heads) k = Transpose<perm = [0,2,3,1]>(k1)
        v0 = MatMul(x, wv) v1 = Reshape(v0, heads) v = Transpose<perm = [0,2,1,3]>(v1)
        s = MatMul(q, k) d = Div(s, root) m = Add(d, mask) p = Softmax<axis = 3>(m) c = MatMul(p, v)
        t = Transpose<perm = [0,2,1,3]>(c) o = Reshape(t, flat) r = Add(o, x) n = LayerNormalization(r, g1, b1)
        e1 = Div(n, root2) e2 = Erf(e1) e3 = Add(e2, one) e4 = Mul(n, e3) y = Mul(e4, half)
    }"""
    weights = {name: floats(8, 8) for name in ("wq", "wk", "wv")} | {"g1": floats(8), "b1": floats(8)}
    numbers = {name: np.float32(number) for name, number in (("root", 2), ("root2", 2**0.5), ("one", 1), ("half", 0.5))}
    return parse(text, {**weights, **numbers, "heads": ints(0, 0, 2, 4), "flat": ints(0, 0, 8)})


def residual_block() -> onnx.ModelProto:
    """One block as ResNet has it, and its head."""
    text = """g (float[2,4,8,8] x) => (float[2,5] y) {
        a = Conv<pads = [1,1,1,1]>(x, w) b = BatchNormalization(a, s, s, s, s) c = Relu(b) d = Add(c, x)
        e = MaxPool<kernel_shape = [2,2], strides = [2,2]>(d) f = ReduceMean(e, axes) h = Flatten(f) y = Gemm<transB = 1>(h, fc, bias)
    }"""
    return parse(text, {"w": floats(4, 4, 3, 3), "s": np.abs(floats(4)), "axes": ints(2, 3), "fc": floats(5, 4), "bias": floats(5)})


@pytest.mark.parametrize("make", [attention_block, residual_block])
@pytest.mark.parametrize("version", [11, 13, 15, 17, 18, 21])
def test_blocks_of_bert_and_resnet_are_converted_to_any_opset(make: object, version: int) -> None:
    model = make()  # type: ignore[operator]
    made = convert_for_output(model, version, is_explicit=True)
    assert opset_of(made) == version
    assert_valid(made)
    assert_same_results(model, made, random_feeds(model), atol=1e-5)
    assert_same_results(model, convert_to_internal(made), atol=1e-5)
