"""Plans of small graphs: schedule, memory account, and the effect of options."""

import re
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.ipu_networks import Precision, bert_base, resnet50
from stoker.backends.ipu.compile.constants import CODELET_BYTES, FITTED
from stoker.backends.ipu.compile.memory import OutOfTileMemory, advice
from stoker.backends.ipu.compile.plan import GraphPlan, plan_graph, survey_graph
from stoker.backends.ipu.hardware import C600, M2000, IpuHardware
from stoker.backends.ipu.program import StepKind
from stoker.compiler import marks
from stoker.compiler.errors import OptionError
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.options import CompilerOptions
from stoker.compiler.passes import get_pass
from tests.fakes.graphs import parse

MLP = "g (float16[{rows},256] x) => (float16[{rows},64] y) {{ [up] h = MatMul(x, w) [act] a = Relu(h) [down] y = MatMul(a, v) }}"


def mlp(rows: int = 16) -> ir.Model:
    ones = {"w": np.ones((256, 1024), np.float16), "v": np.ones((1024, 64), np.float16)}
    return typed_graph(parse(MLP.format(rows=rows), ones))


def plan(model: ir.Model, *, hardware: IpuHardware = C600, **settings: object) -> GraphPlan:
    return survey_graph(model, hardware=hardware, options=CompilerOptions(**settings), name="m")  # type: ignore[arg-type] # any option


def cycles(planned: GraphPlan, *kinds: StepKind) -> int:
    return sum(step.cycles for step in planned.steps if not kinds or step.kind in kinds)


def fullest(planned: GraphPlan) -> int:
    return max(planned.memory[0].tile_bytes)


def test_schedule_reads_computes_in_order_and_writes() -> None:
    planned = plan(mlp())
    named = list(dict.fromkeys((step.node, step.op_type) for step in planned.steps if step.node))
    assert named == [("x", "Stream"), ("up", "MatMul"), ("act", "Relu"), ("down", "MatMul"), ("y", "Stream")]
    assert planned.steps[0].kind is StepKind.HOST_READ
    assert planned.steps[0].data_bytes == 16 * 256 * 2
    assert planned.steps[-1].kind is StepKind.HOST_WRITE
    assert planned.steps[-1].data_bytes == 16 * 64 * 2
    flops = {step.node: step.flops for step in planned.steps if step.kind is StepKind.COMPUTE and step.op_type == "MatMul" and step.flops}
    assert flops["up"] == 2 * 16 * 256 * 1024


def test_views_are_free() -> None:
    with_views = typed_graph(
        parse("g (float[4,6] x) => (float[3,8] y) { s = Constant<value_ints=[3,8]>() a = Relu(x) y = Reshape(a, s) }"),
    )
    without = typed_graph(parse("g (float[4,6] x) => (float[4,6] a) { a = Relu(x) }"))
    assert cycles(plan(with_views)) == cycles(plan(without))


def test_memory_account_is_that_of_the_fullest_tile() -> None:
    (account,) = plan(mlp()).memory
    assert account.capacity_bytes == C600.tile_memory_bytes
    assert len(account.tile_bytes) == C600.tiles
    assert max(account.tile_bytes) == sum(account.by_category.values())
    assert account.total_bytes == sum(account.tile_bytes)
    assert set(account.by_category) == {"weights", "activations", "temporary", "code", "exchange_code", "io"}


def test_weights_are_counted_once_and_spread_over_the_tiles() -> None:
    planned = plan(mlp())
    assert planned.weight_bytes == (256 * 1024 + 1024 * 64) * 2
    share = planned.weight_bytes / C600.tiles
    assert share <= planned.memory[0].by_category["weights"] <= share + 2 * 8


def test_equal_nodes_share_their_code_unless_outlining_is_off() -> None:
    text = "g (float[64,64] x) => (float[64,64] y) { a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w) }"
    model = typed_graph(parse(text, {"w": np.ones((64, 64), np.float32)}))
    shared, apart = plan(model), plan(model, enable_outlining=False)
    codelets = (CODELET_BYTES["matrix"] + CODELET_BYTES["reduction"]) * C600.tiles
    assert apart.code_bytes - codelets == 3 * (shared.code_bytes - codelets)
    assert cycles(apart) == cycles(shared)


def test_elementwise_operator_overwrites_an_input_without_later_readers() -> None:
    chain = typed_graph(parse("g (float[999,999] x) => (float[999,999] y) { a = Relu(x) b = Neg(a) y = Abs(b) }"))
    kept = typed_graph(parse("g (float[999,999] x) => (float[999,999] y, float[999,999] a) { a = Relu(x) b = Neg(a) y = Abs(b) }"))
    one = plan(chain).memory[0].by_category["activations"]
    assert plan(kept).memory[0].by_category["activations"] >= 2 * one - 16


