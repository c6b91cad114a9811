"""Half partials: each block of a sum rounds to FLOAT16, as numpy computes it block by block."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from stoker.backends.ipu.compile.assemble import CompiledModel
from stoker.backends.ipu.compile.compiler import compile_model
from stoker.backends.ipu.compile.half_partials import half_contractions, round_partial_sums
from stoker.backends.simulated.numerics import GraphRunner
from stoker.compiler.lowering.rounding import make_roundings_explicit, serialise
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.options import CompilerOptions

HALF = np.float16
RANDOM = np.random.default_rng(0)


def halves(*shape: int) -> NDArray:
    """Multiples of 1/32: sums of 16 products are exact in float32, so the order of the sum does not decide how they round."""
    return (RANDOM.integers(-96, 97, shape) / 32).astype(HALF)


def model_of(node: onnx.NodeProto, x: NDArray, weights: dict[str, NDArray], out: tuple[int, ...]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, out)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def run(model: onnx.ModelProto, x: NDArray, *, half: bool = True) -> NDArray:
    graph = typed_graph(model)
    contractions = half_contractions(graph)
    make_roundings_explicit(graph)
    if half:
        round_partial_sums(graph, contractions)
    return GraphRunner(serialise(graph)).run({"x": x}, ["y"])["y"]


def product(left: NDArray, right: NDArray, block: int = 16) -> NDArray:
    """The sum over the last axis of `left` and the last but one of `right`, rounded after each block; FLOAT."""
    total = np.zeros((), np.float32)
    for at in range(0, left.shape[-1], block):
        part = left[..., at : at + block].astype(np.float32) @ right[..., at : at + block, :].astype(np.float32)
        total = (total + part).astype(HALF).astype(np.float32)
    return total


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 160), (160, 8)), ((2, 3, 5, 40), (40, 7)), ((2, 3, 5, 33), (2, 3, 33, 7)), ((3, 16), (16, 4)), ((3, 17), (17, 4))],
)
def test_product_rounds_after_each_block_of_16_channels(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, w = halves(*left), halves(*right)
    y = run(model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), x, {"w": w}, (*left[:-1], right[-1])), x)
    np.testing.assert_array_equal(y, product(x, w).astype(HALF))


def test_half_partials_lose_more_than_float_partials() -> None:
    x, w = halves(8, 2048), halves(2048, 16)
    model = model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), x, {"w": w}, (8, 16))
    exact = x.astype(np.float64) @ w.astype(np.float64)
    half, single = (np.abs(run(model, x, half=each).astype(np.float64) - exact).max() for each in (True, False))
    assert half > 2 * single


def test_half_partial_sum_overflows_where_the_result_would_not() -> None:
    x = np.full((1, 32), 100, HALF)
    w = np.repeat(np.array([50, -50], HALF), 16).reshape(32, 1)
    model = model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), x, {"w": w}, (1, 1))
    assert run(model, x, half=False) == 0
    assert not np.isfinite(run(model, x))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_scales_and_adds_its_bias_after_the_sum(trans_a: int, trans_b: int) -> None:
    x, w, c = halves(6, 50), halves(50, 9), halves(9)
    given, weight = x.T.copy() if trans_a else x, w.T.copy() if trans_b else w
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], alpha=0.5, beta=2.0, transA=trans_a, transB=trans_b)
    y = run(model_of(node, given, {"w": weight, "c": c}, (6, 9)), given)
    np.testing.assert_array_equal(y, (product(x, w) * np.float32(0.5) + c.astype(np.float32) * 2).astype(HALF))


def convolution(x: NDArray, w: NDArray, pads: tuple[int, int, int, int], stride: int, dilation: int, groups: int) -> NDArray:
    """A convolution that rounds after each block of 16 channels of a group at each position of the kernel; FLOAT."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, inner, rows, columns = w.shape
    heights, widths = (
        (size - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel in zip(x.shape[2:], (rows, columns), strict=True)
    )
    total = np.zeros((len(x), outputs, heights, widths), np.float32)
    each = outputs // groups
    for first in range(0, inner, 16):
        for row in range(rows):
            for column in range(columns):
                top, left = row * dilation, column * dilation
                seen = x[:, :, top : top + (heights - 1) * stride + 1 : stride, left : left + (widths - 1) * stride + 1 : stride]
                for group in range(groups):
                    channels = slice(group * inner + first, group * inner + min(first + 16, inner))
                    kernel = w[group * each : (group + 1) * each, first : first + 16, row, column].astype(np.float32)
                    total[:, group * each : (group + 1) * each] += np.einsum("nchw,oc->nohw", seen[:, channels], kernel)
                total = total.astype(HALF).astype(np.float32)
    return total


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "groups", "attributes", "pads"),
    [
        (40, 8, (3, 3), 1, {"pads": [1, 1, 1, 1]}, (1, 1, 1, 1)),
        (32, 8, (1, 1), 1, {"strides": [2, 2]}, (0, 0, 0, 0)),
        (3, 8, (5, 3), 1, {"strides": [2, 2], "pads": [2, 0, 1, 1]}, (2, 0, 1, 1)),
        (16, 16, (3, 3), 16, {"dilations": [2, 2]}, (0, 0, 0, 0)),
        (48, 4, (3, 3), 2, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (1, 1, 1, 1)),
    ],
)
def test_convolution_rounds_at_each_position_of_the_kernel(
    channels: int, outputs: int, kernel: tuple[int, int], groups: int, attributes: dict[str, Any], pads: tuple[int, int, int, int]
) -> None:
    # Small integers: the order in which a block is added makes no difference.
    x = RANDOM.integers(-8, 9, (2, channels, 9, 9)).astype(HALF)
    w = RANDOM.integers(-64, 65, (outputs, channels // groups, *kernel)).astype(HALF)
    b = RANDOM.integers(-8, 9, outputs).astype(HALF)
    stride, dilation = (attributes.get(name, [1])[0] for name in ("strides", "dilations"))
    expected = convolution(x, w, pads, stride, dilation, groups) + b.astype(np.float32).reshape(1, -1, 1, 1)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=groups, **attributes)
    y = run(model_of(node, x, {"w": w, "b": b}, expected.shape), x)
    np.testing.assert_array_equal(y, expected.astype(HALF))


def test_single_block_stays_one_operator() -> None:
    x, w = halves(2, 16), halves(16, 3)
    graph = typed_graph(model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), x, {"w": w}, (2, 3)))
    contractions = half_contractions(graph)
    make_roundings_explicit(graph)
    round_partial_sums(graph, contractions)
    assert [node.op_type for node in graph.graph if node.op_type in ("MatMul", "Scan")] == ["MatMul"]


