"""The tables of compilations that the IPU's closed-loop benchmark prints."""

import io
from pathlib import Path

from rich.console import Console

from benchmarks.ipu_closed_loop import COMPILE_LIMIT_S, ROWS, Compilation, print_compilations


def test_table_states_whether_each_model_was_compiled_within_the_limits(tmp_path: Path) -> None:
    path = tmp_path / "executable.popef"
    path.write_bytes(b"")
    out = io.StringIO()
    made = [Compilation(path=path, seconds=seconds, peak_mib=100) for seconds in (1, COMPILE_LIMIT_S + 1)]
    print_compilations(list(zip(ROWS[:2], made, strict=True)), Console(file=out, width=120))
    lines = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in out.getvalue().splitlines()]
    assert ["model", "seconds", "peak MiB", "file MiB", "within 180 s, 4,096 MiB"] in lines
    assert [line[-1] for line in lines if line[0] in {row.label for row in ROWS}] == ["yes", "no"]