def test_io_tiles_do_not_compute_and_hold_the_streams() -> None:
    without, overlapped = plan(mlp()), plan(mlp(), num_io_tiles=64)
    assert {step.tiles for step in overlapped.steps if step.kind is StepKind.SYNC} == {C600.tiles - 64}
    assert overlapped.memory[0].tile_bytes[-64:] == (-(-(16 * 256 + 16 * 64) * 2 // 64),) * 64
    assert overlapped.memory[0].by_category["io"] == 0
    streams = [step for step in overlapped.steps if step.kind is StepKind.EXCHANGE and step.op_type == "Stream"]
    assert [step.node for step in streams] == ["x", "y"]
    assert not [step for step in without.steps if step.kind is StepKind.EXCHANGE and step.op_type == "Stream"]


@pytest.mark.parametrize("count", [-1, 1472, 5000])
def test_io_tiles_must_leave_tiles_to_compute_on(count: int) -> None:
    with pytest.raises(OptionError, match=f"num_io_tiles is {count}"):
        plan(mlp(), num_io_tiles=count)


def test_less_memory_for_temporary_data_costs_time() -> None:
    model = bert_base(1, Precision.FP16)
    generous, thrifty = (plan(model, available_memory_proportion=share) for share in (0.6, 0.02))
    assert thrifty.memory[0].by_category["temporary"] < generous.memory[0].by_category["temporary"]
    assert cycles(thrifty) > cycles(generous)


def test_proportion_may_differ_by_node_or_operator() -> None:
    model, all_of_it = mlp(512), plan(mlp(512), available_memory_proportion=0.01)
    by_operator = plan(model, available_memory_proportion={"MatMul": 0.01})
    by_node = plan(model, available_memory_proportion={"up": 0.01})
    assert cycles(by_operator) == cycles(all_of_it)
    assert cycles(plan(model)) <= cycles(by_node) <= cycles(all_of_it)
    with pytest.raises(OptionError, match=r"available_memory_proportion is 1\.5 for node 'up'"):
        plan(model, available_memory_proportion={"up": 1.5})


def test_half_partials_need_less_than_float_ones() -> None:
    model = resnet50(4, Precision.FP16)
    half, float_ = (plan(model, partials_type=kind) for kind in ("half", "float"))
    assert cycles(half) < cycles(float_)
    assert half.memory[0].by_category["temporary"] <= float_.memory[0].by_category["temporary"]


@pytest.mark.parametrize("batches", [(1, 2, 4, 8, 16)])
def test_larger_batches_take_more_time_and_memory_but_less_of_each_a_row(batches: tuple[int, ...]) -> None:
    plans = [plan(resnet50(batch, Precision.FP16)) for batch in batches]
    time = [cycles(each) for each in plans]
    assert time == sorted(time)
    assert [fullest(each) for each in plans] == sorted(fullest(each) for each in plans)
    rate = [batch / spent for batch, spent in zip(batches, time, strict=True)]
    assert rate == sorted(rate)


def test_narrower_numbers_are_faster_and_smaller() -> None:
    wide, half, eight = (plan(resnet50(4, precision)) for precision in (Precision.FP32, Precision.FP16, Precision.FP8_STAR))
    assert cycles(wide) > cycles(half) > cycles(eight)
    assert fullest(wide) > fullest(half) > fullest(eight)
    assert wide.weight_bytes > 1.9 * half.weight_bytes > 1.9 * eight.weight_bytes


def test_fewer_tiles_are_slower_and_fuller() -> None:
    many, few = plan(mlp(64)), plan(mlp(64), tiles_per_ipu=64)
    assert cycles(few) > cycles(many)
    assert fullest(few) > fullest(many)
    assert len(few.memory[0].tile_bytes) == 64


def test_host_link_differs_by_system() -> None:
    card, machine = (cycles(plan(resnet50(1, Precision.FP16), hardware=each), StepKind.HOST_READ) for each in (C600, M2000))
    assert machine / M2000.clock_hz > 2 * card / C600.clock_hz, "100 GbE against PCIe"


def test_remap_costs_the_exchange_of_its_tensor() -> None:
    model = mlp()
    remapped = mlp()
    get_pass("auto_insert_remap", remap_mode="after_matmul")(remapped)
    moved = [node.name for node in remapped.graph if marks.REMAP in node.metadata_props]
    assert len(moved) == 2
    before, after = plan(model), plan(typed_graph(ir.to_proto(remapped)))
    steps = [step for step in after.steps if step.node in moved and step.kind is StepKind.EXCHANGE]
    assert [step.data_bytes >= 16 * 64 * 2 for step in steps] == [True, True]
    assert cycles(after) > cycles(before)


def test_serialised_product_needs_less_memory_and_takes_longer() -> None:
    text = "g (float16[2048,512] x) => (float16[2048,4096] y) { [big] y = MatMul(x, w) }"
    whole = parse(text, {"w": np.ones((512, 4096), np.float16)})
    pieces = ir.from_proto(whole)
    get_pass("serialize_matmul", factors={"big": "4/output_channels"})(pieces)
    one, four = plan(typed_graph(whole)), plan(typed_graph(ir.to_proto(pieces)))
    assert four.memory[0].by_category["temporary"] < one.memory[0].by_category["temporary"]
    assert cycles(four) > cycles(one)


def test_model_that_exceeds_the_memory_is_refused_with_tile_users_and_remedies() -> None:
    with pytest.raises(OutOfTileMemory) as caught:
        plan_graph(resnet50(64, Precision.FP32), hardware=C600, options=CompilerOptions(), name="resnet")
    error = caught.value
    text = str(error)
    assert text.startswith(f"Model 'resnet' does not fit. Out of memory on tile {error.tile}: {error.need_bytes} bytes")
    assert error.need_bytes > error.capacity_bytes == 638_976
    assert 0 <= error.tile < C600.tiles
    assert "temporary data of node '" in text
    assert re.search(r"\d+ bytes  tensor '\w+' of node '\w+' \((Conv|Relu|Add)\)", text)
    assert text.splitlines()[-1].startswith("Try a ")


@pytest.mark.parametrize(
    ("largest", "first"),
    [
        ("temporary", "a lower available_memory_proportion"),
        ("activations", "a smaller batch"),
        ("weights", "a narrower precision"),
        ("code", "enable_outlining"),
        ("stream buffers", "more num_io_tiles"),
    ],
)
def test_advice_begins_with_the_lever_of_the_largest_category(largest: str, first: str) -> None:
    held = {"temporary": 10, "activations": 9, "weights": 8, "code": 7}
    text = advice({**held, largest: 1000})
    assert text.startswith(first)
    assert text.endswith(f"(most bytes are {largest})")
    assert ("batch" in text) == (largest not in ("weights", "code"))


def test_graph_that_does_not_fit_is_planned_again_with_less_temporary_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = bert_base(8, Precision.FP16), CompilerOptions(num_io_tiles=700)
    again = plan_graph(model, hardware=C600, options=options, name="m")
    monkeypatch.setattr("stoker.backends.ipu.compile.plan._SHARES", (1.0,))
    given = survey_graph(model, hardware=C600, options=options, name="m")
    assert (given.fits, given.levers) == (False, ())
    assert again.fits
    assert len(again.levers) == 1
    assert re.fullmatch(r"available_memory_proportion 0\.\d+ instead of 0\.6", again.levers[0])
    assert again.levers[0] in caplog.text
    assert again.memory[0].by_category["temporary"] < given.memory[0].by_category["temporary"]
    assert cycles(again) > cycles(given)


def test_plan_is_not_repeated_where_less_temporary_memory_cannot_help() -> None:
    model = typed_graph(parse("g (float[64,64] x) => (float[64,64] y) { y = MatMul(x, w) }", {"w": np.ones((64, 64), np.float32)}))
    planned = plan(model, tiles_per_ipu=1, hardware=replace(C600, tile_memory_bytes=30_000))
    assert not planned.fits
    assert not planned.can_shrink
    assert planned.levers == ()


def test_second_operand_is_exchanged_only_if_it_lies_otherwise() -> None:
    alike = typed_graph(parse("g (float16[999,999] x) => (float16[999,999] y) { a = Sigmoid(x) [last] y = Mul(x, a) }"))
    apart = typed_graph(parse("g (float16[999,999] x) => (float16[999,999] y) { a = Transpose<perm=[1,0]>(x) [last] y = Mul(x, a) }"))
    exchanged = [
        sum(step.data_bytes for step in plan(model).steps if step.node == "last" and step.kind is StepKind.EXCHANGE)
        for model in (alike, apart)
    ]
    assert exchanged[0] == 0
    assert exchanged[1] >= 999 * 999 * 2


@pytest.mark.parametrize("name", ["use_128bit_conv_unit_load", "enable_fast_reduce", "enable_non_stable_softmax"])
def test_option_of_faster_code_takes_less_time(name: str) -> None:
    model, given = bert_base(1, Precision.FP16), {name: True}
    assert cycles(plan(model, **given)) < cycles(plan(model))  # type: ignore[arg-type] # any option


def test_vertex_code_is_held_once_for_each_operator_and_width() -> None:
    def code_bytes(text: str) -> int:
        return plan(typed_graph(parse(text))).memory[0].by_category["code"]

    one = code_bytes("g (float[8,64] x) => (float[8,64] y) { y = Exp(x) }")
    same = code_bytes("g (float[8,64] x, float[9,64] z) => (float[8,64] y, float[9,64] v) { y = Exp(x) v = Exp(z) }")
    other = code_bytes("g (float[8,64] x, float[8,64] z) => (float[8,64] y, float[8,64] v) { y = Exp(x) v = Tanh(z) }")
    step_bytes = FITTED.step_code_bytes
    assert same - one == step_bytes
    assert other - one == step_bytes + CODELET_BYTES["element-wise"]


def test_streams_may_exceed_the_memory_of_few_io_tiles() -> None:
    with pytest.raises(OutOfTileMemory, match=r"Out of memory on tile 1471: \d+ bytes") as caught:
        plan_graph(resnet50(16, Precision.FP16), hardware=C600, options=CompilerOptions(num_io_tiles=1), name="resnet")
    assert "stream buffers on an IO tile" in str(caught.value)
