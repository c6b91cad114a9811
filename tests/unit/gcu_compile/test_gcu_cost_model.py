"""The GCU's cost model: kernels, traffic, the division of a run over clusters, and the distance to the published tables."""

import statistics
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gcu_model import DOCS, TIME_CONSTANTS, Networks, aimed_at, errors_of_single, held_out, loss_of, tables, with_tables
from benchmarks.gcu_networks import gcu_network, weight_mebibytes
from benchmarks.gcu_published import PUBLISHED
from stoker.backends.gcu.compile.cost_model import FITTED, TIMING_ERROR, CostConstants, GraphCost, graph_cost
from stoker.backends.gcu.compile.memory import memory_account, workspace_bytes
from stoker.backends.gcu.compile.target import build
from stoker.backends.gcu.hardware import I20
from stoker.compiler.lowering.typed_graph import typed_graph
from tests.fakes.graphs import parse

#: Blocks as large as any result: every operand is loaded once.
PLAIN = CostConstants(launch_s=1e-6, block_bytes=1e12, hbm_efficiency=1.0, run_overhead_s=0.0)


def cost_of(text: str, *, batch: int = 1, constants: CostConstants = PLAIN, **weights: np.ndarray) -> GraphCost:
    return graph_cost(typed_graph(parse(text, weights)), batch_size=batch, hardware=I20, constants=constants)


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.fixture(scope="module")
def networks() -> Networks:
    return Networks.build()


def test_element_wise_operators_are_fused_into_the_kernel_before_them() -> None:
    cost = cost_of(
        "g (float[1,4] x, float[1,8] r) => (float[1,8] y) { a = MatMul(x, w) b = Add(a, bias) c = Add(b, r) y = Relu(c) }",
        w=floats(4, 8),
        bias=floats(8),
    )
    (kernel,) = cost.kernels
    assert (kernel.op_type, kernel.fused) == ("MatMul", ("Add", "Add", "Relu"))
    assert kernel.flops == 2 * 4 * 8 + 3 * 8
    assert kernel.hbm_bytes == 4 * (4 + 4 * 8 + 8 + 8 + 8)  # x, w, bias, r, y


def test_gate_that_reads_its_input_twice_is_one_kernel() -> None:
    body = "c = Conv<kernel_shape = [1,1]>(x, w) s = Sigmoid(c) y = Mul(c, s)"
    cost = cost_of(f"g (float[1,2,4,4] x) => (float[1,3,4,4] y) {{ {body} }}", w=floats(3, 2, 1, 1))
    (kernel,) = cost.kernels
    assert kernel.fused == ("Sigmoid", "Mul")
    assert kernel.hbm_bytes == 4 * (2 * 16 + 6 + 3 * 16)


def test_value_with_other_readers_is_written_once() -> None:
    body = "a = Exp(x) y = Neg(a) z = ReduceMax(a, last)"
    cost = cost_of(f"g (float[1,4] x) => (float[1,4] y, float[1,1] z) {{ {body} }}", last=np.array([1]))
    first, second = cost.kernels
    assert (first.op_type, first.fused, second.op_type) == ("Exp", ("Neg",), "ReduceMax")
    assert first.hbm_bytes == 4 * (4 + 4 + 4)  # x; a, which ReduceMax reads; y


def test_views_are_free_and_do_not_prevent_fusion() -> None:
    cost = cost_of("g (float[1,4] x) => (float[1,2,2] y) { a = Exp(x) b = Reshape(a, shape) y = Neg(b) }", shape=np.array([1, 2, 2]))
    (kernel,) = cost.kernels
    assert kernel.fused == ("Neg",)


def test_floats_are_widened_and_narrowed_in_the_transfer() -> None:
    cost = cost_of("g (float[1,4] x) => (float[1,4] y) { h = Cast<to = 10>(x) a = Softmax(h) y = Cast<to = 1>(a) }")
    (kernel,) = cost.kernels
    assert (kernel.op_type, kernel.hbm_bytes) == ("Softmax", 4 * 4 + 4 * 2)


def test_another_size_is_another_kernel() -> None:
    cost = cost_of("g (float[1,1] x, float[1,4] z) => (float[1,4] y) { a = Exp(x) y = Add(a, z) }")
    assert [kernel.op_type for kernel in cost.kernels] == ["Exp", "Add"]


def test_lookup_reads_only_the_selected_rows() -> None:
    (kernel,) = cost_of("g (int64[1,2] x) => (float[1,2,8] y) { y = Gather(table, x) }", table=floats(1000, 8)).kernels
    assert kernel.hbm_bytes == 2 * 8 + 2 * (2 * 8 * 4)


def test_kernel_takes_the_longer_of_computing_and_moving() -> None:
    (large,) = cost_of("g (float[512,1024] x) => (float[512,1024] y) { y = MatMul(x, w) }", w=floats(1024, 1024)).kernels
    assert large.seconds == pytest.approx(1e-6 + 2 * 512 * 1024 * 1024 / (32e12 / 6))
    (small,) = cost_of("g (float[1,1024] x) => (float[1,1024] y) { y = MatMul(x, w) }", w=floats(1024, 1024)).kernels
    assert small.seconds == pytest.approx(1e-6 + 4 * (1024 * 1024 + 2 * 1024) / (819e9 / 6))


