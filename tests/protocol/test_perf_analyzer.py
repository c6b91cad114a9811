"""Triton's own load generator, unmodified: it needs metadata, configuration and statistics."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.sequence_models import write_adding
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server

SCRIPT = REPOSITORY_ROOT / "scripts" / "perf_analyzer"
BINARY = REPOSITORY_ROOT / ".perf_analyzer" / "bin" / "perf_analyzer"
FRONTS = ("h2", "grpcio")
#: A measurement of that many requests, however long they take.
REQUESTS = 150
COUNTED = ("--request-count", str(REQUESTS))
#: With --request-count its threads end after so many requests, and it ends once it has counted all of them since it read the statistics.
#: On a busy machine the threads have begun, or even ended, before that: it then waits for ever with nothing in flight (the main thread in
#: `InferenceProfiler::Measure`, no thread that sends). Such a run is ended after this time and repeated, seconds.
COUNTED_PATIENCE_S = 25
COUNTED_ATTEMPTS = 4
#: Where several loads are tried in one run: short windows, which need not agree, since the machine may be busy.
WINDOWS = ("--measurement-interval=300", "--stability-percentage=999")
#: It starts to send before it reads the statistics that it counts from: so many requests its server figures may miss.
EARLY = 5
#: What only Triton's statistics can fill in.
SERVER_COLUMNS = ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")

OVER_HTTP = {
    "plain": ("-m", "simple", *COUNTED),
    "batch": ("-m", "simple", "-b", "4", *COUNTED),
    "shared memory": ("-m", "simple", "--shared-memory=system", *COUNTED),
    "json": ("-m", "digits", "--input-tensor-format=json", "--output-tensor-format=json", *COUNTED),
    "ipu": ("-m", "digits_ipu", "-b", "2", *COUNTED),
    "concurrency": ("-m", "simple", "-a", "--concurrency-range=1:3:2", *WINDOWS),
    "strings": ("-m", "echo_string", "--shape=INPUT:5", "--string-length=20", "--shared-memory=system", *COUNTED),
    "tracing": ("-m", "simple", "--trace-level=TIMESTAMPS", "--trace-rate=10", "--trace-count=5", *COUNTED),
    "least load in time": ("-m", "simple", "--binary-search", "--latency-threshold=5000", "--concurrency-range=1:2", *WINDOWS),
    "rate": ("-m", "simple", "--request-rate-range=200:400:200", "--request-distribution=poisson", *WINDOWS),
    "sequences": ("-m", "adding", "--sequence-length=5", "--concurrency-range=2", *COUNTED),
}
OVER_GRPC = {
    "plain": ("-m", "simple", "--percentile=95", *COUNTED),
    "streaming": ("-m", "simple", "--streaming", *COUNTED),
    "batch": ("-m", "simple", "-b", "4", *COUNTED),
    "shared memory": ("-m", "simple", "--shared-memory=system", *COUNTED),
    "gzip": ("-m", "digits", "--grpc-compression-algorithm=gzip", *COUNTED),
    "concurrency": ("-m", "simple", "-a", "--concurrency-range=1:3:2", *WINDOWS),
    "strings": ("-m", "echo_string", "--shape=INPUT:5", "--string-length=20", *COUNTED),
    "tracing": ("-m", "simple", "--trace-level=TIMESTAMPS", "--trace-rate=10", "--trace-count=5", *COUNTED),
    "rate": ("-m", "simple", "--request-rate-range=200:400:200", *WINDOWS),
    "sequences": ("-m", "adding", "--streaming", "--sequence-length=5", "--concurrency-range=2", *COUNTED),
    "sequences at a rate": (
        "-m",
        "adding",
        "--streaming",
        "--sequence-length=5",
        "--request-rate-range=100",
        "--num-of-sequences=3",
        *WINDOWS,
    ),
}
#: TensorFlow Serving's metadata tell no batch size; without -b, perf_analyzer wants the whole shape.
AS_TENSORFLOW_SERVING = {
    "one": ("--shape=image:1,8,8", *COUNTED),
    "batch": ("-b", "4", *COUNTED),
    "concurrency": ("-b", "2", "--concurrency-range=1:3:2", *WINDOWS),
}


ECHO = """
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
REPEAT = """
backend: "repeat"
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module", autouse=True)
def binary() -> None:
    if not BINARY.exists():
        pytest.skip("perf_analyzer is not here: run 'make perf-analyzer' (x86_64 Linux)")


@pytest.fixture(scope="module")
def open_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Sample models and others with sequences, strings and several responses, on each gRPC transport; shared memory and tracing are on."""
    at = tmp_path_factory.mktemp("perf_analyzer")
    copy_models(SAMPLE_MODELS, at / "models", ("simple", "digits", "digits_ipu"))
    write_adding(at / "models")
    (at / "models" / "echo_string" / "1").mkdir(parents=True)
    (at / "models" / "echo_string" / "1" / "model.identity").touch()
    (at / "models" / "echo_string" / "config.pbtxt").write_text(ECHO)
    (at / "models" / "repeat" / "1").mkdir(parents=True)
    (at / "models" / "repeat" / "1" / "model.repeat").touch()
    (at / "models" / "repeat" / "config.pbtxt").write_text(REPEAT)
    traces = f"--trace-config=triton,file={at / 'trace.json'}"
    flags = (f"--model_base_path={at / 'models'}", "--allow-client-shm", traces, f"--grpc_front={request.param}")
    with running_server(*flags, at=at / "run") as running:
        yield running


