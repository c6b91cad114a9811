"""The transports of Adlik's protocol: two gRPC methods, and two HTTP routes with messages in proto3's JSON form."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from google.protobuf import json_format
from google.protobuf.message import Message

from stoker_client._pb import adlik_messages as pb
from stoker_client.errors import InvalidResponse, Unsupported
from stoker_client.grpc_client import GrpcTransport
from stoker_client.grpc_dialect import GrpcRequest, read_message
from stoker_client.http_client import HttpTransport
from stoker_client.http_dialect import HttpRequest, object_of
from stoker_client.per_process import PerProcess
from stoker_client.settings import Connection

SERVICE = "adlik.serving.PredictService"
#: Bound on the concurrent HTTP requests of `submit`; further ones wait.
_HTTP_THREADS = 16

M = TypeVar("M", bound=Message)


class Wire(Protocol):
    """Sends requests, each once. Thread-safe. Every method raises a `StokerError` if there is no response."""

    def model_meta(self, spec: pb.ModelSpec, timeout_s: float | None) -> pb.GetModelMetaResponse:
        """Reads the model's metadata."""

    def predict(self, request: pb.PredictRequest, timeout_s: float | None) -> pb.PredictResponse:
        """Runs one prediction."""

    def submit(self, request: pb.PredictRequest, timeout_s: float | None) -> "Future[pb.PredictResponse]":
        """Starts a prediction; the future raises as `predict` does."""

    def close(self) -> None:
        """Closes every connection."""


class GrpcWire:
    """Over gRPC."""

    def __init__(self, connection: Connection) -> None:
        self._transport = GrpcTransport(connection)

    def model_meta(self, spec: pb.ModelSpec, timeout_s: float | None) -> pb.GetModelMetaResponse:
        request = pb.GetModelMetaRequest(model_spec=spec)
        return self._send("getModelMeta", request, pb.GetModelMetaResponse, timeout_s)

    def predict(self, request: pb.PredictRequest, timeout_s: float | None) -> pb.PredictResponse:
        return self._send("predict", request, pb.PredictResponse, timeout_s)

    def submit(self, request: pb.PredictRequest, timeout_s: float | None) -> "Future[pb.PredictResponse]":
        return self._transport.submit(f"/{SERVICE}/predict", request, lambda data: read_message(pb.PredictResponse, data), timeout_s)

    def close(self) -> None:
        self._transport.close()

    def _send(self, method: str, request: Message, reply: type[M], timeout_s: float | None) -> M:
        response = self._transport.send(GrpcRequest(f"/{SERVICE}/{method}", request, reply), timeout_s)
        assert isinstance(response, reply)
        return response


class HttpWire:
    """Over HTTP. Tensors are base64 text in JSON: a third larger than over gRPC."""

    def __init__(self, connection: Connection) -> None:
        self._transport = HttpTransport(connection)
        self._threads = PerProcess(lambda: ThreadPoolExecutor(_HTTP_THREADS, thread_name_prefix="adlik-http"))

    def model_meta(self, spec: pb.ModelSpec, timeout_s: float | None) -> pb.GetModelMetaResponse:
        # TensorFlow Serving has the same route: a server with both protocols may respond in its form, or with an error.
        try:
            facts = self._metadata(spec, "", timeout_s)
        except Unsupported:
            facts = {}
        if "config" not in facts:
            facts = self._metadata(spec, "?format=adlik", timeout_s)
        return read_meta(facts)

    def predict(self, request: pb.PredictRequest, timeout_s: float | None) -> pb.PredictResponse:
        return parsed(object_of(self._transport.send(predict_request(request), timeout_s)), pb.PredictResponse)

    def submit(self, request: pb.PredictRequest, timeout_s: float | None) -> "Future[pb.PredictResponse]":
        return self._threads.get().submit(self.predict, request, timeout_s)

    def close(self) -> None:
        for threads in self._threads.close():
            threads.shutdown(cancel_futures=True)
        self._transport.close()

    def _metadata(self, spec: pb.ModelSpec, query: str, timeout_s: float | None) -> dict[str, Any]:
        return object_of(self._transport.send(HttpRequest("GET", metadata_route(spec) + query, b"", {}), timeout_s))


#: By the names of the protocols.
WIRES: dict[str, Callable[[Connection], Wire]] = {"grpc": GrpcWire, "http": HttpWire}


def predict_request(request: pb.PredictRequest) -> HttpRequest:
    """The HTTP request of a prediction."""
    body = json_format.MessageToJson(request, preserving_proto_field_name=True, indent=None).encode("utf-8")
    return HttpRequest("POST", f"{_route(request.model_spec)}:predict", body, {"content-type": "application/json"})


def metadata_route(spec: pb.ModelSpec) -> str:
    """The HTTP route of a model's metadata."""
    return f"{_route(spec)}/metadata"


def _route(spec: pb.ModelSpec) -> str:
    """The route of a model. A version label has no route: it is in the request's body."""
    route = f"/v1/models/{quote(spec.name, safe='')}"
    return f"{route}/versions/{spec.version.value}" if spec.HasField("version") else route


def read_meta(facts: dict[str, Any]) -> pb.GetModelMetaResponse:
    """Parses a model's metadata from its JSON object.

    Raises:
        InvalidResponse: it has another form.
    """
    if "config" not in facts:
        raise InvalidResponse("the server's metadata has no 'config': it does not speak Adlik's protocol")
    return parsed(facts, pb.GetModelMetaResponse)


def parsed(facts: dict[str, Any], kind: type[M]) -> M:
    """Parses a message from JSON.

    Raises:
        InvalidResponse: it has another form.
    """
    try:
        return json_format.ParseDict(facts, kind(), ignore_unknown_fields=True, descriptor_pool=pb.POOL)
    except json_format.ParseError as error:
        raise InvalidResponse(f"the server's response is not a {kind.DESCRIPTOR.name}: {error}") from error
