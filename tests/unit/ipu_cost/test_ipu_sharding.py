"""Models spread over several IPUs and pipeline stages: planned, compiled, run."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from stoker.backends.ipu.compile.compiler import as_source, compile_and_export, compile_model
from stoker.backends.ipu.compile.memory import OutOfTileMemory
from stoker.backends.ipu.compile.plan import GraphPlan, survey_graph
from stoker.backends.ipu.hardware import C600
from stoker.backends.ipu.program import StepKind
from stoker.backends.ipu.runtime import ApplicationRuntimeError, DeviceManager, ModelRunner, SimulatedSystem
from stoker.backends.ipu.timing import step_timing
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.options import CompilerOptions
from stoker.compiler.passes import get_pass
from tests.fakes.graphs import parse, run_onnx

THREE_PARTS = """g (float[8,64] x) => (float[8,64] y) {
[one] a = MatMul(x, w) [two] b = Relu(a) [three] c = MatMul(b, w) [four] d = Tanh(c) [five] e = MatMul(d, w) [six] y = Add(e, b) }"""
WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
PIPELINE = CompilerOptions(num_ipus=3, enable_pipelining=True, virtual_graph_mode="manual", batches_per_step=6)


def three_parts() -> onnx.ModelProto:
    """Cut behind `two` and `four`; `six` reads what stage 0 made."""
    cut = [{"node": "two", "device": 0, "stage": 0}, {"node": "four", "device": 1, "stage": 1}]
    return get_pass("manual_sharding", config=cut)(parse(THREE_PARTS, {"w": WEIGHT}))


def marked(*places: tuple[int, int]) -> ir.Model:
    """A chain of three nodes on the given (IPU, stage)."""
    model = typed_graph(parse("g (float[8,64] x) => (float[8,64] y) { [one] a = Relu(x) [two] b = Exp(a) [three] y = Neg(b) }"))
    for node, (ipu, stage) in zip(model.graph, places, strict=True):
        node.metadata_props["__ipu_number"], node.metadata_props["__pipeline_stage"] = str(ipu), str(stage)
    return model


def survey(model: ir.Model, **settings: object) -> GraphPlan:
    return survey_graph(model, hardware=C600, options=CompilerOptions(**settings), name="m")  # type: ignore[arg-type] # any option


def test_every_ipu_has_its_account_and_holds_the_weights_that_it_reads() -> None:
    program = compile_model(three_parts(), options=PIPELINE).program
    assert [account.ipu for account in program.memory] == [0, 1, 2]
    assert [account.by_category["weights"] > 0 for account in program.memory] == [True, True, True]
    assert program.weight_bytes == 3 * WEIGHT.nbytes, "each IPU has a copy"
    assert {(step.ipu, step.stage) for step in program.graphs[0].steps} == {(0, 0), (1, 1), (2, 2)}


def test_activations_cross_the_links_once_to_each_ipu_that_reads_them() -> None:
    steps = compile_model(three_parts(), options=PIPELINE).program.graphs[0].steps
    copies = [(step.node, step.ipu, step.data_bytes) for step in steps if step.kind is StepKind.LINK]
    assert copies == [("b", 1, 8 * 64 * 4), ("d", 2, 8 * 64 * 4), ("b", 2, 8 * 64 * 4)]


def test_streams_enter_at_their_reader_and_leave_at_their_producer() -> None:
    steps = compile_model(three_parts(), options=PIPELINE).program.graphs[0].steps
    assert [(step.node, step.ipu) for step in steps if step.kind is StepKind.HOST_READ] == [("x", 0)]
    assert [(step.node, step.ipu) for step in steps if step.kind is StepKind.HOST_WRITE] == [("y", 2)]


def test_pipeline_rate_is_that_of_its_slowest_stage() -> None:
    piped = compile_model(three_parts(), options=PIPELINE).program
    serial = compile_model(three_parts(), options=CompilerOptions(num_ipus=3, batches_per_step=6)).program
    assert (piped.pipeline_stages, serial.pipeline_stages) == (3, 1)
    of_stage = [sum(step.cycles for step in piped.graphs[0].steps if step.stage == stage) for stage in range(3)]
    clock_hz = 1.33e9
    timing = step_timing(piped)
    assert timing.period_s == pytest.approx(6 * max(of_stage) / clock_hz)
    assert timing.latency_s == pytest.approx((sum(of_stage) + 5 * max(of_stage)) / clock_hz)
    assert step_timing(serial).period_s == pytest.approx(6 * sum(of_stage) / clock_hz)


def test_values_for_a_later_stage_are_kept_once_for_each_micro_batch_between() -> None:
    model = typed_graph(three_parts())  # `six` is two stages behind the maker of b
    options = {"tiles_per_ipu": 16, "num_ipus": 3}
    piped, serial = survey(model, enable_pipelining=True, **options), survey(model, **options)
    extra = piped.memory[2].by_category["activations"] - serial.memory[2].by_category["activations"]
    assert extra == pytest.approx(8 * 64 * 4 / 16, abs=16)


def test_stage_is_on_one_ipu() -> None:
    with pytest.raises(CompileError, match="pipeline stage 0 must lie on one IPU: node 'one' is on IPU 0, node 'two' on 1"):
        survey(marked((0, 0), (1, 0), (1, 1)), enable_pipelining=True)
    assert len(survey(marked((0, 0), (1, 0), (1, 1))).memory) == 2, "no rule without a pipeline"


def test_data_flow_to_later_stages_only() -> None:
    with pytest.raises(CompileError, match="node 'three' of pipeline stage 0 reads 'b', which only stage 1 makes"):
        survey(marked((0, 0), (1, 1), (0, 0)), enable_pipelining=True)


def test_stages_are_numbered_without_gaps() -> None:
    with pytest.raises(CompileError, match="no node is in pipeline stage 1, though there is a stage 2"):
        survey(marked((0, 0), (0, 0), (1, 2)), enable_pipelining=True)


def test_mark_that_is_not_a_number_is_named() -> None:
    model = marked((0, 0), (0, 0), (0, 0))
    model.graph[1].metadata_props["__ipu_number"] = "second"
    with pytest.raises(CompileError, match="node 'two': __ipu_number is 'second', expected a whole number"):
        survey(model)


def test_call_must_fill_complete_rounds_of_the_pipeline() -> None:
    with pytest.raises(OptionError, match="pipelined over 3 stages, so batches_per_step must be a multiple of that; it is 4"):
        compile_model(three_parts(), options=CompilerOptions(num_ipus=3, enable_pipelining=True, batches_per_step=4))


def test_more_ipus_than_requested_are_refused() -> None:
    with pytest.raises(OptionError, match="the model is sharded over 3 IPUs, num_ipus is 2"):
        compile_model(three_parts(), options=CompilerOptions(num_ipus=2))


def test_model_too_large_for_one_ipu_fits_on_several_and_tiles_are_counted_over_them() -> None:
    text = "g (float[1,512] x) => (float[1,512] y) { [one] a = MatMul(x, u) [two] y = MatMul(a, v) }"
    heavy = parse(text, {name: np.ones((512, 512), np.float32) for name in "uv"})
    options = CompilerOptions(tiles_per_ipu=3, num_ipus=2)
    with pytest.raises(OutOfTileMemory, match=r"Out of memory on tile [012]: \d+ bytes"):
        compile_model(heavy, options=options)
    cut = get_pass("manual_sharding", config=[{"node": "one", "device": 0}])(heavy)
    assert len(compile_model(cut, options=options).program.memory) == 2
    late = get_pass("manual_sharding", config=[{"node": "two", "device": 1}])(heavy)
    with pytest.raises(OutOfTileMemory) as caught:
        compile_model(late, options=options)
    assert 3 <= caught.value.tile < 6, "the second IPU's tiles follow the first's"


def test_pipelined_executable_uses_several_devices_and_computes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "executable.popef"
    model = three_parts()
    compile_and_export(model, (), path, PIPELINE)
    x = np.random.default_rng(1).standard_normal((6 * 8, 64)).astype(np.float32)
    system = SimulatedSystem(3)
    with ModelRunner(path, device_manager=DeviceManager(system)) as runner:
        assert [device.num_ipus for device in runner.devices] == [3]
        got = runner.execute({"x": x})["y"]
    for part in range(6):
        rows = slice(8 * part, 8 * (part + 1))
        np.testing.assert_allclose(got[rows], run_onnx(model, {"x": x[rows]})["y"], rtol=1e-5, atol=1e-6)
    with pytest.raises(ApplicationRuntimeError, match=r"wanted 3 IPU\(s\).*the system has 2 usable"):
        ModelRunner(path, device_manager=DeviceManager(SimulatedSystem(2)))


def test_replicas_and_shards_multiply_into_the_devices_needed(tmp_path: Path) -> None:
    path = tmp_path / "executable.popef"
    compile_and_export(three_parts(), (), path, CompilerOptions(num_ipus=3, replication_factor=2))
    with ModelRunner(path, device_manager=DeviceManager(SimulatedSystem(6))) as runner:
        assert [device.num_ipus for device in runner.devices] == [6]
        assert runner.execute({"x": np.zeros((16, 64), np.float32)})["y"].shape == (16, 64)


def test_source_of_a_sharded_model_keeps_its_marks() -> None:
    notes = {node.name: node.metadata_props for node in typed_graph(as_source(three_parts()).model).graph}
    assert notes["five"]["__ipu_number"] == "2"


def test_pipeline_of_one_stage_is_reported_as_none(caplog: pytest.LogCaptureFixture) -> None:
    compile_model(parse(THREE_PARTS, {"w": WEIGHT}), options=CompilerOptions(enable_pipelining=True))
    assert "enable_pipelining has no effect: all nodes are in one stage" in caplog.text
