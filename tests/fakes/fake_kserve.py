"""A KServe v2 server of a few dozen lines, over gRPC and HTTP on free ports: it echoes tensors, and fails on demand.

Every input comes back as an output of the same name, datatype, shape and bytes. `events` are the responses of a decoupled model. `failures`
holds what the next calls answer instead (None: nothing else).
"""

import json
import ssl
import threading
from collections import deque
from concurrent import futures
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from stoker_client._pb import messages as pb

METADATA: dict[str, Any] = {"name": "fake", "version": "1.2.3", "extensions": ["binary_tensor_data"]}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
MODEL: dict[str, Any] = {"name": "echo", "versions": ["1", "3"], "platform": "fake_platform", "inputs": [TENSOR], "outputs": [TENSOR]}
CONFIG = {"name": "echo", "platform": "fake_platform", "backend": "fake", "max_batch_size": 8, "parameters": {"k": {"string_value": "v"}}}
INDEX = [
    {"name": "echo", "version": "3", "state": "READY", "reason": ""},
    {"name": "broken", "version": "", "state": "", "reason": "no such file"},
]
STATISTICS = {"name": "echo", "version": "3", "last_inference": 2**40, "inference_count": 7, "execution_count": 3}


@dataclass(frozen=True)
class Failure:
    """The replacement for the response of one call."""

    http: int
    code: grpc.StatusCode
    message: str = "configured to fail"
    retry_after: str | None = None


class FakeKserve:
    """Both servers. `calls` lists `gRPC method` or `HTTP method and path` of every call, `headers` the metadata of the last.

    While `hold` is cleared calls get no answer.
    """

    def __init__(self, tls: tuple[Path, Path] | None = None, socket: Path | None = None) -> None:
        """With `tls` (certificate and key, PEM) both speak TLS, and demand the same certificate of their clients.

        gRPC is spoken on the Unix-domain socket `socket` as well.
        """
        self.called = threading.Event()
        self.hold = threading.Event()
        self.reset()
        self._grpc = grpc.server(futures.ThreadPoolExecutor(4))
        self._grpc.add_generic_rpc_handlers((_GrpcHandlers(self),))
        if tls is None:
            self.grpc_url = f"grpc://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        else:
            cert, key = tls[0].read_bytes(), tls[1].read_bytes()
            credentials = grpc.ssl_server_credentials([(key, cert)], root_certificates=cert, require_client_auth=True)
            self.grpc_url = f"grpcs://127.0.0.1:{self._grpc.add_secure_port('127.0.0.1:0', credentials)}"
        if socket is not None:
            self._grpc.add_insecure_port(f"unix:{socket}")
        self._grpc.start()
        self._http = _HttpServer(("127.0.0.1", 0), _handler_for(self))
        self.http_url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._http.server_address[1]}"
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls[0])
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(*tls)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def reset(self) -> None:
        """As new, for the next test."""
        self.calls: list[str] = []
        self.headers: dict[str, str] = {}
        self.bodies: list[bytes] = []
        self.failures: deque[Failure | None] = deque()
        self.events: list[dict[str, Any]] = []
        self.is_ready = True
        self.called.clear()
        self.hold.set()

    def close(self) -> None:
        self.hold.set()
        self._grpc.stop(0).wait()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def echo(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    reply = pb.ModelInferResponse(model_name=request.model_name, model_version=request.model_version or "3", id=request.id)
    for key, value in request.parameters.items():
        reply.parameters[key].CopyFrom(value)
    wanted = {output.name for output in request.outputs}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if not wanted or tensor.name in wanted:
            reply.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            reply.raw_output_contents.append(raw)
    return reply


def _response(event: dict[str, Any]) -> pb.ModelInferResponse:
    """A response with the values of `x` of an event."""
    reply = pb.ModelInferResponse(model_name="echo", model_version="3")
    reply.parameters["triton_final_response"].bool_param = False
    values = np.asarray(event["x"], np.float32)
    reply.outputs.add(name="x", datatype="FP32", shape=[1, values.size])
    reply.raw_output_contents.append(values.tobytes())
    return reply


class _GrpcHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, fake: FakeKserve) -> None:
        self._fake = fake

    def service(self, details):
        method = details.method.rsplit("/", 1)[1]
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream, pb.ModelInferRequest.FromString, _bytes)
        request, response = _ANSWERS[method]

        def handle(message, context):
            self._enter(method, context, self._fake.calls, self._fake.failures)
            return response(self._fake, message)

        return grpc.unary_unary_rpc_method_handler(handle, request.FromString, _bytes)

    def _enter(self, method, context, calls, failures):
        calls.append(method)
        self._fake.headers = dict(context.invocation_metadata())
        self._fake.called.set()
        self._fake.hold.wait(10)
        failure = failures.popleft() if failures else None
        if failure is not None:
            if failure.retry_after is not None:
                context.set_trailing_metadata((("retry-after", failure.retry_after),))
            context.abort(failure.code, failure.message)

    def _stream(self, messages, context):
        calls, failures = self._fake.calls, self._fake.failures  # of this test: the handler may outlive it
        for message in messages:
            self._enter("ModelStreamInfer", context, calls, failures)
            for event in self._fake.events:
                yield pb.ModelStreamInferResponse(infer_response=_response(event))
            if self._fake.events:
                continue
            yield pb.ModelStreamInferResponse(infer_response=echo(message))


