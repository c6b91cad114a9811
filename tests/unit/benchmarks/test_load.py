"""The generator of the benchmarks against a small server in a process of its own, which an external command starts."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import h2load
from benchmarks.load import Generator, InFlight, WrongResponse
from benchmarks.models import CHECKOUT, BenchModel
from benchmarks.process_tree import cpu_clock_ns
from benchmarks.processes import ChildFailed
from benchmarks.requests import GRPC, HTTP_BINARY, HTTP_JSON, Request, canned_body, canned_response, request_of
from benchmarks.servers import Command, EchoServer, ServerUnderTest

MODEL = BenchModel(name="m", path=Path("m.onnx"), input_name="x", row=np.ones((3, 4), np.float32))
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = 0
    def do_GET(self):
        self.reply(200, b"")
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Handler.seen += 1
        output = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        if "--fail" in sys.argv and Handler.seen % 10 == 0:
            self.reply(503, b'{"error": "queue full"}')
        else:
            self.reply(200, json.dumps({"model_name": "m", "outputs": [output]}).encode())
    def reply(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def command(scratch: Path, *more: str) -> ServerUnderTest:
    script = scratch / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    return Command("other", (sys.executable, str(script), "{http_port}", *more)).server(scratch, scratch / "log")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerUnderTest]:
    with command(tmp_path) as running:
        yield running


@pytest.fixture
def request_json() -> Request:
    return request_of(MODEL, HTTP_JSON)


def test_closed_loop_measures_the_process_of_an_external_command(server: ServerUnderTest, request_json: Request, tmp_path: Path):
    generator = Generator(tmp_path, is_native=False)
    window = generator.closed(server, request_json, InFlight(4), requests=30)
    assert (window.target, window.load, window.concurrency, window.rows, window.errors) == ("other", "closed", 4, 3, 0)
    assert window.requests == 32  # a multiple of those in flight
    assert generator.sent[server.pid] == 32
    assert 0 < window.p50_ms <= window.p95_ms <= window.p99_ms <= window.max_ms
    assert window.server_cpu_us > 0
    assert window.server_rss_mib > 1
    assert window.rows_per_s == pytest.approx(3 * window.requests_per_s)


def test_open_loop_sends_as_many_as_are_due(server: ServerUnderTest, request_json: Request, tmp_path: Path):
    window = Generator(tmp_path).open(server, request_json, capacity_per_s=100.0, load_factor=0.5, seconds=0.4)
    assert (window.load, window.offered_per_s, window.load_factor, window.requests) == ("open", 50.0, 0.5, 20)


def test_response_is_compared_with_what_is_expected(server: ServerUnderTest, request_json: Request, tmp_path: Path):
    generator = Generator(tmp_path)
    generator.check(server, request_json, np.array([[1, 2]], np.float32))
    with pytest.raises(WrongResponse, match="other m over http-json: expected"):
        generator.check(server, request_json, np.array([[1, 9]], np.float32))


def test_failing_requests_end_the_measurement(request_json: Request, tmp_path: Path):
    with command(tmp_path, "--fail") as server, pytest.raises(WrongResponse, match="4 errors, 36 good responses"):
        Generator(tmp_path, is_native=False).closed(server, request_json, InFlight(1), requests=40)


@pytest.mark.skipif(not h2load.is_installed(), reason="h2load is not installed")
def test_h2load_measures_the_same(server: ServerUnderTest, request_json: Request, tmp_path: Path):
    window = Generator(tmp_path, is_native=True).closed(server, request_json, InFlight(2), requests=20)
    assert (window.requests, window.errors) == (20, 0)
    assert window.max_ms >= window.p50_ms > 0


def test_grpc_echo_is_loaded_over_several_connections(tmp_path: Path):
    reply = tmp_path / "reply"
    reply.write_bytes(canned_response(MODEL, np.ones((3, 4), np.float32)))
    with EchoServer("bytes", reply) as echo:
        window = Generator(tmp_path, is_native=False).closed(echo, request_of(MODEL, GRPC), InFlight(2, 4), requests=16)
    assert (window.requests, window.errors) == (16, 0)


@pytest.mark.parametrize(("kind", "protocol"), [("bytes", GRPC), ("protobuf", GRPC), ("h2", GRPC), ("asgi", HTTP_BINARY)])
def test_every_echo_responds(kind: str, protocol: str, tmp_path: Path):
    reply, output = tmp_path / "reply", np.ones((3, 4), np.float32)
    reply.write_bytes(canned_response(MODEL, output) if protocol == GRPC else canned_body(output))
    with EchoServer(kind, reply) as echo:
        Generator(tmp_path).check(echo, request_of(MODEL, protocol), output)


def test_server_that_ends_at_once_is_named_with_its_log(tmp_path: Path):
    broken = Command("other", (sys.executable, "-c", "raise SystemExit('no models at {repository}')")).server(tmp_path, tmp_path)
    with pytest.raises(ChildFailed, match="other ended with 1: no models at"):
        broken.start()


@pytest.mark.parametrize(
    ("concurrency", "protocol", "expected"),
    [(1, GRPC, InFlight(1, 1)), (8, GRPC, InFlight(1, 8)), (32, GRPC, InFlight(4, 8)), (32, HTTP_BINARY, InFlight(32, 1))],
)
def test_eight_calls_share_a_grpc_connection(concurrency: int, protocol: str, expected: InFlight):
    assert InFlight.of(concurrency, request_of(MODEL, protocol)) == expected


def test_sigterm_stops_the_servers_of_a_benchmark(tmp_path: Path):
    script = (
        "import os, signal; from benchmarks.processes import end_on_sigterm; from benchmarks.servers import EchoServer; end_on_sigterm()"
    )
    script += f"\nwith EchoServer('bytes', __import__('pathlib').Path({str(tmp_path / 'reply')!r})) as echo:"
    script += "\n    print(echo.pid, flush=True); os.kill(os.getpid(), signal.SIGTERM); signal.pause()"
    (tmp_path / "reply").touch()
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert cpu_clock_ns(int(done.stdout)) == 0


def test_command_does_not_see_the_modules_of_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    words = (sys.executable, "-c", "import os; raise SystemExit('path: ' + os.environ.get('PYTHONPATH', 'none'))")
    with pytest.raises(ChildFailed, match="path: none"), Command("other", words).server(tmp_path, tmp_path / "log"):
        pass
