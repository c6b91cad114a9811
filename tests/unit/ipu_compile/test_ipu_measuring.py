import io

import numpy as np
import pytest

from stoker.backends.ipu.compile.assemble import compile_sources, write_popef
from stoker.backends.ipu.compile.compiler import as_source, compile_model
from stoker.backends.ipu.target import SimulatedIpuTarget, run_with_random_data
from stoker.backends.ipu.timing import step_timing
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.reports import report_measurement
from tests.fakes.graphs import parse

MODEL = "g (float16[4,8] x, int32[4] i) => (float16[4,8] y) { a = Gather(w, i) y = Mul(a, x) }"
WEIGHTS = {"w": np.ones((2, 8), np.float16)}


def test_file_runs_and_its_modelled_times_are_reported(tmp_path) -> None:
    options = CompilerOptions(batches_per_step=2, replication_factor=2, constant_weights=False)
    compiled = compile_model(parse(MODEL, WEIGHTS), (), options)
    write_popef(compiled, tmp_path / "m.popef")
    measured = SimulatedIpuTarget().measure(tmp_path / "m.popef", calls=3)
    timing = step_timing(compiled.program)
    assert (measured.batch_size, measured.calls) == (4 * 2 * 2, 3)
    assert (measured.latency_s, measured.throughput) == (timing.latency_s, timing.rows_per_s)
    assert "simulated M2000" in measured.note


def test_models_of_a_fused_file_run_in_turn(tmp_path) -> None:
    sources = [as_source(parse(MODEL, WEIGHTS)), as_source(parse("g (float[3] x) => (float[3] y) { y = Exp(x) }"))]
    compiled = compile_sources(sources, CompilerOptions())
    write_popef(compiled, tmp_path / "m.popef")
    ran = run_with_random_data(tmp_path / "m.popef", calls=5)
    assert ran.calls == 5
    assert [each.latency_s for each in ran.models.values()] == [step_timing(compiled.program, index).latency_s for index in (0, 1)]


def test_fused_models_are_reported_each_with_its_own_rows(tmp_path) -> None:
    sources = [as_source(parse(f"g (float[{rows},8] x) => (float[{rows},8] y) {{ y = Exp(x) }}")) for rows in (2, 5)]
    compiled = compile_sources(sources, CompilerOptions(batches_per_step=3, replication_factor=2))
    write_popef(compiled, tmp_path / "m.popef")
    measured = SimulatedIpuTarget().measure(tmp_path / "m.popef", calls=3)
    first, second = measured.parts["graph0"], measured.parts["graph1"]
    assert (first.batch_size, second.batch_size) == (2 * 3 * 2, 5 * 3 * 2)
    assert (first.calls, second.calls) == (2, 1)
    assert second.throughput == pytest.approx(5 * 3 * 2 / step_timing(compiled.program, 1).period_s)
    report = io.StringIO()
    report_measurement(measured, report)
    assert [line for line in report.getvalue().splitlines() if line.startswith(("graph", "Bs"))] == [
        "graph0:",
        "Bs: 12",
        "graph1:",
        "Bs: 30",
    ]


def test_budget_of_the_host_ends_a_long_run(tmp_path) -> None:
    write_popef(compile_model(parse(MODEL, WEIGHTS)), tmp_path / "m.popef")
    assert run_with_random_data(tmp_path / "m.popef", calls=1000, host_budget_s=0).calls == 1


def test_file_that_is_not_popef_is_a_compile_error(tmp_path) -> None:
    (tmp_path / "m.popef").write_bytes(b"nonsense")
    with pytest.raises(CompileError, match=r"m\.popef"):
        SimulatedIpuTarget().measure(tmp_path / "m.popef")
