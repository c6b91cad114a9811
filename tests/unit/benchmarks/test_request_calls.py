"""The Python calls that one warm inference request runs are bounded: a count, the same on every machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.server.core.build_kind import BUILD

#: Calls, files and stack depth of one request; lower them with every change that makes the path shorter.
BOUNDS = {
    "grpc": (84, 35, 15),
    "http-binary": (82, 28, 18),
    "http-json": (88, 29, 18),
    "grpc-apart": (87, 35, 15),
    "grpc-stream": (106, 38, 18),
    "grpc-steps": (139, 38, 24),
}
#: The same of the calls that a native build leaves to the interpreter.
NATIVE_BOUNDS = (4, 2, 2)


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict:
    report = tmp_path_factory.mktemp("calls") / "calls.json"
    command = [sys.executable, "-m", "benchmarks.request_calls", "--json", str(report)]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=True, capture_output=True, timeout=300)
    return json.loads(report.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", BOUNDS)
def test_warm_request_stays_below_its_bounds_of_calls_files_and_frames(counts: dict, case: str):
    calls, files, depth = BOUNDS[case] if BUILD == "pure" else NATIVE_BOUNDS
    measured = counts[case]
    assert measured["calls"] <= calls, measured
    assert measured["files"] <= files, measured
    assert measured["stack_depth"] <= depth, measured


@pytest.mark.skipif(BUILD == "native", reason="a profile function does not see compiled functions")
@pytest.mark.parametrize("case", BOUNDS)
def test_counted_read_covers_the_request_from_the_socket_to_the_backend(counts: dict, case: str):
    assert {"server.net", "server.scheduling", "server.execution", "backends.onnx"} <= set(counts[case]["packages"])
