"""The command as an operator meets it: spellings, environment, refusals, signals, the ready file, the log."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stoker.server.core.build_kind import BUILD
from stoker.server.flags.table import flags
from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.server_process import (
    PATIENCE_S,
    REPOSITORY_ROOT,
    SAMPLE_MODELS,
    ServerProcess,
    copy_models,
    running_server,
    start_server,
    wait_until,
)


def serve(*flags: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """A start that must end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "stoker.server.main", *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=REPOSITORY_ROOT,
        env={**os.environ, **(env or {})},
        check=False,
    )


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_prints_every_flag_unabridged_and_exits_0(columns):
    done = serve("--help", env={"COLUMNS": columns, "TERM": "dumb"})
    assert done.returncode == 0
    assert "…" not in done.stdout
    assert "unexpected" not in done.stdout
    shown = [name for name, each in flags().items() if not each.flag.hidden]
    for name in shown:
        assert f"│ --{name} " in done.stdout
    for alias in ("--model-repository", "--fs-poll-wait-seconds"):
        assert alias in done.stdout


@pytest.mark.parametrize(
    ("flags", "fragment"),
    [
        (["--model_base_path=x", "--no_such_flag=1"], "no-such-flag"),
        (["--model_base_path=x", "--grpc_port=seventy"], "--grpc-port=seventy: expected a whole number from 0 to 65535"),
        (["--model_base_path=x", "--grpc_port=70000"], "--grpc-port=70000: expected a whole number from 0 to 65535"),
        (["--model_base_path=x", "--settle-secs=nan"], "--settle-secs=nan: expected seconds from 0 to 3600"),
        (["--model_base_path=x", "--strict_readiness=perhaps"], "--strict-readiness=perhaps: expected true, false, 1 or 0"),
        (["--model_base_path=x", "--model-control-mode=foo"], "--model-control-mode=foo: expected none, poll or explicit"),
        (["--model_base_path=x", "--allow-grpc=0", "--allow-http=0"], "leave nothing to serve"),
        (["--model_base_path=x", "--grpc-port=9000", "--http-port=9000"], "--grpc-port and --http-port are both 9000"),
        (["./models"], "unexpected argument './models': no such file or folder"),
        (["--model_base_path=x", "--exit-on-error", "perhaps"], "unexpected argument 'perhaps': flags are --name=value"),
        (["--model_base_path=x", "--limit=json_depth=deep"], "json_depth"),
        (["--model_base_path=x", "--limit=no_such=1"], "no_such"),
        (["--model_base_path=x", "--load-model=digits"], "explicit"),
        ([], "model-base-path"),
        (["--model_base_path="], "is empty"),
        (["--model_base_path=model_repos", "--ready_file=/no/such/x", "--grpc_port=0", "--http_port=0"], "/no/such/x"),
        (["--model_base_path=/no/such/folder", "--grpc_port=0", "--http_port=0"], "/no/such/folder"),
    ],
)
def test_impossible_start_exits_2_with_one_line(flags, fragment):
    done = serve(*flags)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("serve: error: ")
    assert fragment in done.stderr


@pytest.mark.parametrize("front", ["grpc", "http", "metrics"])
def test_occupied_port_exits_2_and_is_named(front):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"grpc": 0, "http": 0, front: port}
        done = serve(f"--model_base_path={SAMPLE_MODELS}", *[f"--{name}_port={number}" for name, number in ports.items()])
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert f"port {port} on 127.0.0.1 is in use" in line
    assert f"--{front}-port" in line


def test_bad_environment_value_names_the_variable():
    done = serve("--model_base_path=x", env={"STOKER_GRPC_PORT": "abc"})
    assert done.returncode == 2
    assert done.stderr == "serve: error: STOKER_GRPC_PORT=abc: expected a whole number from 0 to 65535\n"


