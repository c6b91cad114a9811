"""The comparison of predicted and measured latencies, and the modelled times of compiled executables."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.device_times import gcu_call_times, ipu_call_times, micro_batch_times
from benchmarks.plan_check import Case, Comparison, print_comparisons, serve_copy
from benchmarks.results import Window
from stoker.backends.gcu.hardware import I20
from stoker.backends.gcu.timing import COPY_LATENCY_S, copy_time_s
from stoker.backends.ipu.runtime import Executable
from stoker.cli.plan.load_simulation import LoadFigures
from tests.fakes.gcu_executables import scaled
from tests.fakes.ipu_programs import compute, doubling, host_read, host_write, write_popef

CASE = Case(name="m", source="ipu", title="IPU", request_rows=2, pipeline_depth=3, max_queue_delay_us=500, clients=(1,))


def compared(p50_ms: float, p99_ms: float, *measured_ms: tuple[float, float]) -> Comparison:
    """A prediction, and p50 and p99 of each round."""
    figures = LoadFigures(100, 0, 1.0, p50_ms / 1e3, p50_ms / 1e3, p99_ms / 1e3, p99_ms / 1e3, 1.0, 0.5, 0.0)
    blank = Window(target="stoker", model="m", protocol="grpc", load="open", requests=100, foreign_cores=0.25)
    windows = [dataclasses.replace(blank, p50_ms=p50, p99_ms=p99) for p50, p99 in measured_ms]
    return Comparison(case=CASE, load="Poisson, 30%", predicted=figures, windows=windows)


def test_prediction_is_compared_with_the_median_round():
    near = compared(10, 20, (10, 19), (9, 18), (40, 80))
    assert (near.measured_ms(50), near.measured_ms(99)) == (10, 19)
    assert near.is_within
    assert not compared(10, 20, (10, 30)).is_within
    assert not compared(10, 20, (15, 20)).is_within


def test_table_has_both_errors_and_the_number_of_rows_within_the_bound():
    out = io.StringIO()
    print_comparisons([compared(10, 20, (10, 25)), compared(11, 22, (10, 20))], Console(file=out, width=160))
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.getvalue().splitlines() if line.startswith("│")]
    assert lines[0][2:] == ["1 x 100", "10.0", "10.0", "+0.0%", "20.0", "25.0", "-20.0%", "no", "0.25"]
    assert lines[1][5:10] == ["+10.0%", "22.0", "20.0", "+10.0%", "yes"]
    assert "1 of 2 rows within 15%" in out.getvalue()


def test_served_copy_has_the_batching_of_its_case(tmp_path: Path) -> None:
    (tmp_path / "compiled" / "1").mkdir(parents=True)
    steps = [host_read(1), compute(4), host_write(1)]
    write_popef(tmp_path / "compiled" / "1" / "executable.popef", doubling((1, 3), steps=steps), num_io_tiles=32, batches_per_step=3)
    service = serve_copy(CASE, tmp_path / "compiled", tmp_path / "served")
    text = (tmp_path / "served" / "m" / "config.pbtxt").read_text(encoding="utf-8")
    for part in ('backend: "poplar"', "max_batch_size: 3", "max_queue_delay_microseconds: 500", '"pipeline_depth"', 'string_value: "3"'):
        assert part in text
    assert service.batch_sizes == (3,)
    assert service.latency_s[3] == pytest.approx(6e-3 + 2 * 4e-3)
    assert service.period_s[3] == pytest.approx(3 * 4e-3)
    assert service.pipeline_depth == 3


def test_times_of_a_micro_batch_are_those_of_the_lanes(tmp_path: Path) -> None:
    steps = [host_read(1), compute(4), host_write(1)]
    path = write_popef(tmp_path / "m.popef", doubling((1, 3), steps=steps), num_io_tiles=32, batches_per_step=3)
    program = Executable(path).program
    service = micro_batch_times(program)
    assert service.batch_sizes == (1,)
    assert (service.latency_s[1], service.period_s[1]) == (pytest.approx(6e-3), pytest.approx(4e-3))
    assert ipu_call_times(program, pipeline_depth=2, request_overhead_s=1e-4).request_overhead_s == 1e-4


def test_times_of_a_card_are_those_of_the_compiled_batch_and_of_the_copied_rows():
    executable = scaled((1, 4), width=3, run_s=1e-3)
    service = gcu_call_times(executable, I20, pipeline_depth=2)
    assert service.batch_sizes == (1, 2, 3, 4)
    for rows in service.batch_sizes:
        run_s = executable.batch_for(rows).run_s[-1]
        # Small tensors of several requests are copied together: x in, y and n out.
        copies_s = copy_time_s(I20, 12 * rows) + copy_time_s(I20, 12 * rows) + copy_time_s(I20, 8 * rows)
        assert service.latency_s[rows] == pytest.approx(run_s + copies_s)
        assert service.period_s[rows] == pytest.approx(run_s)


def test_large_tensors_of_requests_are_copied_one_by_one():
    executable = scaled((4,), width=100_000, run_s=1e-6)
    service = gcu_call_times(executable, I20, request_rows=2, pipeline_depth=2)
    assert service.batch_sizes == (2, 4)
    assert service.period_s[4] == pytest.approx(2 * copy_time_s(I20, 800_000) + copy_time_s(I20, 32))
    assert service.period_s[4] - copy_time_s(I20, 1_600_000) - copy_time_s(I20, 32) == pytest.approx(COPY_LATENCY_S)
