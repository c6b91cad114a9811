"""Times of a call of the main program, from a schedule of round numbers."""

from typing import Any

import pytest

from stoker.backends.ipu.hardware import ATTACH_S, C600, ENGINE_BUILD_BYTES_PER_S
from stoker.backends.ipu.program import StaticProgram, Step, StepKind, SubGraph
from stoker.backends.ipu.timing import lane_cycles, load_time_s, step_timing

US = round(C600.clock_hz / 1e6)
READ = Step(kind=StepKind.HOST_READ, cycles=3 * US)
SYNC = Step(kind=StepKind.SYNC, cycles=US)
COMPUTE = Step(kind=StepKind.COMPUTE, cycles=10 * US)
EXCHANGE = Step(kind=StepKind.EXCHANGE, cycles=4 * US)
WRITE = Step(kind=StepKind.HOST_WRITE, cycles=2 * US)
STEPS = (READ, SYNC, COMPUTE, EXCHANGE, WRITE)


def program(*schedules: tuple[Step, ...], system: str = "C600", **settings: Any) -> StaticProgram:
    graphs = tuple(SubGraph(index=at, name=f"g{at}", onnx=b"", inputs=(), outputs=(), steps=steps) for at, steps in enumerate(schedules))
    return StaticProgram(package_hash="", system=system, ipu_version=21, tiles_per_ipu=1472, graphs=graphs, **settings)


def test_call_without_overlap_takes_the_sum_of_its_steps() -> None:
    timing = step_timing(program(STEPS, batches_per_step=3, micro_batch_size=4))
    assert timing.latency_s == timing.period_s == pytest.approx(3 * 20e-6)
    assert (timing.compute_s, timing.exchange_s, timing.sync_s) == pytest.approx((30e-6, 12e-6, 3e-6))
    assert (timing.host_read_s, timing.host_write_s, timing.link_s) == pytest.approx((9e-6, 6e-6, 0))
    assert timing.rows == 12
    assert timing.rows_per_s == pytest.approx(12 / 60e-6)


def test_io_tiles_read_and_write_in_parallel_with_computing() -> None:
    timing = step_timing(program(STEPS, num_io_tiles=32, batches_per_step=3))
    assert timing.latency_s == pytest.approx(20e-6 + 2 * 15e-6)
    assert timing.period_s == pytest.approx(3 * 15e-6)


def test_slow_streams_set_the_period() -> None:
    slow = Step(kind=StepKind.HOST_READ, cycles=50 * US)
    timing = step_timing(program((slow, COMPUTE), num_io_tiles=32, batches_per_step=2))
    assert timing.period_s == pytest.approx(2 * 50e-6)


def test_pipeline_stages_run_in_parallel() -> None:
    first, second = (Step(kind=StepKind.COMPUTE, cycles=length * US, stage=stage) for stage, length in ((0, 6), (1, 10)))
    piped = step_timing(program((first, second), pipeline_stages=2, batches_per_step=4))
    assert piped.latency_s == pytest.approx(16e-6 + 3 * 10e-6)
    assert piped.period_s == pytest.approx(4 * 10e-6)
    serial = step_timing(program((first, second), batches_per_step=4))
    assert serial.period_s == pytest.approx(4 * 16e-6)
    assert lane_cycles((READ, first, second, WRITE), is_io_overlapped=True, is_pipelined=True) == [3 * US, 6 * US, 10 * US, 2 * US]


def test_replicas_process_their_rows_in_the_same_time() -> None:
    one, two = (step_timing(program(STEPS, replication_factor=count, micro_batch_size=8)) for count in (1, 2))
    assert (one.rows, two.rows) == (8, 16)
    assert two.period_s == one.period_s
    assert two.rows_per_s == pytest.approx(2 * one.rows_per_s)


def test_models_without_a_batch_count_calls() -> None:
    timing = step_timing(program(STEPS, micro_batch_size=0))
    assert timing.rows == 0
    assert timing.rows_per_s == pytest.approx(1 / 20e-6)


def test_empty_schedule_takes_no_time() -> None:
    timing = step_timing(program(()))
    assert (timing.latency_s, timing.period_s, timing.rows_per_s) == (0, 0, 0)


def test_each_model_of_a_fused_program_has_its_times() -> None:
    fused = program(STEPS, (COMPUTE,))
    assert step_timing(fused, 1).latency_s == pytest.approx(10e-6)
    with pytest.raises(ValueError, match=r"no sub-graph with index 2; it has 0, 1"):
        step_timing(fused, 2)


def test_loading_transfers_code_and_weights() -> None:
    loaded = program(STEPS, code_bytes=500_000_000, weight_bytes=64_000_000)
    expected = ATTACH_S + 500e6 / ENGINE_BUILD_BYTES_PER_S + 564e6 / C600.host_link_bytes_per_s
    assert load_time_s(loaded) == pytest.approx(expected)


def test_unknown_system_is_named() -> None:
    with pytest.raises(ValueError, match=r"system 'C900', known are Bow, C600, M2000"):
        step_timing(program(STEPS, system="C900"))