def test_triton_and_adlik_spellings_equal_the_environment(tmp_path):
    with running_server(
        "--model-repository",
        str(SAMPLE_MODELS),
        "--fs_poll_wait_seconds=0.5",
        "--strict-readiness",
        "true",
        "--exit-on-error=0",
        "--log-info",
        "--metrics-port=0",
        at=tmp_path,
        env={"STOKER_ID": "furnace", "STOKER_LOADING_METHOD": "manual", "STOKER_REST_API_PORT": "1"},
    ) as server:
        assert server.json("/v2")["name"] == "furnace"
        assert server.get("/v2/repository/models/simple/unload", b"{}")[0] == 200
        assert server.get("/v2/models/simple/ready")[0] == 400


def test_ready_file_contains_the_real_ports_and_is_removed_at_shutdown(tmp_path):
    with running_server(f"--model_base_path={SAMPLE_MODELS}", "--metrics_port=0", at=tmp_path) as server:
        ready = tmp_path / "ready.json"
        facts = json.loads(ready.read_text())
        assert facts["pid"] == server.process.pid
        for name in ("grpc_port", "http_port", "metrics_port"):
            with socket.create_connection(("127.0.0.1", facts[name]), timeout=PATIENCE_S):
                pass
        assert server.stop() == 0
        assert not ready.exists()


def test_browser_at_the_root_is_redirected_to_the_api_page(tmp_path):
    with running_server(f"--model_base_path={SAMPLE_MODELS}", at=tmp_path) as server:
        with urllib.request.urlopen(f"http://{server.http}/", timeout=PATIENCE_S) as page:
            assert page.url == f"http://{server.http}/docs"
            assert b'href="data:' in page.read()
        assert server.get("/no/such/page")[0] == 404
        assert "/" not in server.json("/openapi.json")["paths"]


def test_output_without_a_terminal_is_a_text_table_and_json_log_lines(tmp_path):
    with running_server(f"--model_base_path={SAMPLE_MODELS}", at=tmp_path) as server:
        server.get("/v2/models/absent")
        server.stop()
        lines = [json.loads(line) for line in server.log().splitlines()]
        table = server.out_path.read_text().splitlines()
    assert all({"ts", "level", "message"} <= line.keys() for line in lines)
    assert any(line.get("http") == server.http and line.get("grpc") == server.grpc for line in lines)
    backends = {"digits": "onnxruntime", "digits_gcu": "topsinference", "digits_ipu": "poplar", "simple": "onnxruntime"}
    assert [row.split()[:4] for row in table[1:5]] == [[name, "1", backend, "READY"] for name, backend in backends.items()]
    runtime = f"(runtime: simulated, Stoker {version('stoker')})"
    assert table[5:8] == [
        f"build: {BUILD}",
        f"note: 'digits_ipu' on simulated IPUs, of which there are 4 {runtime}",
        f"note: 'digits_gcu' on a simulated i20 card with 6 clusters {runtime}",
    ]
    assert table[-1] == f"serving grpc on {server.grpc}, http on {server.http}"