def test_run_takes_as_long_as_the_busiest_cluster() -> None:
    cost = cost_of("g (float[8,64] x) => (float[8,64] y) { y = Exp(x) }", batch=8, constants=replace(PLAIN, run_overhead_s=1.0))
    sample_s = cost.kernels[0].seconds
    assert cost.run_s == tuple(1.0 + samples * sample_s for samples in (8, 4, 3, 2, 2, 2))
    assert cost.flops == 8 * cost.kernels[0].flops


def test_half_precision_is_faster_in_compute_and_in_memory() -> None:
    random = np.random.default_rng(0)
    model = parse(
        "g (float[n,3,32,32] x) => (float[n,64,32,32] y) { a = Conv<pads = [1,1,1,1]>(x, v) b = Relu(a) y = Conv<pads = [1,1,1,1]>(b, w) }",
        {"v": random.standard_normal((64, 3, 3, 3)).astype(np.float32), "w": random.standard_normal((64, 64, 3, 3)).astype(np.float32)},
    )
    full, half = (build(model, batch_sizes=[6], build_flag=flag).batches[0] for flag in ("fp32", "fp16"))
    assert half.run_s[0] < full.run_s[0]
    assert half.workspace_bytes < full.workspace_bytes


def test_workspace_is_the_largest_live_set() -> None:
    model = typed_graph(parse("g (float[1,4] x) => (float[1,4] y) { a = Exp(x) b = Neg(a) c = Exp(b) y = Add(c, x) }"))
    assert workspace_bytes(model) == 2 * 16
    kept = typed_graph(parse("g (float[1,4] x) => (float[1,4] y) { a = Exp(x) b = Neg(a) c = Exp(b) y = Add(c, a) }"))
    assert workspace_bytes(kept) == 3 * 16
    viewed = parse("g (float[1,4] x) => (float[1,2,2] y) { a = Exp(x) b = Reshape(a, s) y = Neg(b) }", {"s": np.array([1, 2, 2])})
    assert workspace_bytes(typed_graph(viewed)) == 16


def test_memory_account_counts_weights_once_and_the_largest_batch() -> None:
    model = parse("g (float[n,64] x) => (float[n,64] y) { a = MatMul(x, w) y = MatMul(a, w) }", {"w": floats(64, 64)})
    account = memory_account(build(model, batch_sizes=[1, 10]))
    assert account["weights"] == 64 * 64 * 4
    assert account["workspace"] == 10 * 64 * 4
    assert account["buffers"] == 10 * 2 * 64 * 4


@pytest.mark.parametrize("name", [each.name for each in PUBLISHED])
def test_networks_have_the_published_sizes(name: str) -> None:
    published = next(each for each in PUBLISHED if each.name == name)
    assert weight_mebibytes(gcu_network(name, 1)) == pytest.approx(published.mebibytes, rel=0.015)


def test_small_blocks_load_operands_of_products_again() -> None:
    constants = replace(PLAIN, block_bytes=4 * 64 * 64)
    (kernel,) = cost_of(
        "g (float[512,1024] x) => (float[512,1024] y) { y = MatMul(x, w) }", constants=constants, w=floats(1024, 1024)
    ).kernels
    assert kernel.hbm_bytes == 2 * 4 * 512 * 1024 * 1024 / 64


def test_window_of_a_convolution_saves_operands() -> None:
    constants = replace(PLAIN, block_bytes=4 * 16 * 16)
    shapes = "g (float[1,64,32,32] x) => (float[1,64,32,32] y)"
    (point,) = cost_of(f"{shapes} {{ y = Conv(x, w) }}", constants=constants, w=floats(64, 64, 1, 1)).kernels
    (window,) = cost_of(f"{shapes} {{ y = Conv<pads = [1,1,1,1]>(x, w) }}", constants=constants, w=floats(64, 64, 3, 3)).kernels
    assert window.flops == 9 * point.flops
    assert window.hbm_bytes == pytest.approx(3 * point.hbm_bytes, rel=0.01)  # 9 times the sums, a third of the operands for each


def test_samples_of_a_batch_load_the_same_operands_each() -> None:
    text = "g (float[{n},12,64,32] x) => (float[{n},12,64,64] y) {{ t = Transpose<perm = [0,1,3,2]>(x) y = MatMul(x, t) }}"
    one, many = (cost_of(text.format(n=size), batch=size, constants=replace(PLAIN, block_bytes=4096)) for size in (1, 6))
    assert many.kernels[-1].hbm_bytes == one.kernels[-1].hbm_bytes


@pytest.mark.slow
def test_constants_are_those_of_the_fit(networks: Networks) -> None:
    loss = loss_of(networks, aimed_at())
    least = loss(FITTED)
    for name in TIME_CONSTANTS:
        for factor in (0.9, 1.1):
            assert loss(replace(FITTED, **{name: getattr(FITTED, name) * factor})) > least


@pytest.mark.slow
def test_documented_tables_and_error_bar_are_those_of_networks_left_out_of_the_fit(networks: Networks) -> None:
    page = DOCS.read_text(encoding="utf-8")
    found = held_out(networks)
    assert with_tables(page, tables(networks, found)) == page
    errors = errors_of_single(found)
    assert (TIMING_ERROR.rows, TIMING_ERROR.median, TIMING_ERROR.worst) == (
        len(errors),
        pytest.approx(statistics.median(errors), abs=0.005),
        pytest.approx(max(errors), abs=0.005),
    )