def test_float_contractions_have_no_half_partials() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))],
        [numpy_helper.from_array(np.ones((64, 3), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    assert half_contractions(ir.from_proto(model)) == []


def compiled(partials_type: str) -> tuple[CompiledModel, NDArray]:
    """The program, and its output for one row of a batch of 8."""
    w = np.random.default_rng(1).standard_normal((1024, 4)).astype(HALF)
    x = np.random.default_rng(2).standard_normal((8, 1024)).astype(HALF)
    model = model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), x, {"w": w}, (8, 4))
    made = compile_model(model, (), CompilerOptions(partials_type=partials_type))
    runner = GraphRunner(made.program.graphs[0].onnx)
    return made, runner.run({"x": x[:1]}, ["y"])["y"]


def test_partials_type_decides_how_partial_sums_round() -> None:
    outputs = {kind: compiled(kind)[1] for kind in ("half", "float", "")}
    assert (outputs["half"] != outputs["float"]).any()
    np.testing.assert_array_equal(outputs[""], outputs["float"])


@pytest.mark.parametrize(("kind", "attributes"), [("half", ("half", "FLOAT16")), ("float", ("float", None)), ("", ("half", None))])
def test_executable_states_how_partial_sums_round(kind: str, attributes: tuple[str, str | None]) -> None:
    found = compiled(kind)[0].program.attributes
    assert (found["partials_type"], found.get("partial_sums")) == attributes
    assert "padded_on_host" not in found


def test_half_partials_without_a_choice_need_as_much_memory_as_with_it() -> None:
    half, default = (compiled(kind)[0].program for kind in ("half", ""))
    assert half.memory == default.memory
    assert half.graphs[0].steps == default.graphs[0].steps