def test_table_in_json_format_is_one_json_line(tmp_path):
    with running_server(f"--model_base_path={SAMPLE_MODELS}", "--log-format=json", at=tmp_path) as server:
        server.stop()
        [table] = [json.loads(line) for line in server.out_path.read_text().splitlines()]
    assert {row["model"] for row in table["models"]} == {"digits", "digits_gcu", "digits_ipu", "simple"}
    assert table["addresses"] == {"grpc": server.grpc, "http": server.http}


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_second_signal_at_any_moment_never_kills_the_process(delay_s, tmp_path):
    with running_server(f"--model_base_path={SAMPLE_MODELS}", at=tmp_path) as server:
        os.kill(server.process.pid, signal.SIGTERM)
        time.sleep(delay_s)  # the moments of the shutdown are the point of this test
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) in (0, 1)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for that signal (Linux's account of it)."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.6])
def test_signal_during_the_start_exits_0_without_traceback(delay_s, tmp_path):
    server = start_server(f"--model_base_path={SAMPLE_MODELS}", at=tmp_path, wait_ready=False)
    # Until the interpreter has come to the program's first line, no program can have a say.
    wait_until(lambda: catches(server.process.pid, signal.SIGTERM), what="the program's first line")
    time.sleep(delay_s)  # as above
    assert server.stop(signal.SIGINT) == 0
    assert "Traceback" not in server.log()


def test_one_file_for_both_streams_contains_one_json_object_a_line(tmp_path):
    ready, merged = tmp_path / "ready.json", tmp_path / "merged"
    flags = [f"--model_base_path={SAMPLE_MODELS}", "--grpc_port=0", "--http_port=0", f"--ready_file={ready}"]
    with merged.open("wb") as both:
        process = subprocess.Popen([sys.executable, "-m", "stoker.server.main", *flags], cwd=REPOSITORY_ROOT, stdout=both, stderr=both)
    try:
        wait_until(ready.exists, what="the ready file")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in merged.read_text().splitlines()]
    assert sum("serving grpc on" in line["message"] for line in lines) == 1
    [table] = [line for line in lines if line.get("event") == "models"]
    assert [row["model"] for row in table["models"]] == ["digits", "digits_gcu", "digits_ipu", "simple"]
    assert table["not_ready"] == []


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_server_with_closed_standard_streams_starts_and_serves(closed, tmp_path):
    ready = tmp_path / "ready.json"
    flags = [f"--model_base_path={SAMPLE_MODELS}", "--grpc_port=0", "--http_port=0", f"--ready_file={ready}"]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "stoker.server.main", *flags]
    process = subprocess.Popen(command, cwd=REPOSITORY_ROOT)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, what="the ready file, or the end")
        assert process.poll() is None
        with urllib.request.urlopen(
            f"http://127.0.0.1:{json.loads(ready.read_text())['http_port']}/v2/health/ready", timeout=60
        ) as response:
            assert response.status == 200
        # None of the server's sockets has the number of a standard stream.
        numbers = range(3) if "<" in closed else range(1, 3) if ">&- 2" in closed else [2]
        assert {Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in numbers} == {Path(os.devnull)}
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_start_that_is_not_ready_names_the_missing_models(tmp_path):
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    server = start_server(f"--model_base_path={models}", at=tmp_path, wait_ready=False)
    try:
        wait_until(lambda: "serving" in server.out_path.read_text(), what="the start-up lines")
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.process.wait()
    *_, want, console, ports = server.out_path.read_text().splitlines()
    assert want == "not ready: no READY version of broken"
    assert console.startswith("console: http://127.0.0.1:")
    assert ports.startswith("serving grpc on ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_requests_in_flight_and_exits_0(number, tmp_path):
    models = slow_model(tmp_path / "models", delay_ms=1500)
    with running_server(f"--model_base_path={models}", at=tmp_path) as server:
        answers: list[tuple[int, bytes]] = []
        body = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}).encode()
        asking = threading.Thread(target=lambda: answers.append(server.get("/v2/models/slow/infer", body)))
        asking.start()
        wait_until(lambda: b"stoker_requests_in_flight 1" in server.get("/metrics")[1], what="the request to be in flight")
        os.kill(server.process.pid, number)
        # The port stays open until the last answer is out: a probe gets "not ready", a late client gets the reason.
        wait_until(lambda: server.get("/v2/health/ready")[0] == 400, what="ready to turn false")
        late = server.get("/v2/models/slow/infer", body)
        assert late[0] == 503
        assert b"shutting down" in late[1]
        assert server.process.wait(PATIENCE_S) == 0
        asking.join(PATIENCE_S)
    [(status, answer)] = answers
    assert status == 200, answer
    assert json.loads(answer)["outputs"][0]["data"] == [7]


def test_request_beyond_the_exit_timeout_gets_unavailable_and_the_process_ends(tmp_path):
    models = slow_model(tmp_path / "models", delay_ms=600_000)
    with running_server(f"--model_base_path={models}", "--exit-timeout-secs=0.3", at=tmp_path) as server:
        answers: list[tuple[int, bytes]] = []
        body = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}).encode()
        asking = threading.Thread(target=lambda: answers.append(server.get("/v2/models/slow/infer", body)))
        asking.start()
        wait_until(lambda: b"stoker_requests_in_flight 1" in server.get("/metrics")[1], what="the request to be in flight")
        assert server.stop() == 0
        asking.join(PATIENCE_S)
    [(status, answer)] = answers
    assert status == 503
    assert b"shutting down" in answer


