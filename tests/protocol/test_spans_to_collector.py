"""Traces as spans at a collector, as part of the traces of clients. Needs the extra `otel`; skipped without it."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from stoker.server.observability.span_export import missing_packages
from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.server_process import SAMPLE_MODELS, copy_models, running_server

pytestmark = pytest.mark.skipif(bool(missing_packages()), reason="needs the packages of the extra otel")

PYTHON_MODELS = Path(__file__).parents[1] / "data" / "python_models"
CONTEXT_CLIENT = Path(__file__).parent / "foreign" / "trace_context.py"
INFER = {"inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for name in ("INPUT0", "INPUT1")]}


def parent(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


class Collector:
    """Receives OTLP over HTTP and records the bodies."""

    def __init__(self) -> None:
        bodies = self.bodies = list[bytes]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Not here."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span for request in requests for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
        ]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    opened = Collector()
    yield opened
    opened.close()


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_spans_of_a_request_are_children_of_the_clients_span(front: str, collector: Collector, tmp_path: Path) -> None:
    repository = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    traces = ["mode=opentelemetry", f"opentelemetry,url={collector.url}", "level=TIMESTAMPS", "rate=0"]
    flags = (f"--model_base_path={repository}", f"--grpc-front={front}", *(f"--trace-config={each}" for each in traces))
    body = json.dumps(INFER).encode()
    with running_server(*flags, at=tmp_path / "server", env={**os.environ, "NO_PROXY": "*"}) as server:
        assert server.get("/v2/models/simple/infer", body)[0] == 200
        for number, sampled in ((1, "01"), (2, "00")):
            assert server.get("/v2/models/simple/infer", body, {"traceparent": parent(number, sampled)})[0] == 200
        message = pb.ModelInferRequest(model_name="simple")
        for name in ("INPUT0", "INPUT1"):
            message.inputs.add(name=name, datatype="INT32", shape=[1, 16]).contents.int_contents.extend(range(16))
        with grpc.insecure_channel(server.grpc) as channel:
            service = "/inference.GRPCInferenceService/"
            channel.unary_unary(service + "ModelInfer")(message.SerializeToString(), metadata=[("traceparent", parent(3))], timeout=30)
            stream = channel.stream_stream(service + "ModelStreamInfer")
            assert len(list(stream(iter([message.SerializeToString()]), metadata=[("traceparent", parent(4))], timeout=30))) == 1
        assert server.stop() == 0
    outer = [span for span in collector.spans() if span.name == "InferRequest"]
    assert sorted(int.from_bytes(span.trace_id) for span in outer) == [1, 3, 4]
    assert sorted(int.from_bytes(span.parent_span_id) for span in outer) == [1, 3, 4]
    inner = [span for span in collector.spans() if span.name == "simple"]
    assert {span.parent_span_id for span in inner} == {span.span_id for span in outer}


def contexts(address: str, clients_python: Path, *parents: str) -> list[str]:
    """The contexts that the model `traced` responds with, one for each client's context."""
    command = [str(clients_python), str(CONTEXT_CLIENT), address, *parents]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("execution", ["process", "thread"])
def test_call_of_a_python_model_belongs_to_the_trace_of_its_request(
    execution: str, collector: Collector, clients_python: Path, tmp_path: Path
) -> None:
    for name in ("traced", "add_sub"):
        shutil.copytree(PYTHON_MODELS / name, tmp_path / "models" / name)
        with (tmp_path / "models" / name / "config.pbtxt").open("a") as config:
            config.write(f'\nparameters {{ key: "execution" value {{ string_value: "{execution}" }} }}\n')
    traces = ["mode=opentelemetry", f"opentelemetry,url={collector.url}", "level=TIMESTAMPS", "rate=0"]
    flags = (f"--model-repository={tmp_path / 'models'}", *(f"--trace-config={each}" for each in traces))
    with running_server(*flags, at=tmp_path / "server", env={**os.environ, "NO_PROXY": "*"}) as server:
        untraced, traced = contexts(server.http, clients_python, "", parent(7))
        assert server.stop() == 0
    assert untraced == "None"
    spans = {span.span_id: span for span in collector.spans()}
    assert {int.from_bytes(span.trace_id) for span in spans.values()} == {7}
    assert sorted(span.name for span in spans.values()) == sorted(
        ["InferRequest", "traced", "compute", "InferRequest", "add_sub", "compute"]
    )
    (inner,) = (span for span in spans.values() if span.name == "add_sub")
    path = []
    while inner is not None:
        path.append(inner.name)
        last, inner = inner, spans.get(inner.parent_span_id)
    assert path == ["add_sub", "InferRequest", "compute", "traced", "InferRequest"]
    assert int.from_bytes(last.parent_span_id) == 7
    compute = next(span for span in spans.values() if span.name == "compute" and spans[span.parent_span_id].name == "traced")
    assert json.loads(traced) == {"traceparent": f"00-{7:032x}-{compute.span_id.hex()}-01"}


def test_python_model_has_no_trace_context_in_the_file_mode(clients_python: Path, tmp_path: Path) -> None:
    repository = copy_models(PYTHON_MODELS, tmp_path / "models", ["traced", "add_sub"])
    traces = [f"triton,file={tmp_path / 'traces'}", "level=TIMESTAMPS", "rate=1"]
    flags = (f"--model-repository={repository}", *(f"--trace-config={each}" for each in traces))
    with running_server(*flags, at=tmp_path / "server") as server:
        assert contexts(server.http, clients_python, parent(7)) == ["None"]
