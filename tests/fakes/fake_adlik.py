"""A server of Adlik's protocol in a few dozen lines, over gRPC and HTTP on free ports: every input is returned as an output of its name.

Made on the server's own message classes, not on the client's. `response` may be replaced; `failures` has the errors of the next
calls.
"""

import json
import threading
from collections import deque
from collections.abc import Callable
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
from google.protobuf import json_format

from stoker.server.pb.adlik import model_pb2, predict_pb2
from stoker.server.pb.tensorflow.core.framework import types_pb2

MODEL = "echo"
CONFIG = model_pb2.ModelConfigProto(
    name=MODEL,
    platform="topsinference",
    max_batch_size=8,
    input=[
        model_pb2.ModelInput(name="x", data_type=types_pb2.DT_FLOAT, dims=[4]),
        model_pb2.ModelInput(name="small", data_type=types_pb2.DT_UINT8, dims=[2]),
    ],
    output=[model_pb2.ModelOutput(name="x", data_type=types_pb2.DT_FLOAT, dims=[4])],
)


def echo(request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
    """Adlik's response: the chosen outputs, the best classes on request, and the model as it was named."""
    response = predict_pb2.PredictResponse(model_spec=request.model_spec)
    for name, tensor in request.inputs.items():
        if request.output_filter and name not in request.output_filter:
            continue
        response.outputs[name].tensor.CopyFrom(tensor)
        count = request.output_filter[name].cls.count if name in request.output_filter else 0
        if count:
            rows = np.frombuffer(tensor.tensor_content, np.float32).reshape(request.batch_size, -1)
            for row in rows:
                best = np.argsort(-row)[:count]
                classes = [predict_pb2.PredictResponse.Class(idx=int(at), score=float(row[at]), label=f"class {at}") for at in best]
                response.outputs[name].batch_classes.add(cls=classes)
    return response


class FakeAdlik:
    """Both servers. `requests` holds what was predicted, `paths` the HTTP paths asked for.

    Attributes:
        config: Of the one model that it has.
        response: Makes the response to a prediction.
        failures: gRPC status and HTTP status of the next calls.
        tensorflows_metadata: HTTP status and body of GET metadata, without `?format=adlik`; None: Adlik's.
        hold: While cleared, predictions get no response; `arrived` and `cancelled` report one that waits.
    """

    def __init__(self, config: model_pb2.ModelConfigProto = CONFIG, tls: tuple[Path, Path] | None = None) -> None:
        """With `tls` (certificate and key, PEM) gRPC speaks TLS."""
        self.config = config
        self.hold = threading.Event()
        self.arrived = threading.Event()
        self.cancelled = threading.Event()
        self.reset()
        self._grpc = grpc.server(futures.ThreadPoolExecutor(4))
        self._grpc.add_generic_rpc_handlers((self._handlers(),))
        if tls is None:
            port = self._grpc.add_insecure_port("127.0.0.1:0")
        else:
            port = self._grpc.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(tls[1].read_bytes(), tls[0].read_bytes())]))
        self.grpc_url = f"127.0.0.1:{port}"
        self._grpc.start()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _http_handler(self))
        self._http.daemon_threads = True
        self.http_url = f"127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def url(self, protocol: str) -> str:
        return self.grpc_url if protocol == "grpc" else self.http_url

    def reset(self) -> None:
        self.requests: list[predict_pb2.PredictRequest] = []
        self.paths: list[str] = []
        self.response: Callable[[predict_pb2.PredictRequest], predict_pb2.PredictResponse] = echo
        self.failures: deque[tuple[grpc.StatusCode, int, str]] = deque()
        self.tensorflows_metadata: tuple[int, dict[str, object]] | None = None
        self.hold.set()
        self.arrived.clear()
        self.cancelled.clear()

    def close(self) -> None:
        self.hold.set()
        self._grpc.stop(0).wait()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def meta(self, spec: model_pb2.ModelSpec) -> predict_pb2.GetModelMetaResponse:
        response = predict_pb2.GetModelMetaResponse(model_spec=spec, config=self.config)
        response.version_status[1].ready_state = model_pb2.MODEL_READY
        return response

    def _handlers(self) -> grpc.GenericRpcHandler:
        def predict(request, context):
            self.requests.append(request)
            self._fail(context)
            if not self.hold.is_set():
                context.add_callback(self.cancelled.set)
                self.arrived.set()
                self.hold.wait()
            return self.response(request)

        def get_model_meta(request, context):
            self._fail(context)
            if request.model_spec.name != self.config.name:
                context.abort(grpc.StatusCode.NOT_FOUND, f"Model not found: {request.model_spec.name}")
            return self.meta(request.model_spec)

        methods = {
            "predict": grpc.unary_unary_rpc_method_handler(predict, predict_pb2.PredictRequest.FromString, _bytes),
            "getModelMeta": grpc.unary_unary_rpc_method_handler(get_model_meta, predict_pb2.GetModelMetaRequest.FromString, _bytes),
        }
        return grpc.method_handlers_generic_handler("adlik.serving.PredictService", methods)

    def _fail(self, context: grpc.ServicerContext) -> None:
        if self.failures:
            code, _, text = self.failures.popleft()
            context.abort(code, text)


def _bytes(message) -> bytes:
    return message.SerializeToString()


def _http_handler(fake: FakeAdlik) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.paths.append(self.path)
            name = self.path.split("/")[3]
            if name != fake.config.name:
                self._reply(404, json.dumps({"error": f"Model not found: {name}"}))
            elif fake.tensorflows_metadata is not None and not self.path.endswith("?format=adlik"):
                status, facts = fake.tensorflows_metadata
                self._reply(status, json.dumps(facts))
            else:
                self._reply(200, json_format.MessageToJson(fake.meta(model_pb2.ModelSpec(name=name)), preserving_proto_field_name=True))

        def do_POST(self) -> None:
            fake.paths.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = json_format.Parse(body, predict_pb2.PredictRequest())
            fake.requests.append(request)
            if fake.failures:
                _, status, text = fake.failures.popleft()
                self._reply(status, json.dumps({"error": text}))
            else:
                self._reply(200, json_format.MessageToJson(fake.response(request), preserving_proto_field_name=True))

        def _reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            """Tests read no log of it."""

    return Handler