def test_shutdown_delay_after_a_signal_serves_while_not_ready(tmp_path):
    models = slow_model(tmp_path / "models", delay_ms=0)
    with running_server(f"--model_base_path={models}", "--shutdown-delay-secs=3600", at=tmp_path) as server:
        body = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}).encode()
        old = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
        old.request("GET", "/v2/health/ready")
        assert old.getresponse().read() is not None
        with grpc.insecure_channel(server.grpc) as channel:
            call = health_pb2_grpc.HealthStub(channel).Check
            assert call(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status == health_pb2.HealthCheckResponse.SERVING
            os.kill(server.process.pid, signal.SIGTERM)
            wait_until(lambda: server.get("/v2/health/ready")[0] == 400, what="ready to turn false")
            assert call(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status == health_pb2.HealthCheckResponse.NOT_SERVING
            ready = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerReady",
                request_serializer=pb.ServerReadyRequest.SerializeToString,
                response_deserializer=pb.ServerReadyResponse.FromString,
            )
            assert not ready(pb.ServerReadyRequest(), timeout=PATIENCE_S).ready
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/models/slow/infer", body)[0] == 200  # on a new connection
        old.request("POST", "/v2/models/slow/infer", body)
        assert old.getresponse().status == 200
        old.close()
        assert not (tmp_path / "ready.json").exists()
        assert server.stop() == 0  # the second signal ends the delay
        assert "shutting down" in server.log()


def request_in_flight(server: ServerProcess) -> threading.Thread:
    """Sends a request to the model `slow`; returns its thread once the server has it."""
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}).encode()

    def send() -> None:
        with contextlib.suppress(OSError):  # the connection ends with the server
            server.get("/v2/models/slow/infer", body)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    wait_until(lambda: b"stoker_requests_in_flight 1" in server.get("/metrics")[1], what="the request to be in flight")
    return sending


def test_third_signal_ends_the_drain_after_a_shortened_delay(tmp_path):
    models = slow_model(tmp_path / "models", delay_ms=600_000)
    with running_server(f"--model_base_path={models}", "--shutdown-delay-secs=3600", at=tmp_path) as server:
        sending = request_in_flight(server)
        os.kill(server.process.pid, signal.SIGTERM)
        wait_until(lambda: "serving on before the shutdown" in server.log(), what="the delay to begin")
        os.kill(server.process.pid, signal.SIGINT)
        wait_until(lambda: "shutting down" in server.log(), what="the drain to begin")
        assert server.stop() == 1
        sending.join(PATIENCE_S)


def test_second_signal_exits_1_at_once(tmp_path):
    models = slow_model(tmp_path / "models", delay_ms=30_000)
    with running_server(f"--model_base_path={models}", at=tmp_path) as server:
        sending = request_in_flight(server)
        os.kill(server.process.pid, signal.SIGTERM)
        wait_until(lambda: "shutting down" in server.log(), what="the first signal to be logged")
        assert server.stop() == 1
        sending.join(PATIENCE_S)


def test_broken_model_blocks_neither_other_models_nor_the_ports(tmp_path):
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    broken = models / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"not a model")
    with running_server(f"--model_base_path={models}", "--strict-readiness=false", at=tmp_path) as server:
        assert server.get("/v2/models/simple/ready")[0] == 200
        index = {entry["name"]: entry for entry in server.json("/v2/repository/index", {})}
        assert index["broken"]["state"] == "UNAVAILABLE"
        assert index["broken"]["reason"]
        assert server.stop() == 0


def test_broken_model_under_strict_readiness_keeps_ready_false_and_exit_on_error_ends(tmp_path):
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    server = start_server(f"--model_base_path={models}", "--exit-on-error", at=tmp_path, wait_ready=False)
    assert server.process.wait(PATIENCE_S) == 1
    assert "broken" in server.log()
    assert not (tmp_path / "ready.json").exists()


def slow_model(root: Path, delay_ms: int) -> Path:
    """A repository with a slow identity model."""
    version = root / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.identity").touch()
    (root / "slow" / "config.pbtxt").write_text(
        f"""
        backend: "identity"
        max_batch_size: 8
        input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
        """
    )
    return root
