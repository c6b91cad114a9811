"""The tables that the IPU's closed-loop benchmark prints."""

import io
from pathlib import Path

from rich.console import Console

from benchmarks.closed_loop import LoopMeasurement
from benchmarks.ipu_closed_loop import COMPILE_LIMIT_S, ROWS, Compilation, print_compilations, print_loops, print_paced


def test_table_states_whether_each_model_was_compiled_within_the_limits(tmp_path: Path) -> None:
    path = tmp_path / "executable.popef"
    path.write_bytes(b"")
    out = io.StringIO()
    made = [Compilation(path=path, seconds=seconds, peak_mib=100) for seconds in (1, COMPILE_LIMIT_S + 1)]
    print_compilations(list(zip(ROWS[:2], made, strict=True)), Console(file=out, width=120))
    lines = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in out.getvalue().splitlines()]
    assert ["model", "seconds", "peak MiB", "file MiB", "within 180 s, 4,096 MiB"] in lines
    assert [line[-1] for line in lines if line[0] in {row.label for row in ROWS}] == ["yes", "no"]


def _loop(rows_per_s: float, mean_s: float, p99_s: float) -> LoopMeasurement:
    return LoopMeasurement(requests=1000, rows_per_request=4, seconds=4000 / rows_per_s, mean_s=mean_s, p50_s=mean_s, p99_s=p99_s)


def _cells(text: str, label: str) -> list[str]:
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    return next(line for line in lines if line[0] == label)


def test_table_of_the_loop_has_the_error_of_each_published_figure() -> None:
    out = io.StringIO()
    print_loops(
        [(ROWS[1], _loop(7768.2, 0.00224 * 1.05, 0.00253 * 0.9)), (ROWS[0], _loop(2864, 0.005, 0.005))], 4, Console(file=out, width=150)
    )
    known = _cells(out.getvalue(), "resnet50 fp16 b4")
    assert known[1:] == ["7,768", "7,062", "+10.0%", "2.35", "2.24", "+5.0%", "2.28", "2.53", "-10.0%", "ByteMLPerf"]
    assert _cells(out.getvalue(), "resnet50 fp32 b4")[4:10] == ["5.00", "", "", "5.00", "", ""]
    assert "virtual clock" in out.getvalue()


def test_paced_run_is_shown_as_a_ratio_to_the_virtual_clock() -> None:
    out = io.StringIO()
    print_paced([(ROWS[0], _loop(1000, 0.004, 0.005), _loop(900, 0.005, 0.01))], Console(file=out, width=150))
    assert _cells(out.getvalue(), "resnet50 fp32 b4")[1:] == ["900", "0.90", "5.00", "1.25", "10.00", "2.00"]
