"""Results as JSON, floors, and the report, from a canned run."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.floors import judge
from benchmarks.plot import write_plot
from benchmarks.report import print_report
from benchmarks.results import SCHEMA, Run, Verdict, Window, medians


def window(target: str, model: str = "tiny", protocol: str = "grpc", concurrency: int = 8, repeat: int = 0, **figures: float) -> Window:
    fields = {"requests": 100, "elapsed_s": 1.0, "requests_per_s": 100.0, "rows_per_s": 100.0, "p50_ms": 1.0} | figures
    return Window(target=target, model=model, protocol=protocol, load="closed", concurrency=concurrency, repeat=repeat, **fields)  # type: ignore[arg-type]


def raw(model: str, rows: int, repeat: int, **figures: float) -> Window:
    return dataclasses.replace(window("onnxruntime", model, "in-process", 1, repeat, **figures), rows=rows)


@pytest.fixture
def run() -> Run:
    windows = [
        window("echo-bytes", server_cpu_us=200.0),
        window("stoker", server_cpu_us=300.0, errors=1),
        raw("resnet50", 1, 0, p50_ms=40.0, rows_per_s=25.0),
        window("stoker", "resnet50", "grpc", 1, p50_ms=41.0, rows_per_s=24.0),
        raw("resnet50", 8, 0, rows_per_s=30.0),
        window("stoker", "resnet50", "grpc", 8, rows_per_s=27.0),
        dataclasses.replace(window("stoker", "resnet50", "grpc", 0), load="open", offered_per_s=12.0, load_factor=0.5, errors=2),
    ]
    return Run({"cpu": "Abacus", "cores usable": "2"}, {"repeats": 1}, windows, judge(windows))


def test_json_document_contains_its_schema_and_every_window(run: Run) -> None:
    document = json.loads(run.to_json())
    assert sorted(document) == ["machine", "schema", "settings", "verdicts", "windows"]
    assert document["schema"] == SCHEMA
    assert len(document["windows"]) == len(run.windows)
    assert sorted(document["windows"][0]) == sorted(field.name for field in dataclasses.fields(Window))
    assert all(sorted(each) >= ["at_least", "evidence", "floor"] and "passed" in each for each in document["verdicts"])


def test_medians_merge_the_repeats_of_a_cell_and_add_up_counts() -> None:
    merged = medians(
        [window("stoker", repeat=each, server_cpu_us=us) for each, us in enumerate((10.0, 90.0, 20.0))] + [window("echo-bytes")]
    )
    assert [(each.target, each.server_cpu_us, each.requests) for each in merged] == [("stoker", 20.0, 300), ("echo-bytes", 0.0, 100)]


def test_floors_compare_within_a_round_and_take_the_median_of_ratios() -> None:
    windows = [
        each
        for repeat, (bare, ours) in enumerate(((100.0, 150.0), (200.0, 340.0), (50.0, 60.0)))
        for each in (window("echo-bytes", repeat=repeat, server_cpu_us=bare), window("stoker", repeat=repeat, server_cpu_us=ours))
    ]
    (verdict,) = judge(windows)
    assert (verdict.measured, verdict.limit, verdict.passed) == (1.5, 1.6, True)
    assert verdict.evidence == "150/100, 340/200, 60/50 us"


def test_throughput_floor_compares_the_best_served_with_the_best_raw(run: Run) -> None:
    verdict = next(each for each in run.verdicts if "rows/s" in each.floor)
    assert verdict.measured == pytest.approx(27.0 / 30.0)
    assert not verdict.passed


def test_throughput_floor_compares_best_settings_not_luckiest_windows() -> None:
    windows = [
        each
        for repeat, (lucky, steady, ours) in enumerate(((10.0, 20.0, 19.0), (10.0, 20.0, 19.8), (99.0, 20.0, 19.4)))
        for each in (
            raw("resnet50", 1, repeat, rows_per_s=lucky),
            raw("resnet50", 8, repeat, rows_per_s=steady),
            window("stoker", "resnet50", "grpc", 8, repeat, rows_per_s=ours),
        )
    ]
    (verdict,) = judge(windows)
    assert verdict.measured == pytest.approx(0.97)
    assert verdict.evidence == "c=8/batch 8: 19.0/20.0, 19.8/20.0, 19.4/20.0 rows/s"


def test_latency_floor_is_the_difference_to_the_raw_run_nearest_in_time() -> None:
    windows = [
        raw("mlp", 1, 0, p50_ms=10.0),
        window("stoker", "mlp", "grpc", 1, p50_ms=11.0),
        window("stoker", "mlp", "grpc", 8),
        raw("mlp", 1, 0, p50_ms=30.0),
        window("stoker", "mlp", "grpc", 1, p50_ms=31.2),
    ]
    (verdict,) = judge(windows)
    assert verdict.measured == pytest.approx(1.1)
    assert verdict.passed


def test_time_on_a_busy_machine_gives_no_verdict_but_cpu_time_does() -> None:
    windows = [
        raw("tiny", 1, 0, p50_ms=10.0, foreign_cores=1.5),
        window("stoker", "tiny", "grpc", 1, p50_ms=4.0, foreign_cores=1.5, server_cpu_us=30.0),
        window("echo-bytes", "tiny", "grpc", 1, foreign_cores=1.5, server_cpu_us=20.0),
    ]
    latency, cpu = judge(windows)
    assert (latency.passed, latency.is_clear) == (True, False)
    assert (cpu.passed, cpu.is_clear) == (True, True)
    console = Console(width=200, file=io.StringIO())
    print_report(Run({}, {}, windows, [latency, cpu]), console)
    assert "unclear: others used 1.5 cores" in console.file.getvalue()  # type: ignore[attr-defined]


def test_floor_in_time_uses_the_quiet_windows_if_there_are_any() -> None:
    windows = [
        each
        for repeat, (ours, others) in enumerate(((9.0, 1.5), (3.0, 0.0), (9.0, 1.5)))
        for each in (
            raw("mlp", 1, repeat, p50_ms=2.0, foreign_cores=others),
            window("stoker", "mlp", "grpc", 1, repeat, p50_ms=ours, foreign_cores=others),
        )
    ]
    (verdict,) = judge(windows)
    assert (verdict.measured, verdict.is_clear, verdict.evidence) == (1.0, True, "3.00-2.00 ms")


def test_empty_measurement_gets_no_verdict() -> None:
    assert judge([]) == []


def test_report_names_every_cell_and_every_verdict(run: Run) -> None:
    console = Console(width=200, file=io.StringIO())
    print_report(run, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in (
        "Abacus",
        "tiny",
        "resnet50",
        "batch 8",
        "c=8",
        "open 0.5 (12/s)",
        "echo-bytes",
        "pass",
        "miss",
        ">= 0.95 x",
        "1.50 x",
    ):
        assert expected in text


@pytest.mark.slow
def test_plot_is_a_png(run: Run, tmp_path: Path) -> None:
    write_plot(run, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_empty_plot_is_not_written(tmp_path: Path) -> None:
    write_plot(Run({}, {}), tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


@pytest.mark.parametrize(("limit", "at_least", "passed"), [(2.0, False, True), (1.9, False, False), (2.0, True, True), (2.1, True, False)])
def test_verdict_of_rounds_compares_their_median_with_the_bound(limit: float, at_least: bool, passed: bool):
    verdict = Verdict.of_rounds("latency", [9.0, 2.0, 1.0], limit, "ms", at_least=at_least)
    assert (verdict.measured, verdict.evidence, verdict.passed) == (2.0, "9, 2, 1", passed)