def _bytes(message) -> bytes:
    return message.SerializeToString()


def _config(fake: FakeKserve, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
    config = pb.ModelConfig(name="echo", platform="fake_platform", backend="fake", max_batch_size=8)
    config.parameters["k"].string_value = "v"
    return pb.ModelConfigResponse(config=config)


def _keep(fake: FakeKserve, request):
    fake.bodies.append(request.SerializeToString())


_ANSWERS = {
    "ServerLive": (pb.ServerLiveRequest, lambda fake, _: pb.ServerLiveResponse(live=True)),
    "ServerReady": (pb.ServerReadyRequest, lambda fake, _: pb.ServerReadyResponse(ready=fake.is_ready)),
    "ModelReady": (pb.ModelReadyRequest, lambda fake, request: pb.ModelReadyResponse(ready=request.name == "echo")),
    "ServerMetadata": (pb.ServerMetadataRequest, lambda fake, _: pb.ServerMetadataResponse(**METADATA)),
    "ModelMetadata": (pb.ModelMetadataRequest, lambda fake, _: pb.ModelMetadataResponse(**MODEL)),
    "ModelConfig": (pb.ModelConfigRequest, _config),
    "RepositoryIndex": (pb.RepositoryIndexRequest, lambda fake, _: pb.RepositoryIndexResponse(models=INDEX)),
    "ModelStatistics": (pb.ModelStatisticsRequest, lambda fake, _: pb.ModelStatisticsResponse(model_stats=[STATISTICS])),
    "RepositoryModelLoad": (pb.RepositoryModelLoadRequest, lambda fake, r: _keep(fake, r) or pb.RepositoryModelLoadResponse()),
    "RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, lambda fake, r: _keep(fake, r) or pb.RepositoryModelUnloadResponse()),
    "ModelInfer": (pb.ModelInferRequest, lambda fake, request: echo(request)),
}


def _echo_http(path: str, headers, body: bytes) -> tuple[dict[str, str], bytes]:
    head_bytes = int(headers["Inference-Header-Content-Length"])
    head = json.loads(body[:head_bytes])
    wanted = {output["name"] for output in head.get("outputs", [])}
    parts = path.split("/")
    reply: dict[str, Any] = {"model_name": parts[3], "model_version": parts[5] if "versions" in parts else "3", "outputs": []}
    if "id" in head:
        reply["id"] = head["id"]
    reply["parameters"] = {key: value for key, value in head["parameters"].items() if key != "binary_data_output"}
    at, blobs = head_bytes, []
    for tensor in head["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        if not wanted or tensor["name"] in wanted:
            reply["outputs"].append(tensor)
            blobs.append(body[at : at + size])
        at += size
    encoded = json.dumps(reply).encode()
    return {"Inference-Header-Content-Length": str(len(encoded))}, encoded + b"".join(blobs)


def _answer_http(fake: FakeKserve, path: str, headers, body: bytes) -> tuple[int, dict[str, str], bytes]:
    if path.endswith("/generate_stream"):
        fake.bodies.append(body)
        return 200, {"Content-Type": "text/event-stream"}, b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in fake.events)
    if path.endswith("/infer"):
        return 200, *_echo_http(path, headers, body)
    if path == "/v2/health/live" or path == "/v2/models/echo/ready":
        return 200, {}, b""
    if path == "/v2/health/ready":
        return (200 if fake.is_ready else 400), {}, b""
    if path.startswith("/v2/repository/models/"):
        fake.bodies.append(body)
        return 200, {}, b""
    trimmed = [{key: value for key, value in entry.items() if value} for entry in INDEX]
    facts = {
        "/v2": METADATA,
        "/v2/models/echo": MODEL,
        "/v2/models/echo/config": CONFIG,
        "/v2/models/stats": {"model_stats": [STATISTICS]},
        "/v2/models/echo/stats": {"model_stats": [STATISTICS]},
        "/v2/repository/index": trimmed,
    }
    if path not in facts:
        return 404, {}, json.dumps({"error": f"no route {path}"}).encode()
    return 200, {}, json.dumps(facts[path]).encode()


class _HttpServer(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: clients break connections here on purpose."""


def _handler_for(fake: FakeKserve) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *_: object) -> None:
            """Silent."""

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            failures = fake.failures
            fake.calls.append(f"{self.command} {self.path}")
            fake.headers = {key.lower(): value for key, value in self.headers.items()}
            fake.called.set()
            fake.hold.wait(10)
            failure = failures.popleft() if failures else None
            if failure is not None:
                extra = {} if failure.retry_after is None else {"Retry-After": failure.retry_after}
                status, headers, content = failure.http, extra, json.dumps({"error": failure.message}).encode()
            else:
                status, headers, content = _answer_http(fake, self.path, self.headers, body)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = respond  # noqa: N815

    return Handler
