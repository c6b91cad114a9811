"""The marks of eight-bit tensors: they run on ONNX Runtime bit by bit, and can be read back."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from stoker.compiler.errors import CompileError
from stoker.compiler.precision.float8 import Float8Format, round_to_float8
from stoker.compiler.precision.representation import (
    FLOAT8_OPSET,
    Float8Spec,
    Float8Use,
    cast_activation,
    float8_nodes,
    float8_use,
    is_float8_cast,
    store_weight,
    use_float8_opset,
)
from tests.fakes.graphs import assert_valid, model_of, run_onnx, tensor

F143, F152 = Float8Format.F143, Float8Format.F152
WEIGHT = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float16)


def matmul(dtype: type = np.float16, rows: int = 2) -> ir.Model:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")]
    return ir.from_proto(model_of(nodes, [tensor("x", [rows, 4], dtype)], [tensor("y", [rows, 3], dtype)], {"w": WEIGHT.astype(dtype)}))


def identity(dtype: type = np.float16) -> ir.Model:
    """A product with the unit matrix: shows the rounding of the activation."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")]
    model = model_of(nodes, [tensor("x", [65536, 1], dtype)], [tensor("y", [65536, 1], dtype)], {"w": np.ones((1, 1), dtype)})
    return ir.from_proto(model)


@pytest.mark.parametrize("spec", [Float8Spec(F143, -1), Float8Spec(F143, 3), Float8Spec(F152, -24), Float8Spec(F152, 0)], ids=str)
@pytest.mark.parametrize("saturates", [True, False])
def test_onnx_runtime_rounds_every_finite_float16_as_the_codec_does(spec: Float8Spec, saturates: bool) -> None:
    model = identity()
    cast_activation(model.graph.node("mm"), 0, spec, saturates=saturates)
    use_float8_opset(model)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves[~np.isfinite(halves)] = 0
    rounded = run_onnx(model, {"x": halves.reshape(-1, 1)})["y"].reshape(-1)
    expected = round_to_float8(halves, spec.float8_format, spec.scale, nan_on_overflow=not saturates)
    np.testing.assert_array_equal(rounded, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_node_that_computes_in_fp8_is_recognised_in_the_file(dtype: type) -> None:
    model = matmul(dtype)
    node = model.graph.node("mm")
    assert float8_use(node) is None
    store_weight(node, 1, Float8Spec(F152, -3))
    cast_activation(node, 0, Float8Spec(F143, -1), saturates=False)
    use_float8_opset(model)
    assert model.opset_imports[""] == FLOAT8_OPSET
    proto = ir.to_proto(model)
    assert_valid(proto)
    again = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    [(found, use)] = float8_nodes(again)
    assert found.op_type == "MatMul"
    assert use == Float8Use(Float8Spec(F143, -1), Float8Spec(F152, -3), saturates=False)
    assert use.computes
    assert [is_float8_cast(each) for each in again.graph] == [True, False, True, False]
    assert "w" not in again.graph.initializers

    x: np.ndarray = np.random.default_rng(0).standard_normal((2, 4)).astype(dtype)
    expected = round_to_float8(x, F143, -1).astype(np.float64) @ round_to_float8(WEIGHT, F152, -3).astype(np.float64)
    np.testing.assert_allclose(run_onnx(again, {"x": x})["y"], expected, rtol=2e-3, atol=2e-3)


def test_weight_stored_in_fp8_does_not_compute_in_fp8() -> None:
    model = matmul()
    store_weight(model.graph.node("mm"), 1, Float8Spec(F143, -4))
    use = float8_use(model.graph.node("mm"))
    assert use == Float8Use(None, Float8Spec(F143, -4))
    assert not use.computes
    assert not any(is_float8_cast(node) for node in model.graph)


def test_readers_of_one_tensor_with_one_spec_share_its_cast() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], [f"y{each}"], f"mm{each}") for each in range(3)]
    outputs = [tensor(f"y{each}", [2, 3], np.float16) for each in range(3)]
    model = ir.from_proto(model_of(nodes, [tensor("x", [2, 4], np.float16)], outputs, {"w": WEIGHT}))
    for each, scale in enumerate([-1, -1, 0]):
        cast_activation(model.graph.node(f"mm{each}"), 0, Float8Spec(F143, scale))
        store_weight(model.graph.node(f"mm{each}"), 1, Float8Spec(F143, -1))
    use_float8_opset(model)
    assert_valid(model)
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph) == 2
    first, second = model.graph.node("mm0").inputs[0], model.graph.node("mm1").inputs[0]
    assert first is second


def test_mark_needs_a_power_of_two() -> None:
    model = matmul()
    node = model.graph.node("mm")
    store_weight(node, 1, Float8Spec(F143, -1))
    weight = node.inputs[1]
    assert weight is not None
    dequantize = weight.producer()
    assert dequantize is not None
    scale = dequantize.inputs[1]
    assert scale is not None
    scale.const_value = ir.tensor(np.float16(0.3))
    assert float8_use(node) is None


def test_scale_beyond_float16_is_refused_by_name() -> None:
    model = matmul()
    with pytest.raises(CompileError, match=r"node 'mm' \(MatMul\): tensor 'x' is FLOAT16, which holds no scale of 2\^-30"):
        cast_activation(model.graph.node("mm"), 0, Float8Spec(F143, -30))


def test_integer_tensor_is_not_cast() -> None:
    model = matmul(np.int32)
    with pytest.raises(CompileError, match="tensor 'x' is INT32; only FLOAT16 and FLOAT are cast to fp8"):
        cast_activation(model.graph.node("mm"), 0, Float8Spec(F143, 0))
