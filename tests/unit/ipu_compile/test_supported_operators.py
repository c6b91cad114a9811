import numpy as np
import onnx
import onnx_ir as ir
import pytest

from stoker.backends.ipu.compile.supported import check_streams, check_supported
from stoker.backends.ipu.hardware import C600, M2000
from stoker.compiler.errors import CompileError, UnsupportedOperators
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.precision.float8 import Float8Format
from stoker.compiler.precision.representation import Float8Spec, store_weight, use_float8_opset
from tests.fakes.graphs import model_of, parse, tensor


def refusal(text: str, **more) -> str:
    with pytest.raises(UnsupportedOperators) as caught:
        check_supported(typed_graph(of_domains(parse(text, **more))), M2000)
    return str(caught.value)


def of_domains(model: onnx.ModelProto) -> onnx.ModelProto:
    model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in ("com.microsoft", "nowhere"))
    return model


def test_all_missing_operators_are_listed_at_once() -> None:
    text = refusal(
        """g (float[4] x) => (float[4] a, int64[1,n] b, float[4] c) {
        [noise] a = RandomNormalLike(x) [places] b = NonZero(x) [own] c = nowhere.Magic(x) }"""
    )
    assert text.splitlines() == [
        "3 node(s) cannot be compiled for ipu2 (M2000):",
        "  RandomNormalLike (node 'noise'): random numbers are not simulated",
        "  NonZero (node 'places'): the size of its output depends on values, and the IPU runs static shapes",
        "  nowhere::Magic (node 'own'): operators of domain 'nowhere' are not known; "
        "custom_library_so_paths names the library that has them",
    ]


def test_node_without_a_name_is_named_by_its_output() -> None:
    assert "(node 'shuffled')" in refusal("g (float[4] x) => (float[4] shuffled) { shuffled = Bernoulli(x) }")


def test_nodes_in_branches_are_checked() -> None:
    text = refusal(
        """g (bool c, float[2] x) => (float[2] y) {
        y = If(c)<then_branch = t () => (float[2] p) { [deep] p = RandomNormalLike(x) },
                  else_branch = e () => (float[2] q) { q = Relu(x) }> }"""
    )
    assert "node 'deep'" in text


def test_arithmetic_in_64_bits_is_refused() -> None:
    text = refusal("g (int32[4] x) => (int32[4] y) { a = Cast<to=7>(x) [sum] b = Add(a, a) y = Cast<to=6>(b) }")
    assert "Add (node 'sum'): it reads 'a' in INT64, and the IPU computes with at most 32 bits; the pass int64_to_int32 converts it" in text
    assert "DOUBLE" in refusal("g (float[4] x) => (float[4] y) { a = Cast<to=11>(x) b = Exp(a) y = Cast<to=1>(b) }")


def test_indices_and_shape_arithmetic_may_have_64_bits() -> None:
    model = parse(
        """g (float[4,6] x) => (int32[4] i, float[2,12] y) {
        a = ArgMax<axis=1, keepdims=0>(x) i = Cast<to=6>(a)
        s = Shape(x) t = Mul(s, f) y = Reshape(x, r) }""",
        {"f": np.array([2, 2]), "r": np.array([2, 12])},
    )
    check_supported(typed_graph(model), M2000)


def test_integer_products_and_training_are_refused() -> None:
    assert "floating point only" in refusal("g (int8[4,4] x) => (int32[4,4] y) { y = MatMulInteger(x, x) }")
    text = refusal("g (float[1,4,2] x, float[4] s) => (float[1,4,2] y) { y, m, v = BatchNormalization<training_mode=1>(x, s, s, s, s) }")
    assert "training" in text


def test_onnxruntime_operators_are_known_if_popart_has_them() -> None:
    model = parse("g (float[2,4] x) => (float[2,4] y, float[2,4] z) { a = com.microsoft.Gelu(x) y = Exp(a) z = com.microsoft.FastGelu(a) }")
    check_supported(typed_graph(of_domains(model)), M2000)
    assert "com.microsoft::Inverse" in refusal("g (float[2,2] x) => (float[2,2] y) { y = com.microsoft.Inverse(x) }")


def test_eight_bit_floats_need_a_c600() -> None:
    model = ir.from_proto(parse("g (float16[4,8] x) => (float16[4,8] y) { y = MatMul(x, w) }", {"w": np.ones((8, 8), np.float16)}))
    store_weight(model.graph[0], 1, Float8Spec(Float8Format.F143, 0))
    use_float8_opset(model)
    check_supported(typed_graph(ir.to_proto(model)), C600)
    with pytest.raises(CompileError, match="compile for ipu21"):
        check_supported(typed_graph(ir.to_proto(model)), M2000)


def test_streams_of_unsupported_types_are_all_named() -> None:
    model = model_of([], [tensor("ids", (2,), np.int64), tensor("x", (2,), np.float64)], [])
    with pytest.raises(CompileError) as caught:
        check_streams(ir.from_proto(model))
    assert str(caught.value) == (
        "input 'ids' is INT64, which the IPU does not have; the pass int64_to_int32 converts it; "
        "input 'x' is DOUBLE, which the IPU does not have; the pass double_to_float converts it"
    )