def measured(at: Path, *arguments: str, answered: Callable[[], int] | None = None) -> tuple[str, list[dict[str, str]]]:
    """Runs the script; what it printed, and the rows of its CSV, one for each load. It may neither fail nor complain.

    `answered` counts the requests that the server has answered: it has answered all of a run that does not end.
    """
    rows = at / "rows.csv"
    command = [sys.executable, str(SCRIPT), *arguments, "-f", str(rows)]
    attempts = COUNTED_ATTEMPTS if COUNTED[0] in arguments else 1
    for left in range(attempts - 1, -1, -1):
        before = answered() if answered else 0
        code, printed = ended(command, COUNTED_PATIENCE_S if attempts > 1 else 100)
        if code is not None:
            break
        assert answered is None or answered() - before == REQUESTS, printed
        assert left, printed
    assert code == 0, printed
    # It may say that it could not keep its own pace: the machine may be busy.
    said = re.sub(r".*not able to keep up with the desired request rate.*", "", printed).casefold()
    assert not any(word in said for word in ("warning", "error", "failed", "unable")), printed
    with rows.open(newline="") as file:
        return printed, list(csv.DictReader(file))


def ended(command: list[str], patience_s: float) -> tuple[int | None, str]:
    """Exit code and output of `command`; None: it has not ended in time, and was killed with all that it had started."""
    with subprocess.Popen(command, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            printed, _ = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        return process.returncode, printed


def check_plausible(row: dict[str, str]) -> None:
    assert float(row["Inferences/Second"]) > 0, row
    assert 0 < int(row["p50 latency"]) <= int(row["p90 latency"]) <= int(row["p99 latency"]), row


def check_served(printed: str, rows: list[dict[str, str]], arguments: tuple[str, ...]) -> None:
    """The client's figures and the server's, which it had by the statistics, belong together."""
    assert len(rows) == (2 if any(re.search("range=.*:", word) for word in arguments) else 1), printed
    for row in rows:
        check_plausible(row)
        assert all(int(row[column]) >= 0 for column in SERVER_COLUMNS), row
        assert int(row["Server Compute Infer"]) > 0, row
    if COUNTED[0] in arguments:
        found = re.search(r"Successful request count: (\d+)\n", printed)
        assert found, printed
        assert REQUESTS - EARLY <= int(found[1]) <= REQUESTS, printed


def successes(server: ServerProcess, model: str) -> int:
    """The number of completed requests of the model, by the server's statistics."""
    statistics: Any = server.json(f"/v2/models/{model}/stats")
    return int(statistics["model_stats"][0]["inference_stats"]["success"]["count"])


def measured_and_counted(server: ServerProcess, at: Path, address: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Measures; where the number of requests was given, the server counted just that many."""

    def answered() -> int:
        return successes(server, arguments[1])

    before = answered()
    printed, rows = measured(at, *address, *arguments, answered=answered)
    check_served(printed, rows, arguments)
    if COUNTED[0] in arguments:
        # Whole runs: one that did not end counts as well.
        assert (answered() - before) % REQUESTS == 0, printed


@pytest.mark.parametrize("case", OVER_HTTP)
@pytest.mark.parametrize("open_server", FRONTS[:1], indirect=True)
def test_perf_analyzer_measures_over_http(case: str, open_server: ServerProcess, tmp_path: Path):
    measured_and_counted(open_server, tmp_path, ("-u", open_server.http), OVER_HTTP[case])
    assert open_server.json("/v2/systemsharedmemory/status") == []


@pytest.mark.parametrize("case", OVER_GRPC)
@pytest.mark.parametrize("open_server", FRONTS, indirect=True)
def test_perf_analyzer_measures_over_grpc(case: str, open_server: ServerProcess, tmp_path: Path):
    measured_and_counted(open_server, tmp_path, ("-u", open_server.grpc, "-i", "grpc"), OVER_GRPC[case])
    assert open_server.json("/v2/systemsharedmemory/status") == []


@pytest.mark.parametrize("open_server", FRONTS, indirect=True)
def test_perf_analyzer_counts_the_responses_of_a_decoupled_model(open_server: ServerProcess, tmp_path: Path):
    (tmp_path / "input.json").write_text(json.dumps({"data": [{"IN": {"content": [7, 8, 9], "shape": [3]}}]}))
    flags = ("-m", "repeat", "-i", "grpc", "--streaming", f"--input-data={tmp_path / 'input.json'}", *COUNTED)
    _, [row] = measured(tmp_path, "-u", open_server.grpc, *flags)
    check_plausible(row)
    assert float(row["Response Throughput"]) == pytest.approx(3 * float(row["Inferences/Second"]), rel=0.01)


@pytest.mark.parametrize("case", AS_TENSORFLOW_SERVING)
@pytest.mark.parametrize("open_server", FRONTS, indirect=True)
def test_perf_analyzer_measures_as_a_tensorflow_serving_client(case: str, open_server: ServerProcess, tmp_path: Path):
    flags = ("-u", open_server.grpc, "-i", "grpc", "--service-kind=tfserving", "-m", "digits", *AS_TENSORFLOW_SERVING[case])
    _, rows = measured(tmp_path, *flags)
    assert rows
    for row in rows:
        check_plausible(row)


def test_script_without_an_address_starts_a_server(tmp_path: Path):
    printed, rows = measured(tmp_path, "--serve-flags=--grpc_front=h2", "-m", "digits_gcu", "-i", "grpc", *COUNTED)
    check_served(printed, rows, COUNTED)


def test_script_that_cannot_run_prints_its_reason():
    command = [sys.executable, str(SCRIPT), "--serve-flags=--no-such-flag", "-m", "simple"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "scripts/perf_analyzer: the server was not ready: serve: error: unknown flag --no-such-flag" in done.stderr
