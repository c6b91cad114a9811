"""Lowered graphs with a variable batch: fewer rows give the bits of the padded run, or the graph stays static with a reason."""

import numpy as np
import onnx
import pytest

from stoker.backends.simulated.numerics import GraphRunner
from stoker.compiler.lowering.variable_rows import with_variable_rows
from tests.fakes.graphs import parse

BATCH = 8


def lowered(text: str, weights: dict[str, np.ndarray] | None = None) -> bytes:
    model = onnx.shape_inference.infer_shapes(parse(text, weights or {}))
    model.ir_version = 10
    return model.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        "y = Relu(x)",
        "s = Constant<value = int64[2] {8, 12}>() f = Reshape(x, s) t = Constant<value = int64[3] {8, 3, 4}>() y = Reshape(f, t)",
        "s = Constant<value = int64[2] {24, 4}>() f = Reshape(x, s) t = Constant<value = int64[3] {8, -1, 4}>() y = Reshape(f, t)",
        "s = Constant<value = int64[2] {8, -1}>() f = Reshape(x, s) t = Constant<value = int64[3] {-1, 3, 4}>() y = Reshape(f, t)",
        "y = Softmax<axis = -1>(x)",
    ],
)
def test_fewer_rows_give_the_bits_of_the_padded_run(body: str) -> None:
    static = lowered(f"g (float[8,3,4] x) => (float[8,3,4] y) {{ {body} }}")
    graph, reason = with_variable_rows(static, BATCH, row_bytes=96)
    assert reason == ""
    few, whole = GraphRunner(graph), GraphRunner(static)
    assert few.has_variable_rows(["x"])
    assert not whole.has_variable_rows(["x"])
    x = np.random.default_rng(0).standard_normal((BATCH, 3, 4), np.float32)
    for rows in range(2, BATCH + 1):
        padded = np.where(np.arange(BATCH)[:, None, None] < rows, x, np.float32(0))
        assert few.run({"x": x[:rows]}, ["y"])["y"].tobytes() == whole.run({"x": padded}, ["y"])["y"][:rows].tobytes()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Add(x, table)", "does not run with fewer rows"),
        ("a = Constant<value = int64[1] {0}>() m = ReduceMean(x, a) y = Sub(x, m)", "depends on the number of rows"),
        ("a = Constant<value = int64[2] {8, 4}>() y = Expand(x, a)", "does not run with fewer rows"),
    ],
)
def test_graph_that_needs_its_batch_stays_static(body: str, reason: str) -> None:
    table = {"table": np.ones((8, 4), np.float32)}
    static = lowered(f"g (float[8,4] x) => (float[8,4] y) {{ {body} }}", table if "table" in body else {})
    graph, found = with_variable_rows(static, BATCH, row_bytes=96)
    assert graph == static
    assert reason in found


def test_batches_that_no_request_can_leave_unfilled_stay_static() -> None:
    static = lowered("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    assert with_variable_rows(static, 2, row_bytes=32) == (static, "")


def test_test_that_takes_too_much_memory_is_omitted() -> None:
    static = lowered("g (float[8,4] x) => (float[8,4] y) { y = Relu(x) }")
    graph, reason = with_variable_rows(static, BATCH, row_bytes=2**29)
    assert graph == static
    assert "bytes" in reason


def test_streamed_weights_keep_their_shape() -> None:
    static = lowered("g (float[8,4] x, float[8,4] w) => (float[8,8] y) { t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }")
    w = np.random.default_rng(1).standard_normal((8, 4), np.float32)
    graph, reason = with_variable_rows(static, BATCH, row_bytes=48, streamed={"w": w})
    assert reason == ""
    runner = GraphRunner(graph)
    assert runner.has_variable_rows(["x"])
    assert not runner.has_variable_rows(["x", "w"])
    assert runner.run({"x": np.ones((3, 4), np.float32), "w": w}, ["y"])["y"].shape == (3, 8)


def test_output_without_dimensions_stays_static() -> None:
    static = lowered("g (float[8,4] x) => (float[8,4] y, float s) { y = Relu(x) s = ReduceSum<keepdims = 0>(x) }")
    assert with_variable_rows(static, BATCH, row_bytes=96) == (static, "'s' has no batch dimension")
