"""Eight bits in the lowered graph, bit by bit against the codec."""

import numpy as np
import onnx_ir as ir
import pytest

from stoker.backends.simulated.numerics import GraphRunner
from stoker.compiler.lowering.rounding import lower
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.precision.float8 import Float8Format, round_to_float8
from stoker.compiler.precision.representation import Float8Spec, cast_activation, store_weight, use_float8_opset
from tests.fakes.graphs import parse

FORMATS = list(Float8Format)


def product(activation: Float8Spec | None, weight: Float8Spec, w: np.ndarray, *, saturates: bool = True) -> ir.Model:
    rows = w.shape[0]
    model = ir.from_proto(
        parse(f"g (float16[4,{rows}] x) => (float16[4,{w.shape[1]}] y) {{ y = MatMul(x, w) }}", {"w": w.astype(np.float16)})
    )
    node = model.graph[0]
    if activation is not None:
        cast_activation(node, 0, activation, saturates=saturates)
    store_weight(node, 1, weight)
    use_float8_opset(model)
    return model


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    return GraphRunner(lower(typed_graph(ir.to_proto(model)))).run({"x": x}, ["y"])["y"]


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("scale", [-3, 0, 2])
def test_products_in_eight_bits_equal_those_of_the_codec(format_, weight_format, scale) -> None:
    generator = np.random.default_rng(0)
    x = (generator.standard_normal((4, 32)) * 2.0**scale).astype(np.float16)
    w = generator.standard_normal((32, 8)).astype(np.float16)
    actual = run(product(Float8Spec(format_, scale), Float8Spec(weight_format, -5), w), x)
    left = round_to_float8(x.astype(np.float32), format_, scale)
    right = round_to_float8(w.astype(np.float32), weight_format, -5)
    # Sums in another order may differ in the last bit of a float, which moves a half by one place at most.
    expected = left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=2**-10, atol=2**-24)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("saturates", [True, False])
def test_every_half_becomes_the_codecs_value(format_, saturates) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    identity = np.eye(4, dtype=np.float16)  # one product a sum: exact
    model = product(Float8Spec(format_, 0), Float8Spec(Float8Format.F143, 0), identity, saturates=saturates)
    model.graph.inputs[0].shape = ir.Shape([every.size // 4, 4])
    model.graph.outputs[0].shape = ir.Shape([every.size // 4, 4])
    finite = np.where(np.isfinite(every), every, np.float16(0)).reshape(-1, 4)
    actual = run(model, finite)
    expected = round_to_float8(finite.astype(np.float32), format_, 0, nan_on_overflow=not saturates)
    whole = np.isfinite(expected).all(axis=1)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(actual[whole], expected.astype(np.float16)[whole])
    assert np.isnan(actual[~whole]).all()  # NaN times 0 is NaN too
    assert bool((~whole).any()) != saturates


@pytest.mark.parametrize("saturates", [True, False])
def test_infinity_becomes_nan_even_if_other_values_saturate(saturates) -> None:
    model = product(Float8Spec(Float8Format.F143, 0), Float8Spec(Float8Format.F143, 0), np.ones((2, 1)), saturates=saturates)
    x = np.array([[np.inf, 0], [-np.inf, 0], [1, 2], [np.nan, 0]], np.float16)
    assert [str(value) for value in run(model, x)[:, 0]] == ["nan", "nan", "3.0", "nan"]


def test_decoded_values_beyond_half_reach_a_product_in_eight_bits() -> None:
    tiny = 2.0**-20  # times 2^-10 it lies below the smallest half
    model = product(Float8Spec(Float8Format.F143, -17), Float8Spec(Float8Format.F143, 0), np.full((2, 1), 128.0))
    x = np.full((4, 2), tiny, np.float16)
    np.testing.assert_array_equal(run(model, x), np.full((4, 1), np.float16(2 * 128 * tiny)))


def test_weight_stored_in_eight_bits_is_a_half_when_it_is_read() -> None:
    w = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float16)
    model = product(None, Float8Spec(Float8Format.F143, -4), w)
    stored = round_to_float8(w.astype(np.float32), Float8Format.F143, -4).astype(np.float16)
    x = np.eye(16, dtype=np.float16)[:4]
    np.testing.assert_array_equal(run(model, x), stored[:4])


def test_weights_in_eight_bits_take_one_byte_each() -> None:
    w = np.random.default_rng(1).standard_normal((128, 128)).astype(np.float16)
    lowered = lower(typed_graph(ir.to_proto(product(None, Float8Spec(Float8Format.F152, 0), w))))
    assert 128 * 128 < len(lowered) < 128 * 128 * 1.2
